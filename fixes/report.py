"""The report of a run, as a document: printed as text for people or as JSON for programs.

Its keys are stable: docs/reports.md lists them. Everything that is printed goes through here.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, TextIO

from fixes import __version__
from fixes.errors import ExitCode, Problem, TerminatedError
from fixes.verbs import VERBS

Document = Mapping[str, Any]

#: Where what could not be recovered, or was stopped, says itself how the files are; and where
#: a replica ends, which is not about files.
_SILENT = {
    ExitCode.UNRECOVERABLE,
    ExitCode.INTERRUPTED,
    ExitCode.TERMINATED,
    ExitCode.NOT_STARTED,
    ExitCode.REPLICA_ENDED,
}

_COLOURS = {"good": "32", "bad": "31", "quiet": "2"}
_SHADES = {
    "applied": "good",
    "already-applied": "good",
    "already-upstream": "good",
    "not-needed": "good",
    "reverted": "good",
    "pending": "quiet",
}


def show(document: Document, *, as_json: bool, quiet: bool = False) -> ExitCode:
    """Print a report, and its problems to standard error; give its exit code.

    All is done by now: a signal while it is printed leaves words out and does not change it.
    """
    with suppress(KeyboardInterrupt, TerminatedError):
        _show(document, as_json, quiet)
    return ExitCode(document["exit"])


def _show(document: Document, as_json: bool, quiet: bool) -> None:
    if as_json:
        emit(json.dumps(document, indent=2) + "\n")
        return
    if not quiet:
        emit(text(document, wants_colour(sys.stdout)))
    elif document["digest"]:
        emit(f"level {document['level']}\ndigest sha256:{document['digest']}\n")
    _complain(document["problems"], document["verb"])


def text(document: Document, colour: bool) -> str:
    """A report for a person; its last line is the digest."""
    lines = [f"vllm-fixes {__version__}, profile {document['profile']}"]
    for tree in document["trees"]:
        owner = ", ".join(filter(None, (tree["distribution"], tree["layout"])))
        lines.append(f"{tree['target']} {tree['version']} ({owner}) in {tree['path']}")
    fixes = document["fixes"]
    width = max((len(fix["id"]) for fix in fixes), default=0)
    for fix in fixes:
        verdict = paint(f"{fix['verdict']:<16}", _SHADES.get(fix["verdict"], "bad"), colour)
        detail = fix["detail"] or ", ".join(fix["files"])
        lines.append(f"  {verdict} {fix['id']:<{width}}  {detail}".rstrip())
    for file in document["files"]:
        if any(file["offsets"]):
            shifts = ", ".join(f"{shift:+d}" for shift in file["offsets"])
            lines.append(f"  {file['path']}: hunks at offsets {shifts}")
    lines += [f"accepted: {what}" for what in document["accepted"]]
    lines += document["notes"]
    changed = document["changed"]
    if changed:
        would = "would change" if document["dry_run"] else "changed"
        count = "1 file" if len(changed) == 1 else f"{len(changed)} files"
        lines.append(f"{would} {count}: {', '.join(changed)}")
    elif document["verb"] in ("apply", "revert") and not document["problems"]:
        lines.append("nothing to change")
    if document["verification"]:
        lines.append(f"verified to {document['level']}: {document['verification']}")
    if document["digest"]:
        lines.append(f"digest sha256:{document['digest']}")
    return "\n".join(lines) + "\n"


def problem_document(problem: Problem) -> dict[str, object]:
    """A problem as part of a document."""
    return {
        "code": int(problem.code),
        "kind": problem.kind,
        "what": problem.what,
        "where": problem.where,
        "hint": problem.hint,
    }


def complain(problems: Iterable[Problem], verb: str) -> None:
    """Print problems of a verb to standard error: what, where, what to do."""
    _complain([problem_document(problem) for problem in problems], verb)


def _complain(problems: Sequence[Document], verb: str) -> None:
    colour = wants_colour(sys.stderr)
    for problem in problems:
        place = f"{problem['where']}: " if problem["where"] else ""
        label = paint(f"{problem['kind']}:", "bad", colour)
        emit(f"{label} {place}{problem['what']}\n", error=True)
        if problem["hint"]:
            emit(f"  {_runnable(problem['hint'])}\n", error=True)
    silent = _SILENT & {problem["code"] for problem in problems}
    if problems and VERBS[verb].changes and not silent:
        emit("Nothing was changed.\n", error=True)


def _runnable(hint: str) -> str:
    """A hint whose commands can be typed here: a checkout has no command of its name."""
    program = sys.argv[0]
    if not program.endswith((".py", ".pyz")):
        return hint
    return re.sub(r"(`|run: )vllm-fixes ", lambda found: f"{found[1]}python3 {program} ", hint)


def emit(text: str, *, error: bool = False) -> None:
    """Write text to an output; a reader that has gone away does not change the verdict."""
    stream = sys.stderr if error else sys.stdout
    if stream is None:  # started with it closed
        return
    try:
        stream.write(text)
        stream.flush()
    except UnicodeEncodeError:
        safe = text.encode(stream.encoding or "ascii", "backslashreplace")
        emit(safe.decode(stream.encoding or "ascii"), error=error)
    except (OSError, ValueError):
        _silence(stream)


def _silence(stream: TextIO) -> None:
    """Point a closed stream at nothing, so that the interpreter's own flush stays quiet."""
    try:
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, stream.fileno())
        os.close(nothing)
    except (OSError, ValueError):
        return


def wants_colour(stream: TextIO) -> bool:
    """Colour only on a terminal, and not where NO_COLOR is set (no-color.org)."""
    return not os.environ.get("NO_COLOR") and stream is not None and stream.isatty()


def paint(text: str, shade: str, colour: bool) -> str:
    """``text`` in an ANSI colour, if colours are wanted."""
    return f"\x1b[{_COLOURS[shade]}m{text}\x1b[0m" if colour else text
