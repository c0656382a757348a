"""The transaction: a set of changes to files that happens as a whole or not at all.

Entering it checks what is there and stages everything beside the files; ``commit`` puts it in
place; ``finish`` makes it final. Leaving it in any other way puts every file back, as the very
file (inode, times, links) it was. A kill at any instant is undone by ``recover``.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
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
from fixes.entry import Entry
from fixes.errors import ExitCode, FixesError, Problem
from fixes.journal import Journal, Recovered, pending, recover, unclaimed, uninterrupted
from fixes.roots import Roots

__all__ = [
    "Change",
    "Recovered",
    "Roots",
    "Transaction",
    "fresh_mtime",
    "pending",
    "recover",
    "unclaimed",
]


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
    the same tree; ``roots`` are the folders that the changes are in. Raises FixesError: on
    entering, ``unsafe-path`` (MISMATCH) for every file outside of them; until it is final,
    ``changed-meanwhile`` (MISMATCH) for every file that is not what its change was planned on,
    or not any more what was written; anywhere, ``permission``, ``read-only``, ``disk-full``,
    ``unreadable`` or ``io-error`` (CANNOT_WRITE), with everything as it was once the context is
    left, but for what someone else wrote meanwhile, which stays; UNRECOVERABLE if it cannot be
    put back.
    """

    def __init__(self, home: Path, changes: Sequence[Change], roots: Roots | None = None) -> None:
        self._changes = {_real(change.path): change for change in changes}
        if len(self._changes) != len(changes):
            raise ValueError("two changes of one path")
        self._journal = Journal(Path(os.path.realpath(home)), roots or Roots.of(home), ())
        self._open = False

    def __enter__(self) -> Transaction:
        home = self._journal.home
        if pending(home):
            recover(home, self._journal.roots)
        self._journal = self._plan(home)
        self._open = True
        try:
            self._stage()
            return self
        except BaseException as error:
            self._undo(error)
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._open:
            self._undo(error)

    def _undo(self, error: BaseException | None) -> None:
        with uninterrupted():
            try:
                self.rollback()
            except FixesError as another:
                known = error.problems if isinstance(error, FixesError) else ()
                raise FixesError(*dict.fromkeys((*known, *another.problems))) from error

    def _plan(self, home: Path) -> Journal:
        token = os.urandom(4).hex()
        entries: list[Entry] = []
        folders: list[Path] = []
        problems = []
        for path, change in self._changes.items():
            if self._journal.roots.locate(path, change.cache) is None:
                if not change.cache:  # bytecode that a link leads out is not of this tree
                    what = "leads out of the tree"
                    code = ExitCode.MISMATCH
                    problems.append(Problem(code, "unsafe-path", what, str(path)))
                continue
            with naming(path):
                now = sha256_of(path)
            if change.cache and now == NOT_A_FILE and not path.is_symlink() and path.is_dir():
                continue  # a folder in the place of bytecode is no bytecode
            if not change.cache and (now == NOT_A_FILE or now != change.expect):
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
        return Journal(home, self._journal.roots, tuple(entries), tuple(folders))

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
        self._require(Entry.backup_changed)
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
                # Looked at again directly before, so that nobody's edit is overwritten.
                if not entry.cache and sha256_of(entry.path) != entry.pre:
                    raise FixesError(_changed(entry.path))
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
            if entry.changed():
                raise FixesError(_changed(path))
            entry.amended.replace(path)
            sync_folder(path.parent)

    def finish(self) -> None:
        """Make it final: drop backups, emptied folders and the journal.

        What was written, and the backups (which others may have open still), are read again
        first: an edit since would be left in, or lost, by a run that says that all is well.
        """
        self._require(lambda entry: entry.changed() or entry.backup_changed())
        with uninterrupted():
            with naming(self._journal.path):
                self._journal.mark_done()
            self._open = False
            self._journal.clean()

    def rollback(self) -> None:
        """Put everything back.

        Raises FixesError: UNRECOVERABLE if that cannot be done; ``changed-meanwhile`` (MISMATCH)
        once it is done, for every file that someone else wrote to, which stays as they made it.
        """
        theirs = self._journal.roll_back(live=True)
        self._open = False
        if theirs:
            raise FixesError(*map(_changed, theirs))

    def _require(self, changed: Callable[[Entry], bool]) -> None:
        """Raise FixesError for every entry that someone else ``changed``."""
        problems = []
        for entry in self._journal.entries:
            with naming(entry.path):
                if changed(entry):
                    problems.append(_changed(entry.path))
        if problems:
            raise FixesError(*problems)


def _changed(path: Path) -> Problem:
    what = "was changed by someone else while this run was at work"
    hint = "their change was kept and this run's taken back; see what it is, then run again"
    return Problem(ExitCode.MISMATCH, "changed-meanwhile", what, str(path), hint)


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def _real(path: Path) -> Path:
    # The folder is resolved, so that one file has one name; the file itself may be a symlink.
    return Path(os.path.realpath(path.parent), path.name)
