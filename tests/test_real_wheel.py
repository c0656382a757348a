"""The published wheels, fixed: who takes them, and what the making costs."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import cache
import installs
import pytest
from installer.sources import WheelFile
from places import STATE
from real import Copy, content
from release import BUNDLE, LAUNCHER, environ, launch
from test_wheel import by_installer, by_pip, by_uv

pytestmark = pytest.mark.wheels

RELEASE = "0.30.0"
MEMORY = 200 << 20


@pytest.fixture(scope="module")
def stock() -> Path:
    return cache.wheel("vllm", RELEASE)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder for some wheels of 315 MB, that is not kept."""
    path = tmp_path_factory.mktemp("wheels")
    yield path
    shutil.rmtree(path)


#: Runs a command and says what the largest of its processes took, in KiB (getrusage(2)).
_MEASURED = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:]).returncode
sys.stderr.write(f"{resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss}\\n")
sys.exit(code)
"""


@pytest.fixture(scope="module")
def made(stock: Path, folder: Path) -> dict[str, Any]:
    """The document of a run, with the memory that it took."""
    measured = [sys.executable, "-c", _MEASURED]
    done = launch(
        *(sys.executable, "wheel", stock, BUNDLE, "--profile", f"v{RELEASE}"),
        *("--to", folder / "fixed", "--json"),
        before=measured,
        timeout=400,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return {**json.loads(done.stdout), "memory": int(done.stderr) << 10}


@pytest.fixture(scope="module")
def fixed(made: dict[str, Any]) -> Path:
    return Path(made["wheel"]["file"])


def test_its_name_and_digest(made: dict[str, Any], fixed: Path) -> None:
    tree = cache.tree("vllm", RELEASE)
    there = Copy(RELEASE, tree, where=("--tree", tree)).json(BUNDLE, "--dry-run")
    assert made["digest"] == there["digest"]
    assert made["changed"] == there["changed"]
    label = f"{RELEASE}+fixes.d{made['digest'][:12]}"
    assert fixed.name == f"vllm-{label}-cp38-abi3-manylinux_2_28_x86_64.whl"


def test_it_takes_little_memory(made: dict[str, Any], stock: Path) -> None:
    assert stock.stat().st_size > 300 << 20
    assert 10 << 20 < made["memory"] < MEMORY


def test_it_is_a_true_wheel(fixed: Path, stock: Path, made: dict[str, Any]) -> None:
    with WheelFile.open(fixed) as source:
        source.validate_record(validate_contents=True)
    with zipfile.ZipFile(stock) as old, zipfile.ZipFile(fixed) as new:
        before = {item.filename: item for item in old.infolist()}
        after = {item.filename: item for item in new.infolist()}
    info = f"vllm-{RELEASE}.dist-info"
    label = made["wheel"]["version"]
    renamed = {name.replace(info, f"vllm-{label}.dist-info"): one for name, one in before.items()}
    changed = {name for name, one in renamed.items() if after[name].CRC != one.CRC}
    about = {f"vllm-{label}.dist-info/{name}" for name in ("METADATA", "RECORD")}
    assert changed == set(made["changed"]) | about
    assert after.keys() - renamed.keys() == {f"vllm-{label}.dist-info/{STATE}"}
    for name in renamed.keys() - changed:
        one, other = renamed[name], after[name]
        assert one.compress_size == other.compress_size and one.date_time == other.date_time


def test_it_is_the_same_when_it_is_made_again_of_itself(
    fixed: Path, stock: Path, folder: Path
) -> None:
    def make(wheel: Path, to: str, *names: str) -> Path:
        done = launch(
            *(sys.executable, "wheel", wheel, *names, "--to", folder / to, "--json"), timeout=400
        )
        assert done.returncode == 0, done.stdout
        return Path(json.loads(done.stdout)["wheel"]["file"])

    def sha256(path: Path) -> str:
        with path.open("rb") as stream:
            digest = hashlib.sha256()
            while piece := stream.read(1 << 20):
                digest.update(piece)
        return digest.hexdigest()

    again = make(fixed, "again", BUNDLE)
    assert (again.name, sha256(again)) == (fixed.name, sha256(fixed))
    again.unlink()
    more, at_once = make(fixed, "more", "pp-offload"), make(stock, "once", BUNDLE, "pp-offload")
    assert (more.name, sha256(more)) == (at_once.name, sha256(at_once))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_run_that_is_stopped_leaves_nothing(
    stock: Path, tmp_path: Path, number: signal.Signals
) -> None:
    out, scratch = tmp_path / "out", tmp_path / "scratch"
    scratch.mkdir()
    command = [sys.executable, LAUNCHER, "wheel", stock, BUNDLE, "--to", out]
    with subprocess.Popen(
        command, cwd="/", env=environ(TMPDIR=str(scratch)), stderr=subprocess.PIPE
    ) as running:
        while not out.is_dir() or not any(path.stat().st_size for path in out.iterdir()):
            assert running.poll() is None
            time.sleep(0.01)
        running.send_signal(number)
        _, said = running.communicate()
    assert running.returncode == {signal.SIGTERM: 143, signal.SIGINT: 130}[number]
    assert b"Traceback" not in said
    assert not [*out.iterdir(), *scratch.iterdir()]


@pytest.mark.parametrize("install", [by_pip, by_uv, by_installer])
def test_installed(
    fixed: Path,
    made: dict[str, Any],
    tmp_path: Path,
    install: Callable[[Path, Path], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "cache"))
    python = installs.venv(tmp_path / "env", "pip")
    site = installs.site(python)
    empty = {path.name for path in site.iterdir()}
    try:
        install(python, fixed)
        copy = Copy(RELEASE, site, python)
        assert not copy.wrong_in_record([*made["changed"], f"{copy.info.name}/{STATE}"])
        status = copy.json("status")
        assert (status["exit"], status["digest"]) == (0, made["digest"])
        assert status["trees"][0]["version"] == made["wheel"]["version"]
        done = copy.json(BUNDLE, "--verify", "bytes", "--expect-digest", made["digest"])
        assert (done["exit"], done["changed"]) == (0, [])
        assert copy.json("verify", BUNDLE, "--verify", "bytes")["exit"] == 0
        _check(python)
        copy.ok("revert", "--all")
        tree = cache.tree("vllm", RELEASE)
        pristine = content(tree / "vllm")
        for path in made["changed"]:
            one = (site / path).read_bytes()
            assert hashlib.sha256(one).hexdigest() == pristine[path.removeprefix("vllm/")][2]
        copy.ok(BUNDLE, "--verify", "bytes")
        remove = [python, "-m", "pip", "uninstall", "--quiet", "--yes", "vllm"]
        assert subprocess.run(remove, cwd="/").returncode == 0
        assert {path.name for path in site.iterdir()} == empty
    finally:
        shutil.rmtree(tmp_path)


def _check(python: Path) -> None:
    """`pip check`: nothing but the requirements that were not asked for is missing."""
    done = subprocess.run([python, "-m", "pip", "check"], capture_output=True, text=True, cwd="/")
    lines = done.stdout.splitlines()
    assert all(" requires " in line and line.endswith("is not installed.") for line in lines), lines
