"""The disk: single files written durably, like the ones they replace, with failures named."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from fixes.errors import ExitCode, FixesError, Problem

#: What ``sha256_of`` says of what ``read_file`` refuses, or a broken link: equal to no sha256.
NOT_A_FILE = "not a file"
#: The largest file that is read whole: far beyond any source, RECORD, state or bytecode.
LARGEST = 64 << 20

_SECOND = 1_000_000_000
_KINDS = {
    errno.EACCES: "permission",
    errno.EPERM: "permission",
    errno.EROFS: "read-only",
    errno.ENOSPC: "disk-full",
    errno.EDQUOT: "disk-full",
}
_HINTS = {
    "permission": "run as the owner of the files, or build the fixes into the image, "
    "or make an overlay",
    "read-only": "build the fixes into the image, or make an overlay (docs/overlay.md)",
    "disk-full": "free some space (or quota) there and run again",
    "io-error": "see the kernel's log for this disk",
    "unreadable": "put back the file that belongs there: reinstall the package",
}
#: What open says of a socket, a device that is not there, links in a circle, and a file that
#: is taken for a folder.
_NO_FILE = (errno.ENXIO, errno.ENODEV, errno.ELOOP, errno.ENOTDIR)
#: Where hard links are refused (foreign owner, FAT, too many): the backup is a copy.
_NO_LINK = (
    errno.EPERM,
    errno.EACCES,
    errno.EMLINK,
    errno.EOPNOTSUPP,
    errno.ENOSYS,
    errno.EXDEV,
)
#: Signatures over the old bytes; on new bytes they would make the file unreadable.
_SIGNATURES = ("security.ima", "security.evm")
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class UnreadableError(OSError):
    """There is something, but no regular file, or one that is too large to be read whole."""

    def __init__(self, what: str) -> None:
        super().__init__(errno.EINVAL, what)


@contextmanager
def naming(path: Path, code: ExitCode = ExitCode.CANNOT_WRITE) -> Iterator[None]:
    """Turn an OSError into a FixesError that names ``path`` and says what to do."""
    try:
        yield
    except OSError as error:
        kind = _KINDS.get(error.errno or 0, "io-error")
        if isinstance(error, UnreadableError):
            kind = "unreadable"
        what = error.strerror or str(error)
        raise FixesError(Problem(code, kind, what, str(path), _HINTS[kind])) from error


def unwritable(folder: Path) -> Problem | None:
    """What keeps a folder from being written to, as far as it can be told without trying."""
    while not folder.is_dir():
        folder = folder.parent
    if os.access(folder, os.W_OK | os.X_OK):
        return None
    number = errno.EROFS if os.statvfs(folder).f_flag & os.ST_RDONLY else errno.EACCES
    kind = _KINDS[number]
    what = os.strerror(number)
    return Problem(ExitCode.CANNOT_WRITE, kind, what, str(folder), _HINTS[kind])


def read_file(path: Path | str, limit: int = LARGEST) -> bytes:
    """The bytes of a regular file, through a symlink.

    It neither hangs on a FIFO nor fills the memory, whatever was put in the file's place.
    Raises UnreadableError for a folder, FIFO, socket, device or circle of links and for more
    than ``limit`` bytes, FileNotFoundError where nothing is (or a broken link), OSError.
    """
    try:
        descriptor = os.open(path, _READ)
    except OSError as error:
        if error.errno in _NO_FILE:
            raise UnreadableError("is no regular file") from error
        raise
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise UnreadableError("is no regular file")
        data = os.read(descriptor, min(status.st_size, limit) + 1)
        if len(data) != status.st_size:
            data = _rest(descriptor, data, limit)
    finally:
        os.close(descriptor)
    if len(data) > limit:
        raise UnreadableError(f"is larger than {limit >> 20} MiB")
    return data


def _rest(descriptor: int, start: bytes, limit: int) -> bytes:
    """A file that is not of its size: it grows, or a network file system gives it in pieces."""
    data = bytearray(start)
    while len(data) <= limit and (more := os.read(descriptor, 1 << 20)):
        data += more
    return bytes(data)


def sha256_of(path: Path) -> str | None:
    """The sha256 of a file's bytes (through a symlink), None if there is nothing."""
    try:
        return hashlib.sha256(read_file(path)).hexdigest()
    except UnreadableError:
        return NOT_A_FILE
    except FileNotFoundError:
        return NOT_A_FILE if os.path.lexists(path) else None


def fresh_mtime(path: Path) -> int:
    """An mtime for the next version of a file: now, and at least a second past the old one.

    Bytecode is matched to its source by size and whole seconds of mtime (PEP 552).
    """
    try:
        old = path.stat().st_mtime_ns
    except FileNotFoundError:
        return time.time_ns()
    return max(time.time_ns(), old + _SECOND)


def rewrite(path: Path, content: bytes) -> None:
    """Write a scratch file of our own, whether it is there or not."""
    remove(path)  # not written to: it may be anything
    descriptor = os.open(path, _CREATE | os.O_EXCL, 0o644)
    try:
        _write(descriptor, content)
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_like(path: Path, content: bytes, like: Path, mtime_ns: int) -> None:
    """Write a new file that is, but for its bytes, like the one it shall replace.

    Owner, mode and extended attributes are those of ``like``, or fit for its folder if it
    does not exist. What cannot be kept is an OSError, but for labels that the system sets.
    """
    descriptor = os.open(path, _CREATE | os.O_EXCL, 0o600)
    try:
        _write(descriptor, content)
        if os.path.lexists(like):
            # A symlink (uv's cache) becomes a file of the link's owner, with its target's mode.
            _own(descriptor, like.lstat(), strict=True)
            os.fchmod(descriptor, stat.S_IMODE(like.stat().st_mode))
            _copy_attributes(like, descriptor)
        else:
            # Whoever may enter the folder may read what is added to it, whatever the umask.
            folder = path.parent.stat()
            _own(descriptor, folder, strict=False)
            os.fchmod(descriptor, stat.S_IMODE(folder.st_mode) & 0o666)
        os.utime(descriptor, ns=(mtime_ns, mtime_ns))
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def back_up(path: Path, backup: Path) -> None:
    """Keep a file under a second name: the file itself, or a copy where links are refused."""
    try:
        os.link(path, backup, follow_symlinks=False)
    except OSError as error:
        if error.errno not in _NO_LINK:
            raise
        if path.is_symlink():
            backup.symlink_to(path.readlink())
        else:
            write_like(backup, read_file(path), path, path.stat().st_mtime_ns)


def make_folder(folder: Path) -> None:
    """Make a folder with the mode and, where that is allowed, the owner of its parent."""
    like = folder.parent.stat()
    folder.mkdir(0o700)
    descriptor = os.open(folder, _FOLDER)
    try:
        _own(descriptor, like, strict=False)
        os.fchmod(descriptor, stat.S_IMODE(like.st_mode))
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """Make the names in a folder durable, where the filesystem can do that for folders."""
    descriptor = os.open(folder, _FOLDER)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP):
            raise
    finally:
        os.close(descriptor)


def remove(path: Path) -> None:
    """Remove a file, if it is there."""
    # Looked at first: on a read-only filesystem unlink fails even where there is nothing.
    if os.path.lexists(path):
        path.unlink()


def _write(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def _own(descriptor: int, like: os.stat_result, strict: bool) -> None:
    now = os.fstat(descriptor)
    if (now.st_uid, now.st_gid) == (like.st_uid, like.st_gid):
        return
    try:
        os.fchown(descriptor, like.st_uid, like.st_gid)
    except OSError as error:
        # EINVAL: an owner who does not exist in this user namespace.
        if error.errno not in (errno.EPERM, errno.EINVAL):
            raise
        if strict:
            what = f"cannot keep the owner {like.st_uid}:{like.st_gid}"
            raise PermissionError(errno.EPERM, what) from error


def _copy_attributes(source: Path, descriptor: int) -> None:
    try:
        names = os.listxattr(source)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.ENOSYS):
            return
        raise
    for name in names:
        if name in _SIGNATURES:
            continue
        try:
            os.setxattr(descriptor, name, os.getxattr(source, name))
        except OSError:
            if name.startswith(("user.", "system.posix_acl")):
                raise
