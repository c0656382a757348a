"""Everything authored for one profile: read, hashed, and held against each other."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator

from packaging.version import Version

from fixes.authoring import fixfile, pins, profile
from fixes.authoring.fixfile import FixFile
from fixes.authoring.pins import Pins
from fixes.authoring.profile import Entry
from fixes.catalogue import Catalogue
from fixes.errors import ExitCode, FixesError, Problem
from fixes.lock import Need


class Authored:
    """A profile, the fix.toml of each of its fixes, and the sha256 of every file read.

    Raises FixesError: ``missing-file``, ``bad-profile`` and ``bad-fix`` problems, all at once.
    """

    def __init__(self, catalogue: Catalogue, name: str) -> None:
        self.catalogue = catalogue
        self.sha256: dict[str, str] = {}
        self.where = f"profiles/{name}.toml"
        self.profile = profile.parse(self.read(self.where), self.where, name)
        self.fixes: dict[str, FixFile] = {}
        problems: list[Problem] = []
        for fix in self.profile.entries:
            path = f"patches/{fix}/fix.toml"
            try:
                self.fixes[fix] = fixfile.parse(self.read(path), path, fix)
            except FixesError as error:
                problems += error.problems
        self.pins: dict[str, Pins] = {}
        for target, wheels in self.profile.targets.items():
            if not wheels:
                try:
                    self.pins[target] = pins.load(self.read(pins.name(target)), pins.name(target))
                except FixesError as error:
                    problems += error.problems
        if not problems:
            problems += self._mismatches()
        if problems:
            raise FixesError(*problems)

    def read(self, path: str) -> bytes:
        """An authored file, hashed. Raises FixesError, kind ``missing-file``."""
        try:
            data = self.catalogue.read(path)
        except (OSError, ValueError) as error:
            what = getattr(error, "strerror", None) or str(error)
            problem = Problem(ExitCode.MISMATCH, "missing-file", what, path)
            raise FixesError(problem) from None
        self.sha256[path] = hashlib.sha256(data).hexdigest()
        return data

    @property
    def offered(self) -> tuple[str, ...]:
        """The fixes that the release is offered, in the order of application."""
        entries = self.profile.entries.values()
        return tuple(entry.id for entry in entries if entry.need is Need.OFFERED)

    def closure(self, fix: str) -> tuple[str, ...]:
        """An offered fix and the offered fixes it requires, in the order of application."""
        found = {fix}
        for other in reversed(self.offered):
            if other in found:
                found.update(self.fixes[other].requires)
        return tuple(other for other in self.offered if other in found)

    def conflict(self, one: str, other: str) -> bool:
        """Whether either of two fixes names the other as a conflict."""
        return other in self.fixes[one].conflicts or one in self.fixes[other].conflicts

    def _mismatches(self) -> Iterator[Problem]:
        """What is wrong between the files, each of them being well formed."""
        for entry in self.profile.entries.values():
            for key, what in (*self._of_release(entry), *self._of_relations(entry)):
                yield _problem(f"patches/{entry.id}/fix.toml: {key}", what)
        for name, bundle in self.profile.bundles.items():
            for what in self._of_members(bundle.members):
                yield _problem(f"{self.where}: bundles.{name}.members", what)
        for wheel in self.profile.targets.get("vllm", ()):
            if wheel.partition("==")[2] != self.profile.release:
                what = f"{wheel} is not of release {self.profile.release}"
                yield _problem(f"{self.where}: targets.vllm.wheels", what)

    def _of_release(self, entry: Entry) -> Iterator[tuple[str, str]]:
        """Where profile and fix.toml disagree on what the release needs."""
        fix, release = self.fixes[entry.id], self.profile.release
        carries = release in fix.releases
        if entry.need is Need.OFFERED:
            if not carries:
                yield "releases", f"lack {release}, whose profile offers the fix"
            if fix.removed_in and Version(fix.removed_in) <= Version(release):
                yield (
                    "removed_in",
                    f"is {fix.removed_in}, but {release}'s profile offers the fix",
                )
            for target in fix.targets:
                if target not in self.profile.targets:
                    yield "targets", f"{target!r} is no target of {self.where}"
        elif entry.need is Need.UPSTREAM:
            if carries:
                yield "releases", f"hold {release}, which by its profile has the fix upstream"
            if fix.removed_in and fix.removed_in != entry.upstream:
                yield "removed_in", f"is not {entry.upstream}, as {self.where} says"

    def _of_relations(self, entry: Entry) -> Iterator[tuple[str, str]]:
        """What is wrong with the names of other fixes."""
        fix, order = self.fixes[entry.id], list(self.profile.entries)
        for other in fix.requires:
            if other not in self.profile.entries:
                yield "requires", f"{other!r} is no fix of {self.where}"
            elif order.index(other) >= order.index(entry.id):
                yield "requires", f"{other!r} comes later in {self.where}"
            if other in fix.conflicts:
                yield "conflicts", f"{other!r} is required as well"
        for other in fix.conflicts:
            try:
                self.catalogue.read(f"patches/{other}/fix.toml")
            except (OSError, ValueError):
                yield "conflicts", f"there is no patches/{other}/fix.toml"

    def _of_members(self, members: tuple[str, ...]) -> Iterator[str]:
        offered = [fix for fix in self.offered if fix in members]
        for index, fix in enumerate(offered):
            for other in self.closure(fix):
                if other not in members:
                    yield f"{fix} requires {other}, which is no member"
            for other in offered[:index]:
                if self.conflict(fix, other):
                    yield f"{fix} and {other} conflict"


def _problem(where: str, what: str) -> Problem:
    return Problem(
        ExitCode.MISMATCH, fixfile.KIND if "fix.toml" in where else profile.KIND, what, where
    )
