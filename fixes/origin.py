"""The origin of a file: pristine, ours, or foreign. Pure.

A hash that the lock has is pristine. Otherwise the state says what it was, and where there is
no state (a copied layer), taking our byte hunks out must give a locked pre-image.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import partial

from fixes import hunks
from fixes.digest import sha256
from fixes.lock import FileChange, Fix, Lock, PinnedFile
from fixes.state import SAME_SYNTAX, State


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
    that was accepted, by its name or (``scoped``) as the same syntax.
    """

    verdict: FileVerdict
    now: str
    pre: str
    present: tuple[str, ...]
    pristine: Callable[[], bytes | None]
    accepted: bool = False
    scoped: bool = False


def find(
    lock: Lock, pinned: PinnedFile, data: bytes | None, state: State | None, accept: bool
) -> Origin:
    """The origin of one file: by its hash, by the state, or by taking our hunks out again.

    ``accept``: a foreign file is accepted, as is one that the state says was accepted before.
    """
    record = state.files.get(pinned.path) if state else None
    if data is None:
        if pinned.pristine:
            return Origin(FileVerdict.MISSING, "", "", (), lambda: None)
        return Origin(FileVerdict.PRISTINE, "", "", (), lambda: None)
    now = sha256(data)
    if now in pinned.pristine:
        return Origin(FileVerdict.PRISTINE, now, now, (), lambda: data)
    marks = state.accepted if state and record else ()
    scoped = SAME_SYNTAX + pinned.path in marks
    if record and (scoped or pinned.path in marks):  # those bytes, and no others
        accept = accept or now in (record.pre, record.post)
    if record is not None and record.post == now:
        known = record.pre in pinned.pristine or (not record.pre and not pinned.pristine)
        if known or accept:
            fixes = tuple(name for name in record.fixes if name in lock.fixes)
            odd = not known
            applied = FileVerdict.APPLIED
            return Origin(applied, now, record.pre, fixes, record.pristine, odd, odd and scoped)
    return _recognise(lock, pinned, data, now) or Origin(
        FileVerdict.FOREIGN,
        now,
        now if accept else "",
        (),
        lambda: data,
        accept,
        accept and scoped,
    )


def _recognise(lock: Lock, pinned: PinnedFile, data: bytes, now: str) -> Origin | None:
    """A patched file without a state: ours if taking our steps out gives a locked pre-image."""
    changes = lock.changes.get(pinned.path, {})
    for (pre, fixes), post in pinned.post.items():
        if post == now:
            inside = [changes[name] for name in fixes]
            pristine = partial(_without, inside, data)
            return Origin(FileVerdict.APPLIED, now, pre, fixes, pristine)
    found = []
    before: bytes | None = data
    for name, steps in reversed(changes.items()):
        try:
            before = _without([steps], before)
        except hunks.HunkError:
            continue
        found.append(name)
    known = not pinned.pristine if before is None else sha256(before) in pinned.pristine
    if not known:
        return None
    pre = "" if before is None else sha256(before)
    return Origin(FileVerdict.APPLIED, now, pre, tuple(reversed(found)), lambda: before)


def _without(fixes: Sequence[tuple[FileChange, ...]], data: bytes | None) -> bytes | None:
    """A file less some fixes, None if one of them added it. Raises HunkError if they are not in."""
    for changes in reversed(fixes):
        for change in reversed(changes):
            if change.content is None:
                data = hunks.apply(data or b"", hunks.reverse(change.hunks)).data
            elif change.content == data:
                data = None
            else:
                raise hunks.HunkError(())
    return data


def paths_of(fix: Fix) -> tuple[str, ...]:
    """The files that ``fix`` touches, in order of appearance."""
    return tuple(dict.fromkeys(change.path for step in fix.steps for change in step.changes))
