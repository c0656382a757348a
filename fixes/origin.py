"""The origin of a file: pristine, ours, or foreign. Pure.

A hash that the lock has is pristine. Otherwise the state says what it was, and where there is
no state (a copied layer), taking our byte hunks out must give a locked pre-image.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum

from fixes import hunks
from fixes.lock import FileChange, Fix, Lock, PinnedFile
from fixes.state import State, sha256


class FileVerdict(str, Enum):
    """What a file is, before anything is written."""

    PRISTINE = "pristine"
    APPLIED = "applied"
    OUTDATED = "outdated"
    FOREIGN = "foreign"
    MISSING = "missing"


@dataclass(frozen=True)
class Origin:
    """Where a file's bytes come from: its pre-image (sha256) and the fixes in it.

    ``pristine`` gives the pre-image's bytes. ``accepted``: it is no locked pre-image, but one
    that the operator accepted by name.
    """

    verdict: FileVerdict
    now: str
    pre: str
    present: tuple[str, ...]
    pristine: Callable[[], bytes | None]
    accepted: bool = False


def find(
    lock: Lock, pinned: PinnedFile, data: bytes | None, state: State | None, accept: bool
) -> Origin:
    """The origin of one file: by its hash, by the state, or by taking our hunks out again."""
    record = state.files.get(pinned.path) if state else None
    if data is None:
        if pinned.pristine:
            return Origin(FileVerdict.MISSING, "", "", (), lambda: None)
        verdict = FileVerdict.MISSING if record else FileVerdict.PRISTINE
        return Origin(verdict, "", "", (), lambda: None)
    now = sha256(data)
    if now in pinned.pristine:
        return Origin(FileVerdict.PRISTINE, now, now, (), lambda: data)
    if record is not None and record.post == now:
        known = record.pre in pinned.pristine or (not record.pre and not pinned.pristine)
        if known or accept:
            fixes = tuple(name for name in record.fixes if name in lock.fixes)
            return Origin(
                FileVerdict.APPLIED, now, record.pre, fixes, record.pristine, not known
            )
    return _recognise(lock, pinned, data, now) or Origin(
        FileVerdict.FOREIGN, now, now if accept else "", (), lambda: data, accept
    )


def _recognise(lock: Lock, pinned: PinnedFile, data: bytes, now: str) -> Origin | None:
    """A patched file without a state: ours if taking the hunks out gives a locked pre-image."""
    for (pre, fixes), post in pinned.post.items():
        if post == now:
            return Origin(
                FileVerdict.APPLIED, now, pre, fixes, _reversal(lock, pinned.path, fixes, data)
            )
    inside = []
    bytes_now = data
    for fix in reversed(list(lock.fixes.values())):
        changes = changes_of(fix, pinned.path)
        if not changes or any(change.content is not None for change in changes):
            continue
        try:
            bytes_now = _taken_out(changes, bytes_now)
        except hunks.HunkError:
            continue
        inside.append(fix.id)
    pre = sha256(bytes_now)
    if pre not in pinned.pristine:
        return None
    return Origin(FileVerdict.APPLIED, now, pre, tuple(reversed(inside)), lambda: bytes_now)


def _reversal(
    lock: Lock, path: str, fixes: tuple[str, ...], data: bytes
) -> Callable[[], bytes | None]:
    def pristine() -> bytes | None:
        before = data
        for name in reversed(fixes):
            changes = changes_of(lock.fixes[name], path)
            if any(change.content is not None for change in changes):
                return None
            before = _taken_out(changes, before)
        return before

    return pristine


def _taken_out(changes: tuple[FileChange, ...], data: bytes) -> bytes:
    for change in reversed(changes):
        data = hunks.apply(data, hunks.reverse(change.hunks)).data
    return data


def changes_of(fix: Fix, path: str) -> tuple[FileChange, ...]:
    """What the steps of ``fix`` do to ``path``, in order."""
    return tuple(change for step in fix.steps for change in step.changes if change.path == path)


def paths_of(fix: Fix) -> tuple[str, ...]:
    """The files that ``fix`` touches, in order of appearance."""
    return tuple(dict.fromkeys(change.path for step in fix.steps for change in step.changes))
