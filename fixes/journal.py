"""The journal: what makes a change of the tree undoable at any instant.

It is written before anything else is, and names every path with its sha256 before and after,
and by its stem the temporary (``.new``) and backup (``.old``) beside the file. What has been
done is read from the files themselves, so that one rule undoes a run that failed, one that was
interrupted, and one that was killed:

- ``.new`` and ``.old`` both there: the file was not replaced yet; both are dropped.
- ``.old`` alone: the file was replaced, or removed; ``.old`` is renamed back over it.
- neither: nothing was done to an existing file; a file that was to be added is removed.

What someone else made of a file that was not replaced yet stays as it is.

The commit point is one rename of the journal to its ``done`` name, which needs no space. After
it only leftovers remain to be dropped.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fixes.disk import naming, read_file, remove, rewrite, sync_folder
from fixes.entry import Entry, OutsideError, leftovers
from fixes.errors import ExitCode, FixesError, Problem
from fixes.roots import Roots

NAME = ".fixes-journal.json"
DRAFT = ".fixes-journal.tmp"
DONE = ".fixes-journal.done"
FORMAT = 1

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Let SIGINT, SIGTERM and SIGHUP wait; what they raise is raised after the work.

    ``pthread_sigmask`` itself runs the handler of a signal that came just before it, hence
    the second try: undoing must not be skipped because of a second Ctrl-C.
    """
    late: list[BaseException] = []

    def block(signals: Collection[signal.Signals]) -> set[int]:
        try:
            return set(signal.pthread_sigmask(signal.SIG_BLOCK, signals))
        except BaseException as error:
            late.append(error)
            return block(signals)

    before = block(())
    try:
        block(_SIGNALS)
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    if late:
        raise late[0]


@dataclass(frozen=True)
class Journal:
    """All paths of one change. ``folders`` are made for added files, outermost first."""

    home: Path
    roots: Roots
    entries: tuple[Entry, ...]
    folders: tuple[Path, ...] = ()

    @property
    def path(self) -> Path:
        """Where it is until the commit point."""
        return self.home / NAME

    def write(self) -> None:
        """Write it, durably and at once. Raises OSError."""
        draft = self.home / DRAFT
        rewrite(draft, self._dump())
        draft.replace(self.path)
        sync_folder(self.home)

    def _dump(self) -> bytes:
        document = {
            "format": FORMAT,
            "folders": [self.roots.locate(folder) for folder in self.folders],
            "entries": [entry.dump(self.roots) for entry in self.entries],
        }
        return json.dumps(document, indent=1).encode()

    @classmethod
    def read(cls, path: Path, roots: Roots) -> Journal:
        """Read it back, for the tree that ``roots`` are of.

        Raises FixesError (UNRECOVERABLE): ``journal-unreadable`` or ``unreadable`` if it is
        damaged, ``unsafe-path`` for every path outside the tree.
        """
        with naming(path, ExitCode.UNRECOVERABLE):
            content = read_file(path)
        outside: list[str] = []
        try:
            document = json.loads(content)
            if document["format"] != FORMAT:
                raise ValueError(f"its format is {document['format']}")
            entries = _inside(document["entries"], lambda one: Entry.load(one, roots), outside)
            folders = _inside(document["folders"], lambda one: _folder(one, roots), outside)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            what = f"the journal of an interrupted run cannot be read: {error}"
            hint = "reinstall the package, then remove this file"
            code = ExitCode.UNRECOVERABLE
            problem = Problem(code, "journal-unreadable", what, str(path), hint)
            raise FixesError(problem) from error
        if outside:
            what = f"{path} of an interrupted run names this, which is not in the tree"
            hint = f"reinstall the package, then remove {path}"
            code = ExitCode.UNRECOVERABLE
            problems = [Problem(code, "unsafe-path", what, where, hint) for where in outside]
            raise FixesError(*problems)
        return cls(path.parent, roots, entries, folders)

    def amend(self, changed: Entry, post: str) -> Journal:
        """The journal in which ``changed`` may have the sha256 ``post`` as well."""
        entry = replace(changed, posts=(*changed.posts, post))
        entries = tuple(entry if old is changed else old for old in self.entries)
        return replace(self, entries=entries)

    def sync_folders(self) -> None:
        """Make all names durable that were made, replaced or removed. Raises OSError."""
        folders = {entry.path.parent for entry in self.entries}
        for folder in sorted(folders | {made.parent for made in self.folders}):
            if folder.is_dir():
                sync_folder(folder)

    def roll_back(self, live: bool = False) -> list[Path]:
        """Put everything back and drop the journal.

        Raises FixesError (UNRECOVERABLE): naming every path that cannot be put back, before
        any is touched, or the one that failed. The journal then stays. A path that someone else
        changed is one of these, unless this is the run that is under way (``live``): then it
        stays theirs, the rest is put back, and it is returned.
        """
        theirs = []
        with uninterrupted():
            problems = [
                problem for entry in self.entries for problem in self._problems(entry, live)
            ]
            if problems:
                raise FixesError(*problems)
            for entry in reversed(self.entries):
                with naming(entry.path, ExitCode.UNRECOVERABLE):
                    if live and entry.foreign():
                        theirs.append(entry.path)
                        entry.drop_leftovers()
                    else:
                        entry.roll_back()
            for folder in reversed(self.folders):
                with suppress(OSError):  # others may have put something there
                    folder.rmdir()
            with naming(self.path, ExitCode.UNRECOVERABLE):
                if os.path.lexists(self.path):  # else it could not be written: nothing was done
                    self.sync_folders()
                remove(self.home / DRAFT)
                remove(self.path)
        return theirs[::-1]

    def _problems(self, entry: Entry, live: bool) -> Iterator[Problem]:
        with naming(entry.path, ExitCode.UNRECOVERABLE):
            if live and entry.foreign():
                return
            what = entry.lost() if live else entry.obstacle()
        if what:
            hint = f"reinstall the package, then remove {self.path}"
            code = ExitCode.UNRECOVERABLE
            yield Problem(code, "changed-since", what, str(entry.path), hint)

    def mark_done(self) -> None:
        """Pass the commit point. Raises OSError, then it was not passed."""
        self.path.rename(self.home / DONE)

    def clean(self) -> None:
        """Drop what a finished change leaves: backups, emptied folders, the journal.

        Raises FixesError (UNRECOVERABLE); the journal then stays.
        """
        with uninterrupted():
            with naming(self.path, ExitCode.UNRECOVERABLE):
                sync_folder(self.home)  # the commit point must not be lost after the backups
            for entry in self.entries:
                with naming(entry.path, ExitCode.UNRECOVERABLE):
                    entry.drop_leftovers()
            for entry in self.entries:
                if entry.removes:
                    self._prune(entry.path.parent)
            with naming(self.path, ExitCode.UNRECOVERABLE):
                remove(self.home / DRAFT)
                remove(self.home / DONE)

    def _prune(self, folder: Path) -> None:
        """Remove folders below the roots that hold nothing any more, inside out."""
        with suppress(OSError):
            while self.roots.locate(folder, cache=True):
                folder.rmdir()
                folder = folder.parent


@dataclass(frozen=True)
class Recovered:
    """What ``recover`` did: whether files were put back, and the paths of that run."""

    rolled_back: bool
    paths: tuple[Path, ...] = ()


def pending(home: Path) -> bool:
    """Whether an earlier run left something behind in ``home``. Three stats, no lock."""
    return any(os.path.lexists(home / name) for name in (NAME, DONE, DRAFT))


def recover(home: Path, roots: Roots | None = None) -> Recovered:
    """Roll back, or finish, the run that was killed; nothing to do is no error.

    The caller holds the lock; nothing outside ``roots`` is touched. May itself be killed at any
    instant and run again. Raises FixesError (UNRECOVERABLE) if the journal is damaged or leads
    out of the tree, if a path was changed by someone else since, or if the files cannot be
    written; the journal then stays.
    """
    home = Path(os.path.realpath(home))
    for path in (home / DONE, home / NAME):
        if os.path.lexists(path):
            journal = Journal.read(path, roots or Roots.of(home))
            undo = path.name == NAME
            if undo:
                journal.roll_back()
            else:
                journal.clean()
            return Recovered(undo, tuple(entry.path for entry in journal.entries))
    with suppress(OSError):  # a draft alone harms nobody, also where it cannot be removed
        remove(home / DRAFT)
    return Recovered(False)


def unclaimed(home: Path, paths: Iterable[Path]) -> list[Path]:
    """Backups and temporaries beside ``paths`` and in ``home`` that no journal will ever drop.

    A run was killed, and its journal went with a dist-info that was uninstalled, or stayed
    behind when the package was copied. The caller holds the lock and has recovered. Only what
    lies in the tree's own root is looked at: a checkout may be another environment's as well,
    with a journal there.
    """
    home = Path(os.path.realpath(home))
    if pending(home):
        return []
    own = Roots.of(home)
    folders = dict.fromkeys((home, *(Path(os.path.realpath(path.parent)) for path in paths)))
    return [path for folder in folders for path in leftovers(folder) if own.locate(path)]


def _inside(documents: Any, load: Callable[[Any], Any], outside: list[str]) -> tuple[Any, ...]:
    """All that are read back, less those that nothing is to be done for."""
    if not isinstance(documents, list):
        raise TypeError("no list")
    found = []
    for document in documents:
        try:
            found.append(load(document))
        except OutsideError as error:
            outside.append(str(error))
    return tuple(one for one in found if one is not None)


def _folder(document: Any, roots: Roots) -> Path:
    root, way = document
    if not (isinstance(root, str) and isinstance(way, str)):
        raise TypeError("no path")
    path = roots.path(root, way)
    if path is None:
        raise OutsideError(root, way)
    return path
