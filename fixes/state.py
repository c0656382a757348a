"""The state: what was applied to a tree, and how to take it back without a network.

``fixes-applied.json`` in the tree's home. It is a hint, the bytes are the truth: every run
hashes the files again, and a state that is missing or damaged is made anew from them.
"""

from __future__ import annotations

import base64
import re
import zlib
from dataclasses import asdict, dataclass, field, fields
from enum import IntEnum
from typing import Any

from fixes.digest import seal, sha256, unseal
from fixes.disk import LARGEST

FORMAT = 1
#: Marks a path among ``accepted`` whose bytes were accepted as the same syntax, not by name.
SAME_SYNTAX = "same syntax: "


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
            packed = base64.b64decode(self.packed, validate=True)
            data = zlib.decompressobj().decompress(packed, LARGEST)
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
    """Read a state. Raises DamagedStateError for anything that ``dump`` does not write.

    A seal can be made by anyone, so the types are checked as well as the bytes; only a
    malformed ``answer`` is dropped, which costs no more than the time that it would save.
    """
    try:
        body = unseal(data)
        if body.pop("format") != FORMAT:
            raise ValueError("it has another format")
        return _state(body)
    except ValueError as error:
        raise DamagedStateError(str(error)) from error
    except (KeyError, TypeError, RecursionError) as error:
        raise DamagedStateError("it is not a state that this tool wrote") from error


def _state(body: Any) -> State:
    _keys(body, State)
    files = [_file(entry) for entry in _list(body["files"])]
    answer = body["answer"]
    return State(
        tool=_text(body["tool"]),
        profile=_text(body["profile"]),
        release=_text(body["release"]),
        lock=_text(body["lock"]),
        fixes=_texts(body["fixes"]),
        steps=_mapping(body["steps"]),
        files={file.path: file for file in files},
        digest=_text(body["digest"]),
        accepted=_texts(body["accepted"]),
        verified=None if body["verified"] is None else _verified(body["verified"]),
        answer=answer if type(answer) is dict else None,
    )


def _file(entry: Any) -> FixedFile:
    _keys(entry, FixedFile)
    return FixedFile(
        path=_text(entry["path"]),
        pre=_sha256(entry["pre"]) if entry["pre"] != "" else "",
        post=_sha256(entry["post"]),
        fixes=_texts(entry["fixes"]),
        record=None if entry["record"] is None else _text(entry["record"]),
        packed=_text(entry["packed"]),
    )


def _verified(entry: Any) -> Verified:
    _keys(entry, Verified)
    level = _text(entry["level"])
    if level not in [known.word for known in Level]:
        raise ValueError(f"{level!r} is no level")
    return Verified(
        level,
        _text(entry["fingerprint"]),
        _text(entry["python"]),
        _mapping(entry["unproven"]),
    )


def _keys(entry: Any, kind: type[State] | type[FixedFile] | type[Verified]) -> None:
    if type(entry) is not dict or entry.keys() != {item.name for item in fields(kind)}:
        raise TypeError


def _list(value: Any) -> list[Any]:
    if type(value) is not list:
        raise TypeError
    return value


def _text(value: Any) -> str:
    if type(value) is not str:
        raise TypeError
    value.encode("utf-8", "surrogateescape")  # a ValueError if it stands for no bytes
    return value


def _texts(value: Any) -> tuple[str, ...]:
    return tuple([_text(item) for item in _list(value)])


def _mapping(value: Any) -> dict[str, str]:
    if type(value) is not dict:
        raise TypeError
    return {_text(key): _text(item) for key, item in value.items()}


def _sha256(value: Any) -> str:
    if not re.fullmatch("[0-9a-f]{64}", _text(value)):
        raise ValueError(f"{value!r} is no sha256")
    return _text(value)
