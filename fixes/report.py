"""The report of a run: one object, printed as text for people or as JSON for programs."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import TextIO

from fixes import __version__
from fixes.errors import ExitCode, Problem, worst

_COLOURS = {"good": "32", "bad": "31", "quiet": "2"}
_GOOD = {"applied", "already-applied", "already-upstream", "not-needed", "reverted"}


@dataclass(frozen=True)
class FixLine:
    """One fix (or platform) and its verdict."""

    id: str
    verdict: str
    detail: str = ""
    files: tuple[str, ...] = ()


@dataclass(frozen=True)
class TreeLine:
    """One target as it was found."""

    target: str
    version: str
    distribution: str
    path: str
    layout: str


@dataclass(frozen=True)
class FileLine:
    """One file that fixes touch; hashes are sha256, empty where there is no file."""

    path: str
    verdict: str
    now: str
    wanted: str
    offsets: tuple[int, ...] = ()


@dataclass
class Report:
    """What a run found and did. Keys of the JSON form are stable."""

    verb: str
    profile: str = ""
    trees: list[TreeLine] = field(default_factory=list)
    fixes: list[FixLine] = field(default_factory=list)
    files: list[FileLine] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    dry_run: bool = False
    level: str = "none"
    verification: str = ""
    accepted: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    digest: str = ""

    @property
    def exit_code(self) -> ExitCode:
        """The exit code that the problems give."""
        return worst(self.problems)

    def document(self) -> str:
        """The report as one JSON document."""
        body = asdict(self)
        body["problems"] = [problem_document(problem) for problem in self.problems]
        body["tool"] = __version__
        body["exit"] = int(self.exit_code)
        return json.dumps(body, indent=2) + "\n"

    def text(self, colour: bool) -> str:
        """The report for a person."""
        lines = [
            f"{tree.target} {tree.version} ({_owner(tree)}) in {tree.path}"
            for tree in self.trees
        ]
        if self.profile:
            lines.insert(0, f"vllm-fixes {__version__}, profile {self.profile}")
        width = max([len(line.id) for line in self.fixes], default=0)
        for line in self.fixes:
            shade = "good" if line.verdict in _GOOD else "bad"
            if line.verdict == "pending":
                shade = "quiet"
            detail = line.detail or ", ".join(line.files)
            verdict = paint(f"{line.verdict:<16}", shade, colour)
            lines.append(f"  {verdict} {line.id:<{width}}  {detail}".rstrip())
        for file in self.files:
            if any(file.offsets):
                shifts = ", ".join(f"{shift:+d}" for shift in file.offsets)
                lines.append(f"  {file.path}: hunks at offsets {shifts}")
        lines += [f"accepted: {what}" for what in self.accepted]
        lines += self.notes
        if self.changed:
            would = "would change" if self.dry_run else "changed"
            lines.append(f"{would} {len(self.changed)} files: {', '.join(self.changed)}")
        elif self.verb in ("apply", "revert") and not self.problems:
            lines.append("nothing to change")
        if self.verification:
            lines.append(f"verified to {self.level}: {self.verification}")
        if self.digest:
            lines.append(f"digest sha256:{self.digest}")
        return "\n".join(lines) + "\n"


def _owner(tree: TreeLine) -> str:
    return ", ".join(part for part in (tree.distribution, tree.layout) if part)


def problem_document(problem: Problem) -> dict[str, object]:
    """A problem with its code's name, for JSON."""
    body = asdict(problem)
    body["code"] = int(problem.code)
    return body


def show(report: Report, *, as_json: bool, quiet: bool = False) -> ExitCode:
    """Print a report, and its problems to standard error; give the exit code."""
    if as_json:
        emit(report.document())
        return report.exit_code
    if not quiet:
        emit(report.text(wants_colour(sys.stdout)))
    elif report.digest:
        emit(f"digest sha256:{report.digest}\n")
    complain(report.problems)
    return report.exit_code


def complain(problems: Sequence[Problem], last: str = "") -> None:
    """Print problems to standard error: what, where, what to do."""
    colour = wants_colour(sys.stderr)
    for problem in problems:
        place = f"{problem.where}: " if problem.where else ""
        label = paint(f"{problem.kind}:", "bad", colour)
        emit(f"{label} {place}{problem.what}\n", sys.stderr)
        if problem.hint:
            emit(f"  {problem.hint}\n", sys.stderr)
    if problems and last:
        emit(f"{last}\n", sys.stderr)


def emit(text: str, stream: TextIO | None = None) -> None:
    """Write text; a reader that has gone away does not change the verdict."""
    stream = stream or sys.stdout
    if stream is None:  # started with a closed standard output
        return
    try:
        stream.write(text)
        stream.flush()
    except UnicodeEncodeError:
        safe = text.encode(stream.encoding or "ascii", "backslashreplace")
        emit(safe.decode(stream.encoding or "ascii"), stream)
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
