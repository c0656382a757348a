"""Places that hold the small release: environments by pip and uv, and plain folders."""

from __future__ import annotations

import atexit
import functools
import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import installs
from release import CHECKOUT, FIXED, Release, launch

STATE = "fixes-applied.json"
#: The keys of every document of a verb on a tree, whatever its exit code.
KEYS = {
    "verb",
    "profile",
    "trees",
    "fixes",
    "files",
    "changed",
    "dry_run",
    "level",
    "verification",
    "accepted",
    "notes",
    "problems",
    "digest",
    "tool",
    "exit",
}


class Place:
    """An environment, or a folder, that holds the release."""

    def __init__(self, release: Release, python: Path | None, site: Path) -> None:
        self.release = release
        self.python = python
        self.site = site
        self.package = site / "vllm"
        self.info = min(site.glob("vllm*-0.30.0.dist-info"))  # not that of vllm_gaudi
        self.state = self.info / STATE
        self.pristine = snapshot(site)

    def run(self, *arguments: str | Path, **options: Any) -> subprocess.CompletedProcess[str]:
        """One command line on this place."""
        where: tuple[str | Path, ...] = ("--profiles", self.release.root)
        if self.python is None:
            where = (*where, "--tree", self.site)
        return launch(self.python or sys.executable, *arguments, *where, **options)

    def ok(self, *arguments: str | Path, **options: Any) -> str:
        """One command line that has to succeed; its output."""
        done = self.run(*arguments, **options)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    def fails(self, code: int, *arguments: str | Path, **options: Any) -> str:
        """One command line that has to end with this code; what it said to standard error."""
        done = self.run(*arguments, **options)
        assert done.returncode == code, f"{done.returncode}: {done.stdout}{done.stderr}"
        return done.stderr

    def json(self, *arguments: str | Path, **options: Any) -> dict[str, Any]:
        """The document of one command line, and nothing else on standard output."""
        done = self.run(*arguments, "--json", **options)
        document: dict[str, Any] = json.loads(done.stdout)
        assert document["exit"] == done.returncode and set(document) == KEYS
        return document

    def is_fixed(self) -> bool:
        """Whether every file of the bundle has its bytes, and no other file of vllm changed."""
        now = snapshot(self.site)
        code = {p: data for p, data in now.items() if p.startswith("vllm/")}
        return code == {**{p: d for p, d in self.pristine.items() if p in code}, **FIXED}

    def is_pristine(self) -> bool:
        """Whether every byte is as installed, RECORD included, and nothing was left behind."""
        return snapshot(self.site) == self.pristine


def snapshot(folder: Path, *, bytecode: bool = False) -> dict[str, bytes]:
    """Every file below a folder and its bytes (bytecode only if asked for)."""
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and (bytecode or path.suffix != ".pyc")
    }


def identities(folder: Path) -> dict[str, tuple[object, ...]]:
    """Every name below a folder: inode, mode, size and times."""
    found: dict[str, tuple[object, ...]] = {}
    for path in sorted((folder, *folder.rglob("*"))):
        now = path.lstat()
        found[str(path)] = (now.st_ino, now.st_mode, now.st_size, now.st_mtime_ns, now.st_ctime_ns)
    return found


@functools.cache
def shop() -> Path:
    folder = Path(tempfile.mkdtemp(prefix="vllm-fixes-release-"))
    folder.chmod(0o755)
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return folder


@functools.cache
def standard() -> Release:
    """The release that most tests share; nobody changes it."""
    return Release(shop() / "standard")


def unpacked(folder: Path, release: Release | None = None, *, cpu: bool = False) -> Place:
    """The release as a folder that no interpreter imports from."""
    release = release or standard()
    return Place(release, None, installs.unpack(release.cpu if cpu else release.wheel, folder))


def by_uv(
    folder: Path, *options: str, release: Release | None = None, python: str = sys.executable
) -> Place:
    """The release in a fresh environment, installed by uv."""
    release = release or standard()
    installs.uv("venv", "--quiet", "--no-project", "--python", python, str(folder))
    made = folder / "bin/python"
    installs.uv_install(made, *options, str(release.wheel))
    return Place(release, made, installs.site(made))


def by_pip(folder: Path) -> Place:
    """The release in a fresh environment, installed by pip, which compiles it."""
    made = installs.venv(folder, "pip")
    installs.pip_install(made, str(standard().wheel))
    installs.uv("pip", "uninstall", "--quiet", "--python", str(made), "pip")
    return Place(standard(), made, installs.site(made))


def environment(folder: Path, installer: str = "uv", release: Release | None = None) -> Place:
    """The release in an environment: a copy of one that was installed before."""
    made = _installed(installer)
    shutil.copytree(made.site.parents[2], folder, symlinks=True)
    python = folder / "bin/python"
    return Place(release or standard(), python, installs.site(python))


@functools.cache
def _installed(installer: str) -> Place:
    return {"uv": by_uv, "pip": by_pip}[installer](shop() / installer)


#: Runs the launcher behind a few lines of Python that come first, with an orderly exit.
_BEHIND = """
import os, runpy, sys
os._exit = sys.exit
sys.argv = sys.argv[1:]
sys.path.insert(0, {checkout!r})
{first}
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def behind(first: str) -> dict[str, Any]:
    """Options of ``launch``: the launcher, in a process that does something before."""
    return {"flags": ("-c", _BEHIND.format(checkout=str(CHECKOUT), first=first))}
