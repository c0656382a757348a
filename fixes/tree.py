"""A tree: one target as found on disk, and the interpreter it belongs to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Environment:
    """The interpreter whose engine would import the target.

    ``executable`` is None when a bare tree is given without an interpreter. ``paths`` is the
    search path as from a neutral working directory. ``version`` is like ``3.11.7``.
    """

    executable: str | None
    version: str
    cache_tag: str
    pycache_prefix: str | None
    paths: tuple[str, ...]


@dataclass(frozen=True)
class Tree:
    """One target on disk.

    ``site`` is the folder that holds the package, ``home`` the folder that holds our state
    (the owning dist-info, else the package itself), ``record`` the owning RECORD or None.
    ``release`` is ``version`` without its local label.
    """

    target: str
    site: Path
    distribution: str
    version: str
    release: str
    layout: str
    dist_info: Path | None
    record: Path | None
    home: Path
    state: Path
