"""The transaction: a set of changes to files that happens as a whole or not at all.

Entering it checks what is there and stages everything beside the files; ``commit`` puts it in
place; ``finish`` makes it final. Leaving it in any other way puts every file back, as the very
file (inode, times, links) it was. A kill at any instant is undone by ``recover``.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from fixes.disk import (
    NOT_A_FILE,
    back_up,
    fresh_mtime,
    make_folder,
    naming,
    remove,
    sha256_of,
    sync_folder,
    write_like,
)
from fixes.errors import ExitCode, FixesError, Problem
from fixes.journal import Entry, Journal, Recovered, pending, recover, uninterrupted

__all__ = ["Change", "Recovered", "Transaction", "fresh_mtime", "pending", "recover"]


@dataclass(frozen=True)
class Change:
    """One file as it shall be.

    ``expect`` is the sha256 that the change was planned on (None: the file must be absent),
    ``content`` the new bytes (None: remove it), ``mtime_ns`` the new mtime (None:
    ``fresh_mtime``). ``cache`` marks bytecode: what is there now does not matter.
    """

    path: Path
    expect: str | None
    content: bytes | None
    mtime_ns: int | None = None
    cache: bool = False


class Transaction:
    """A set of changes, to be used as a context manager while the lock is held.

    ``home`` is where the journal is: the folder that holds our state, always the same one for
    the same tree. Raises FixesError: on entering, ``changed-meanwhile`` (MISMATCH) for every
    file that is not what its change was planned on; anywhere, ``permission``, ``read-only``,
    ``disk-full`` or ``io-error`` (CANNOT_WRITE), with everything as it was once the context
    is left; UNRECOVERABLE if it cannot be put back.
    """

    def __init__(self, home: Path, changes: Sequence[Change]) -> None:
        self._changes = {_real(change.path): change for change in changes}
        if len(self._changes) != len(changes):
            raise ValueError("two changes of one path")
        self._journal = Journal(Path(os.path.realpath(home)), ())
        self._open = False

    def __enter__(self) -> Transaction:
        home = self._journal.home
        if pending(home):
            recover(home)
        self._journal = self._plan(home)
        self._open = True
        try:
            self._stage()
            return self
        except BaseException:
            self.rollback()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._open:
            self.rollback()

    def _plan(self, home: Path) -> Journal:
        token = os.urandom(4).hex()
        entries: list[Entry] = []
        folders: list[Path] = []
        problems = []
        for path, change in self._changes.items():
            with naming(path):
                now = sha256_of(path)
            # A folder in the place of bytecode is no bytecode.
            if now == NOT_A_FILE or (now != change.expect and not change.cache):
                what = "is not what it was when this run looked at it first"
                code = ExitCode.MISMATCH
                problems.append(Problem(code, "changed-meanwhile", what, str(path)))
            if now is None and change.content is None:
                continue
            post = None if change.content is None else _sha256(change.content)
            stem = f".fixes-{token}-{len(entries)}"
            entries.append(Entry(path, stem, now, (post,), change.cache))
            folders += [
                folder
                for folder in reversed(path.parents)
                if not os.path.lexists(folder) and folder not in folders
            ]
        if problems:
            raise FixesError(*problems)
        return Journal(home, tuple(entries), tuple(folders))

    def _stage(self) -> None:
        with naming(self._journal.path):
            self._journal.write()
        for folder in self._journal.folders:
            with naming(folder):
                make_folder(folder)
        for entry in self._journal.entries:
            change = self._changes[entry.path]
            if change.content is not None:
                with naming(entry.path):
                    mtime = change.mtime_ns
                    mtime = fresh_mtime(entry.path) if mtime is None else mtime
                    write_like(entry.new, change.content, entry.path, mtime)
        # Only after all temporaries: a backup without one means that the file was replaced.
        for entry in self._journal.entries:
            if entry.pre is not None:
                with naming(entry.path):
                    back_up(entry.path, entry.old)
        self._sync()

    def _sync(self) -> None:
        with naming(self._journal.home.parent):
            self._journal.sync_folders()

    @property
    def final(self) -> bool:
        """Whether the commit point has been passed: nothing is rolled back any more."""
        return not self._open

    def commit(self) -> None:
        """Put everything in place. It can still be rolled back."""
        for entry in self._journal.entries:
            with naming(entry.path):
                if entry.removes:
                    remove(entry.path)
                else:
                    entry.new.replace(entry.path)
        self._sync()

    def amend(self, path: Path, content: bytes) -> None:
        """Give one of the committed files another content (the state, after verification)."""
        path = _real(path)
        [entry] = [entry for entry in self._journal.entries if entry.path == path]
        with naming(path):
            self._journal = self._journal.amend(entry, _sha256(content))
            self._journal.write()
            write_like(entry.amended, content, path, fresh_mtime(path))
            entry.amended.replace(path)
            sync_folder(path.parent)

    def finish(self) -> None:
        """Make it final: drop backups, emptied folders and the journal."""
        with uninterrupted():
            with naming(self._journal.path):
                self._journal.mark_done()
            self._open = False
            self._journal.clean()

    def rollback(self) -> None:
        """Put everything back. Raises FixesError (UNRECOVERABLE) if that cannot be done."""
        self._journal.roll_back()
        self._open = False


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _real(path: Path) -> Path:
    # The folder is resolved, so that one file has one name; the file itself may be a symlink.
    return Path(os.path.realpath(path.parent), path.name)
