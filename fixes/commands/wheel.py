"""``wheel``: the fixed wheel of a wheel, planned and verified as ``apply`` does."""

from __future__ import annotations

import argparse
import os
import re
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from fixes import application, cli, fixedwheel, report, session, wheelfile
from fixes.disk import naming
from fixes.errors import ExitCode, FixesError, Problem
from fixes.fixedwheel import Recipe
from fixes.outcome import Report
from fixes.tree import STATE
from fixes.wheelfile import WheelFile

_REQUIREMENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*==[^=\s]+")
#: What an environment has and a file has not: options of ``apply`` with these values.
_NO_ENVIRONMENT = {"python": None, "verify": None, "accept_version": None, "wait": 0.0}
#: Beside the files that fixes touch, what a tree is known by.
_KNOWN_BY = ("vllm/__init__.py", "vllm/_version.py")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this verb."""
    add = parser.add_argument
    add("wheel", metavar="WHEEL", type=cli.filled, help="a file, or NAME==VERSION to download")
    add("names", metavar="FIX", nargs="+", type=cli.filled, help="fixes and bundles")
    add("--to", type=cli.folder, required=True, metavar="DIR", help="the folder to write it to")
    add("--profile", type=cli.filled, default="auto", help="a profile such as v0.30.0, or auto")
    add("--profiles", type=cli.folder, metavar="DIR", help="another folder of profiles and patches")
    add("--keep-version", action="store_true", help="do not add a label to the version")
    add("--cache", type=cli.folder, metavar="DIR", help="where downloaded wheels are kept")
    add(
        "--allow-foreign",
        action="append",
        type=cli.filled,
        default=[],
        metavar="PATH",
        help="accept the bytes of this one file if every hunk still matches in one place",
    )
    add(
        "--scope-lock",
        action="store_true",
        help="accept other bytes where all that the fixes rely on is the same syntax",
    )
    add("--expect-digest", type=cli.filled, metavar="D", help="fail before writing if it differs")
    add("--dry-run", action="store_true", help="plan and report, write nothing")
    add("--json", action="store_true", help="print one JSON document")
    add("--quiet", action="store_true", help="print the level, the digest and problems only")


def run(options: argparse.Namespace) -> int:
    """Make the wheel. The exit code is the verdict, as of ``apply``.

    Raises FixesError: ``bad-wheel``, ``no-wheel``, USAGE, CANNOT_WRITE, and as ``apply`` does.
    """
    path = _found(options)
    with naming(Path("the folder for temporary files")):
        scratch = TemporaryDirectory(prefix="vllm-fixes-")
    with scratch as name, wheelfile.opened(path) as wheel:
        try:
            document = _made(wheel, Path(os.path.realpath(name)), options)
        except FixesError as error:
            told = (_of_the_wheel(problem, name, path) for problem in error.problems)
            raise FixesError(*told) from error
    return report.show(document, as_json=options.json, quiet=options.quiet)


def _found(options: argparse.Namespace) -> Path:
    """The wheel's file. Raises FixesError."""
    path = Path(options.wheel)
    if path.exists() or not _REQUIREMENT.fullmatch(options.wheel):
        if path.is_file():
            return path
        what, hint = "is no file", "give a wheel's file, or NAME==VERSION, such as vllm==0.30.0"
        raise FixesError(Problem(ExitCode.USAGE, "usage", what, options.wheel, hint))
    try:
        from fixes.authoring.wheels import default_cache, open_wheel
    except ImportError as error:
        ours = str(error.name).startswith("fixes.")  # a bundle has no such part
        needed = "a checkout with '.[maintain]'" if ours else f"the package {error.name}"
        what = f"needs {needed} to download"
        hint = "give the wheel's file, from `pip download --no-deps`"
        raise FixesError(Problem(ExitCode.USAGE, "usage", what, "wheel", hint)) from None
    fetched = open_wheel(options.wheel, options.cache or default_cache())
    fetched.archive.close()
    return fetched.path


def _made(wheel: WheelFile, folder: Path, options: argparse.Namespace) -> dict[str, Any]:
    """The document of a run in which the unpacked part of the wheel stands for a tree."""
    if _KNOWN_BY[0] not in wheel.members:
        what = f"is no wheel of vLLM: it has no {_KNOWN_BY[0]}"
        raise FixesError(Problem(ExitCode.NOT_FOUND, "not-found", what, str(wheel.path)))
    there = {**vars(options), **_NO_ENVIRONMENT, "tree": folder}
    inside = argparse.Namespace(**there)
    metadata = [name for name in wheel.members if name.startswith(f"{wheel.info}/")]
    wheel.unpack([*metadata, *_KNOWN_BY], folder)
    lock = session.open_session(inside).lock
    touched = {*lock.files, *fixedwheel.recorded(wheel)}
    over = [
        f"would install {name} over {to}" for to, name in wheel.moved().items() if to in touched
    ]
    if over:
        raise FixesError(*(wheelfile.bad(wheel.path, what) for what in over))
    wheel.unpack(touched, folder)
    done = application.run(inside)
    done.verb = "wheel"
    done.trees = [replace(tree, path=str(wheel.path), layout="packed") for tree in done.trees]
    done.problems = [_of_the_wheel(problem, str(folder), wheel.path) for problem in done.problems]
    recipe = Recipe(wheel, folder, _version(wheel, folder, done, options))
    made = None
    if not done.problems and not done.dry_run:
        made = _written(recipe, done, options)
    return {**done.document(), "wheel": made}


def _version(wheel: WheelFile, folder: Path, done: Report, options: argparse.Namespace) -> str:
    """What the wheel shall say; a label only where fixes are in (a dry run: would be)."""
    fixed = (folder / wheel.info / STATE).exists() or bool(done.changed)
    return fixedwheel.version(
        wheel.version, "" if options.keep_version or not fixed else done.digest
    )


def _written(recipe: Recipe, done: Report, options: argparse.Namespace) -> dict[str, Any] | None:
    """Write the wheel; None where it is there already. Raises FixesError."""
    path = options.to / recipe.file_name
    with naming(options.to):
        options.to.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.samefile(recipe.wheel.path):
        if done.changed:
            what = "would be replaced by the fixed wheel, which has the same name"
            hint = "name another folder by --to, or leave out --keep-version"
            raise FixesError(Problem(ExitCode.USAGE, "usage", what, str(path), hint))
        done.notes.append(f"{path} is fixed already")
        return None
    if recipe.version == fixedwheel.version(recipe.wheel.version, "") and not options.keep_version:
        done.notes.append("nothing to fix: its version stays")
    if recipe.signatures:
        done.notes.append(f"left out, being of the old RECORD: {', '.join(recipe.signatures)}")
    made = recipe.write(path)
    done.notes.append(f"made {path}, version {made.version}")
    return asdict(made)


def _of_the_wheel(problem: Problem, folder: str, path: Path) -> Problem:
    """A problem of the unpacked part, told of the wheel."""
    told = [
        text.replace(os.path.realpath(folder), str(path)).replace(folder, str(path))
        for text in (problem.what, problem.where)
    ]
    return problem._replace(what=told[0], where=told[1])
