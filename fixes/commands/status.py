"""``status``: what is in the tree, by its bytes. Writes nothing and takes no lock."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from fixes import cli, look, outcome, overlaid, report, session, standing
from fixes.errors import ExitCode, Problem
from fixes.lock import Need
from fixes.look import Look
from fixes.origin import FileVerdict
from fixes.outcome import FixLine
from fixes.plan import Plan, make
from fixes.selection import select, without_target
from fixes.session import Session
from fixes.state import Level


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this verb."""
    cli.common_arguments(parser, "*")
    cli.overlay_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Report every fix of the profile, or the named ones.

    Exit code 0: the tree is consistent, each fix is wholly in or wholly out. Anything that
    does not fit (a foreign or missing file, an outdated or damaged state, RECORD) is 1.
    """
    here = session.open_session(options)
    found = look.take(here)
    folder = overlaid.asked(options)
    through = overlaid.take(here, found, folder) if folder else None
    found = through.found if through else found
    plan = make(here.lock, (), found.seen, found.state, foreign_allowed=options.allow_foreign)
    done = outcome.start("status", here)
    outcome.add_plan(done, here, plan, done=False)
    done.changed.clear()
    done.digest = plan.digest_now(here.releases)
    if options.names:
        chosen = select(options.names, here)
        done.problems += chosen.problems
        wanted = set(chosen.fixes)
        done.fixes = [line for line in done.fixes if line.id in wanted] + list(chosen.lines)
    else:
        wanted = set(here.lock.fixes)
    inside = {line.id for line in done.fixes}
    for name in here.lock.fixes:
        if name in wanted and name not in inside:
            done.fixes.append(_not_in(here, name, plan))
    done.problems += problems(here, found, plan)
    if through:
        done.notes += through.notes
        done.problems += [*through.problems, *through.disagreement(here, plan)]
    done.problems += _spoilt(here, plan, done.problems)
    if through:
        done.problems = through.told(done.problems)
    done.problems += standing.expectation(options.expect_digest, done.digest)
    level = standing.reached(here, found, done.digest)
    done.level = max(level, Level.BYTES if plan.wanted and not done.problems else level).word
    if plan.wanted and not done.problems:
        done.verification = f"{len(outcome.fixed(plan))} files hashed"
    outcome.mark_unproven(done, found.unproven)
    return report.show(done.document(), as_json=options.json, quiet=options.quiet)


def problems(here: Session, found: Look, plan: Plan) -> list[Problem]:
    """Everything that keeps a tree from being what its state says."""
    wrong = [
        *here.problems,
        *plan.problems,
        *found.damaged,
        *standing.check_records(here, found, plan.files),
    ]
    for file in plan.writes:
        what = f"is {file.verdict.value}, not what the applied fixes make of it"
        hint = f"apply again: {' '.join(file.wanted or plan.wanted)}"
        wrong.append(Problem(ExitCode.MISMATCH, file.verdict.value, what, file.path, hint))
    return [*wrong, *look.interruption(here, found)]


def _not_in(here: Session, name: str, plan: Plan) -> FixLine:
    fix = here.lock.fixes[name]
    if fix.need is not Need.OFFERED:
        return FixLine(name, fix.need.value, fix.why)
    if absent := without_target(name, here):
        return absent
    paths = dict.fromkeys(change.path for step in fix.steps for change in step.changes)
    spoilt = [
        f for f in plan.files if f.path in paths and f.verdict.value in ("foreign", "missing")
    ]
    if spoilt:
        return FixLine(name, spoilt[0].verdict.value, files=tuple(f.path for f in spoilt))
    return FixLine(name, "pending", files=tuple(paths))


def _spoilt(here: Session, plan: Plan, known: Sequence[Problem]) -> list[Problem]:
    """Files that no fix could be applied to, though none is asked for."""
    named = {problem.where for problem in known}
    return [
        Problem(
            ExitCode.MISMATCH,
            file.verdict.value,
            "is not the release's file and holds no fix: fixes that touch it cannot be applied",
            file.path,
        )
        for file in plan.files
        if file.verdict in (FileVerdict.FOREIGN, FileVerdict.MISSING)
        and not file.accepted
        and file.target in here.releases
        and file.path not in named
    ]
