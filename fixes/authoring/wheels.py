"""Published wheels: fetched once into a cache, then read straight from the zip file."""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from zipfile import BadZipFile, ZipFile

from packaging.utils import (
    InvalidWheelFilename,
    canonicalize_name,
    canonicalize_version,
    parse_wheel_filename,
)

from fixes.errors import ExitCode, FixesError, Problem

#: Wheels for these platforms are asked for on any machine and any Python: vLLM's are
#: ``cp38-abi3-manylinux``, and only their Python files are read.
_PLATFORMS = ("manylinux_2_28_x86_64", "manylinux_2_31_x86_64", "manylinux_2_35_x86_64")
_TAGS = ("--python-version=312", "--implementation=cp", "--abi=abi3", "--abi=none")


@dataclass(frozen=True)
class Wheel:
    """A wheel file. ``requirement`` is what it was asked for as, like ``vllm==0.30.0``.

    Members are checked against the wheel's own RECORD (the binary distribution format of
    packaging.python.org: sha256 in URL-safe base64 without padding) as they are read.
    """

    requirement: str
    path: Path
    sha256: str
    archive: ZipFile = field(repr=False, compare=False)

    @cached_property
    def names(self) -> frozenset[str]:
        """The paths of all members, relative to site-packages."""
        return frozenset(name for name in self.archive.namelist() if not name.endswith("/"))

    @cached_property
    def _dist_info(self) -> str:
        tops = {name.partition("/")[0] for name in self.names}
        folders = [top for top in tops if top.endswith(".dist-info")]
        if len(folders) != 1:
            raise self._bad(f"has {len(folders)} dist-info folders")
        return folders.pop()

    @cached_property
    def _record(self) -> dict[str, str]:
        text = self.archive.read(f"{self._dist_info}/RECORD").decode("utf-8")
        return {row[0]: row[1] for row in csv.reader(text.splitlines()) if len(row) == 3}

    @cached_property
    def distribution(self) -> tuple[str, str]:
        """Name and version, as the wheel's METADATA has them."""
        text = self.archive.read(f"{self._dist_info}/METADATA").decode("utf-8")
        head = text.split("\n\n")[0].splitlines()
        fields = dict(line.split(": ", 1) for line in head if ": " in line)
        return fields.get("Name", ""), fields.get("Version", "")

    def read(self, path: str) -> bytes:
        """A member's bytes. Raises KeyError if there is none, FixesError if RECORD differs."""
        data = self.archive.read(path)
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        if self._record.get(path) != f"sha256={digest}":
            raise self._bad(f"{path} is not what its RECORD says")
        return data

    def unpack(self, package: str, folder: Path) -> None:
        """Write a package's Python and JSON files and the dist-info, but no compiled code."""
        for name in sorted(self.names):
            code = name.startswith(f"{package}/") and name.endswith((".py", ".json"))
            if code or name.startswith(f"{self._dist_info}/"):
                target = folder / name
                target.parent.mkdir(parents=True, exist_ok=True)
                target.write_bytes(self.archive.read(name))

    def _bad(self, what: str) -> FixesError:
        return FixesError(Problem(ExitCode.MISMATCH, "bad-wheel", what, str(self.path)))


def default_cache() -> Path:
    """``$VLLM_FIXES_CACHE``, else ``~/.cache/vllm-fixes``."""
    return Path(os.environ.get("VLLM_FIXES_CACHE") or "~/.cache/vllm-fixes").expanduser()


def open_wheel(requirement: str, cache: Path) -> Wheel:
    """The published wheel of ``name==version``, downloaded if the cache lacks it.

    Raises FixesError: ``no-wheel`` if it cannot be had, ``bad-wheel`` if it is broken or is
    another distribution's.
    """
    folder = cache / "wheels"
    path = _cached(requirement, folder) or _download(requirement, folder)
    try:
        wheel = Wheel(requirement, path, _sha256(path), ZipFile(path))
        name, version = wheel.distribution
    except (BadZipFile, KeyError, UnicodeDecodeError) as error:
        problem = Problem(ExitCode.MISMATCH, "bad-wheel", f"no wheel: {error}", str(path))
        raise FixesError(problem) from None
    if _identity(name, version) != _identity(*requirement.split("==")):
        raise wheel._bad(f"is {name}=={version}, not {requirement}")
    return wheel


def _identity(name: str, version: str) -> tuple[str, str]:
    return canonicalize_name(name), canonicalize_version(version)


def _sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def _cached(requirement: str, folder: Path) -> Path | None:
    wanted = _identity(*requirement.split("=="))
    found = []
    for path in sorted(folder.glob("*.whl")):
        try:
            name, version, _, _ = parse_wheel_filename(path.name)
        except InvalidWheelFilename:
            continue
        if _identity(name, str(version)) == wanted:
            found.append(path)
    if len(found) > 1:
        what = f"several wheels of it: {', '.join(path.name for path in found)}"
        problem = Problem(ExitCode.MISMATCH, "no-wheel", what, requirement, "keep one of them")
        raise FixesError(problem)
    return found[0] if found else None


def _download(requirement: str, folder: Path) -> Path:
    """Fetch one wheel with pip, from wherever pip is set up to fetch from."""
    folder.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(dir=folder) as scratch:
        command = [
            *_pip(requirement),
            *("download", "--no-deps", "--only-binary=:all:", "--quiet", "--dest", scratch),
            *_TAGS,
            *(f"--platform={platform}" for platform in _PLATFORMS),
            requirement,
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheels = list(Path(scratch).glob("*.whl"))
        if done.returncode or len(wheels) != 1:
            reason = (done.stderr.strip().splitlines() or ["nothing was downloaded"])[-1]
            raise FixesError(Problem(ExitCode.MISMATCH, "no-wheel", reason, requirement))
        path = folder / wheels[0].name
        wheels[0].replace(path)
    return path


def _pip(requirement: str) -> Sequence[str]:
    """How to run pip: this interpreter's, else the one on PATH, else by uv."""
    if find_spec("pip"):
        return (sys.executable, "-m", "pip")
    if pip := shutil.which("pip"):
        return (pip,)
    if uv := shutil.which("uv"):
        return (uv, "tool", "run", "pip")
    hint = "install pip, or put the wheel into the cache's folder 'wheels'"
    raise FixesError(Problem(ExitCode.MISMATCH, "no-wheel", "found no pip", requirement, hint))
