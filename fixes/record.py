"""RECORD: what an installer put where, one ``path,sha256=...,size`` a line.

https://packaging.python.org/en/latest/specifications/recording-installed-packages/ gives the
format; the files themselves differ: pip writes CRLF and lists bytecode, uv writes LF and lists
none. So only the lines that change are written, every other byte is kept, and bytes that the
format does not allow pass through.
"""

from __future__ import annotations

import base64
import os
import re
from collections.abc import Iterable, Mapping
from functools import lru_cache

#: A quoted path may hold line ends; the other fields never do.
_LINE = re.compile(rb'(?:"(?:[^"]|"")*")?[^\n]*(?:\n|\Z)')
_PATH = re.compile(rb'("(?:[^"]|"")*"|[^,]*)(?=,)')
_OWN = re.compile(rb'"?[^/]+\.dist-info/RECORD"?,')


def digest(sha256: str) -> str:
    """A sha256 in hex as RECORD writes it: urlsafe base64 without padding."""
    return base64.urlsafe_b64encode(bytes.fromhex(sha256)).rstrip(b"=").decode()


def entry(data: bytes, path: str) -> bytes | None:
    """The line of a path without its end, or None."""
    name = os.fsencode(path)
    found = (_starting(data, form + b",") for form in (name, _in_quotes(name)))
    return next((body for body in found if body is not None and _path(body) == name), None)


def _starting(data: bytes, first: bytes) -> bytes | None:
    """The first line that starts with some bytes."""
    start = 0 if data.startswith(first) else data.find(b"\n" + first) + 1
    if not data.startswith(first, start):
        return None
    if _folded(data):  # it may be inside a quoted path
        return next((body for body, _ in _lines(data) if body.startswith(first)), None)
    end = data.find(b"\n", start + len(first))
    return data[start : len(data) if end < 0 else end].removesuffix(b"\r")


@lru_cache(maxsize=2)
def _folded(data: bytes) -> bool:
    """Whether a quoted path may hold a line end; looked for once, as RECORD is read many times."""
    return b'"' in data and any(line.count(b'"') % 2 for line in data.split(b"\n"))


def told(data: bytes, path: str) -> bytes | None:
    """What the line of a path says after the path, byte for byte; None if it is not listed."""
    line = entry(data, path)
    return None if line is None else _rest(line)


def matches(data: bytes, path: str, sha256: str, size: int) -> bool:
    """Whether the line of a path agrees with a file's hash and size, as far as it gives them.

    False for a path that is not listed and for a hash that is no sha256.
    """
    line = entry(data, path)
    if line is None:
        return False
    said_hash, _, said_size = _rest(line)[1:].partition(b",")
    agrees = said_hash in (b"", f"sha256={digest(sha256)}".encode())
    return agrees and said_size in (b"", str(size).encode())


def listed(data: bytes) -> dict[str, bytes]:
    """Every path and what its line says after it, byte for byte."""
    found = {}
    for body, _ in _lines(data):
        if (name := _path(body)) is not None:
            found[os.fsdecode(name)] = _rest(body)
    return found


def moved(data: bytes, folders: Mapping[str, str]) -> bytes:
    """RECORD once some top-level folders have other names."""
    names = {os.fsencode(old): os.fsencode(new) for old, new in folders.items()}
    made = []
    for body, end in _lines(data):
        top, _, below = (_path(body) or b"").partition(b"/")
        if below and top in names:
            body = _quoted(names[top] + b"/" + below) + _rest(body)
        made.append(body + end)
    return b"".join(made)


def agreed(sha256: str, size: int) -> bytes:
    """What a line says after the path for a file of a hash (hex) and size."""
    return f",sha256={digest(sha256)},{size}".encode()


def rewrite(
    data: bytes,
    changes: Mapping[str, tuple[str, int] | bytes | None],
    unhashed: Iterable[str] = (),
) -> bytes:
    """RECORD with the lines of some paths changed, removed (None) or added.

    ``changes`` maps paths to sha256 (hex) and size, or to what ``told`` said; ``unhashed`` are
    paths to list without them (bytecode). New lines come before RECORD's own line, else last;
    removing them again gives the old bytes.
    """
    wanted: dict[bytes, bytes | None] = {os.fsencode(path): b",," for path in unhashed}
    for path, content in changes.items():
        wanted[os.fsencode(path)] = agreed(*content) if isinstance(content, tuple) else content
    starts = tuple(form + b"," for name in wanted for form in (name, _in_quotes(name)))
    old = _lines(data)
    kept = []
    missing = dict(wanted)
    for body, end in old:
        # Thousands of lines, of which a few are looked at more closely.
        name = _path(body) if body.startswith(starts) else None
        if name is not None and name in wanted:
            missing.pop(name, None)
            rest = wanted[name]
            if rest is None:
                continue
            body = body[: len(body) - len(_rest(body))] + rest
        kept.append((body, end))
    style = next((end for _, end in old if end), b"\n")
    own = (i for i, (body, _) in enumerate(kept) if _OWN.match(body))
    place = next(own, len(kept))
    kept[place:place] = [
        (_quoted(name) + rest, style) for name, rest in missing.items() if rest is not None
    ]
    new = b"".join(body + (end or style) for body, end in kept)
    unfinished = bool(old) and not old[-1][1]  # no line end at the end of the file
    return new.removesuffix(kept[-1][1] or style) if unfinished and kept else new


def _lines(data: bytes) -> list[tuple[bytes, bytes]]:
    """Lines and their ends."""
    found = []
    for line in _LINE.findall(data):
        body = line.removesuffix(b"\n").removesuffix(b"\r") if line.endswith(b"\n") else line
        if line:  # the empty match at the end of the file
            found.append((body, line[len(body) :]))
    return found


def _path(body: bytes) -> bytes | None:
    """The path of a line; None for what is no entry (an empty line)."""
    match = _PATH.match(body)
    if match is None:
        return None
    field: bytes = match[1]
    return field[1:-1].replace(b'""', b'"') if field.startswith(b'"') else field


def _rest(body: bytes) -> bytes:
    """Hash and size with the commas before them."""
    match = _PATH.match(body)
    return body[match.end() :] if match else b""


def _quoted(path: bytes) -> bytes:
    """A path as a csv field, quoted only where it has to be."""
    return _in_quotes(path) if set(path) & set(b'",\r\n') else path


def _in_quotes(path: bytes) -> bytes:
    return b'"' + path.replace(b'"', b'""') + b'"'
