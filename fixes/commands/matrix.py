"""``matrix``: try every fix on every published wheel, and say what held and what did not."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fixes import catalogue, cli, report
from fixes.catalogue import Catalogue
from fixes.environment import interpreter
from fixes.errors import ExitCode, FixesError, Problem, worst

if TYPE_CHECKING:
    from fixes.authoring.results import Release


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this verb."""
    add = parser.add_argument
    add("--releases", action="append", type=cli.filled, metavar="NAME", help="profiles (all)")
    add("--fix", action="append", type=cli.filled, default=[], metavar="FIX", help="fixes (all)")
    add("--profiles", type=cli.folder, metavar="DIR", help="another folder of profiles and patches")
    add("--cache", type=cli.folder, metavar="DIR", help="where wheels are kept")
    add("--python", type=cli.filled, metavar="EXE", help="an interpreter with what vLLM imports")
    add("--jobs", type=_count, metavar="N", help="trees to ask probes about at a time")
    add("--write", type=cli.folder, metavar="FILE", help="put the results into this document")
    add("--junit", type=cli.folder, metavar="FILE", help="write a JUnit report as well")
    add("--github", action="store_true", help="print the matrix of a GitHub job, try nothing")
    add("--json", action="store_true", help="print one JSON document")
    add("--quiet", action="store_true", help="print problems only")


def _count(text: str) -> int:
    """An option's value that is a number of things, one or more."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 on")
    return int(text)


def run(options: argparse.Namespace) -> int:
    """Try the named profiles, or all. 1 if a cell failed, or if a release could not be tried."""
    authored = catalogue.find(options.profiles)
    names = _names(authored, options.releases)
    if options.github:
        include = [{"release": name} for name in names]
        report.emit(json.dumps({"include": include}) + "\n")
        return ExitCode.OK
    _check(authored, options)
    written = _read(options.write) if options.write else {}
    releases, untried = _try(authored, names, options, written)
    problems = [*(problem for each in releases for problem in each.problems()), *untried]
    if options.junit:
        from fixes.authoring import junit

        _put(options.junit, junit.dump(releases, untried))
    _show(_merged(authored, {}, releases), problems, options)
    return worst(problems)


def _names(authored: Catalogue, wanted: list[str] | None) -> list[str]:
    """The profiles to try, in the order of the releases; ``0.30.0`` is ``v0.30.0`` too."""
    known = authored.profiles()
    if wanted is None:
        return list(known)
    asked = [name if name in known else f"v{name}" for each in wanted for name in each.split(",")]
    if unknown := [name for name in asked if name not in known]:
        raise FixesError(*(authored.no_lock(name.removeprefix("v")) for name in unknown))
    return [name for name in known if name in asked]


def _check(authored: Catalogue, options: argparse.Namespace) -> None:
    problems: list[Problem] = []
    try:
        import fixes.authoring.matrix  # noqa: F401
    except ImportError as error:
        what, hint = f"needs the package {error.name}", "from a checkout: pip install '.[maintain]'"
        problems.append(Problem(ExitCode.USAGE, "usage", what, "matrix", hint))
    if authored.zipped:
        what = "the profiles are in a zip file, where they cannot be tried"
        problems.append(Problem(ExitCode.USAGE, "usage", what, "matrix", "use a checkout"))
    if not options.python:
        what, hint = "needs --python", "docs/authoring.md says how to make the environment"
        problems.append(Problem(ExitCode.USAGE, "usage", what, "matrix", hint))
    if options.write and options.fix:
        what = "what was found of some fixes is no result of a release"
        problems.append(Problem(ExitCode.USAGE, "usage", what, "--write", "leave --fix out"))
    if problems:
        raise FixesError(*problems)


def _try(
    authored: Catalogue,
    names: list[str],
    options: argparse.Namespace,
    written: dict[str, Any],
) -> tuple[list[Release], list[Problem]]:
    """What was found, and what kept a release from being tried.

    With --write each release is written as soon as it was tried: all of them take a while.

    Raises FixesError where nothing can be tried of a fix, and ``python-failed``.
    """
    from fixes.authoring import results
    from fixes.authoring.matrix import Matrix
    from fixes.authoring.wheels import default_cache

    def say(line: str) -> None:
        if not options.quiet:
            report.emit(line + "\n", error=True)

    cache = options.cache or default_cache()
    matrix = Matrix(authored, cache, interpreter(options.python), options.fix, options.jobs, say)
    names = matrix.chosen(names)
    environment = matrix.environment()
    releases: list[Release] = []
    problems: list[Problem] = []
    for name in names:
        try:
            releases.append(matrix.run(name, environment))
        except FixesError as error:
            problems += error.problems
            if any(problem.kind == "python-failed" for problem in error.problems):
                break  # nothing that follows could be trusted
            continue
        if options.write:
            document = _merged(authored, written, releases)
            _put(options.write, results.dump(document).encode())
    return releases, problems


def _merged(authored: Catalogue, old: dict[str, Any], releases: list[Release]) -> dict[str, Any]:
    from fixes.authoring.results import merged

    return merged(old, releases, authored.profiles())


def _read(path: Path) -> dict[str, Any]:
    """What a document says of releases that may not be tried now."""
    try:
        document = json.loads(path.read_bytes())
        if isinstance(document, dict):
            return document
        what = "is no document of results"
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        what = str(error)
    raise FixesError(Problem(ExitCode.USAGE, "usage", what, str(path)))


def _put(path: Path, data: bytes) -> None:
    try:
        path.write_bytes(data)
    except OSError as error:
        problem = Problem(ExitCode.CANNOT_WRITE, "cannot-write", str(error), str(path))
        raise FixesError(problem) from None


def _show(document: dict[str, Any], problems: list[Problem], options: argparse.Namespace) -> None:
    from fixes.authoring.results import tables

    if options.json:
        told = [report.problem_document(problem) for problem in problems]
        whole = {"verb": "matrix", "exit": worst(problems), "problems": told, "releases": document}
        report.emit(json.dumps(whole, indent=1) + "\n")
        return
    if not options.quiet and document:
        report.emit("\n".join(tables(document)) + "\n")
    for problem in problems:
        report.emit(f"{problem}\n", error=True)
