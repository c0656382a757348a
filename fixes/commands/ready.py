"""``ready``: whether this node of a running replica can serve (for an exec probe)."""

from __future__ import annotations

import argparse

from fixes import report
from fixes.errors import ExitCode


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this verb."""
    from fixes.cli import seconds

    parser.add_argument("--rank", type=int, metavar="N", help="of several launchers here")
    parser.add_argument("--watch-port", type=int, metavar="PORT", help="of several launchers here")
    parser.add_argument(
        "--timeout", type=seconds, default=4.5, metavar="S", help="until no answer is one"
    )


def run(options: argparse.Namespace) -> int:
    """Ask the launcher in this network namespace: 0, or MISMATCH with the reason in a line."""
    from fixes.launch import health

    why = health.ask("ready", options.rank, options.watch_port, options.timeout)
    report.emit(f"not ready: {why}\n" if why else "ready\n", error=bool(why))
    return ExitCode.MISMATCH if why else ExitCode.OK
