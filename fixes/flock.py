"""The lock between runs: flock on the folders themselves, so that no lock file is needed."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from fixes.disk import naming
from fixes.errors import ExitCode, FixesError, Problem

_SHORTEST = 0.01
_LONGEST = 0.25


@contextmanager
def held(
    directories: Sequence[Path], timeout: float, waiting: Callable[[], None]
) -> Iterator[None]:
    """Hold the exclusive lock on every directory; ``waiting`` is called once if it is not free.

    Containers that share a tree exclude each other, as far as its filesystem shares flock.
    Raises FixesError: ``locked`` (LOCKED) if it is not free within ``timeout`` seconds,
    ``no-locks`` (CANNOT_WRITE) where the filesystem has none, ``permission`` or ``io-error``
    (CANNOT_WRITE), ``changed-meanwhile`` (MISMATCH) if a directory is not there any more.
    """
    deadline = time.monotonic() + timeout
    paths = sorted({Path(os.path.realpath(directory)) for directory in directories})
    waited = False

    def wait(path: Path, seconds: float) -> None:
        nonlocal waited
        left = deadline - time.monotonic()
        if left <= 0:
            what = f"another run holds the lock (waited {timeout:g} s)"
            hint = "wait for it to end; a lock does not outlive its process"
            raise FixesError(Problem(ExitCode.LOCKED, "locked", what, str(path), hint))
        if not waited:
            waited = True
            waiting()
        time.sleep(min(seconds, left))

    with ExitStack() as stack:
        for path in paths:  # sorted, so that two runs cannot wait for each other
            stack.callback(_release, _acquire(path, wait))
        yield


def _acquire(path: Path, wait: Callable[[Path, float], None]) -> int:
    pause = _SHORTEST
    while True:
        descriptor = _open(path)
        try:
            while not _try(descriptor, path):
                wait(path, pause)
                pause = min(2 * pause, _LONGEST)
            if _is(descriptor, path):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        # Replaced while we waited (an upgrade): a lock on what is gone excludes nobody.
        os.close(descriptor)


def _open(path: Path) -> int:
    try:
        with naming(path):
            return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FixesError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            what = "is not there any more"
            problem = Problem(ExitCode.MISMATCH, "changed-meanwhile", what, str(path))
            raise FixesError(problem) from error
        raise


def _try(descriptor: int, path: Path) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        # ENOLCK, EOPNOTSUPP, ENOSYS; EBADF on NFS, which wants it opened for writing.
        what = f"the filesystem gives no lock: {error.strerror}"
        hint = "build the fixes into the image, or keep the environment on a local disk"
        problem = Problem(ExitCode.CANNOT_WRITE, "no-locks", what, str(path), hint)
        raise FixesError(problem) from error
    return True


def _is(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), path.stat())
    except FileNotFoundError:
        return False


def _release(descriptor: int) -> None:
    # Unlocked as well as closed: a forked child may still have the descriptor.
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    os.close(descriptor)
