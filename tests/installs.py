"""Small packages that stand in for vLLM, installed for real by pip, uv and setuptools."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Mapping
from pathlib import Path

VERSION = "0.30.0"


def package(version: str = VERSION, target: str = "vllm") -> dict[str, str]:
    """The files of a package, as vLLM's are laid out."""
    return {
        f"{target}/__init__.py": "from ._version import __version__\n",
        f"{target}/_version.py": f"__version__ = version = '{version}'\n",
        f"{target}/v1/__init__.py": "",
        f"{target}/v1/engine/__init__.py": "",
        f"{target}/v1/engine/core.py": "def step():\n    return 1\n",
    }


def write(folder: Path, files: Mapping[str, str]) -> Path:
    """A folder with files of the given text."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


def sources(folder: Path, version: str = VERSION, target: str = "vllm") -> Path:
    """A source checkout that setuptools builds."""
    project = (
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n'
        f'[project]\nname = "{target}"\nversion = "{version}"\n'
        f'[tool.setuptools.packages.find]\ninclude = ["{target}*"]\n'
    )
    return write(folder, {"pyproject.toml": project, **package(version, target)})


def wheel(
    folder: Path,
    name: str = "vllm",
    version: str = VERSION,
    files: Mapping[str, str] | None = None,
    entry_points: str = "",
) -> Path:
    """A wheel that pip and uv accept."""
    info = f"{name}-{version}.dist-info"
    files = dict(package(version) if files is None else files)
    files[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: {version}\n"
    )
    files[f"{info}/WHEEL"] = (
        "Wheel-Version: 1.0\nGenerator: tests\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    )
    if entry_points:
        files[f"{info}/entry_points.txt"] = entry_points
    text = io.StringIO(newline="")
    rows = [(path, _hash(content), len(content.encode())) for path, content in files.items()]
    csv.writer(text, lineterminator="\n").writerows([*rows, (f"{info}/RECORD", "", "")])
    files[f"{info}/RECORD"] = text.getvalue()
    path = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for inner, text in files.items():
            archive.writestr(inner, text)
    return path


def unpack(wheel: Path, folder: Path) -> Path:
    """A folder that holds what a wheel holds."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    return folder


def venv(folder: Path, *packages: str) -> Path:
    """The interpreter of a fresh environment that holds these packages."""
    uv("venv", "--quiet", "--python", sys.executable, str(folder))
    if packages:
        uv_install(folder / "bin/python", *packages)
    return folder / "bin/python"


def site(python: Path) -> Path:
    """The site-packages of an environment."""
    (found,) = python.parent.parent.glob("lib/python3.*/site-packages")
    return found


def uv(*arguments: str) -> None:
    """Run uv."""
    program = shutil.which("uv", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    assert program, "uv belongs to the tests' requirements"
    _run(program, *arguments)


def uv_install(python: Path, *what: str) -> None:
    """Install by uv."""
    uv("pip", "install", "--quiet", "--no-deps", "--python", str(python), *what)


def pip_install(python: Path, *what: str) -> None:
    """Install by the environment's pip, with bytecode."""
    _run(str(python), "-m", "pip", "install", "--quiet", "--no-deps", "--no-cache-dir", *what)


def git(folder: Path, *arguments: str) -> str:
    """Run git without anybody's settings."""
    environ = {
        **os.environ,
        "GIT_CONFIG_GLOBAL": os.devnull,
        "GIT_CONFIG_SYSTEM": os.devnull,
        "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z",
        "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z",
    }
    user = ["-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "gc.auto=0"]
    done = subprocess.run(
        ["git", *user, *arguments], cwd=folder, env=environ, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _run(*command: str) -> None:
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    done = subprocess.run(command, env=environ, cwd="/", capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def _hash(text: str) -> str:
    raw = hashlib.sha256(text.encode()).digest()
    return "sha256=" + base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
