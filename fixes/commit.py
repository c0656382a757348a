"""Carrying out a plan: lock, look again, one transaction, verify, record, report.

The only way into a tree. Whatever goes wrong between its first write and its last puts every
byte back, a failed verification included.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from fixes import __version__, bytecode, flock, outcome, record, report, session, verify
from fixes.digest import sha256
from fixes.errors import ExitCode, FixesError
from fixes.outcome import FixLine, Report
from fixes.plan import FilePlan, Plan
from fixes.session import Look, Session
from fixes.state import FixedFile, Level, State, Verified, dump, pack
from fixes.transaction import Change, Transaction, fresh_mtime, pending, recover
from fixes.tree import Tree
from fixes.verify import Verification


@dataclass(frozen=True)
class Order:
    """What a run was told: the verb, the level to verify to, seconds to wait for the lock, the
    names as given, and the report lines for those that need nothing done.
    """

    verb: str
    level: Level
    wait: float
    names: tuple[str, ...] = ()
    lines: tuple[FixLine, ...] = ()


def carry_out(here: Session, order: Order, plan_for: Callable[[Look], Plan]) -> Report:
    """Make the trees what ``plan_for`` says of a look at them, verify, and report.

    Raises FixesError: CANNOT_WRITE, LOCKED, UNRECOVERABLE, VERIFICATION_FAILED (rolled back),
    and whatever ``plan_for`` raises.
    """
    done = outcome.start(order.verb, here)
    homes = [item.home for item in here.trees]

    def waiting() -> None:
        report.emit("waiting for another run on this tree\n", sys.stderr)

    with flock.held(homes, order.wait, waiting):
        for home in homes:
            if pending(home) and recover(home).rolled_back:
                done.notes.append("an interrupted run was found and rolled back")
        found = session.look(here)
        plan = plan_for(found)
        outcome.add_plan(done, here, plan, done=True)
        done.fixes += order.lines
        if plan.writes:
            _write(here, found, plan, order, done)
        else:
            _settle(here, found, plan, order, done)
    return done


def _write(here: Session, found: Look, plan: Plan, order: Order, done: Report) -> None:
    """Write files, RECORD and state; verify; make it final or put everything back."""
    records = _records(here, found, plan)
    states = _states(here, found, plan)
    changes = [change for file in plan.writes for change in _file_changes(here, file)]
    changes += _book_changes(here, found, records, states)
    with Transaction(here.trees[0].home, changes) as transaction:
        transaction.commit()
        reached = verify.run(here, plan, order.level)
        outcome.add_verification(done, plan, reached)
        final = _proven(here, found, records, states, reached, order, done)
        for item in here.trees:
            state = final[item.target]
            if state is not None:
                transaction.amend(item.state, dump(state))
        transaction.finish()


def _settle(here: Session, found: Look, plan: Plan, order: Order, done: Report) -> None:
    """The files are right. Verify if need be, then bring state and RECORD up to date."""
    settled = session.recorded(here, found, plan)
    if settled and session.reached(here, found, done.digest) >= order.level:
        outcome.add_verification(done, plan, verify.earlier(found, order.level))
        return
    reached = verify.run(here, plan, order.level)
    outcome.add_verification(done, plan, reached)
    records = _records(here, found, plan)
    states = _states(here, found, plan)
    final = _proven(here, found, records, states, reached, order, done)
    try:
        with Transaction(
            here.trees[0].home, _book_changes(here, found, records, final)
        ) as transaction:
            transaction.commit()
            transaction.finish()
    except FixesError as error:
        # The files are right and proven: that this cannot be written down is no fault, unless
        # RECORD is what is wrong.
        wrong = session.check_records(here, found, plan.files)
        if error.exit_code is not ExitCode.CANNOT_WRITE or wrong:
            raise
        done.notes.append(f"the result was not recorded: {error.problems[0].kind}")


def _proven(
    here: Session,
    found: Look,
    records: Mapping[str, bytes | None],
    states: Mapping[str, State | None],
    reached: Verification,
    order: Order,
    done: Report,
) -> dict[str, State | None]:
    """The states with what was reached, and the answer for a run that is asked the same."""
    after = replace(found, records=dict(records))
    mark = session.fingerprint(here, after, done.digest)
    verified = Verified(reached.level.word, mark, here.environment.version, dict(reached.unproven))
    answer = None
    if order.verb == "apply" and len(here.trees) == 1:
        answer = {"names": list(order.names), "report": outcome.again(done)}
    return {
        target: state and replace(state, verified=verified, answer=answer)
        for target, state in states.items()
    }


def _file_changes(here: Session, file: FilePlan) -> list[Change]:
    place = here.where(file.path)
    if place is None:
        raise ValueError(f"{file.path} has no tree")
    item, path = place
    mtime = fresh_mtime(path)
    source = Path(item.site, file.path)
    cached = bytecode.compiled(source, file.content, mtime, here.environment.pycache_prefix)
    return [Change(path, file.now or None, file.content, mtime), *cached]


def _book_changes(
    here: Session,
    found: Look,
    records: Mapping[str, bytes | None],
    states: Mapping[str, State | None],
) -> list[Change]:
    """The changes to RECORD and state of each tree."""
    changes = []
    for item in here.trees:
        old = found.records[item.target]
        new = records[item.target]
        if new is not None and new != old and item.state_record is not None:
            changes.append(Change(item.state_record, sha256(old or b""), new))
        state = states[item.target]
        before = found.state_bytes[item.target]
        if state is not None or before is not None:
            content = None if state is None else dump(state)
            changes.append(Change(item.state, None if before is None else sha256(before), content))
    return changes


def _records(here: Session, found: Look, plan: Plan) -> dict[str, bytes | None]:
    """Each tree's RECORD as it shall be; lines that no fix touches stay as they are."""
    records: dict[str, bytes | None] = {}
    for item in here.trees:
        data = found.records[item.target]
        records[item.target] = data
        if data is None:
            continue
        state = found.states.get(item.target)
        lines: dict[str, tuple[str, int] | bytes | None] = {}
        for file in _of(item, plan):
            size = _size(found, file)
            if file.wanted:
                if not file.pre or record.entry(data, file.path) is not None:
                    lines[file.path] = (file.post, size)
            elif file.now != file.post or (state and file.path in state.files):
                lines[file.path] = _original_line(found, item, file, data)
        kept = item.state.relative_to(_base(item)).as_posix()
        unhashed = []
        if any(file.wanted for file in _of(item, plan)):
            unhashed = [kept]
        else:
            lines[kept] = None
        records[item.target] = record.rewrite(data, lines, unhashed)
    return records


def _base(item: Tree) -> Path:
    """The folder that paths in the RECORD which lists the state are relative to."""
    return item.home.parent


def _original_line(
    found: Look, item: Tree, file: FilePlan, data: bytes
) -> tuple[str, int] | bytes | None:
    """RECORD's line from before the fixes: as saved, else as it must have been."""
    state = found.states.get(item.target)
    saved = state.files.get(file.path) if state else None
    if saved is not None:
        return None if saved.record is None else saved.record.encode("utf-8", "surrogateescape")
    if not file.pre or record.entry(data, file.path) is None:
        return None
    pristine = file.pristine()
    return (file.pre, len(pristine)) if pristine is not None else None


def _size(found: Look, file: FilePlan) -> int:
    content = file.content if file.content is not None else found.seen.get(file.path)
    return len(content or b"")


def _states(here: Session, found: Look, plan: Plan) -> dict[str, State | None]:
    """Each tree's state as it shall be, None where no fix is left in it."""
    states: dict[str, State | None] = {}
    digest = plan.digest(here.releases)
    for item in here.trees:
        files = {file.path: _saved(found, item, file) for file in _of(item, plan) if file.wanted}
        accepted = sorted(f.path for f in _of(item, plan) if f.wanted and f.accepted)
        if not files:
            states[item.target] = None
            continue
        states[item.target] = State(
            __version__,
            here.lock.profile,
            item.version,
            here.lock.digest,
            plan.wanted,
            {
                step.source: here.lock.authored[step.source]
                for name in plan.wanted
                for step in here.lock.fixes[name].steps
            },
            files,
            digest,
            tuple(accepted),
        )
    return states


def _saved(found: Look, item: Tree, file: FilePlan) -> FixedFile:
    state = found.states.get(item.target)
    before = state.files.get(file.path) if state else None
    if before is not None and before.pre == file.pre:
        line, packed = before.record, before.packed
    else:
        data = found.records[item.target]
        line = None
        original = _original_line(found, item, file, data) if data is not None else None
        if data is not None and original is not None:
            told = record.told(record.rewrite(data, {file.path: original}), file.path)
            line = (told or b"").decode("utf-8", "surrogateescape")
        pristine = file.pristine()
        packed = pack(pristine) if pristine is not None else ""
    return FixedFile(file.path, file.pre, file.post, file.wanted, line, packed)


def _of(item: Tree, plan: Plan) -> list[FilePlan]:
    return [file for file in plan.files if file.target == item.target]
