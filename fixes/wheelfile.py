"""A wheel file: what is in it, and whether it is what it says.

Format: https://packaging.python.org/en/latest/specifications/binary-distribution-format/.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO
from zipfile import BadZipFile, ZipFile, ZipInfo

from fixes import paths, record
from fixes.disk import naming
from fixes.distribution import normalized
from fixes.errors import ExitCode, FixesError, Problem

#: Where the files of a ``.data`` folder go that land among the packages; ``data`` is the prefix.
_AMONG_PACKAGES = re.compile(
    r"[^/]+\.data/(?:(?:purelib|platlib)/|data/(?:.+/)?(?:site|dist)-packages/)"
)
#: Signatures of RECORD, which it does not list.
SIGNATURES = ("RECORD.jws", "RECORD.p7s")
_NAME = re.compile(
    r"(?P<name>[^-]+)-(?P<version>[^-]+)(?P<build>-[0-9][^-]*)?(?P<tags>-[^-]+-[^-]+-[^-]+)\.whl"
)
_VERSION = re.compile(rb"^(version:[ \t]*)([^\r\n]*?)([ \t]*\r?)$", re.IGNORECASE | re.MULTILINE)
_CHUNK = 1 << 20
#: What reading a member raises: damage, a method or an encryption that zipfile has not.
_DAMAGE = (BadZipFile, EOFError, NotImplementedError, RuntimeError, zlib.error)


@dataclass(frozen=True)
class WheelFile:
    """An open wheel. ``info`` is its dist-info folder, ``version`` what METADATA says."""

    path: Path
    archive: ZipFile
    name: str
    build: str
    tags: str
    info: str
    version: str

    @cached_property
    def members(self) -> dict[str, ZipInfo]:
        """Every file by its path."""
        return {item.filename: item for item in self.archive.infolist() if not item.is_dir()}

    def moved(self) -> dict[str, str]:
        """The members that are installed over the tree from ``.data``, by where each one goes."""
        there = ((_AMONG_PACKAGES.match(name), name) for name in self.members)
        return {name[found.end() :]: name for found, name in there if found}

    @property
    def folders(self) -> tuple[str, str]:
        """The folders whose names hold the version; the second one need not be there."""
        return self.info, self.info.removesuffix(".dist-info") + ".data"

    def read(self, name: str) -> bytes:
        """A file's bytes. Raises FixesError, kind ``bad-wheel``."""
        with self.sound(name):
            return self.archive.read(self.members[name])

    def unpack(self, names: Iterable[str], folder: Path) -> None:
        """Write some files, those that there are. Raises FixesError."""
        for name in names:
            if name in self.members:
                target = folder / name
                data = self.read(name)
                with naming(target):
                    target.parent.mkdir(parents=True, exist_ok=True)
                    target.write_bytes(data)

    @contextmanager
    def sound(self, what: str = "") -> Iterator[None]:
        """Turn what zipfile raises for damage into a FixesError, kind ``bad-wheel``."""
        try:
            yield
        except _DAMAGE as error:
            raise FixesError(bad(self.path, f"{what}: {error}" if what else str(error))) from error

    def check(self, called: Path | None = None) -> None:
        """Read every member: all is there and whole, and as RECORD says.

        ``called`` is the path to name in messages. Raises FixesError, kind ``bad-wheel``.
        """
        told = record.listed(self.read(f"{self.info}/RECORD"))
        wrong = []
        for name, item in self.members.items():
            line = told.pop(name, None)
            signed = name.removeprefix(f"{self.info}/") in SIGNATURES
            try:
                with self.archive.open(item) as stream:
                    agrees = _agrees(stream, line or b",,", item.file_size)
            except _DAMAGE as error:
                wrong.append(f"{name}: {error}")
                continue
            if line is None and not signed:
                wrong.append(f"{name} is not listed in its RECORD")
            elif not agrees:
                wrong.append(f"{name} is not what its RECORD says")
        wrong += [f"{name} is listed in its RECORD and is not there" for name in told]
        if wrong:
            raise FixesError(*(bad(called or self.path, what) for what in wrong))


def _agrees(stream: IO[bytes], line: bytes, size: int) -> bool:
    """Whether a member, which is read to its end, is as its line in RECORD says."""
    told_hash, _, told_size = line[1:].partition(b",")
    algorithm, _, value = told_hash.decode("ascii", "replace").partition("=")
    known = algorithm in hashlib.algorithms_guaranteed and not algorithm.startswith("shake")
    digest = hashlib.new(algorithm if known else "sha256")
    while piece := stream.read(_CHUNK):
        digest.update(piece)
    agrees = value == record.digest(digest.hexdigest()) if known else not told_hash
    return agrees and told_size in (b"", str(size).encode())


def bad(path: Path, what: str) -> Problem:
    """That a file is no wheel, or a damaged one."""
    hint = "download or build it again"
    return Problem(ExitCode.MISMATCH, "bad-wheel", what, str(path), hint)


@contextmanager
def opened(path: Path, named: str = "") -> Iterator[WheelFile]:
    """An open wheel; ``named`` is its file name where that is not the path's.

    Raises FixesError: ``bad-wheel`` for what is no wheel, CANNOT_WRITE for what cannot be read.
    """
    parts = _NAME.fullmatch(named or path.name)
    if parts is None:
        raise FixesError(bad(path, "has no name of a wheel: NAME-VERSION-PYTHON-ABI-PLATFORM.whl"))
    with naming(path):
        stream = path.open("rb")
    with stream:
        try:
            archive = ZipFile(stream)
        except _DAMAGE as error:
            raise FixesError(bad(path, f"cannot be read as a zip file: {error}")) from error
        with archive:
            yield _described(path, archive, parts)


def _described(path: Path, archive: ZipFile, parts: re.Match[str]) -> WheelFile:
    names = [item.filename for item in archive.infolist()]
    wrong = [f"{name} {fault}" for name in names if (fault := paths.fault(name.removesuffix("/")))]
    wrong += [f"holds {name} twice" for name, count in Counter(names).items() if count > 1]
    placed = Counter(_AMONG_PACKAGES.sub("", n) for n in set(names) if not n.endswith("/"))
    wrong += [f"would install {name} twice" for name, count in placed.items() if count > 1]
    infos = sorted({top for n in names if (top := n.partition("/")[0]).endswith(".dist-info")})
    if len(infos) != 1:
        wrong.append(f"has {len(infos)} dist-info folders")
    else:
        needed = [f"{infos[0]}/{name}" for name in ("METADATA", "WHEEL", "RECORD")]
        wrong += [f"has no {name}" for name in needed if name not in names]
    if wrong:
        raise FixesError(*(bad(path, what) for what in wrong))
    wheel = WheelFile(
        path, archive, parts["name"], parts["build"] or "", parts["tags"], infos[0], ""
    )
    found = _VERSION.search(_head(wheel.read(f"{wheel.info}/METADATA")))
    version = found[2].decode("utf-8", "replace") if found else ""
    told = {"its file name": f"{parts['name']}-{parts['version']}", wheel.info: wheel.info}
    for place, stem in told.items():
        name, _, said = stem.removesuffix(".dist-info").partition("-")
        if normalized(name) != normalized(parts["name"]) or _plain(said) != _plain(version):
            what = f"METADATA says version {version or 'nothing'}, {place} says {name} {said}"
            raise FixesError(bad(path, what))
    return WheelFile(
        path, archive, parts["name"], parts["build"] or "", parts["tags"], infos[0], version
    )


def _head(metadata: bytes) -> bytes:
    """The headers of METADATA, without the description."""
    return re.split(rb"\r?\n\r?\n", metadata, maxsplit=1)[0]


def with_version(metadata: bytes, version: str) -> bytes:
    """METADATA that says another version, else byte for byte the same."""
    head = _head(metadata)
    said = _VERSION.sub(lambda m: m[1] + version.encode() + m[3], head, count=1)
    return said + metadata[len(head) :]


def _plain(version: str) -> str:
    """A version for comparison: in file names ``-`` is ``_``, and case does not count."""
    return version.replace("_", "-").replace("-", ".").lower()
