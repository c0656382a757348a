"""The standing of a tree: whether its books say what a plan says, and how far it was verified."""

from __future__ import annotations

from collections.abc import Sequence

from fixes import disk, record, tree
from fixes.digest import of_surroundings
from fixes.errors import ExitCode, FixesError, Problem
from fixes.look import Look
from fixes.origin import FileVerdict
from fixes.plan import FilePlan, Plan
from fixes.session import Session
from fixes.state import Level


def unwritable(session: Session, plan: Plan) -> list[Problem]:
    """For each tree that the plan writes to, the first folder that it may not write to."""
    found: dict[str, Problem] = {}
    for file in plan.writes:
        place = session.where(file.path)
        if place is None:
            continue
        item, path = place
        for folder in (item.home, path.parent):
            problem = disk.unwritable(folder)
            if problem:
                found.setdefault(item.target, problem)
    return list(found.values())


def check_records(session: Session, found: Look, files: Sequence[FilePlan]) -> list[Problem]:
    """Entries of RECORD that do not say what the planned files will be."""
    problems = []
    for item in session.trees:
        data = found.records[item.target]
        if data is None:
            continue
        for file in files:
            content = found.seen.get(file.path)
            if file.target != item.target or content is None or not file.wanted:
                continue
            listed = record.entry(data, file.path) is not None
            if listed and not record.matches(data, file.path, file.now, len(content)):
                what = f"lists {file.path} with another hash or size"
                problems.append(
                    Problem(
                        ExitCode.MISMATCH,
                        "record",
                        what,
                        str(item.record),
                        "`apply` sets it right",
                    )
                )
    return problems


def expectation(asked: str | None, digest: str) -> list[Problem]:
    """What --expect-digest says of a digest, with or without its prefix."""
    if asked is None or asked.removeprefix("sha256:") == digest:
        return []
    what = f"the digest is sha256:{digest}, not {asked}"
    return [Problem(ExitCode.DIGEST_DIFFERS, "digest", what)]


def unaccounted(session: Session, found: Look, plan: Plan) -> list[Problem]:
    """What keeps a damaged state from being replaced: it may hold the only pristine bytes."""
    if not found.damaged:
        return []
    if not session.lock.files:
        return list(found.damaged)
    return [
        Problem(
            ExitCode.MISMATCH,
            "foreign",
            "the state is damaged, and this file is none that the profile accounts for",
            file.path,
            "install the release again, then apply",
        )
        for file in plan.files
        if file.verdict is FileVerdict.FOREIGN and not file.accepted
    ]


def recorded(session: Session, found: Look, plan: Plan) -> bool:
    """Whether every tree's state and RECORD already say what the plan says."""
    if found.damaged or check_records(session, found, plan.files):
        return False
    digest = plan.digest(session.releases)
    for item in session.trees:
        files = {f.path: f.post for f in plan.files if f.wanted and f.target == item.target}
        state = found.states.get(item.target)
        if state is None:
            if files:
                return False
            continue
        if state.lock != session.lock.digest or state.fixes != plan.fixes_in(item.target):
            return False
        if state.digest != digest:
            return False
        if files != {path: file.post for path, file in state.files.items()}:
            return False
    return True


def wanted_level(session: Session, asked: str | None, accepted_version: str | None) -> Level:
    """The level to reach: what was asked for, else all that this environment allows.

    Raises FixesError with USAGE where a level is asked for that cannot be had.
    """
    possible = Level.BYTES if session.environment.executable is None else Level.PROBE
    level = Level[asked.upper()] if asked else possible
    if accepted_version and session.odd_version:
        level = Level.PROBE
    if level > possible:
        what = f"level {level.word} needs an interpreter to import in"
        hint = "name the environment's by --python"
        raise FixesError(Problem(ExitCode.USAGE, "usage", what, hint=hint))
    return level


def reached(session: Session, found: Look, digest: str) -> Level:
    """The level that the states say was reached for exactly this, here; NONE if not all do.

    A tree that no fix is in has no state, and nothing that was to be verified.
    """
    mark = fingerprint(session, found, digest)
    verified = [state.verified for state in found.states.values()]
    if not verified or any(one is None or one.fingerprint != mark for one in verified):
        return Level.NONE
    return min(Level[one.level.upper()] for one in verified if one)


def fingerprint(session: Session, found: Look, digest: str) -> str:
    """What an already verified tree must still be, for its level to be believed."""
    return of_surroundings(
        session.lock.digest,
        digest,
        session.environment.version,
        [found.records[item.target] or b"" for item in session.trees],
        tree.siblings(session.trees[0], session.environment),
    )
