"""The authored root: the folder that holds ``profiles/`` and ``patches/``.

That is a checkout, ``fixes/data`` inside an installed wheel or a zipapp, or an organisation's
own folder named by ``--profiles``. Files are read as bytes by their POSIX path in the root.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from fixes import distribution, paths
from fixes.disk import read_file
from fixes.errors import ExitCode, FixesError, Problem

if TYPE_CHECKING:
    from fixes.lock import Lock

_PACKAGE = Path(__file__).parent
#: Set where the package is imported from a zip file: the path of that file.
_ARCHIVE: str = getattr(__loader__, "archive", "")  # type: ignore[name-defined]
_read: Callable[[str], bytes] = __loader__.get_data  # type: ignore[name-defined]


def package_source(name: str) -> bytes:
    """A file of this package, which may lie in a zip file. Raises OSError if it is missing."""
    return _read(str(_PACKAGE / name))


class Catalogue(NamedTuple):
    """An authored root. ``zipped``: it lies in the zip file that the package came from."""

    root: Path
    zipped: bool = False

    def read(self, name: str) -> bytes:
        """An authored file, named by its POSIX path in the root.

        Raises OSError if it cannot be read, ValueError if the path is not inside the root.
        """
        if fault := paths.fault(name):
            raise ValueError(f"{name}: {fault}")
        path = f"{self.root}/{name}"
        return _read(path) if self.zipped else read_file(path)

    def place(self, name: str) -> str:
        """Where an authored file is, for messages."""
        return str(self.root / name)

    def profiles(self) -> tuple[str, ...]:
        """The names of all profiles, by release. Raises FixesError, kind ``unreadable``."""
        if self.zipped:
            files = self._zipped_files()
        else:
            folder = self.root / "profiles"
            try:
                files = os.listdir(folder)
            except OSError as error:
                raise distribution.unreadable(folder, error) from error
        names = [name.removesuffix(".toml") for name in files if name.endswith(".toml")]
        return tuple(sorted(names, key=_by_release))

    def _zipped_files(self) -> list[str]:
        from zipfile import ZipFile

        folder = (self.root / "profiles").relative_to(_ARCHIVE).as_posix() + "/"
        with ZipFile(_ARCHIVE) as archive:
            names = archive.namelist()
        return [name.removeprefix(folder) for name in names if name.startswith(folder)]

    def lock(self, profile: str) -> Lock:
        """The lock of a profile, checked against every authored file it was made from.

        Raises FixesError: ``unknown-profile``, ``no-lock``, ``bad-lock`` or ``stale-lock``, and
        ``unreadable`` where the profiles cannot be listed.
        """
        name = lock_name(profile)
        try:
            data = self.read(name)
        except (OSError, ValueError):
            raise FixesError(self.no_lock(profile)) from None
        from fixes.lockfile import load

        lock = load(data, name)
        if lock.profile != profile:
            what = f"is the lock of profile {lock.profile}"
            raise FixesError(Problem(ExitCode.MISMATCH, "bad-lock", what, name))
        self.check(lock)
        return lock

    def no_lock(self, profile: str) -> Problem:
        """Why there is no lock: ``unknown-profile``, or ``no-lock`` for one not locked yet."""
        names = self.profiles()
        if profile not in names:
            hint = f"there are: {', '.join(names)}" if names else ""
            what = f"no profile {profile!r} in {self.root / 'profiles'}"
            return Problem(ExitCode.USAGE, "unknown-profile", what, "--profile", hint)
        return Problem(
            ExitCode.MISMATCH,
            "no-lock",
            "the profile has no readable lock",
            self.place(lock_name(profile)),
            f"run: vllm-fixes lock --profile {profile}",
        )

    def check(self, lock: Lock) -> None:
        """Hash every authored file that the lock names.

        Raises FixesError, kind ``stale-lock``, with each file that differs or is missing.
        """
        problems = []
        for name, sha256 in lock.authored.items():
            try:
                fault = "differs from" if self.sha256(name) != sha256 else ""
            except OSError as error:
                fault = f"cannot be read ({error.strerror or error}) and is in"
            if fault:
                what = f"{fault} what the lock of {lock.profile} was made from"
                hint = f"run: vllm-fixes lock --profile {lock.profile}"
                where = self.place(name)
                problems.append(Problem(ExitCode.MISMATCH, "stale-lock", what, where, hint))
        if problems:
            raise FixesError(*problems)

    def sha256(self, name: str) -> str:
        """The sha256 of an authored file. Raises as ``read`` does."""
        return hashlib.sha256(self.read(name)).hexdigest()


def lock_name(profile: str) -> str:
    """The path of a profile's lock in the authored root."""
    return f"profiles/{profile}.lock.json"


def _by_release(name: str) -> list[tuple[int, str]]:
    """Sort key: numbers in a name count as numbers."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name)]


def find(profiles: str | os.PathLike[str] | None = None) -> Catalogue:
    """The authored root: the given folder, else the one that comes with this package.

    Raises FixesError, kind ``no-profiles``, where there is none.
    """
    if profiles is not None:
        if _is_root(root := Path(profiles)):
            return Catalogue(root)
        what = f"{root} does not hold the folders 'profiles' and 'patches'"
        raise FixesError(Problem(ExitCode.USAGE, "no-profiles", what, "--profiles"))
    if _ARCHIVE:
        return Catalogue(_PACKAGE / "data", zipped=True)
    for root in (_PACKAGE / "data", _PACKAGE.parent):
        if _is_root(root):
            return Catalogue(root)
    what = f"neither {_PACKAGE / 'data'} nor {_PACKAGE.parent} holds 'profiles' and 'patches'"
    hint = "reinstall vllm-fixes, or name a folder with --profiles"
    raise FixesError(Problem(ExitCode.NOT_FOUND, "no-profiles", what, "", hint))


def _is_root(root: Path) -> bool:
    # os.path: Path.is_dir raises PermissionError where a folder above may not be entered.
    return all(os.path.isdir(root / name) for name in ("profiles", "patches"))
