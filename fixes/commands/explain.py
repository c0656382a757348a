"""``explain LOGFILE``: which fixes are for what a server's log shows."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence

from fixes import catalogue, report, signs
from fixes.errors import ExitCode, FixesError, Problem
from fixes.lock import Lock, Need
from fixes.signs import Signs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this verb."""
    from fixes.cli import filled, folder

    add = parser.add_argument
    add("logs", nargs="+", type=filled, metavar="LOGFILE", help="logs of one replica; - reads")
    add("--profile", type=filled, help="a profile; default: the log's release")
    add("--profiles", type=folder, metavar="DIR", help="another folder of profiles")
    add("--json", action="store_true", help="print one JSON document")


def run(options: argparse.Namespace) -> int:
    """Search the logs, taken together, without looking at any tree.

    MISMATCH where no fix is known for what they show; USAGE for a file that is not there.
    """
    source = catalogue.find(options.profiles)
    names = [options.profile] if options.profile else source.profiles()
    locks = [source.lock(name) for name in names]
    wanted = {fix.id: fix.log for lock in locks for fix in lock.fixes.values()}
    if unreadable := [problem for name in options.logs if (problem := _unreadable(name))]:
        raise FixesError(*unreadable)
    found = signs.search({name: _lines(name) for name in options.logs}, wanted)
    strange = []
    if not options.profile:
        strange = sorted(_public(found.releases) - {lock.release for lock in locks})
        locks = [lock for lock in locks if lock.release in _public(found.releases)] or locks
    if options.json:
        report.emit(json.dumps(_document(found, locks, strange), indent=2) + "\n")
    else:
        report.emit(_text(found, locks, strange))
    return ExitCode.OK if found.faults else ExitCode.MISMATCH


def _unreadable(name: str) -> Problem | None:
    """What keeps a log from being read, as far as opening it tells."""
    try:
        if name != "-":
            open(name, "rb").close()
    except (OSError, ValueError) as error:
        return _problem(name, error)
    return None


def _lines(name: str) -> Iterator[str]:
    """The lines of a file, whatever bytes it holds."""
    try:
        stream = sys.stdin.buffer if name == "-" else open(name, "rb")  # noqa: SIM115
        with stream:
            for line in stream:
                yield line.decode("utf-8", "replace")
    except (OSError, ValueError, AttributeError) as error:
        raise FixesError(_problem(name, error)) from None


def _problem(name: str, error: Exception) -> Problem:
    what = f"cannot be read: {getattr(error, 'strerror', None) or error}"
    return Problem(ExitCode.USAGE, "unreadable", what, name)


def _public(releases: Sequence[str]) -> set[str]:
    """Releases without what a build adds: ``0.30.0`` of ``0.30.0+cpu`` and ``0.30.0.post1``."""
    return {release.partition("+")[0].partition(".post")[0] for release in releases}


def _needs(fix: str, locks: Sequence[Lock]) -> dict[str, tuple[Need, str]]:
    having = ((lock.profile, lock.fixes.get(fix)) for lock in locks)
    return {profile: (found.need, found.why) for profile, found in having if found}


def _title(fix: str, locks: Sequence[Lock]) -> str:
    return next((lock.fixes[fix].title for lock in locks if fix in lock.fixes), "")


def _document(found: Signs, locks: Sequence[Lock], strange: list[str]) -> dict[str, object]:
    return {
        "lines": found.lines,
        "releases": list(found.releases),
        "without_profile": strange,
        "fixes": [
            {
                "id": fix,
                "title": _title(fix, locks),
                "lines": [one._asdict() for one in where],
                "profiles": {
                    profile: {"need": need.value, "why": why}
                    for profile, (need, why) in _needs(fix, locks).items()
                },
            }
            for fix, where in found.faults.items()
        ],
    }


def _text(found: Signs, locks: Sequence[Lock], strange: list[str]) -> str:
    named = f" of vLLM {', '.join(found.releases)}" if found.releases else ""
    lines = [f"{found.lines} lines{named}"]
    if strange:
        told = ", ".join(lock.profile for lock in locks)
        lines.append(f"there is no profile for {', '.join(strange)}; what follows is of {told}")
    for fix, where in found.faults.items():
        lines += ["", f"{fix}: {_title(fix, locks)}"]
        lines += [f"  {log}:{line}: {text}" for log, line, text in where]
        offered = []
        for profile, (need, why) in _needs(fix, locks).items():
            if need is Need.OFFERED:
                offered.append(profile)
            else:
                lines.append(f"  {need.value} in {profile}: {' '.join(why.split())}")
        if offered:
            bundles = dict.fromkeys(
                name for lock in locks for name, b in lock.bundles.items() if fix in b.members
            )
            also = f" (bundle {', '.join(bundles)})" if bundles else ""
            lines.append(f"  offered in {', '.join(offered)}{also}")
            lines.append(f"  `vllm-fixes show {fix}` says more")
    if not found.faults:
        lines.append("No fix here has a symptom that this log shows: we do not know this fault.")
        lines.append("Give the logs of all nodes, unpacked. Faults that log nothing, such as wrong")
        lines.append("text, cannot be found in this way.")
    return "\n".join(lines) + "\n"
