"""What may be in the place of a file and is none: each hangs, fills memory or fails if read."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

UNREADABLE = ("folder", "loop", "pipe", "socket", "device", "sparse")
_TERABYTES = 3 << 40


def spoil(path: Path, what: str) -> None:
    """Put something in the place of a file that cannot be read as one."""
    clear(path)
    if what == "folder":
        path.mkdir()
    elif what == "loop":
        path.symlink_to(path.name)
    elif what == "pipe":
        os.mkfifo(path)
    elif what == "socket":
        _socket(path)
    elif what == "device":
        path.symlink_to("/dev/zero")
    else:
        path.touch()
        os.truncate(path, _TERABYTES)


def clear(path: Path) -> None:
    """Remove whatever is there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    elif os.path.lexists(path):
        path.unlink()


def _socket(path: Path) -> None:
    from socket import AF_UNIX, socket

    here = os.open(path.parent, os.O_RDONLY)
    try:
        with socket(AF_UNIX) as listener:  # its address has room for 107 bytes
            listener.bind(f"/proc/self/fd/{here}/{path.name}")
    finally:
        os.close(here)
