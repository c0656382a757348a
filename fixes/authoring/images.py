"""File images at lock time: the accepted pre-images, and what sets of fixes make of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from fixes import hunks
from fixes.authoring.wheels import Wheel
from fixes.digest import sha256
from fixes.errors import ExitCode, Problem
from fixes.lock import FileChange, Step


class Pristine:
    """The files of the published wheels, each read once; the reference wheel comes first."""

    def __init__(self, targets: Mapping[str, Sequence[Wheel]]) -> None:
        self.targets = targets
        self._images: dict[str, dict[str, tuple[bytes, list[str]]]] = {}

    def images(self, path: str) -> dict[str, tuple[bytes, list[str]]]:
        """Each different content of a path: by sha256, its bytes and the wheels that have it.

        Empty for a path that no wheel has. The reference wheel's content comes first.
        """
        if path not in self._images:
            images: dict[str, tuple[bytes, list[str]]] = {}
            for wheel in self.targets.get(path.partition("/")[0], ()):
                if path in wheel.names:
                    data = wheel.read(path)
                    images.setdefault(sha256(data), (data, []))[1].append(wheel.requirement)
            self._images[path] = images
        return self._images[path]

    def reference(self, path: str) -> bytes | None:
        """The bytes of the first wheel that has the path."""
        return next((data for data, _ in self.images(path).values()), None)

    def lacking(self, path: str) -> tuple[str, ...]:
        """The wheels of the path's target that do not have it."""
        wheels = self.targets.get(path.partition("/")[0], ())
        return tuple(wheel.requirement for wheel in wheels if path not in wheel.names)


class StepError(Exception):
    """A fix's change that does not apply: the fix, and why."""

    def __init__(self, fix: str, faults: Sequence[tuple[str, str]]) -> None:
        super().__init__(f"{fix}: {'; '.join(what for _, what in faults)}")
        self.fix = fix
        self.faults = tuple(faults)

    def problems(self, where: str) -> tuple[Problem, ...]:
        """As problems, one for each fault."""
        return tuple(
            Problem(ExitCode.MISMATCH, kind, f"{self.fix}: {what}", where)
            for kind, what in self.faults
        )


def apply_change(data: bytes | None, change: FileChange, fix: str) -> hunks.Applied:
    """A file's bytes (None for no file) after one change. Raises StepError."""
    if change.content is not None:
        if data is not None:
            raise StepError(fix, [("exists", "adds a file that is there already")])
        return hunks.Applied(change.content, ())
    if data is None:
        raise StepError(fix, [("missing", "changes a file that is not there")])
    try:
        return hunks.apply(data, change.hunks)
    except hunks.HunkError as error:
        raise StepError(fix, [(f.kind, str(f)) for f in error.failures]) from None


def undo_change(data: bytes | None, change: FileChange, fix: str) -> bytes | None:
    """A file's bytes with one change taken back; None if the change added it."""
    if change.content is not None:
        if data != change.content:
            raise StepError(fix, [("not-reversible", "is not the file that was added")])
        return None
    back = FileChange(change.target, change.path, hunks.reverse(change.hunks))
    return apply_change(data, back, fix).data


def shifts(offsets: Sequence[int]) -> str:
    """Which hunks are how many lines away from where they were recorded, if any."""
    return ", ".join(
        f"hunk {at} is {offset:+} lines away" for at, offset in enumerate(offsets, 1) if offset
    )


class Composer:
    """What sets of fixes make of one pre-image of one file, each set computed once."""

    def __init__(self, path: str, pristine: bytes | None, steps: Mapping[str, Sequence[Step]]):
        self.path = path
        self._made: dict[tuple[str, ...], bytes | None] = {(): pristine}
        self._offsets: dict[tuple[str, ...], tuple[int, ...]] = {(): ()}
        self._changes = {
            fix: [c for step in made for c in step.changes if c.path == path]
            for fix, made in steps.items()
        }

    def compose(self, fixes: tuple[str, ...]) -> bytes | None:
        """The file with some fixes, given in the order of application. Raises StepError."""
        if fixes not in self._made:
            data = self.compose(fixes[:-1])
            offsets: tuple[int, ...] = ()
            for change in self._changes[fixes[-1]]:
                applied = apply_change(data, change, fixes[-1])
                data, offsets = applied.data, offsets + applied.offsets
            self._made[fixes], self._offsets[fixes] = data, offsets
        return self._made[fixes]

    def offsets(self, fixes: tuple[str, ...]) -> tuple[int, ...]:
        """How far away the last fix's hunks apply behind the others. Raises StepError."""
        self.compose(fixes)
        return self._offsets[fixes]

    def without(self, fixes: tuple[str, ...], fix: str) -> bytes | None:
        """The file with some fixes, and then one of them taken back. Raises StepError."""
        data = self.compose(fixes)
        for change in reversed(self._changes[fix]):
            data = undo_change(data, change, fix)
        return data


def touched(steps: Iterable[Step]) -> tuple[str, ...]:
    """The paths that steps touch, in order, each once."""
    return tuple(dict.fromkeys(change.path for step in steps for change in step.changes))


class Draft:
    """The reference's files as one fix finds them (what it requires is in) and changes them."""

    def __init__(
        self, pristine: Pristine, steps: Mapping[str, Sequence[Step]], before: tuple[str, ...]
    ) -> None:
        self._pristine = pristine
        self._steps = steps
        self._before = before
        self._found: dict[str, bytes | None] = {}
        self._now: dict[str, bytes] = {}

    def found(self, path: str) -> bytes | None:
        """A file as the fix finds it; None for no file. Raises StepError."""
        if path not in self._found:
            composer = Composer(path, self._pristine.reference(path), self._steps)
            self._found[path] = composer.compose(self._before)
        return self._found[path]

    def read(self, path: str) -> bytes | None:
        """A file after the changes so far; None for no file. Raises StepError."""
        return self._now[path] if path in self._now else self.found(path)

    def write(self, path: str, data: bytes) -> None:
        """Set a file's bytes."""
        self._now[path] = data

    def written(self) -> dict[str, bytes]:
        """The files that have been set."""
        return dict(self._now)


def module_name(path: str) -> str:
    """The module that a file is imported as."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
