"""Distributions as their metadata folders describe them, and which one owns a file.

Formats: https://packaging.python.org/en/latest/specifications/recording-installed-packages/,
direct_url.json and entry_points.txt there as well; egg-info and EGG-INFO are setuptools'.
``importlib.metadata`` is not used: it takes a folder's word for its name (a hand-made
``vllm-0.30.0.dist-info`` without RECORD is no owner) and costs more than a whole run may.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from fixes.disk import LARGEST, read_file
from fixes.errors import ExitCode, FixesError, Problem

PLUGIN_GROUP = "vllm.platform_plugins"
#: Far beyond any RECORD: the largest ones of a CUDA environment have some megabytes.
RECORD_LIMIT = 256 << 20
#: There is nothing: no such name, or none that there can be.
_ABSENT = (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)


class Distribution(NamedTuple):
    """One metadata folder: a dist-info, an egg-info (or its file), or an egg's EGG-INFO."""

    info: Path
    name: str
    version: str

    @property
    def record(self) -> Path | None:
        """Its RECORD, if it has one."""
        path = self.info / "RECORD"
        return path if path.is_file() else None


def read(path: str | Path, limit: int = LARGEST) -> bytes | None:
    """A whole file, or None where there is none.

    Raises FixesError, kind ``unreadable``, for what is there and cannot be read: taken for
    absent, a RECORD would make its package nobody's.
    """
    try:
        return read_file(path, limit)
    except ValueError:  # NUL in a name that a file gives
        return None
    except OSError as error:
        told = error.__cause__ or error  # what the system said, where read_file says more
        if isinstance(told, OSError) and told.errno in _ABSENT:
            return None
        raise unreadable(path, error) from error


def peek(path: str, limit: int = LARGEST) -> bytes | None:
    """A whole file, or None where there is none to read, whatever the reason."""
    try:
        return read_file(path, limit)
    except (OSError, ValueError):
        return None


def unreadable(path: str | Path, error: OSError) -> FixesError:
    """That something is there and cannot be read."""
    what = f"cannot be read: {error.strerror}"
    hint = "run as a user who may read it, or put it right"
    return FixesError(Problem(ExitCode.CANNOT_WRITE, "unreadable", what, str(path), hint))


def listing(folder: str, *endings: str) -> tuple[str, ...]:
    """Names in a folder with one of some endings, sorted; none if it is no folder (a zip)."""
    try:
        return _listing(folder, os.stat(folder).st_mtime_ns, endings)
    except (OSError, ValueError):
        return ()


@lru_cache(maxsize=256)
def _listing(folder: str, mtime_ns: int, endings: tuple[str, ...]) -> tuple[str, ...]:
    """One run asks for the same folder a dozen times; ``mtime_ns`` tells when it has changed."""
    return tuple(sorted([name for name in os.listdir(folder) if name.endswith(endings)]))


def infos(folder: str) -> tuple[str, ...]:
    """Names of the metadata folders in a folder of packages."""
    return listing(folder, ".dist-info", ".egg-info", "EGG-INFO")


def normalized(name: str) -> str:
    """A distribution's name as indexes compare it (PEP 503)."""
    return "-".join(filter(None, name.lower().replace("_", "-").replace(".", "-").split("-")))


def public(version: str) -> str:
    """A version without its local label: what ``0.30.0+cpu`` and ``0.30.0`` share."""
    return version.strip().partition("+")[0].lower().removeprefix("v")


def describe(info: str) -> Distribution:
    """Name and version by METADATA (or PKG-INFO), else by the folder's name."""
    name, version = _by_folder(os.path.basename(info))
    for path in (f"{info}/METADATA", f"{info}/PKG-INFO", info):
        data = None if path == info and os.path.isdir(info) else read(path)
        if data is not None:
            headers = _headers(data)
            return Distribution(
                Path(info), headers.get("name") or name, headers.get("version") or version
            )
    return Distribution(Path(info), name, version)


def owners(folder: str, path: str) -> list[Distribution]:
    """The dist-infos in a folder whose RECORD lists a path (relative, POSIX).

    Raises FixesError, kind ``unreadable``, with everything that cannot be read and may say so:
    the folder, or the RECORD of any distribution in it.
    """
    name = os.fsencode(path)
    first, quoted = name + b",", b'"' + name + b'",'
    found = []
    problems: list[Problem] = []
    if os.path.isdir(folder) and not os.access(folder, os.R_OK):
        denied = PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        raise unreadable(folder, denied)
    for info in infos(folder):
        if not info.endswith(".dist-info"):
            continue
        try:
            data = read(f"{folder}/{info}/RECORD", RECORD_LIMIT)
            if data and name in data and _lists(data, first, quoted):
                found.append(describe(f"{folder}/{info}"))
        except FixesError as error:
            problems += error.problems
    if problems:
        raise FixesError(*problems)
    return found


def eggs(folder: str, path: str) -> list[Distribution]:
    """The EGG-INFO of an egg, and the egg-infos in a folder that list a path as installed."""
    found = []
    for info in infos(folder):
        if info.endswith(".egg-info"):
            sources = read(f"{folder}/{info}/SOURCES.txt") or b""
            installed = read(f"{folder}/{info}/installed-files.txt") or b""
            lines = sources.splitlines() + installed.splitlines()
            if not {os.fsencode(path), os.fsencode(f"../{path}")} & set(lines):
                continue
        elif info != "EGG-INFO":
            continue
        found.append(describe(f"{folder}/{info}"))
    return found


def claims(folder: str, name: str) -> list[Distribution]:
    """The dist-infos in a folder that say they are the distribution of that name."""
    wanted = normalized(name)
    near = [
        f"{folder}/{info}"
        for info in infos(folder)
        if info.endswith(".dist-info") and normalized(_by_folder(info)[0]) == wanted
    ]
    return [describe(info) for info in near if read(f"{info}/METADATA") is not None]


def editables(folders: Iterable[str], checkout: str) -> list[Distribution]:
    """The dist-infos whose direct_url.json is an editable install of a source checkout."""
    import json
    from urllib.parse import unquote, urlsplit

    roots = {os.path.realpath(checkout)}
    if os.path.basename(checkout) in ("src", "python", "lib"):
        roots.add(os.path.realpath(os.path.dirname(checkout)))
    found: dict[str, str] = {}
    for folder in folders:
        for info in infos(folder):
            data = read(f"{folder}/{info}/direct_url.json")
            if data is None or b"editable" not in data:
                continue
            try:
                origin = json.loads(data)
                editable = origin["dir_info"]["editable"] is True
                url = urlsplit(origin["url"])
            except (ValueError, KeyError, TypeError):
                continue
            if editable and url.scheme == "file" and os.path.realpath(unquote(url.path)) in roots:
                found.setdefault(os.path.realpath(f"{folder}/{info}"), f"{folder}/{info}")
    return [describe(info) for info in found.values()]


def siblings(folders: Iterable[str]) -> tuple[str, ...]:
    """``name-version`` of every metadata folder in some folders: a fingerprint of them."""
    names = {
        os.path.splitext(info)[0]
        for folder in dict.fromkeys(folders)
        for info in infos(folder)
        if info != "EGG-INFO"
    }
    return tuple(sorted(names))


def plugins(folders: Iterable[str]) -> dict[str, str]:
    """Import package of each vLLM platform plugin to the distribution that declares it."""
    group = PLUGIN_GROUP.encode()
    found: dict[str, str] = {}
    for folder in dict.fromkeys(folders):
        for info in infos(folder):
            data = read(f"{folder}/{info}/entry_points.txt")
            if data is None or group not in data:
                continue
            section = ""
            for line in map(str.strip, data.decode("utf-8", "replace").splitlines()):
                if line.startswith("["):
                    section = line.strip("[]").strip()
                elif section == PLUGIN_GROUP and "=" in line and line[0] not in "#;":
                    package = re.split(r"[.:\[\s]", line.partition("=")[2].strip())[0]
                    if package:
                        found.setdefault(package, describe(f"{folder}/{info}").name)
    return found


def _lists(record: bytes, first: bytes, quoted: bytes) -> bool:
    return record.startswith((first, quoted)) or any(
        b"\n" + start in record for start in (first, quoted)
    )


def _by_folder(info: str) -> tuple[str, str]:
    stem = os.path.splitext(info)[0]
    name, _, version = stem.partition("-")
    return name, version.partition("-")[0]


def _headers(data: bytes) -> dict[str, str]:
    """The headers of METADATA; what follows them may hold lines that look alike."""
    found: dict[str, str] = {}
    for line in data.decode("utf-8", "replace").split("\n"):
        if not line.strip():
            break
        key, _, value = line.partition(":")
        found.setdefault(key.lower(), value.strip())
    return found
