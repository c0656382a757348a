"""The application of fixes: the main path, from the names asked for to the report."""

from __future__ import annotations

import argparse
import os

from fixes import commit, look, outcome, overlaid, overlays, session, standing
from fixes.errors import ExitCode, FixesError, Problem
from fixes.look import Look
from fixes.outcome import Report
from fixes.plan import Plan, make
from fixes.selection import Selection, select
from fixes.session import Session
from fixes.state import Level
from fixes.verify import earlier


class RefusedError(FixesError):
    """A plan that must not be carried out, with everything that stands against it."""

    def __init__(self, plan: Plan, *problems: Problem) -> None:
        super().__init__(*problems)
        self.plan = plan


def run(options: argparse.Namespace) -> Report:
    """Read the profile, find the tree, plan in memory, commit and verify, report.

    What stands against it is in the report; then nothing has been changed. Raises FixesError
    where there is not even a plan.
    """
    here = session.open_session(options)
    level = standing.wanted_level(here, options.verify, options.accept_version)
    chosen = select(options.names, here)
    found = look.take(here)
    plan = None
    try:
        if not found.interrupted or options.dry_run:
            plan = planned(here, found, chosen, options)
            done = _nothing_to_do(here, found, plan, level, options.dry_run)
            if done is not None:
                done.fixes += chosen.lines
                return done
        order = commit.Order("apply", level, options.wait, tuple(options.names), chosen.lines)
        return commit.carry_out(here, order, lambda now: planned(here, now, chosen, options))
    except RefusedError as error:
        return outcome.refused("apply", here, error.plan, error.problems, chosen.lines)
    except FixesError as error:
        if plan is None:
            raise
        return outcome.refused("apply", here, plan, error.problems, chosen.lines)


def planned(
    here: Session,
    found: Look,
    chosen: Selection,
    options: argparse.Namespace,
    *,
    writes: bool = True,
) -> Plan:
    """The plan for a look at the disk. Raises RefusedError with every problem that it has.

    ``writes``: it is to be carried out on the trees themselves.
    """
    plan = make(
        here.lock,
        chosen.fixes,
        found.seen,
        found.state,
        foreign_allowed=options.allow_foreign,
        scope_locked=here.scope_locked(options),
    )
    problems = [
        *here.problems,
        *chosen.problems,
        *plan.problems,
        *standing.unaccounted(here, found, plan),
        *look.interruption(here, found),
        *standing.expectation(options.expect_digest, plan.digest(here.releases)),
    ]
    for path in sorted(set(options.allow_foreign) - set(here.lock.files)):
        what = f"--allow-foreign {path}: no fix touches this file"
        problems.append(Problem(ExitCode.USAGE, "usage", what))
    if writes and overlays.named(os.environ):
        problems += overlaid.hiding(here, found, plan)
    if problems:
        raise RefusedError(plan, *problems, *(standing.unwritable(here, plan) if writes else ()))
    return plan


def _nothing_to_do(
    here: Session, found: Look, plan: Plan, level: Level, dry_run: bool
) -> Report | None:
    """The report of a dry run, or of one where all is in and verified; else None."""
    done = outcome.start("apply", here)
    if dry_run:
        done.dry_run = True
        return outcome.add_plan(done, here, plan, done=False)
    if plan.writes or not standing.recorded(here, found, plan):
        return None
    if plan.wanted and standing.reached(here, found, plan.digest(here.releases)) < level:
        return None
    outcome.add_plan(done, here, plan, done=True)
    outcome.add_verification(
        done, here, plan, earlier(found, level if plan.wanted else Level.BYTES)
    )
    return done
