"""Digests: of bytes, of what is fixed, and of what a verification rests on."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence


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


def of_document(document: Mapping[str, object]) -> str:
    """The checksum of a JSON document, whatever its layout."""
    return sha256(json.dumps(document, sort_keys=True, separators=(",", ":")).encode("ascii"))
