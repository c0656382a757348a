"""The Gaudi fix by the command line: pinned, locked, and applied by the bundle.

The plugin is one of the tests' own, so that the probe has nothing to run: all stops at bytes.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import installs
import places
import pytest
from places import Place
from release import BUNDLE, GAUDI, PROFILE, Release, launch
from test_gaudi import FIX, FOLDER, RUNNER, TRANSPORT, TREE, fixed

POINTS = "[vllm.platform_plugins]\nhpu = vllm_gaudi:register\n"


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> Release:
    made = Release(tmp_path_factory.mktemp("release"))
    profile = made.root / f"profiles/{PROFILE}.toml"
    text = profile.read_text("utf-8")
    text = text.replace(GAUDI, GAUDI.replace("fixes = []", f'fixes = ["{FIX}"]'))
    text += f'[targets.vllm_gaudi]\npins = true\n[fixes.{FIX}]\nsteps = ["edit.toml"]\n'
    profile.write_text(text, "utf-8")
    shutil.copytree(FOLDER, made.root / "patches" / FIX)
    tree = installs.write(made.root.parent / "tree", {"vllm_gaudi/__init__.py": "", **TREE})
    done = launch(
        sys.executable, "pin", "vllm_gaudi", "--source", f"own={tree}", "--profiles", made.root
    )
    assert done.returncode == 0, done.stderr
    done = made.lock()
    assert done.returncode == 0, done.stderr
    return made


def installed(release: Release, folder: Path, tree: dict[str, str]) -> Place:
    place = places.environment(folder / "env", release=release)
    files = {"vllm_gaudi/__init__.py": "", **tree}
    wheel = installs.wheel(folder, "vllm_gaudi", "0.30.0", files, POINTS)
    installs.uv_install(place.python or Path(), str(wheel))
    place.pristine = places.snapshot(place.site)
    return place


def test_the_bundle_serves_the_plugin_and_gives_it_back(release: Release, tmp_path: Path) -> None:
    place = installed(release, tmp_path, TREE)
    document = place.json(BUNDLE, "--verify", "bytes")
    assert document["exit"] == 0, document["problems"]
    for path, text in fixed(TREE).items():
        assert (place.site / path).read_text("utf-8") == text
    assert (place.site / TRANSPORT).exists()
    place.ok("revert", "--all")
    assert place.is_pristine()


def test_another_comment_is_no_difference(release: Release, tmp_path: Path) -> None:
    text = TREE[RUNNER].replace("        kept = {}", "        # By request.\n        kept = {}")
    document = installed(release, tmp_path, {**TREE, RUNNER: text}).json(
        BUNDLE, "--verify", "bytes"
    )
    assert document["exit"] == 0, document["problems"]
    assert any(RUNNER in what for what in document["accepted"])


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        ("kept = {}", "kept = []", "HPUModelRunner.sample_tokens is other code"),
        ("def forward(self, *args,", "def forward(self, step, *args,", "HpuModelAdapter.forward"),
        ("def maybe_wait_for_kv_save(", "def wait_for_kv_save(", "maybe_wait_for_kv_save"),
        ("HPUModelRunner(HpuKVC", "HPUModelRunner(object, HpuKVC", "bases of HPUModelRunner"),
    ],
)
def test_what_the_edits_rely_on_is_as_pinned_or_nothing_is_written(
    release: Release, tmp_path: Path, old: str, new: str, fault: str
) -> None:
    assert TREE[RUNNER].count(old) == 1
    tree = {**TREE, RUNNER: TREE[RUNNER].replace(old, new)}
    place = installed(release, tmp_path, tree)
    document = place.json(BUNDLE, "--verify", "bytes")
    assert document["exit"] == 1
    found = [(problem["kind"], problem["what"]) for problem in document["problems"]]
    assert any(kind == "drifted" and fault in what for kind, what in found), found
    assert place.is_pristine()
