"""The fixed wheel: a wheel's members as they are, but for what fixes change and what tells of it.

It is the same to the byte however it came about: from the published wheel at once, from a fixed
one with a fix more, by any Python with the same zlib.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from fixes import outfile, record, state
from fixes.archive import Writer, raw_name
from fixes.digest import sha256
from fixes.state import DamagedStateError, State
from fixes.tree import STATE
from fixes.wheelfile import SIGNATURES, WheelFile, opened, with_version

#: Our part of a local version label. A label of digits alone would lose its leading zeros.
_LABEL = re.compile(r"(^|[._-])fixes\.d[0-9a-f]{12}$")


@dataclass(frozen=True)
class Made:
    """What was written: where, the version that it says, and its hash."""

    file: str
    version: str
    bytes: int
    sha256: str


def version(said: str, digest: str) -> str:
    """The version of the fixed wheel, ``0.30.0+fixes.d0123456789ab``; without a digest, of the
    wheel that it was made from. A label that is there stays: ``0.30.0+cpu.fixes.d0123456789ab``.
    """
    public, _, local = said.partition("+")
    labels = [_LABEL.sub("", local), f"fixes.d{digest[:12]}" if digest else ""]
    local = ".".join(filter(None, labels))
    return f"{public}+{local}" if local else public


def recorded(wheel: WheelFile) -> tuple[str, ...]:
    """The files that a wheel's state says are fixed; none where it has no state to be read."""
    name = f"{wheel.info}/{STATE}"
    try:
        return tuple(state.load(wheel.read(name)).files) if name in wheel.members else ()
    except DamagedStateError:
        return ()


@dataclass(frozen=True)
class Recipe:
    """What goes into a fixed wheel: the wheel, the unpacked part of it with the fixes in (the
    folder that fixes were applied to), and the version that it shall say.
    """

    wheel: WheelFile
    folder: Path
    version: str

    @property
    def file_name(self) -> str:
        """By the naming rules, in which ``-`` separates."""
        wheel, said = self.wheel, self.version.replace("-", "_")
        return f"{wheel.name}-{said}{wheel.build}{wheel.tags}.whl"

    @property
    def folders(self) -> dict[str, str]:
        """Old to new name of the folders whose names hold the version."""
        stem = f"{self.wheel.info.partition('-')[0]}-{self.version.replace('-', '_')}"
        return dict(zip(self.wheel.folders, (f"{stem}.dist-info", f"{stem}.data"), strict=True))

    @property
    def signatures(self) -> tuple[str, ...]:
        """The signatures of the old RECORD, which go."""
        named = (f"{self.wheel.info}/{name}" for name in SIGNATURES)
        return tuple(name for name in named if name in self.wheel.members)

    def write(self, path: Path) -> Made:
        """Write the wheel, whole or not at all. Raises FixesError."""
        with outfile.replacing(path) as stream:
            with self.wheel.path.open("rb") as source, self.wheel.sound():
                self._members(source, Writer(stream))
            stream.flush()
            # Everything, and so all that was copied as well, before it gets its name.
            with opened(Path(stream.name), self.file_name) as result:
                result.check(self.wheel.path)
            size = stream.tell()
            return Made(str(path), self.version, size, _sha256(stream))

    def _members(self, source: BinaryIO, writer: Writer) -> None:
        ours = self._ours()
        info = self.wheel.info
        replaced = {**self._fixed(), **self._about(ours)}
        own = replaced.pop(f"{info}/RECORD")
        gone = self._gone()
        for item in self.wheel.archive.infolist():
            name = item.filename
            if name == f"{info}/RECORD":
                for added in sorted(ours):
                    writer.add(self._new_name(added), ours[added])
                writer.add(self._new_name(name), own, item)
            elif name in ours or name in gone:
                continue
            elif name in replaced:
                writer.add(self._new_name(name), replaced[name], item)
            else:
                copied = raw_name(item)
                top, _, below = copied.partition(b"/")
                new = self.folders.get(top.decode("utf-8", "replace"))
                writer.copy(source, item, new.encode() + b"/" + below if new else copied)
        writer.finish(self.wheel.archive.comment)

    def _new_name(self, name: str) -> str:
        top, _, below = name.partition("/")
        return f"{self.folders.get(top, top)}/{below}"

    def _state(self) -> State | None:
        path = self.folder / self.wheel.info / STATE
        return state.load(path.read_bytes()) if path.exists() else None

    def _ours(self) -> dict[str, bytes]:
        """What no release has: files that fixes add, and the state. They come last."""
        now = self._state()
        if now is None:
            return {}
        added = [file.path for file in now.files.values() if not file.pre]
        found = {path: (self.folder / path).read_bytes() for path in added}
        return {**found, f"{self.wheel.info}/{STATE}": state.dump(self._portable(now))}

    def _portable(self, now: State) -> State:
        """The state without what it knows of this machine."""
        return replace(now, release=self.version, verified=None, answer=None)

    def _fixed(self) -> dict[str, bytes]:
        """The files of the release that hold fixes, and those that have been put back."""
        now = self._state()
        kept = now.files if now else {}
        return {
            name: data
            for name, data in self._unpacked()
            if name in kept or data != self.wheel.read(name)
        }

    def _unpacked(self) -> Iterator[tuple[str, bytes]]:
        for name in self.wheel.members:
            path = self.folder / name
            if not name.startswith(f"{self.wheel.info}/") and path.is_file():
                yield name, path.read_bytes()

    def _gone(self) -> set[str]:
        """Members that are left out: signatures, what a fix had added and none adds now."""
        before = recorded(self.wheel)
        lost = {name for name in before if not (self.folder / name).exists()}
        return {*self.signatures, f"{self.wheel.info}/{STATE}", *lost}

    def _about(self, ours: dict[str, bytes]) -> dict[str, bytes]:
        """METADATA and RECORD."""
        info = self.wheel.info
        metadata = with_version(self.wheel.read(f"{info}/METADATA"), self.version)
        listed = (self.folder / info / "RECORD").read_bytes()
        old: dict[str, tuple[str, int] | bytes | None] = dict.fromkeys(
            [*ours, f"{info}/{STATE}", *self._gone()]
        )
        lines: dict[str, tuple[str, int] | bytes | None] = {
            name: (sha256(data), len(data)) for name, data in sorted(ours.items())
        }
        lines[f"{info}/METADATA"] = sha256(metadata), len(metadata)
        listed = record.rewrite(record.rewrite(listed, old), lines)
        return {
            f"{info}/METADATA": metadata,
            f"{info}/RECORD": record.moved(listed, self.folders),
        }


def _sha256(stream: BinaryIO) -> str:
    stream.seek(0)
    digest = hashlib.sha256()
    while piece := stream.read(1 << 20):
        digest.update(piece)
    return digest.hexdigest()
