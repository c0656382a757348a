"""``overlay``: the fixed files in a folder of their own, for a tree that cannot be written to."""

from __future__ import annotations

import argparse

from fixes import cli, look, outcome, report, session, standing
from fixes.application import RefusedError, planned
from fixes.commit import Order
from fixes.errors import FixesError
from fixes.outcome import Report
from fixes.selection import select


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this verb."""
    cli.common_arguments(parser, "+")
    parser.add_argument(
        "--to", type=cli.filled, metavar="DIR", required=True, help="the overlay's folder"
    )
    cli.wait_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Make an overlay that serves the named fixes, and verify it. The tree is not written to."""
    done = _made(options)
    return report.show(done.document(), as_json=options.json, quiet=options.quiet)


def _made(options: argparse.Namespace) -> Report:
    here = session.open_session(options)
    level = standing.wanted_level(here, options.verify, options.accept_version)
    chosen = select(options.names, here)
    found = look.take(here)
    plan = None
    try:
        plan = planned(here, found, chosen, options, writes=False)
        if options.dry_run:
            done = outcome.start("overlay", here)
            done.dry_run = True
            outcome.add_plan(done, here, plan, done=False).changed.clear()
            done.fixes += chosen.lines
            return done
        from fixes import overlay, overlaying

        order = Order("overlay", level, options.wait, tuple(options.names), chosen.lines)
        return overlaying.carry_out(here, found, plan, overlay.folder_of(options.to), order)
    except RefusedError as error:
        return outcome.refused("overlay", here, error.plan, error.problems, chosen.lines)
    except FixesError as error:
        if plan is None:
            raise
        return outcome.refused("overlay", here, plan, error.problems, chosen.lines)
