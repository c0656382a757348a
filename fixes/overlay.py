"""The overlay: a folder with the fixed files and a start-up hook, as its manifest describes it.

docs/overlay.md has the format. ``fixes/hook.py`` reads it too, at the first import of a target.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from fixes import overlays
from fixes.digest import seal, sha256, unseal
from fixes.disk import read_file
from fixes.errors import ExitCode, FixesError, Problem
from fixes.fields import Document, Table
from fixes.overlays import FILES, HOOK, MANIFEST
from fixes.state import FixedFile, Level, State, Verified

FORMAT = 1
_ANEW = "make the overlay anew: vllm-fixes overlay FIX... --to DIR"


@dataclass(frozen=True)
class Target:
    """An import package underneath, and the distribution that owns it.

    ``dist_info`` is the name of its dist-info folder beside the package, empty for a checkout.
    """

    version: str
    release: str
    distribution: str
    dist_info: str


@dataclass(frozen=True)
class Served:
    """One fixed file. ``underneath``: the sha256 that the installed file may have."""

    target: str
    path: str
    module: str
    pre: str
    post: str
    underneath: tuple[str, ...]
    located: bool
    bytecode: str
    fixes: tuple[str, ...]


@dataclass(frozen=True)
class Overlay:
    """What a manifest says. ``relied``: installed files that the fixes rely on, by sha256."""

    tool: str
    profile: str
    lock: str
    release: str
    fixes: tuple[str, ...]
    digest: str
    accepted: tuple[str, ...]
    targets: Mapping[str, Target]
    files: tuple[Served, ...]
    relied: Mapping[str, str]
    hook: str
    python: str
    verified: Verified | None = None

    def dump(self) -> bytes:
        """The manifest as a file."""
        return seal({"format": FORMAT, **asdict(self)})

    def states(self, installed: Mapping[str, bytes | None], own: State | None) -> dict[str, State]:
        """By target, the state that a tree would have that held the fixed files in place.

        ``installed`` are the files underneath; ``own`` is the state of the tree itself, which
        has the pre-images where it was changed in place.
        """
        return {
            target: State(
                self.tool,
                self.profile,
                about.version,
                self.lock,
                self.fixes,
                {},
                {
                    file.path: saved
                    for file in self.files
                    if file.target == target
                    if (saved := _saved(file, installed.get(file.path), own))
                },
                self.digest,
                self.accepted,
                self.verified,
            )
            for target, about in self.targets.items()
        }


def _saved(file: Served, installed: bytes | None, own: State | None) -> FixedFile | None:
    """A file as a state has it; None where its pre-image is not to be had by bytes."""
    from fixes.state import pack

    packed = pack(installed) if installed is not None else ""
    before = own.files.get(file.path) if own else None
    if before is not None and before.pre == file.pre:
        packed = before.packed
    elif file.pre and (installed is None or sha256(installed) != file.pre):
        return None
    return FixedFile(file.path, file.pre, file.post, file.fixes, None, packed if file.pre else "")


def load(folder: Path) -> Overlay:
    """The manifest of an overlay.

    Raises FixesError: ``not-an-overlay`` (USAGE) for a folder without one, ``bad-overlay``
    (MISMATCH) for one that is not as it was written.
    """
    place = folder / MANIFEST
    if not place.exists():
        if overlays.is_one(str(folder)):
            raise _bad(place, "is not there, but other parts of an overlay are")
        what = f"holds no {MANIFEST}" if folder.is_dir() else "is no folder"
        raise FixesError(Problem(ExitCode.USAGE, "not-an-overlay", what, str(folder)))
    try:
        body = unseal(read_file(place))
    except OSError as error:
        raise _bad(place, f"cannot be read: {error.strerror}") from error
    except (ValueError, KeyError, RecursionError) as error:
        raise _bad(place, str(error)) from error
    document = Document(str(place), "bad-overlay")
    table = document.table(body)
    if table.number("format") != FORMAT:
        raise _bad(place, "it has another format")
    found = Overlay(
        tool=table.string("tool"),
        profile=table.string("profile"),
        lock=table.string("lock"),
        release=table.string("release"),
        fixes=table.strings("fixes"),
        digest=table.string("digest"),
        accepted=table.strings("accepted"),
        targets={name: _target(one) for name, one in table.named("targets")},
        files=tuple(_file(one) for one in table.tables("files")),
        relied=table.mapping("relied"),
        hook=table.string("hook"),
        python=table.string("python"),
        verified=_verified(table.table("verified")) if body.get("verified") else None,
    )
    document.close()
    return found


def problems(overlay: Overlay, folder: Path, hook: bytes) -> list[Problem]:
    """Everything in the folder that is not as the manifest says; ``hook`` is this version's."""
    expected = {f"{FILES}/{file.path}": file.post for file in overlay.files}
    expected[HOOK] = overlay.hook
    found = []
    for name, known in expected.items():
        try:
            now = sha256(read_file(folder / name))
        except OSError as error:
            found.append(_bad(folder / name, f"cannot be read: {error.strerror}").problems[0])
            continue
        if now != known:
            what = f"sha256 {now[:12]} is not the {known[:12]} of the manifest"
            found.append(_bad(folder / name, what).problems[0])
    if overlay.hook != sha256(hook) and not found:
        what = f"was made by version {overlay.tool}, whose start-up hook is another"
        where = str(folder / MANIFEST)
        found.append(Problem(ExitCode.MISMATCH, "outdated", what, where, _ANEW))
    return found


def underneath(
    overlay: Overlay, installed: Mapping[str, str], sites: Mapping[str, Path]
) -> list[Problem]:
    """Every installed file (by sha256) that is not one that the overlay was made for."""
    found = []
    for file in overlay.files:
        now = installed.get(file.path, "")
        if now not in file.underneath:
            found.append(_other(str(sites[file.target] / file.path), now, file.underneath))
    for path, known in overlay.relied.items():
        place = sites[path.partition("/")[0]] / path
        try:
            now = installed[path] if path in installed else sha256(read_file(place))
        except OSError:
            now = ""
        if now != known:
            found.append(_other(str(place), now, (known,)))
    return found


def _other(where: str, now: str, known: tuple[str, ...]) -> Problem:
    expected = " or ".join(sha[:12] or "no file" for sha in known)
    what = f"sha256 {now[:12] or 'of no file'} is not what the overlay was made for ({expected})"
    hint = f"{_ANEW}, or install the release again"
    return Problem(ExitCode.MISMATCH, "underneath", what, where, hint)


def _bad(place: Path, what: str) -> FixesError:
    return FixesError(Problem(ExitCode.MISMATCH, "bad-overlay", what, str(place), _ANEW))


def _target(table: Table) -> Target:
    keys = ("version", "release", "distribution", "dist_info")
    return Target(*(table.string(key) for key in keys))


def _file(table: Table) -> Served:
    return Served(
        target=table.string("target"),
        path=table.text("path"),
        module=table.string("module"),
        pre=table.string("pre"),
        post=table.text("post"),
        underneath=tuple(str(sha) for sha in table.array("underneath")),
        located=table.flag("located"),
        bytecode=table.string("bytecode"),
        fixes=table.strings("fixes"),
    )


def _verified(table: Table) -> Verified:
    level = table.choice("level", [known.word for known in Level])
    fingerprint, python = table.string("fingerprint"), table.string("python")
    return Verified(level or "none", fingerprint, python, table.mapping("unproven"))


def folder_of(name: str) -> Path:
    """A folder as it was named, made absolute."""
    return Path(os.path.abspath(name))
