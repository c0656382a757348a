"""What is built: a wheel that works without the checkout, and a source distribution."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import installs
import pytest

from fixes import __version__

CHECKOUT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the sdist, and the wheel that was built from it."""
    folder = tmp_path_factory.mktemp("dist")
    command = [sys.executable, "-m", "build", "--installer", "uv", "--outdir", str(folder)]
    done = subprocess.run(
        [*command, str(CHECKOUT)], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def wheel(built: Path) -> Path:
    (found,) = built.glob("*.whl")
    return found


@pytest.fixture(scope="module")
def python(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An interpreter whose environment holds the wheel and nothing else."""
    return installs.venv(tmp_path_factory.mktemp("clean") / "venv", str(wheel))


def run(python: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    return subprocess.run(
        [python.parent / "vllm-fixes", *arguments],
        cwd=python.parent,
        env=environ,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )


def authored() -> set[str]:
    """Every file under profiles/ and patches/ that is not a by-product."""
    return {
        path.relative_to(CHECKOUT).as_posix()
        for folder in ("profiles", "patches")
        for path in (CHECKOUT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def asked() -> set[str]:
    """The texts, prompts and thresholds of `parity`."""
    found = (CHECKOUT / "fixes/parity").rglob("*")
    return {
        path.relative_to(CHECKOUT).as_posix()
        for path in found
        if path.suffix in (".txt", ".jsonl", ".toml")
    }


def test_the_wheel_is_for_any_machine_and_needs_nothing(wheel: Path) -> None:
    assert wheel.name == f"vllm_fixes-{__version__}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        (metadata,) = [name for name in archive.namelist() if name.endswith("/METADATA")]
        lines = archive.read(metadata).decode().splitlines()
    required = [line for line in lines if line.startswith("Requires-Dist: ")]
    assert all("extra == " in line for line in required), required
    assert {line for line in lines if line.startswith("Provides-Extra: ")} == {
        "Provides-Extra: maintain",
        "Provides-Extra: parity",
        "Provides-Extra: test",
    }
    assert "License-Expression: Apache-2.0" in lines
    assert {"License-File: LICENSE", "License-File: NOTICE"} <= set(lines)


def test_the_wheel_holds_all_that_is_authored_and_the_package_alone(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if not name.endswith("/")}
        for name in authored():
            assert archive.read(f"fixes/data/{name}") == (CHECKOUT / name).read_bytes()
    code = {path.relative_to(CHECKOUT).as_posix() for path in (CHECKOUT / "fixes").rglob("*.py")}
    data = {f"fixes/data/{name}" for name in authored()} | asked()
    outside = {name for name in names if not name.startswith("vllm_fixes-")}
    assert outside == code | data


def test_the_command_lists_without_the_checkout(python: Path) -> None:
    done = run(python, "list", "--json")
    assert done.returncode == 0, done.stderr
    profiles = {one["profile"] for one in json.loads(done.stdout)["profiles"]}
    assert profiles == {path.stem for path in (CHECKOUT / "profiles").glob("v*.toml")}
    assert run(python, "--version").stdout == f"vllm-fixes {__version__}\n"


def test_the_package_runs_as_a_module(python: Path) -> None:
    done = subprocess.run([python, "-m", "fixes", "--version"], capture_output=True, text=True)
    assert done.stdout == f"vllm-fixes {__version__}\n"


def test_maintaining_says_what_it_needs(python: Path) -> None:
    done = run(python, "lock")
    assert done.returncode == 2
    assert ".[maintain]" in done.stderr


def test_parity_says_what_it_needs(python: Path) -> None:
    done = run(python, "parity", "http://127.0.0.1:9")
    assert done.returncode == 2
    assert "needs the package httpx, matplotlib, numpy, rich" in done.stderr
    assert "pip install '.[parity]'" in done.stderr


@pytest.mark.wheels
def test_the_command_fixes_a_real_tree(python: Path, tmp_path: Path) -> None:
    import shutil

    import cache

    tree = shutil.copytree(cache.tree("vllm", "0.30.0"), tmp_path / "tree")
    fixed = run(python, "pipeline-parallel", "--profile", "v0.30.0", "--tree", tree, "--json")
    assert fixed.returncode == 0, fixed.stderr
    mine = subprocess.run(
        [sys.executable, CHECKOUT / "fixes/apply_all.py", "status", "--tree", tree, "--json"],
        capture_output=True,
        text=True,
    )
    assert json.loads(mine.stdout)["digest"] == json.loads(fixed.stdout)["digest"]


def test_the_sdist_holds_what_a_checkout_does(built: Path) -> None:
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert authored() <= names
    wanted = {"apply_all.py", "README.md", "LICENSE", "NOTICE", "CHANGELOG.md", ".ci/run"}
    wanted |= {"tests/test_packaging.py", "docs/concepts.md", "benchmarks/timing.py"}
    assert wanted <= names
    assert not [name for name in names if "__pycache__" in name or name.endswith(".pyc")]
