"""Bytecode: the cached compilations of a source file, so that none outlives its source.

CPython takes a cached file for current if its header holds the source's size and whole
seconds of mtime, or its hash, or (unchecked) always: PEP 552. So a source that is replaced
takes its cached files along: those that this interpreter can make are made anew in the same
mode, all others are removed.
"""

from __future__ import annotations

import marshal
import os
import sys
import warnings
from importlib.util import MAGIC_NUMBER, source_hash
from pathlib import Path

from fixes.disk import UnreadableError, naming, read_file
from fixes.roots import CACHE
from fixes.transaction import Change

_CHECKED = 0b11


def stale(source: Path, cache_prefix: str | None) -> list[Path]:
    """Every cached file of a module: of any tag and optimisation level, in any place.

    The places are ``__pycache__``, unless it is a link (what it leads to may be another's),
    ``cache_prefix`` (the ``sys.pycache_prefix`` of the target interpreter) and the prefix of
    this interpreter. What is there need not be a file, but is no folder. Raises FixesError
    (CANNOT_WRITE) for a place that cannot be read.
    """
    if source.suffix != ".py":
        return []
    start = f"{source.stem}."
    found = []
    own = source.parent / "__pycache__"
    folders = [*([] if own.is_symlink() else [own]), *_mirrors(source.parent, cache_prefix)]
    for folder in dict.fromkeys(folders):
        with naming(folder):
            try:
                with os.scandir(folder) as inside:
                    names = [
                        item.name
                        for item in inside
                        if item.name.startswith(start)
                        and item.name.endswith(".pyc")
                        and not item.is_dir(follow_symlinks=False)
                    ]
            except (FileNotFoundError, NotADirectoryError):
                continue
        found += [folder / name for name in sorted(names)]
    return found


def roots(package: Path, cache_prefix: str | None) -> dict[str, Path]:
    """Where a package's bytecode lies outside of it, by the name of the root (fixes/roots.py)."""
    mirrors = _mirrors(package, cache_prefix)
    return {f"{CACHE}{package.name}:{n}": folder for n, folder in enumerate(mirrors)}


def _mirrors(folder: Path, cache_prefix: str | None) -> list[Path]:
    """As importlib.util.cache_from_source does; by either name of a linked folder."""
    return [
        Path(prefix, *path.parts[1:])
        for prefix in (cache_prefix, sys.pycache_prefix)
        if prefix
        for path in (folder.absolute(), folder.resolve())
    ]


def compiled(
    source: Path, content: bytes | None, mtime_ns: int, cache_prefix: str | None
) -> list[Change]:
    """The changes to the cached files of ``source`` when its bytes become ``content``.

    ``mtime_ns`` is the mtime that the source will have; None for ``content`` is a source that
    is removed. ``source`` is the path as the interpreter that imports it sees it. Nothing is
    written here, and PYTHONDONTWRITEBYTECODE does not matter. Raises FixesError
    (CANNOT_WRITE) for a cached file that cannot be read.
    """
    changes = []
    for path in stale(source, cache_prefix):
        new = None
        if content is not None:
            with naming(path):
                header = _header(path)
            new = _recompiled(path, header, source, content, mtime_ns)
        changes.append(Change(path, None, new, cache=True))
    return changes


def _header(path: Path) -> bytes:
    try:
        return read_file(path)[:16]
    except (FileNotFoundError, UnreadableError):  # a cache: others may do with it what they want
        return b""


def _recompiled(
    path: Path, header: bytes, source: Path, content: bytes, mtime_ns: int
) -> bytes | None:
    """The bytes of one cached file for the new source, None if it cannot be made here."""
    start = f"{source.stem}.{sys.implementation.cache_tag}"
    levels = {f"{start}.pyc": 0, f"{start}.opt-1.pyc": 1, f"{start}.opt-2.pyc": 2}
    flags = int.from_bytes(header[4:8], "little")
    if path.name not in levels or len(header) < 16 or header[:4] != MAGIC_NUMBER:
        return None
    if flags == _CHECKED:
        key = source_hash(content)
    elif not flags:
        key = _word(mtime_ns // 1_000_000_000) + _word(len(content))
    else:  # unchecked: it would hide the next change of the source
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            code = compile(
                content, str(source), "exec", dont_inherit=True, optimize=levels[path.name]
            )
    except (SyntaxError, ValueError):  # a source for another version of Python
        return None
    return MAGIC_NUMBER + _word(flags) + key + marshal.dumps(code)


def _word(number: int) -> bytes:
    return (number & 0xFFFFFFFF).to_bytes(4, "little")
