"""A profile and the published wheels become a lock."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass

from fixes import editfile, editing, functions, hunks, scopes
from fixes.authoring import diffs, toml
from fixes.authoring import pins as pinning
from fixes.authoring.authored import Authored
from fixes.authoring.combinations import Combinations
from fixes.authoring.images import Draft, Pristine, StepError, apply_change, module_name, shifts
from fixes.authoring.pins import Pins
from fixes.authoring.wheels import Wheel
from fixes.digest import sha256
from fixes.edits import Edit, EditError
from fixes.errors import ExitCode, FixesError, Problem
from fixes.lock import FileChange, Fix, Lock, Probe, Reach, Scope, Step
from fixes.syntax import ScopeError, find_scope, parse


@dataclass(frozen=True)
class Resolved:
    """A lock, and what a maintainer should know that is no error."""

    lock: Lock
    notes: tuple[str, ...]


def resolve(authored: Authored, targets: Mapping[str, Sequence[Wheel]]) -> Resolved:
    """Make the lock. ``targets`` are the wheels of each target, the reference first.

    Every step is resolved on the reference's bytes with the fixes that it requires already
    in, and all of it is then checked on every accepted pre-image (``combinations``).
    What the probes say of the pristine release is not in yet (``probing``).

    Raises FixesError with everything that is wrong with any step, file or set of fixes.
    """
    pristine = Pristine(targets)
    made = _Steps(authored, pristine)
    if made.problems:
        raise FixesError(*made.problems)
    found = Combinations(authored, pristine, made.steps)
    if found.problems:
        raise FixesError(*found.problems)
    fixes = {
        fix: _fix(authored, fix, made.steps.get(fix, ()), made.reach.get(fix, ()))
        for fix in authored.profile.entries
    }
    for fix in fixes:  # the lock is refused when what it was made from has changed
        authored.read(f"patches/{fix}/probe.py")
    lock = Lock(
        profile=authored.profile.name,
        release=authored.profile.release,
        authored=dict(authored.sha256),
        wheels={wheel.requirement: wheel.sha256 for all_ in targets.values() for wheel in all_},
        files=found.files,
        fixes=fixes,
        bundles=authored.profile.bundles,
        platforms=authored.profile.platforms,
    )
    return Resolved(lock, (*made.notes, *found.notes))


def _fix(authored: Authored, name: str, steps: tuple[Step, ...], reach: tuple[Reach, ...]) -> Fix:
    entry, about = authored.profile.entries[name], authored.fixes[name]
    return Fix(
        id=name,
        title=about.title,
        symptom=about.symptom,
        cause=about.cause,
        affects=about.affects,
        workaround=about.workaround,
        log=about.log,
        threads=about.threads,
        releases=about.releases,
        removed_in=about.removed_in,
        targets=about.targets,
        requires=about.requires,
        conflicts=tuple(fix for fix in about.conflicts if fix in authored.profile.entries),
        risk=about.risk,
        drop_when=about.drop_when,
        wire=about.wire,
        need=entry.need,
        why=entry.why,
        steps=steps,
        reach=reach,
        probe=Probe(
            f"patches/{name}/probe.py", about.evidence, about.finds, tuple(about.cannot_tell)
        ),
    )


class _Steps:
    """The steps of all offered fixes as hunks, each fix on the bytes that it requires."""

    def __init__(self, authored: Authored, pristine: Pristine) -> None:
        self._authored = authored
        self._pristine = pristine
        self.steps: dict[str, tuple[Step, ...]] = {}
        self.reach: dict[str, tuple[Reach, ...]] = {}
        self.problems: list[Problem] = []
        self.notes: list[str] = []
        for fix in authored.offered:
            before = authored.closure(fix)[:-1]
            if all(other in self.steps for other in before):
                try:
                    self._resolve(fix, Draft(pristine, self.steps, before))
                except StepError as error:
                    self.problems += error.problems(f"patches/{fix}")
                except FixesError as error:
                    self.problems += error.problems

    def _resolve(self, fix: str, draft: Draft) -> None:
        steps = tuple(
            self._step(fix, f"patches/{fix}/{source}", draft)
            for source in self._authored.profile.entries[fix].steps
        )
        names: dict[str, tuple[str, ...]] = {}
        for path, data in draft.written().items():
            if path.endswith(".py"):
                names[module_name(path)] = _changed(
                    f"patches/{fix}: {path}", draft.found(path), data
                )
            for wheel in self._pristine.lacking(path) if self._pristine.images(path) else ():
                self.notes.append(f"{fix}: {wheel} has no {path}")
        for extra in self._authored.fixes[fix].reach:
            names[extra.module] = (*names.get(extra.module, ()), *extra.names)
        for pins in self._authored.pins.values():
            names.update(pinning.modules(pins, fix))
        self.reach[fix] = tuple(
            Reach(module, tuple(dict.fromkeys(found))) for module, found in names.items() if found
        )
        self.steps[fix] = steps

    def _step(self, fix: str, source: str, draft: Draft) -> Step:
        data = self._authored.read(source)
        if pinned := [t for t in self._authored.fixes[fix].targets if t in self._authored.pins]:
            step = self._pinned_step(fix, source, data, self._authored.pins[pinned[0]])
        elif source.endswith(".patch"):
            step = Step("diff", source, self._diff(fix, source, data, draft))
        else:
            step = Step("edit", source, *self._edits(fix, source, data, draft))
        if not step.changes:
            raise FixesError(_problem("empty", "changes nothing", source))
        return step

    def _check_targets(self, fix: str, source: str, paths: Iterable[str]) -> None:
        """Raise FixesError for paths that are in no target of the fix."""
        targets = self._authored.fixes[fix].targets
        foreign = [path for path in paths if path.partition("/")[0] not in targets]
        if foreign:
            what = "is in none of the fix's targets"
            raise FixesError(
                *(_problem("foreign-target", what, f"{source}: {path}") for path in foreign)
            )

    def _diff(self, fix: str, source: str, data: bytes, draft: Draft) -> tuple[FileChange, ...]:
        """A diff's hunks, as they are, but at the lines where they apply."""
        changes: list[FileChange] = []
        problems: list[Problem] = []
        files = diffs.parse(data, source)
        self._check_targets(fix, source, (file.path for file in files))
        for file in files:
            target = file.path.partition("/")[0]
            if file.added:
                change = FileChange(target, file.path, (), b"".join(h.new for h in file.hunks))
            else:
                change = FileChange(target, file.path, file.hunks)
            try:
                applied = apply_change(draft.read(file.path), change, fix)
            except StepError as error:
                problems += error.problems(f"{source}: {file.path}")
                continue
            draft.write(file.path, applied.data)
            if away := shifts(applied.offsets):
                self.notes.append(f"{source}: {file.path}: {away}")
            moved = (
                hunks.Hunk(hunk.line + offset, hunk.old, hunk.new)
                for hunk, offset in zip(change.hunks, applied.offsets, strict=True)
            )
            changes.append(change._replace(hunks=tuple(moved)))
        if problems:
            raise FixesError(*problems)
        return tuple(changes)

    def _pinned_step(self, fix: str, source: str, data: bytes, pins: Pins) -> Step:
        """Edits of a target without wheels: there are no bytes to make hunks of."""
        if pins.steps.get(source) != sha256(data):
            what, hint = f"is not the step that {pins.target}'s pins were made from", "run: pin"
            raise FixesError(_problem("stale-pins", what, source)._replace(hint=hint))
        changes = []
        of_path: dict[str, list[Edit]] = {}
        for edit in self._parsed(fix, source, data):
            of_path.setdefault(edit.file, []).append(edit)
        self._check_targets(fix, source, of_path)
        for path, edits in of_path.items():
            change = FileChange(pins.target, path, ())
            if edits[0].op == "add-file":
                changes.append(change._replace(content=edits[0].new.encode()))
            else:
                scopes = pins.scopes[fix][path]
                changes.append(change._replace(edits=tuple(edits), scopes=scopes))
        return Step("edit", source, tuple(changes))

    def _parsed(self, fix: str, source: str, data: bytes) -> tuple[Edit, ...]:
        def beside(name: str) -> bytes:
            try:
                return self._authored.read(f"patches/{fix}/{name}")
            except FixesError as error:
                raise OSError(error.problems[0].what) from None

        return parse_steps(source, data, beside)

    def _edits(
        self, fix: str, source: str, data: bytes, draft: Draft
    ) -> tuple[tuple[FileChange, ...], tuple[str, ...]]:
        """Edits, resolved to hunks with as much context as makes them unique."""
        every = self._parsed(fix, source, data)
        self._check_targets(fix, source, {path for edit in every for path in editing.files(edit)})
        try:
            found = editing.resolve_all(draft.read, every)
        except EditError as error:
            raise FixesError(
                *(
                    _problem(one.kind, one.message, f"{source}: edit[{one.index}]")
                    for one in (error, *error.also)
                )
            ) from None
        changes = []
        for path, resolution in found.items():
            pre, target = draft.read(path), path.partition("/")[0]
            if pre is None:
                changes.append(FileChange(target, path, (), resolution.data))
            elif pre != resolution.data:
                spans = resolution.replacements
                made = hunks.between(pre, resolution.data, spans)
                pinned = _pinned(self._pristine.reference(path) or b"", resolution.edits)
                changes.append(
                    FileChange(target, path, made, edits=resolution.edits, scopes=pinned)
                )
            draft.write(path, resolution.data)
        return tuple(changes), tuple(name for one in found.values() for name in one.took)


def parse_steps(source: str, data: bytes, beside: Callable[[str], bytes]) -> tuple[Edit, ...]:
    """The edits of one edit.toml, called ``source``. Raises FixesError, ``invalid-edit``."""
    table = toml.parse(data, source, "invalid-edit")
    try:
        return editfile.parse_edits(table, beside)
    except FixesError as error:
        problems = (one._replace(where=f"{source}: {one.where}") for one in error.problems)
        raise FixesError(*problems) from None


def _pinned(pristine: bytes, edits: Sequence[Edit]) -> tuple[Scope, ...]:
    """What edits rely on in the pristine file; not what another step has added to it."""
    found: dict[Scope, None] = {}
    for edit in edits:
        with suppress(ScopeError):
            find_scope(parse(pristine), edit.scope)
            try:
                found.update(dict.fromkeys(scopes.pins(pristine, [edit])))
            except ScopeError as error:
                what = f"relies on what is not there: {error}"
                raise FixesError(_problem("invalid-edit", what, edit.file)) from None
    return tuple(found)


def _problem(kind: str, what: str, where: str) -> Problem:
    return Problem(ExitCode.MISMATCH, kind, what, where)


def _changed(where: str, pre: bytes | None, post: bytes) -> tuple[str, ...]:
    """The names that a fix changes in a module. Raises FixesError if it is not Python."""
    try:
        return functions.changed(pre, post)
    except SyntaxError as error:
        what = f"is not Python any more: {error}"
        raise FixesError(_problem("bad-syntax", what, where)) from None
