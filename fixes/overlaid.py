"""The look through an overlay: what an engine imports that has it on its PYTHONPATH."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from fixes import overlay, overlays
from fixes.catalogue import package_source
from fixes.digest import sha256
from fixes.disk import read_file
from fixes.errors import ExitCode, FixesError, Problem
from fixes.look import Look
from fixes.overlay import Overlay
from fixes.plan import Plan
from fixes.session import Session


@dataclass(frozen=True)
class Through:
    """A look at the disk with the files of an overlay in the place of the installed ones."""

    folder: Path
    overlay: Overlay
    found: Look
    problems: tuple[Problem, ...]
    notes: tuple[str, ...]

    def told(self, problems: Sequence[Problem]) -> list[Problem]:
        """Each file of the overlay that is damaged once: no reinstallation brings it back."""
        files = self.folder / overlays.FILES
        bad = {one.where for one in problems if one.kind == "bad-overlay"}
        return [one for one in problems if one.where in bad or str(files / one.where) not in bad]

    def disagreement(self, here: Session, plan: Plan) -> list[Problem]:
        """That with the files underneath it gives something else than it was made to give."""
        digest = plan.digest(here.releases)
        if self.problems or digest == self.overlay.digest:
            return []
        what = f"gives the digest {digest[:12]}, and was made for {self.overlay.digest[:12]}"
        hint = "a fix was put into the installed files since: make the overlay anew"
        return [Problem(ExitCode.MISMATCH, "underneath", what, str(self.folder), hint)]


def asked(options: argparse.Namespace) -> Path | None:
    """The overlay that a run is about: the one that is named, else that of PYTHONPATH.

    One that PYTHONPATH names is for what this environment imports, not for another tree.
    """
    if options.overlay is not None:
        return overlay.folder_of(options.overlay)
    if options.tree or options.python:
        return None
    found = overlays.named(os.environ)
    return overlay.folder_of(found[0]) if found else None


def take(here: Session, found: Look, folder: Path) -> Through:
    """Read an overlay over what was seen of the trees. Raises FixesError."""
    made = overlay.load(folder)
    hashes = {path: sha256(data) for path, data in found.seen.items() if data is not None}
    problems = overlay.problems(made, folder, package_source("hook.py"))
    if made.lock != here.lock.digest:
        what = f"was made by another lock of {made.profile} than that of {here.lock.profile}"
        hint = "make the overlay anew"
        problems.append(Problem(ExitCode.MISMATCH, "outdated", what, str(folder), hint))
    problems = problems or _over(here, made, folder, hashes)
    problems += [problem for problem in found.damaged if problem.kind == "damaged-state"]
    seen = dict(found.seen)
    for file in made.files:
        try:
            seen[file.path] = read_file(folder / overlays.FILES / file.path)
        except OSError:
            seen[file.path] = None
    through = replace(
        found,
        seen=seen,
        states=made.states(found.seen, found.state),
        state_bytes={},
        records=dict.fromkeys(found.records),
        damaged=(),
    )
    noted, idle = _place(folder)
    return Through(folder, made, through, (*problems, *idle), tuple(noted))


def _over(
    here: Session, made: Overlay, folder: Path, installed: Mapping[str, str]
) -> list[Problem]:
    """What the overlay refuses to start over, where the installed files have these sha256."""
    sites = {item.target: item.site for item in here.trees}
    absent = [
        Problem(ExitCode.NOT_FOUND, "target-not-found", f"serves {target}", str(folder))
        for target in made.targets
        if target not in sites
    ]
    return absent or [*overlay.underneath(made, installed, sites), *_versions(made, here)]


def _versions(made: Overlay, here: Session) -> list[Problem]:
    problems = []
    for item in here.trees:
        about = made.targets.get(item.target)
        name = item.dist_info.name if item.record and item.dist_info else ""
        if about and (about.version, about.dist_info) != (item.version, name):
            what = f"is {item.distribution} {item.version} ({name or 'no dist-info'}), "
            what += f"the overlay was made for {about.distribution} {about.version}"
            hint = "make the overlay anew"
            where = str(item.package)
            problems.append(Problem(ExitCode.MISMATCH, "underneath", what, where, hint))
    return problems


def _place(folder: Path) -> tuple[list[str], list[Problem]]:
    """Where PYTHONPATH has it, and why it does not act there."""
    real = os.path.realpath(folder)
    named = [one for one in overlays.named(os.environ) if os.path.realpath(one) == real]
    if not named:
        return [f"overlay {folder}: PYTHONPATH does not name it here"], []
    hint = "name one overlay on PYTHONPATH, by its absolute path"
    why = overlays.unfit(str(folder), os.environ)
    if not why:
        hint = "put it first on PYTHONPATH, and start engines without -I, -E and -S"
        why = overlays.idle(str(folder), os.environ)
    if not why:
        return [f"overlay {folder}: PYTHONPATH names it"], []
    return [], [Problem(ExitCode.MISMATCH, "overlay-idle", why, str(folder), hint)]


def hiding(here: Session, found: Look, plan: Plan, *, only_refusing: bool = False) -> list[Problem]:
    """What an overlay on PYTHONPATH means for a change of the files underneath it.

    Engines started here import its files. Where they are what the plan makes and it is whole,
    all is well either way; else the change would not be seen, or (``only_refusing``) make it
    refuse.
    """
    names = () if here.named_tree else overlays.named(os.environ)
    if not names:
        return []
    folder = overlay.folder_of(names[0])
    try:
        made = overlay.load(folder)
    except FixesError as error:
        return [_active(folder, str(one)) for one in error.problems]
    after = {path: sha256(data) for path, data in found.seen.items() if data is not None}
    after |= {file.path: file.post for file in plan.files}
    over = _over(here, made, folder, after)
    if only_refusing:
        refusing = [one.where for one in over]
        return [_active(folder, _would_refuse(made, refusing))] if refusing else []
    wrong = overlay.problems(made, folder, package_source("hook.py"))
    named = overlays.unfit(str(folder), os.environ)
    problems = [_active(folder, named)] if named else []
    if made.digest != plan.digest(here.releases):
        problems.append(_active(folder, _would_refuse(made, [one.where for one in over])))
        over = []
    return [*problems, *(_active(folder, f"{one.where} {one.what}") for one in (*wrong, *over))]


def _would_refuse(made: Overlay, refusing: list[str]) -> str:
    what = f"an engine started here imports the files of this overlay ({made.digest[:12]})"
    if refusing:
        what += f", and would refuse to start over these: {', '.join(refusing)}"
    return what


def _active(folder: Path, what: str) -> Problem:
    hint = "take it off PYTHONPATH, or make the overlay anew: vllm-fixes overlay"
    return Problem(ExitCode.NOT_FOUND, "overlay-active", what, str(folder), hint)
