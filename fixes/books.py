"""The books of a tree: RECORD and state as they shall be once a plan is carried out."""

from __future__ import annotations

from fixes import __version__, record
from fixes.look import Look
from fixes.plan import FilePlan, Plan
from fixes.session import Session
from fixes.state import SAME_SYNTAX, FixedFile, State, pack
from fixes.tree import Tree


def records(here: Session, found: Look, plan: Plan) -> dict[str, bytes | None]:
    """Each tree's RECORD as it shall be; lines that no fix touches stay as they are."""
    made: dict[str, bytes | None] = {}
    for item in here.trees:
        data = found.records[item.target]
        made[item.target] = data
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
                lines[file.path] = _original(found, item, file, data)
        kept = f"{item.home.name}/{item.state.name}"
        unhashed = []
        if any(file.wanted for file in _of(item, plan)):
            unhashed = [kept]
        else:
            lines[kept] = None
        made[item.target] = record.rewrite(data, lines, unhashed)
    return made


def _original(found: Look, item: Tree, file: FilePlan, data: bytes) -> bytes | None:
    """What RECORD said before the fixes: as saved, or as it says, or as it must have said."""
    state = found.states.get(item.target)
    saved = state.files.get(file.path) if state else None
    if saved is not None:
        return None if saved.record is None else saved.record.encode("utf-8", "surrogateescape")
    told = record.told(data, file.path)
    if told is None or not file.pre:
        return None
    size = len(file.pristine() or b"")
    # Of the release's own bytes RECORD may say what a state that is gone had made of them.
    if file.now == file.pre and (file.accepted or record.matches(data, file.path, file.pre, size)):
        return told
    return record.agreed(file.pre, size)


def _size(found: Look, file: FilePlan) -> int:
    content = file.content if file.content is not None else found.seen.get(file.path)
    return len(content or b"")


def states(here: Session, found: Look, plan: Plan) -> dict[str, State | None]:
    """Each tree's state as it shall be, None where no fix is left in it."""
    made: dict[str, State | None] = {}
    digest = plan.digest(here.releases)
    for item in here.trees:
        files = {file.path: _saved(found, item, file) for file in _of(item, plan) if file.wanted}
        accepted = sorted(
            f"{SAME_SYNTAX if f.by_edits else ''}{f.path}"
            for f in _of(item, plan)
            if f.wanted and f.accepted
        )
        if not files:
            made[item.target] = None
            continue
        fixes = plan.fixes_in(item.target)
        made[item.target] = State(
            __version__,
            here.lock.profile,
            item.version,
            here.lock.digest,
            fixes,
            {
                step.source: here.lock.authored[step.source]
                for name in fixes
                for step in here.lock.fixes[name].steps
            },
            files,
            digest,
            (*accepted, *([f"version {item.version}"] if here.odd_version else [])),
        )
    return made


def _saved(found: Look, item: Tree, file: FilePlan) -> FixedFile:
    state = found.states.get(item.target)
    before = state.files.get(file.path) if state else None
    if before is not None and before.pre == file.pre:
        line, packed = before.record, before.packed
    else:
        data = found.records[item.target]
        told = _original(found, item, file, data) if data is not None else None
        line = None if told is None else told.decode("utf-8", "surrogateescape")
        pristine = file.pristine()
        packed = pack(pristine) if pristine is not None else ""
    return FixedFile(file.path, file.pre, file.post, file.wanted, line, packed)


def _of(item: Tree, plan: Plan) -> list[FilePlan]:
    return [file for file in plan.files if file.target == item.target]
