"""One path of a journal: what was there, what may be there now, and how to put it back."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fixes.disk import NOT_A_FILE, remove, sha256_of
from fixes.roots import CACHE, Roots

_ENDINGS = (".new", ".old", ".amended")
_STEM = re.compile(r"\.fixes-[0-9a-f]{8}-[0-9]+")
_SHA256 = re.compile(r"[0-9a-f]{64}")


class OutsideError(Exception):
    """A path that lies in none of the roots of the tree."""

    def __init__(self, root: str, way: str) -> None:
        super().__init__(f"{way} ({root})")


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

    def dump(self, roots: Roots) -> list[object]:
        """It as JSON. Raises OutsideError."""
        where = roots.locate(self.path, self.cache)
        if where is None:
            raise OutsideError("no root", str(self.path))
        return [*where, self.stem, self.pre, self.posts, self.cache]

    @classmethod
    def load(cls, document: Any, roots: Roots) -> Entry | None:
        """It as ``dump`` wrote it, in the roots of today.

        None for bytecode in a root that this run does not know: it is of a source that was
        replaced, so that no interpreter takes it for current. Raises ValueError or TypeError
        for what ``dump`` does not write, OutsideError.
        """
        root, way, stem, pre, posts, cache = document
        if not (isinstance(root, str) and isinstance(way, str) and isinstance(cache, bool)):
            raise TypeError("no path")
        if not _STEM.fullmatch(stem) or (cache and not way.endswith(".pyc")):
            raise ValueError(f"{stem} is no name for what is beside {way}")
        if not isinstance(posts, list) or not posts:
            raise TypeError("nothing that it may be after")
        for known in (pre, *posts):
            absent = known is None or (cache and known == NOT_A_FILE)
            if not absent and not _SHA256.fullmatch(known):
                raise ValueError(f"{known} is no sha256")
        path = roots.path(root, way, cache)
        if path is not None:
            return cls(path, stem, pre, tuple(posts), cache)
        if cache and root.startswith(CACHE) and root not in roots.folders:
            return None
        raise OutsideError(root, way)

    def untouched(self) -> bool:
        """Whether its temporary is there still: it was not replaced, so nothing is ours in it."""
        return not self.removes and os.path.lexists(self.new)

    def replaced(self) -> bool:
        """Whether an existing file was replaced or removed: its backup is all that is left."""
        untouched = self.path if self.removes else self.new
        return os.path.lexists(self.old) and not os.path.lexists(untouched)

    def changed(self) -> bool:
        """Whether the file is not what it was replaced by any more. Raises OSError."""
        if self.cache:
            return False
        # What we write is a file, not a link. Its inode is no evidence: on some network file
        # systems it follows the name.
        return self.path.is_symlink() or sha256_of(self.path) != self.posts[-1]

    def backup_changed(self) -> bool:
        """Whether its backup is not what the file was. Raises OSError.

        A backup is the file itself: who had it open writes to the backup now.
        """
        return not self.cache and self.pre is not None and sha256_of(self.old) != self.pre

    def foreign(self) -> bool:
        """Whether someone else's bytes are there since this one's place was taken.

        Raises OSError.
        """
        if self.cache or self.untouched():
            return False
        now = sha256_of(self.path)
        return now is not None and now != self.pre and now not in self.posts

    def obstacle(self) -> str:
        """Why this path cannot be rolled back by a later run, or "". Raises OSError."""
        if self.cache or self.untouched():
            return ""
        now = sha256_of(self.path)
        if now != self.pre and now not in self.posts:
            return "was changed by someone else since the run that was interrupted"
        if self.replaced() and sha256_of(self.old) != self.pre:
            return f"its backup {self.old.name} was changed by someone else"
        return self.lost()

    def lost(self) -> str:
        """Why there is nothing to roll back with, or "". Raises OSError."""
        if self.cache or self.untouched() or self.replaced() or self.pre is None:
            return ""
        if sha256_of(self.path) == self.pre:
            return ""
        return f"its backup {self.old.name} is gone"

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


def leftovers(folder: Path) -> Iterator[Path]:
    """Everything in a folder that is named like a backup or temporary of an entry."""
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in sorted(names):
        stem, ending = os.path.splitext(name)
        if ending in _ENDINGS and _STEM.fullmatch(stem):
            yield folder / name
