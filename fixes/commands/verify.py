"""``verify``: prove that fixes are in, up to a level. Writes nothing and takes no lock."""

from __future__ import annotations

import argparse

from fixes import cli, look, outcome, overlaid, report, session, standing, verify
from fixes.commands.status import problems
from fixes.errors import ExitCode, FixesError, Problem
from fixes.outcome import Report
from fixes.plan import make
from fixes.selection import select


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this verb."""
    cli.common_arguments(parser, "*")
    cli.overlay_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Verify all fixes that are in, the named ones among them; every level is reached anew."""
    return report.show(verified(options).document(), as_json=options.json, quiet=options.quiet)


def verified(options: argparse.Namespace) -> Report:
    """The report of a verification. Raises FixesError where there is not even a tree."""
    here = session.open_session(options)
    level = standing.wanted_level(here, options.verify, options.accept_version)
    chosen = select(options.names, here)
    found = look.take(here)
    folder = overlaid.asked(options)
    through = overlaid.take(here, found, folder) if folder else None
    found = through.found if through else found
    plan = make(here.lock, (), found.seen, found.state, foreign_allowed=options.allow_foreign)
    done = outcome.start("verify", here)
    outcome.add_plan(done, here, plan, done=False)
    done.changed.clear()
    done.fixes += chosen.lines
    done.problems += chosen.problems
    done.problems += problems(here, found, plan)
    if through:
        done.notes += through.notes
        done.problems += [*through.problems, *through.disagreement(here, plan)]
        done.problems = through.told(done.problems)
    for name in chosen.fixes:
        if name not in plan.present:
            what = f"{name} is not in"
            hint = f"run: vllm-fixes apply --profile {here.lock.profile} {name}"
            done.problems.append(Problem(ExitCode.MISMATCH, "pending", what, hint=hint))
    if not chosen.lines and not plan.wanted and not done.problems:
        what = "no fix is in this tree"
        done.problems.append(Problem(ExitCode.MISMATCH, "pending", what, str(here.trees[0].site)))
    done.problems += standing.expectation(options.expect_digest, done.digest)
    if not done.problems:
        try:
            reached = verify.run(here, plan, level, folder)
        except FixesError as error:
            done.problems += error.problems
        else:
            outcome.add_verification(done, here, plan, reached, records=folder is None)
    return done
