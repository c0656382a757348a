"""The roots of a tree: the only folders that a transaction may touch, each by a name.

A journal names a file by its root and its path below that, and whoever recovers gives the roots
of the tree that it works on. So a tree that was moved or copied is recovered itself, never the
one that it was copied from, and a journal that leads anywhere else leads nowhere.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

#: How the name of a root begins that holds bytecode only.
CACHE = "cache:"


@dataclass(frozen=True)
class Roots:
    """Real folders by name; where one lies in another, the first that holds a file names it."""

    folders: Mapping[str, Path]

    @classmethod
    def of(cls, home: Path, others: Mapping[str, Path] | None = None) -> Roots:
        """The roots of the tree that has its state in ``home``, and others that belong to it.

        Its own root is the site-packages around a dist-info, or a package that is its own home.
        """
        home = Path(os.path.realpath(home))
        own = {"site": home.parent} if home.suffix == ".dist-info" else {"home": home}
        given = {name: Path(os.path.realpath(folder)) for name, folder in (others or {}).items()}
        return cls({**own, **given})

    def locate(self, path: Path, cache: bool = False) -> tuple[str, str] | None:
        """The root that holds a real path, and the way from there; None outside all of them.

        ``cache``: it is bytecode, which may lie in the roots that are for bytecode as well.
        """
        for name, folder in self.folders.items():
            if folder in path.parents and (cache or not name.startswith(CACHE)):
                return name, path.relative_to(folder).as_posix()
        return None

    def path(self, name: str, way: str, cache: bool = False) -> Path | None:
        """What ``locate`` was asked for; None if it leads out of the roots, by links as well.

        Raises ValueError for what no path can be.
        """
        if "\0" in way:
            raise ValueError("a path holds NUL")
        os.fsencode(way)
        parts = way.split("/")
        if name not in self.folders or {"", ".", ".."} & set(parts):
            return None
        path = Path(self.folders[name], *parts)
        real = Path(os.path.realpath(path.parent), path.name)
        return path if self.locate(real, cache) else None
