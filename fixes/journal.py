"""The journal: what makes a change of the tree undoable at any instant.

It is written before anything else is, and names every path with its sha256 before and after,
and by its stem the temporary (``.new``) and backup (``.old``) beside the file. What has been
done is read from the files themselves, so that one rule undoes a run that failed, one that was
interrupted, and one that was killed:

- ``.new`` and ``.old`` both there: the file was not replaced yet; both are dropped.
- ``.old`` alone: the file was replaced, or removed; ``.old`` is renamed back over it.
- neither: nothing was done to an existing file; a file that was to be added is removed.

The commit point is one rename of the journal to its ``done`` name, which needs no space. After
it only leftovers remain to be dropped.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from fixes.disk import naming, remove, rewrite, sha256_of, sync_folder
from fixes.errors import ExitCode, FixesError, Problem

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
class Entry:
    """One path: its sha256 before (None: absent) and the ones it may have after.

    ``stem`` names its temporary and its backup. ``cache`` marks a file that other processes
    may rewrite at any time (bytecode), so that its bytes are no evidence.
    """

    path: Path
    stem: str
    pre: str | None
    posts: tuple[str | None, ...]
    cache: bool = False

    @property
    def new(self) -> Path:
        """The temporary that replaces the file."""
        return self.path.with_name(self.stem + ".new")

    @property
    def old(self) -> Path:
        """The backup: the file as it was."""
        return self.path.with_name(self.stem + ".old")

    @property
    def amended(self) -> Path:
        """The temporary that replaces the file a second time."""
        return self.path.with_name(self.stem + ".amended")

    @property
    def removes(self) -> bool:
        """Whether the file is removed, not replaced or added."""
        return self.posts == (None,)

    def replaced(self) -> bool:
        """Whether an existing file was replaced or removed: its backup is all that is left."""
        untouched = self.path if self.removes else self.new
        return os.path.lexists(self.old) and not os.path.lexists(untouched)

    def obstacle(self) -> str:
        """Why this path cannot be rolled back, or "". Raises OSError."""
        if self.cache:
            return ""
        now = sha256_of(self.path)
        if now != self.pre and now not in self.posts:
            return "was changed by someone else since the run that was interrupted"
        if self.replaced():
            if sha256_of(self.old) != self.pre:
                return f"its backup {self.old.name} was changed by someone else"
        elif self.pre is not None and now != self.pre:
            return f"its backup {self.old.name} is gone"
        return ""

    def roll_back(self) -> None:
        """Put the file back. May be repeated after a kill at any point. Raises OSError."""
        if self.pre is None:
            if not os.path.lexists(self.new):
                remove(self.path)
        elif self.replaced():
            self.old.replace(self.path)
        self.drop_leftovers()

    def drop_leftovers(self) -> None:
        """Remove backup and temporaries. Raises OSError."""
        # The backup goes before the temporary: together they say "not replaced".
        for leftover in (self.old, self.new, self.amended):
            remove(leftover)


@dataclass(frozen=True)
class Journal:
    """All paths of one change. ``folders`` are made for added files, outermost first."""

    home: Path
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
        site = f"{self.home.parent}{os.sep}"

        def portable(path: Path) -> str:
            # Relative inside site-packages, which may be mounted elsewhere the next time.
            text = str(path)
            return os.path.relpath(text, self.home) if text.startswith(site) else text

        document = {
            "format": FORMAT,
            "folders": [portable(folder) for folder in self.folders],
            "entries": [
                [portable(entry.path), entry.stem, entry.pre, entry.posts, entry.cache]
                for entry in self.entries
            ],
        }
        return json.dumps(document, indent=1).encode()

    @classmethod
    def read(cls, path: Path) -> Journal:
        """Read it back. Raises FixesError (UNRECOVERABLE) if it is damaged."""
        home = path.parent

        def found(portable: str) -> Path:
            return Path(os.path.normpath(home / portable))

        with naming(path, ExitCode.UNRECOVERABLE):
            content = path.read_bytes()
        try:
            document = json.loads(content)
            if document["format"] != FORMAT:
                raise ValueError(f"its format is {document['format']}")
            entries = tuple(
                Entry(found(path), stem, pre, tuple(posts), cache)
                for path, stem, pre, posts, cache in document["entries"]
            )
            folders = tuple(found(folder) for folder in document["folders"])
        except (ValueError, KeyError, TypeError) as error:
            what = f"the journal of an interrupted run cannot be read: {error}"
            hint = "reinstall the package, then remove this file"
            code = ExitCode.UNRECOVERABLE
            problem = Problem(code, "journal-unreadable", what, str(path), hint)
            raise FixesError(problem) from error
        return cls(home, entries, folders)

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

    def roll_back(self) -> None:
        """Put everything back and drop the journal.

        Raises FixesError (UNRECOVERABLE): naming every path that cannot be put back, before
        any is touched, or the one that failed. The journal then stays.
        """
        with uninterrupted():
            problems = [problem for entry in self.entries for problem in self._problems(entry)]
            if problems:
                raise FixesError(*problems)
            for entry in reversed(self.entries):
                with naming(entry.path, ExitCode.UNRECOVERABLE):
                    entry.roll_back()
            for folder in reversed(self.folders):
                with suppress(OSError):  # others may have put something there
                    folder.rmdir()
            with naming(self.path, ExitCode.UNRECOVERABLE):
                if os.path.lexists(self.path):  # else it could not be written: nothing was done
                    self.sync_folders()
                remove(self.home / DRAFT)
                remove(self.path)

    def _problems(self, entry: Entry) -> Iterator[Problem]:
        with naming(entry.path, ExitCode.UNRECOVERABLE):
            what = entry.obstacle()
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
        """Remove folders of site-packages that hold nothing any more, inside out."""
        with suppress(OSError):
            while self.home.parent in folder.parents:
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


def recover(home: Path) -> Recovered:
    """Roll back, or finish, the run that was killed; nothing to do is no error.

    The caller holds the lock. May itself be killed at any instant and run again. Raises
    FixesError (UNRECOVERABLE) if the journal is damaged, if a path was changed by someone
    else since, or if the files cannot be written; the journal then stays.
    """
    home = Path(os.path.realpath(home))
    for path in (home / DONE, home / NAME):
        if os.path.lexists(path):
            journal = Journal.read(path)
            undo = path.name == NAME
            if undo:
                journal.roll_back()
            else:
                journal.clean()
            return Recovered(undo, tuple(entry.path for entry in journal.entries))
    with suppress(OSError):  # a draft alone harms nobody, also where it cannot be removed
        remove(home / DRAFT)
    return Recovered(False)
