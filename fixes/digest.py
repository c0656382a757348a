"""Digests: of bytes, of what is fixed, and of what a verification rests on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any


def sha256(data: bytes) -> str:
    """The sha256 of ``data`` as hexadecimal text."""
    return hashlib.sha256(data).hexdigest()


def of_fixes(files: Iterable[tuple[str, str, str]], releases: Mapping[str, str]) -> str:
    """The digest that a run ends with: over (target, path, post-image sha256) and releases.

    Equal on two nodes exactly when the fixed files and each target's public release are equal;
    it says nothing about other files.
    """
    lines = [f"{target} {release}\n" for target, release in sorted(releases.items())]
    lines += [f"{target} {path} {post}\n" for target, path, post in sorted(files)]
    return sha256("".join(lines).encode())


def of_surroundings(
    lock: str, digest: str, python: str, records: Sequence[bytes], siblings: Iterable[str]
) -> str:
    """What an already verified tree must still be, for its level to be believed.

    The lock's sha256, the digest, the Python version, the owning RECORDs, and the names and
    versions of the distributions beside them.
    """
    parts = [lock, digest, python, *map(sha256, records), *siblings]
    return sha256("\n".join(parts).encode(errors="surrogateescape"))


_HEAD = b'{\n "checksum": "%s",'
_LENGTH = len(_HEAD % bytes(64))


def seal(body: Mapping[str, object]) -> bytes:
    """A JSON object whose first key is the sha256 of every byte behind it."""
    rest = json.dumps(body, indent=1, sort_keys=True).encode("ascii").removeprefix(b"{") + b"\n"
    return _HEAD % sha256(rest).encode("ascii") + rest


def unseal(data: bytes) -> dict[str, Any]:
    """The object of a sealed document. Raises ValueError if a byte is not as it was sealed."""
    if data[:_LENGTH] != _HEAD % sha256(data[_LENGTH:]).encode("ascii"):
        raise ValueError("its checksum does not match its content")
    body: dict[str, Any] = json.loads(data)
    del body["checksum"]
    return body
