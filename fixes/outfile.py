"""A file that a verb makes: there as a whole, or as it was before."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import BinaryIO

from fixes.disk import naming, sync_folder
from fixes.errors import ExitCode, FixesError, Problem


@contextmanager
def replacing(path: Path, mode: int = 0o666) -> Iterator[BinaryIO]:
    """A stream for what shall be at ``path`` once the context is left without an error.

    ``mode`` is as for open(2), before the umask. Raises FixesError: USAGE where there is no
    folder for it, CANNOT_WRITE.
    """
    if not path.parent.is_dir():
        what = "there is no such folder to write to"
        raise FixesError(Problem(ExitCode.USAGE, "usage", what, str(path.parent)))
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with naming(path):
            with open(scratch, "x+b", opener=partial(os.open, mode=mode)) as stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            scratch.replace(path)
            sync_folder(path.parent)
    finally:
        with suppress(OSError):
            scratch.unlink()
