"""The post-image of a file: its pre-image through the steps of fixes. Pure: bytes in, bytes out.

Steps are byte hunks. Where the pre-image has other bytes than they were made for, but all that
the edits rely on is the syntax that the lock pins, the edits themselves are done.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from fixes import editing, hunks, scopes
from fixes.edits import EditError
from fixes.errors import ExitCode, Problem
from fixes.lock import Lock
from fixes.origin import Origin
from fixes.state import DamagedStateError

_STATELESS = "a fixed file whose state is gone reads so too: install it again, then apply"


class StepError(Exception):
    """A fix that does not apply behind ``earlier`` ones: kinds, and what is wrong."""

    def __init__(self, fix: str, faults: Iterable[tuple[str, str]], earlier: Sequence[str]) -> None:
        super().__init__(fix)
        self.fix = fix
        self.faults = tuple(faults)
        self.earlier = earlier

    def problems(self, path: str) -> list[Problem]:
        """As problems, one for each fault."""
        behind = f" (behind {', '.join(self.earlier)})" if self.earlier else ""
        return [
            Problem(ExitCode.MISMATCH, kind, f"{self.fix}{what}{behind}", path)
            for kind, what in self.faults
        ]


def drift(lock: Lock, path: str, names: Sequence[str], found: Origin) -> list[Problem] | None:
    """What differs in a file from what the fixes ``names`` rely on; None if that is not pinned."""
    changes = {name: lock.changes[path][name] for name in names}
    if not all(change.edits for all_ in changes.values() for change in all_):
        return None
    problems = []
    for name, all_ in changes.items():
        for change in all_:
            try:
                faults = scopes.differing(found.pristine() or b"", change.scopes)
            except (SyntaxError, DamagedStateError) as error:
                faults = (f"is not Python: {error}",)
            for fault in faults:
                what = f"{name}: {fault}"
                problems.append(Problem(ExitCode.MISMATCH, "drifted", what, path, _STATELESS))
    return problems


def through(
    lock: Lock, path: str, names: tuple[str, ...], pristine: bytes | None, by_edits: bool
) -> tuple[bytes | None, tuple[int, ...]]:
    """The pre-image through the steps of ``names``, and the offsets of the hunks in lines.

    ``by_edits``: it has other bytes than the hunks were made for, and the same syntax.

    Raises StepError.
    """
    data = pristine
    offsets: tuple[int, ...] = ()
    for position, name in enumerate(names):
        for change in lock.changes[path][name]:
            try:
                if change.content is not None:
                    data = _added(change.content, data)
                elif by_edits or not change.hunks:
                    data = editing.resolve(data, change.edits).data
                else:
                    done = hunks.apply(data or b"", change.hunks)
                    data, offsets = done.data, offsets + done.offsets
            except hunks.HunkError as error:
                found = [(f.kind, f", hunk {f.index + 1}: {f.detail}") for f in error.failures]
                raise StepError(name, found, names[:position]) from error
            except EditError as error:
                found = [(one.kind, f": {one.message}") for one in (error, *error.also)]
                raise StepError(name, found, names[:position]) from error
    return data, offsets


def _added(content: bytes, data: bytes | None) -> bytes:
    if data is not None:
        raise EditError("conflict", "adds this file, but it is there")
    return content
