"""The state: what was applied to a tree, and how to take it back without a network.

``fixes-applied.json`` in the tree's home. It is a hint, the bytes are the truth: every run
hashes the files again, and a state that is missing or damaged is made anew from them.
"""

from __future__ import annotations

import base64
import zlib
from dataclasses import asdict, dataclass, field
from enum import IntEnum
from typing import Any

from fixes.digest import seal, sha256, unseal

FORMAT = 1


class Level(IntEnum):
    """How far a tree has been verified."""

    NONE = 0
    BYTES = 1
    IMPORT = 2
    PROBE = 3

    @property
    def word(self) -> str:
        """The level as it is written on the command line and in reports."""
        return self.name.lower()


class DamagedStateError(Exception):
    """The state's bytes are not what we wrote: not JSON, another format, or a changed byte."""


@dataclass(frozen=True)
class FixedFile:
    """One file that fixes changed. ``pre`` and ``post`` are sha256; ``pre`` is empty for a file
    that was added. ``record`` is what its RECORD line said, None if it had none.
    """

    path: str
    pre: str
    post: str
    fixes: tuple[str, ...]
    record: str | None = None
    packed: str = ""

    def pristine(self) -> bytes | None:
        """The pre-image, or None for an added file. Raises DamagedStateError if it is not it."""
        if not self.pre:
            return None
        try:
            data = zlib.decompress(base64.b64decode(self.packed, validate=True))
        except (ValueError, zlib.error) as error:
            raise DamagedStateError(f"the saved pre-image of {self.path} cannot be read") from error
        if sha256(data) != self.pre:
            raise DamagedStateError(f"the saved pre-image of {self.path} has another sha256")
        return data


@dataclass(frozen=True)
class Verified:
    """How far a tree was verified, and in which environment; both must hold to trust it.

    ``fingerprint`` is over the lock, the digest, the Python version, the owning RECORD and
    the names and versions of the sibling distributions. ``unproven`` are the fixes whose
    probe could not tell, with the declared reason.
    """

    level: str
    fingerprint: str
    python: str
    unproven: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class State:
    """What is applied to one tree.

    ``answer`` is the report of the run that wrote this, with the names it was asked for: the
    next run that is asked the same may give it again (``fixes/recall.py``).
    """

    tool: str
    profile: str
    release: str
    lock: str
    fixes: tuple[str, ...]
    steps: dict[str, str]
    files: dict[str, FixedFile]
    digest: str
    accepted: tuple[str, ...] = ()
    verified: Verified | None = None
    answer: dict[str, Any] | None = None


def pack(data: bytes) -> str:
    """Compress a pre-image into text for ``FixedFile.packed``."""
    return base64.b64encode(zlib.compress(data, 1)).decode("ascii")


def dump(state: State) -> bytes:
    """The state as a file."""
    body = asdict(state)
    body["files"] = [asdict(file) for file in state.files.values()]
    body["format"] = FORMAT
    return seal(body)


def load(data: bytes) -> State:
    """Read a state. Raises DamagedStateError."""
    try:
        body = unseal(data)
        if body.pop("format") != FORMAT:
            raise ValueError("it has another format")
        files = [
            FixedFile(**{**entry, "fixes": tuple(entry["fixes"])}) for entry in body.pop("files")
        ]
        verified = body.pop("verified")
        if verified:
            Level[verified["level"].upper()]  # a word that is no level is damage as well
        body["fixes"], body["accepted"] = tuple(body["fixes"]), tuple(body["accepted"])
        return State(
            **body,
            files={file.path: file for file in files},
            verified=Verified(**verified) if verified else None,
        )
    except ValueError as error:
        raise DamagedStateError(str(error)) from error
    except (KeyError, TypeError, AttributeError) as error:
        raise DamagedStateError("it is not a state that this tool wrote") from error
