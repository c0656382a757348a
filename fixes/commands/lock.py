"""``lock``: resolve profiles against the published wheels, or check that nothing changed."""

from __future__ import annotations

import argparse
import json
import os
import sys
from contextlib import ExitStack
from pathlib import Path

from fixes import catalogue, cli, lockfile
from fixes.catalogue import Catalogue
from fixes.environment import interpreter
from fixes.errors import ExitCode, FixesError, Problem
from fixes.lock import Lock


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this verb."""
    add = parser.add_argument
    add(
        "--profile",
        action="append",
        type=cli.filled,
        metavar="NAME",
        help="a profile (default: all of them)",
    )
    add("--profiles", type=cli.folder, metavar="DIR", help="another folder of profiles and patches")
    add("--check", action="store_true", help="write nothing; fail where a lock would change")
    add("--cache", type=cli.folder, metavar="DIR", help="where wheels are kept")
    add(
        "--python",
        type=cli.filled,
        metavar="EXE",
        help="ask probes with no recorded answer about the pristine release with this",
    )
    add("--json", action="store_true", help="print one JSON document")
    add("--quiet", action="store_true", help="print problems only")


def run(options: argparse.Namespace) -> int:
    """Make the locks of the named profiles, or of all. Raises FixesError for all of them."""
    try:
        import fixes.authoring.resolve  # noqa: F401
    except ImportError as error:
        what, hint = f"needs the package {error.name}", "from a checkout: pip install '.[maintain]'"
        raise FixesError(Problem(ExitCode.USAGE, "usage", what, "lock", hint)) from None
    authored = catalogue.find(options.profiles)
    if authored.zipped:
        what = "the profiles are in a zip file, where no lock can be written"
        raise FixesError(Problem(ExitCode.USAGE, "usage", what, "lock", "use a checkout"))
    names = options.profile or authored.profiles()
    unknown = [name for name in names if name not in authored.profiles()]
    if unknown:
        raise FixesError(*(authored.no_lock(name) for name in unknown))
    if options.python:
        options.python = interpreter(options.python)
    problems: list[Problem] = []
    outcomes = []
    for name in dict.fromkeys(names):
        try:
            outcomes.append(_lock(authored, name, options))
        except FixesError as error:
            problems += error.problems
    _show(outcomes, options)
    if problems:
        raise FixesError(*problems)
    return ExitCode.OK


def _lock(root: Catalogue, name: str, options: argparse.Namespace) -> dict[str, object]:
    """Make one lock; write it if it differs, or with --check raise FixesError then."""
    from fixes.authoring import lockwriter, probing
    from fixes.authoring.authored import Authored
    from fixes.authoring.resolve import resolve
    from fixes.authoring.wheels import default_cache, open_wheel

    path = Path(root.place(catalogue.lock_name(name)))
    old = path.read_bytes() if path.exists() else None
    authored = Authored(root, name)
    with ExitStack() as stack:
        targets = {
            target: [open_wheel(wheel, options.cache or default_cache()) for wheel in wheels]
            for target, wheels in authored.profile.targets.items()
        }
        for wheels in targets.values():
            for wheel in wheels:
                stack.enter_context(wheel.archive)
        resolved = resolve(authored, targets)
        lock = resolved.lock
        answers = probing.recorded(authored, lock.wheels, _loaded(old, path))
        if options.python:
            answers = probing.ask(authored, targets, lock.files, options.python, answers)
    if problems := probing.contradictions(authored, answers):
        raise FixesError(*problems)
    fixes = {
        fix.id: fix._replace(pristine_probe=answers.get(fix.id, "")) for fix in lock.fixes.values()
    }
    data = lockwriter.dump(lock._replace(fixes=fixes))
    lockfile.load(data, str(path))  # what the runner would refuse must not be written
    if options.check and data != old:
        raise FixesError(
            Problem(
                ExitCode.MISMATCH,
                "stale-lock",
                "differs from what its profile and the wheels give" if old else "is missing",
                str(path),
                f"run: vllm-fixes lock --profile {name}",
            )
        )
    if data != old:
        _write(path, data)
    return {
        "profile": name,
        "lock": str(path),
        "changed": data != old,
        "fixes": len(lock.fixes),
        "files": len(lock.files),
        "pristine_probes": answers,
        "notes": resolved.notes,
    }


def _loaded(data: bytes | None, path: Path) -> Lock | None:
    """The existing lock; None if there is none that this version can read."""
    try:
        return lockfile.load(data, str(path)) if data else None
    except FixesError:
        return None


def _write(path: Path, data: bytes) -> None:
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        scratch.write_bytes(data)
        scratch.replace(path)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        problem = Problem(ExitCode.CANNOT_WRITE, "cannot-write", str(error), str(path))
        raise FixesError(problem) from None


def _show(outcomes: list[dict[str, object]], options: argparse.Namespace) -> None:
    if options.json:
        sys.stdout.write(json.dumps({"verb": "lock", "locks": outcomes}, indent=1) + "\n")
    elif not options.quiet:
        for outcome in outcomes:
            state = "written" if outcome["changed"] else "unchanged"
            size = f"{outcome['fixes']} fixes, {outcome['files']} files"
            sys.stdout.write(f"{outcome['lock']}: {state}, {size}\n")
            for note in outcome["notes"]:  # type: ignore[attr-defined]
                sys.stdout.write(f"  note: {note}\n")
