"""``ready`` and ``live``: how this node of a running replica is (for an exec probe)."""

from __future__ import annotations

import argparse

from fixes import report
from fixes.errors import ExitCode


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of both verbs."""
    from fixes.cli import seconds

    parser.add_argument("--rank", type=int, metavar="N", help="of several launchers here")
    parser.add_argument("--watch-port", type=int, metavar="PORT", help="of several launchers here")
    parser.add_argument(
        "--timeout", type=seconds, default=4.5, metavar="S", help="until no answer is one"
    )


def run(options: argparse.Namespace) -> int:
    """Ask the launcher in this network namespace: 0, or MISMATCH with the reason in a line."""
    from fixes.launch import health

    asked = options.verb
    why = health.ask(asked, options.rank, options.watch_port, options.timeout)
    report.emit(f"not {asked}: {why}\n" if why else f"{asked}\n", error=bool(why))
    return ExitCode.MISMATCH if why else ExitCode.OK
