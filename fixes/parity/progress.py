"""How far a run has come: a bar on a terminal, nothing elsewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from fixes.parity import legs


@contextmanager
def shown(quiet: bool) -> Iterator[legs.Progress]:
    """Where a run is to say how far it has come: on standard error, a line for each part."""
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield lambda part, done, total: None
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bars:
        known: dict[str, TaskID] = {}

        def step(part: str, done: int, total: int) -> None:
            if part not in known:
                known[part] = bars.add_task(part, total=total)
            bars.update(known[part], completed=done, total=total)

        yield step
