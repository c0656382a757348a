"""Carrying out a plan: lock, look again, one transaction, verify, record, report.

The only way into a tree. Whatever goes wrong between its first write and its last puts every
byte back, a failed verification included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from fixes import books, bytecode, flock, look, outcome, report, standing, tree, verify
from fixes.digest import sha256
from fixes.errors import ExitCode, FixesError, TerminatedError
from fixes.look import Look
from fixes.outcome import FixLine, Report
from fixes.plan import FilePlan, Plan
from fixes.session import Session
from fixes.state import Level, State, Verified, dump
from fixes.transaction import (
    Change,
    Roots,
    Transaction,
    fresh_mtime,
    pending,
    recover,
    unclaimed,
)
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
        report.emit("waiting for another run on this tree\n", error=True)

    with flock.held(homes, order.wait, waiting):
        for home in homes:
            if pending(home) and recover(home, _roots(here, home)).rolled_back:
                done.notes.append("an interrupted run was found and rolled back")
        if _sweep(here):
            done.notes.append("leftovers of an interrupted run without a journal were removed")
        found = look.take(here)
        plan = plan_for(found)
        outcome.add_plan(done, here, plan, done=True)
        done.fixes += order.lines
        if plan.writes:
            _write(here, found, plan, order, done)
        else:
            _settle(here, found, plan, order, done)
    return done


def _roots(here: Session, home: Path) -> Roots:
    """All folders that a run on these trees may write to, named for its journal in ``home``."""
    folders: dict[str, Path] = {}
    for item in here.trees:
        folders[f"package:{item.target}"] = Path(item.root)
        folders[f"home:{item.target}"] = item.home
        folders |= bytecode.roots(item.package, here.environment.pycache_prefix)
    return Roots.of(home, folders)


def _transaction(here: Session, changes: list[Change]) -> Transaction:
    home = here.trees[0].home
    return Transaction(home, changes, _roots(here, home))


def _sweep(here: Session) -> bool:
    """Remove what a killed run left beside the files, where no journal knows of it any more."""
    swept = False
    for item in here.trees:
        paths = []
        for path in here.lock.files:
            with suppress(FixesError):  # an unsafe path: the look says so
                if path.startswith(item.target + "/"):
                    paths.append(tree.resolve(item, path))
        for leftover in unclaimed(item.home, paths):
            with suppress(OSError):  # a tree that cannot be written to may still be right
                leftover.unlink()
                swept = True
    return swept


def _write(here: Session, found: Look, plan: Plan, order: Order, done: Report) -> None:
    """Write files, RECORD and state; verify; make it final or put everything back."""
    records = books.records(here, found, plan)
    states = books.states(here, found, plan)
    changes = [change for file in plan.writes for change in _file_changes(here, file)]
    changes += _book_changes(here, found, records, states)
    with _transaction(here, changes) as transaction:
        transaction.commit()
        reached = verify.run(here, plan, order.level)
        outcome.add_verification(done, here, plan, reached)
        final = _proven(here, found, records, states, reached, order, done)
        for item in here.trees:
            state = final[item.target]
            if state is not None:
                transaction.amend(item.state, dump(state))
        try:
            transaction.finish()
        except (KeyboardInterrupt, TerminatedError):
            # Past the commit point all is in and proven, and the run says so.
            if not transaction.final:
                raise


def _settle(here: Session, found: Look, plan: Plan, order: Order, done: Report) -> None:
    """The files are right. Verify if need be, then bring state and RECORD up to date."""
    settled = standing.recorded(here, found, plan)
    if settled and standing.reached(here, found, done.digest) >= order.level:
        outcome.add_verification(done, here, plan, verify.earlier(found, order.level))
        return
    reached = verify.run(here, plan, order.level)
    outcome.add_verification(done, here, plan, reached)
    records = books.records(here, found, plan)
    states = books.states(here, found, plan)
    final = _proven(here, found, records, states, reached, order, done)
    changes = _book_changes(here, found, records, final)
    if not changes:
        return
    try:
        with _transaction(here, changes) as transaction:
            transaction.commit()
            transaction.finish()
    except FixesError as error:
        # The files are right and proven: that this cannot be written down is no fault, unless
        # RECORD is what is wrong.
        wrong = standing.check_records(here, found, plan.files)
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
    mark = standing.fingerprint(here, after, done.digest)
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
