"""``bundle``: the tool and chosen profiles as one file that Python runs (a zipapp)."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import fixes
from fixes import catalogue, cli, outfile, report
from fixes.archive import Writer
from fixes.catalogue import Catalogue
from fixes.errors import ExitCode, FixesError, Problem
from fixes.verbs import FROM_A_CHECKOUT, VERBS

#: Bytes that a ConfigMap may hold, counted before base64 (ValidateConfigMap of Kubernetes).
CONFIG_MAP = 1 << 20
_INTERPRETER = "/usr/bin/env python3"
_PACKAGE = Path(fixes.__file__).parent
#: What both a bundle's first lines of code and a look at a file know it by.
_MARK = "fixes/cli.py"
#: The second line: the sha256 of every byte behind it. Python 3.6 takes no comment in a zip file.
_SEAL = "# sha256:%s\n"
_MAIN = b'''\
"""Starts the package that lies in this file. Parses on Python 3.6, which gets a sentence."""

import hashlib
import os
import sys

# Absolute: the search path of an engine is told apart from this file by it.
__file__ = os.path.abspath(__file__)
sys.path[0] = os.path.dirname(__file__)


def seal():
    """The sha256 in the second line; nothing if it is not of the bytes behind that line."""
    try:
        with open(sys.path[0], "rb") as stream:
            _, told, data = stream.read().split(b"\\n", 2)
    except (OSError, ValueError):
        return b""
    return told if told == b"# sha256:" + hashlib.sha256(data).hexdigest().encode() else b""


ARCHIVE, SEAL = sys.path[0], seal()


def run():
    """Its exit code. Nothing is imported from a file that is not as it was made."""
    if SEAL:
        try:
            from fixes.apply_all import too_old

            if too_old():
                return 2
            from fixes.cli import main

            return main(sound=lambda: seal() == SEAL)
        except Exception:
            if seal() == SEAL:
                raise
    what = "bad-bundle: %s: is damaged, or was replaced while it ran\\n    bring it again\\n"
    os.write(2, (what % ARCHIVE).encode("utf-8", "backslashreplace"))
    return 1


os._exit(run())
'''


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this verb."""
    add = parser.add_argument
    add("--to", type=cli.folder, required=True, metavar="FILE", help="such as vllm-fixes.pyz")
    add(
        "--profile",
        action="append",
        type=cli.filled,
        metavar="NAME",
        help="a profile (default: all of them)",
    )
    add("--profiles", type=cli.folder, metavar="DIR", help="another folder of profiles and patches")
    add(
        "--python",
        type=cli.filled,
        default=_INTERPRETER,
        metavar="EXE",
        help=f"interpreter in the first line ({_INTERPRETER})",
    )
    add("--force", action="store_true", help="replace a file that is no bundle")
    add("--json", action="store_true", help="print one JSON document")
    add("--quiet", action="store_true", help="print problems only")


def run(options: argparse.Namespace) -> int:
    """Write the bundle.

    Raises FixesError: ``unknown-profile``, ``no-lock``, ``stale-lock``; USAGE for a file that is
    no bundle or a first line that cannot be; CANNOT_WRITE.
    """
    # The kernel reads 127 bytes of the line, and takes a "\r" for a part of the name.
    long = len(os.fsencode(options.python)) > 120
    if long or any(mark in options.python for mark in "\r\n\0"):
        what = "is no interpreter for a first line"
        raise FixesError(Problem(ExitCode.USAGE, "usage", what, "--python"))
    root = catalogue.find(options.profiles)
    profiles = tuple(dict.fromkeys(options.profile or root.profiles()))
    if not profiles:
        raise FixesError(Problem(ExitCode.USAGE, "no-profiles", "has no profile", str(root.root)))
    content = {**_code(), **_authored(root, profiles)}
    _replaceable(options.to, options.force)
    with outfile.replacing(options.to, 0o777) as stream:
        stream.write(b"#!%s\n" % os.fsencode(options.python))
        line = stream.tell()
        stream.write((_SEAL % ("0" * 64)).encode())
        start = stream.tell()
        archive = Writer(stream)
        for name in sorted(content):
            archive.add(name, content[name])
        archive.finish()
        size = stream.tell()
        stream.seek(start)
        seal = hashlib.sha256(stream.read()).hexdigest()
        stream.seek(line)
        stream.write((_SEAL % seal).encode())
        stream.seek(0)
        sha256 = hashlib.sha256(stream.read()).hexdigest()
    made = {"file": str(options.to), "bytes": size, "sha256": sha256, "profiles": list(profiles)}
    if options.json:
        report.emit(json.dumps({"verb": "bundle", **made, "exit": 0}, indent=2) + "\n")
    elif not options.quiet:
        report.emit(_text(made, size))
    return ExitCode.OK


def _text(made: Mapping[str, object], size: int) -> str:
    text = "{file}: {count}, {bytes} bytes\nsha256:{sha256}\n"
    names = made["profiles"]
    assert isinstance(names, list)
    count = "1 profile" if len(names) == 1 else f"{len(names)} profiles"
    text = text.format(**made, count=count)
    if size > CONFIG_MAP:
        text += f"too large for a ConfigMap, which holds {CONFIG_MAP} bytes: choose profiles\n"
    return text


def _code() -> dict[str, bytes]:
    """The running half of the package, and what starts it."""
    left_out = {f"commands/{VERBS[verb].module}.py" for verb in FROM_A_CHECKOUT}
    found = {"__main__.py": _MAIN, **dict(_licences())}
    for path in _PACKAGE.rglob("*.py"):
        name = path.relative_to(_PACKAGE).as_posix()
        if (
            not name.startswith(("authoring/", "data/", "manifest/", "parity/"))
            and name not in left_out
        ):
            found[f"fixes/{name}"] = path.read_bytes()
    return found


def _licences() -> Iterator[tuple[str, bytes]]:
    """The licence's texts: of a checkout, or of an installed package."""
    beside = _PACKAGE.parent
    (installed,) = [*beside.glob("vllm_fixes-*.dist-info/licenses"), beside][:1]
    for name in ("LICENSE", "NOTICE"):
        if (installed / name).is_file():
            yield name, (installed / name).read_bytes()


def _authored(root: Catalogue, profiles: Sequence[str]) -> dict[str, bytes]:
    """Each profile's lock and all that it was made from. Raises FixesError if it is stale."""
    names: set[str] = set()
    problems: list[Problem] = []
    for profile in profiles:
        try:
            names |= {catalogue.lock_name(profile), *root.lock(profile).authored}
        except FixesError as error:
            problems += error.problems
    if problems:
        raise FixesError(*problems)
    # A fix that none of them offers is still known by its name.
    abouts = {about.relative_to(root.root).as_posix() for about in _abouts(root)}
    return {f"fixes/data/{name}": root.read(name) for name in names | abouts}


def _abouts(root: Catalogue) -> Iterator[Path]:
    return (root.root / "patches").glob("*/fix.toml")


def _replaceable(path: Path, force: bool) -> None:
    """Raises FixesError for what is there already and is no bundle, or no regular file."""
    if path.is_dir():
        what = "is a folder"
    elif path.exists() and not path.is_file():
        what = "is no regular file"
    elif force or not os.path.lexists(path) or _is_bundle(path):
        return
    else:
        what = "is there and is no bundle"
    replaceable = what == "is there and is no bundle"
    hint = "name another file, or --force replaces it" if replaceable else "name another file"
    raise FixesError(Problem(ExitCode.USAGE, "usage", what, str(path), hint))


def _is_bundle(path: Path) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return {"__main__.py", _MARK} <= set(archive.namelist())
    except (OSError, zipfile.BadZipFile):
        return False
