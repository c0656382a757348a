"""``revert``: take fixes out, byte for byte: the same plan with fewer fixes."""

from __future__ import annotations

import argparse
from collections.abc import Collection

from fixes import cli, look, overlaid, report, session, standing
from fixes.errors import ExitCode, FixesError, Problem
from fixes.look import Look
from fixes.origin import FileVerdict
from fixes.plan import Plan, make
from fixes.selection import expand
from fixes.session import Session


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this verb."""
    cli.common_arguments(parser, "*", "bytes")
    parser.add_argument("--all", action="store_true", help="every fix that is in")
    cli.wait_argument(parser)


def run(options: argparse.Namespace) -> int:
    """Take out the named fixes, or all; what stays in is verified to --verify (bytes)."""
    if bool(options.names) == options.all:
        what = "name the fixes to take out, or give --all"
        raise FixesError(Problem(ExitCode.USAGE, "usage", what))
    here = session.open_session(options, without_profile=options.all)
    level = standing.wanted_level(here, options.verify, options.accept_version)
    from fixes import commit, outcome

    if options.dry_run:
        done = outcome.start("revert", here)
        done.dry_run = True
        outcome.add_plan(done, here, _planned(here, look.take(here), options), done=False)
    else:
        order = commit.Order("revert", level, options.wait)
        done = commit.carry_out(here, order, lambda now: _planned(here, now, options))
    return report.show(done.document(), as_json=options.json, quiet=options.quiet)


def _planned(here: Session, found: Look, options: argparse.Namespace) -> Plan:
    recorded = set(found.state.fixes) if found.state else set()
    if options.all:
        removed = set(here.lock.fixes) | recorded
    else:
        removed = expand(options.names, here, also=recorded)
        removed |= _for_plugins(here, options.names, recorded, removed)
    plan = make(
        here.lock,
        (),
        found.seen,
        found.state,
        removed=removed,
        foreign_allowed=options.allow_foreign,
    )
    problems = [
        *here.problems,
        *plan.problems,
        *([] if found.state else _unknown(here, plan, removed)),
        *standing.unaccounted(here, found, plan),
        *look.interruption(here, found),
        *overlaid.hiding(here, found, plan, only_refusing=True),
        *standing.expectation(options.expect_digest, plan.digest(here.releases)),
    ]
    if problems:
        raise FixesError(*problems)
    return plan


def _for_plugins(
    here: Session, names: Collection[str], recorded: Collection[str], removed: Collection[str]
) -> set[str]:
    """What a bundle has for installed plugins goes with it, unless another bundle stays whole."""

    def whole(bundle: str, among: Collection[str]) -> bool:
        members = here.lock.bundles[bundle].members
        return all(name in among for name in members if here.lock.fixes[name].steps)

    left = set(recorded) - set(removed)
    gone = any(whole(name, recorded) for name in names if name in here.lock.bundles)
    stays = any(whole(name, left) for name in here.lock.bundles if name not in names)
    return set(here.platform_fixes) if gone and not stays else set()


def _unknown(here: Session, plan: Plan, removed: Collection[str]) -> list[Problem]:
    """Without a state: files that no hash knows, and that may hold what is to be taken out."""
    told = {problem.where for problem in plan.problems}
    return [
        Problem(
            ExitCode.MISMATCH,
            "foreign",
            f"nothing says whether it holds {', '.join(fixes)}",
            file.path,
            "install the release again",
        )
        for file in plan.files
        if file.verdict is FileVerdict.FOREIGN and not file.accepted and file.path not in told
        if (fixes := [fix for fix in here.lock.changes.get(file.path, ()) if fix in removed])
    ]
