"""``diff``: what apply would change, as a unified diff. Writes nothing."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from fixes import cli, look, report, session
from fixes.application import planned
from fixes.plan import FilePlan
from fixes.selection import select


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this verb."""
    cli.common_arguments(parser, "+")


def run(options: argparse.Namespace) -> int:
    """Print the diff of every file that apply would write; nothing where all is in."""
    here = session.open_session(options)
    chosen = select(options.names, here)
    found = look.take(here)
    plan = planned(here, found, chosen, options)
    for file in plan.writes:
        report.emit("".join(_diff(file, found.seen.get(file.path))))
    return 0


def _diff(file: FilePlan, now: bytes | None) -> Iterator[str]:
    from difflib import unified_diff

    before, after = (_lines(data) for data in (now, file.content))
    old = f"a/{file.path}" if before else "/dev/null"
    new = f"b/{file.path}" if after else "/dev/null"
    for line in unified_diff(before, after, old, new):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _lines(data: bytes | None) -> list[str]:
    text = (data or b"").decode("utf-8", "surrogateescape")
    return [line + "\n" for line in text.split("\n")[:-1]] + (
        [text.rpartition("\n")[2]] if text.rpartition("\n")[2] else []
    )
