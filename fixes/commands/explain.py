"""``explain LOGFILE``: which fixes are for what a server's log shows."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from fixes import catalogue, report, signs
from fixes.errors import ExitCode, FixesError, Problem
from fixes.lock import Fix, Lock, Need
from fixes.signs import Found, Signs

_ANOTHER = "this release has the change already, so this is another fault"


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

    The profiles in question are the one that is named, those of the releases that the logs name,
    or all of them. MISMATCH where none of them offers a fix for what the logs show; USAGE for a
    file that is not there.
    """
    source = catalogue.find(options.profiles)
    asked = [source.lock(options.profile)] if options.profile else []
    known = [source.lock(name) for name in source.profiles()]
    if unreadable := [problem for name in options.logs if (problem := _unreadable(name))]:
        raise FixesError(*unreadable)
    wanted: dict[str, dict[tuple[str, ...], None]] = {}
    for fix in (fix for lock in known for fix in lock.fixes.values()):
        wanted.setdefault(fix.id, {}).update(dict.fromkeys(fix.log))
    found = signs.search({name: _lines(name) for name in options.logs}, wanted)
    strange: list[str] = []
    if not asked:
        strange = sorted(_public(found.releases) - {lock.release for lock in known})
        asked = [lock for lock in known if lock.release in _public(found.releases)] or known
    matches = [_match(fix, where, asked, known) for fix, where in found.faults.items()]
    if options.json:
        report.emit(json.dumps(_document(found, matches, strange), indent=2) + "\n")
    else:
        report.emit(_text(found, matches, asked, strange))
    return ExitCode.OK if any(match.offered for match in matches) else ExitCode.MISMATCH


class _Match(NamedTuple):
    """A fix that lines of the log are signs of.

    ``needs`` are what the profiles in question that have it say of it, and why; ``lacking``
    those that do not. ``everywhere`` are all profiles that offer it.
    """

    fix: Fix
    lines: tuple[Found, ...]
    needs: dict[str, tuple[Need, str]]
    lacking: tuple[str, ...]
    bundles: tuple[str, ...]
    everywhere: tuple[str, ...]

    @property
    def offered(self) -> list[str]:
        """The profiles in question that offer it."""
        return [profile for profile in self.needs if profile in self.everywhere]


def _match(
    fix: str, lines: tuple[Found, ...], asked: Sequence[Lock], known: Sequence[Lock]
) -> _Match:
    having = [lock for lock in known if fix in lock.fixes]
    bundles = (name for lock in asked for name, b in lock.bundles.items() if fix in b.members)
    return _Match(
        having[0].fixes[fix],
        lines,
        {
            lock.profile: (lock.fixes[fix].need, " ".join(lock.fixes[fix].why.split()))
            for lock in asked
            if fix in lock.fixes
        },
        tuple(lock.profile for lock in asked if fix not in lock.fixes),
        tuple(dict.fromkeys(bundles)),
        tuple(lock.profile for lock in having if lock.fixes[fix].need is Need.OFFERED),
    )


def _unreadable(name: str) -> Problem | None:
    """What keeps a log from being read, as far as opening it tells."""
    if name == "-":
        closed = sys.stdin is None
        return _problem(name, "standard input is closed") if closed else None
    try:
        open(name, "rb").close()
    except (OSError, ValueError) as error:
        return _failed(name, error)
    return None


def _lines(name: str) -> Iterator[str]:
    """The lines of a file, whatever bytes it holds."""
    try:
        stream = sys.stdin.buffer if name == "-" else open(name, "rb")  # noqa: SIM115
        with stream:
            yield from signs.lines(stream)
    except (OSError, ValueError) as error:
        raise FixesError(_failed(name, error)) from None


def _failed(name: str, error: Exception) -> Problem:
    return _problem(name, f"cannot be read: {getattr(error, 'strerror', None) or error}")


def _problem(name: str, what: str) -> Problem:
    return Problem(ExitCode.USAGE, "unreadable", what, name)


def _public(releases: Sequence[str]) -> set[str]:
    """Releases without what a build adds: ``0.30.0`` of ``0.30.0+cpu`` and ``0.30.0.post1``."""
    return {release.partition("+")[0].partition(".post")[0] for release in releases}


def _document(found: Signs, matches: Sequence[_Match], strange: list[str]) -> dict[str, object]:
    return {
        "lines": found.lines,
        "releases": list(found.releases),
        "without_profile": strange,
        "fixes": [
            {
                "id": match.fix.id,
                "title": match.fix.title,
                "lines": [one._asdict() for one in match.lines],
                "profiles": {
                    profile: {"need": need.value, "why": why}
                    for profile, (need, why) in match.needs.items()
                },
                "offered_in": list(match.everywhere),
            }
            for match in matches
        ],
    }


def _text(
    found: Signs, matches: Sequence[_Match], asked: Sequence[Lock], strange: list[str]
) -> str:
    named = f" of vLLM {', '.join(found.releases)}" if found.releases else ""
    lines = [f"{found.lines} lines{named}"]
    told = ", ".join(lock.profile for lock in asked)
    if strange:
        lines.append(f"there is no profile for {', '.join(strange)}; what follows is of {told}")
    for match in matches:
        lines += ["", *_of_match(match)]
    if not matches:
        lines.append("No fix here has a symptom that this log shows: we do not know this fault.")
        lines.append("Give the logs of all nodes, unpacked. Faults that log nothing, such as wrong")
        lines.append("text, cannot be found in this way.")
    elif not any(match.offered for match in matches):
        lines += ["", f"Nothing that matches is offered for {told}."]
    return "\n".join(lines) + "\n"


def _of_match(match: _Match) -> Iterator[str]:
    yield f"{match.fix.id}: {match.fix.title}"
    for log, line, text in match.lines:
        yield f"  {log}:{line}: {text}"
    for profile, (need, why) in match.needs.items():
        if need is Need.UPSTREAM:
            yield f"  {need.value} in {profile}: {why}; {_ANOTHER}"
        elif need is Need.NOT_NEEDED:
            yield f"  {need.value} in {profile}: {why}"
    if match.lacking:
        yield f"  not in {', '.join(match.lacking)}"
    if match.offered:
        also = f" (bundle {', '.join(match.bundles)})" if match.bundles else ""
        yield f"  offered in {', '.join(match.offered)}{also}"
        yield f"  `vllm-fixes show {match.fix.id}` says more"
    elif match.everywhere:
        yield f"  offered in {', '.join(match.everywhere)} alone"
