"""The plan: which bytes each file shall have. Pure: bytes in, bytes out.

The result is always computed from the pristine bytes through all wanted fixes in profile
order, so the order of calls does not matter, a fix added later equals asking for both at
once, and taking a fix back is the same computation with one fix fewer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fixes import origin, postimage
from fixes.digest import of_fixes, sha256
from fixes.errors import ExitCode, Problem
from fixes.lock import Lock, Need, PinnedFile
from fixes.origin import FileVerdict, Origin, paths_of
from fixes.postimage import StepError
from fixes.state import DamagedStateError, State


@dataclass(frozen=True)
class FilePlan:
    """One file: what it is, what it was, and what it shall be.

    ``now``, ``pre`` and ``post`` are sha256, empty where there is no file. ``present`` are the
    fixes in it now, ``wanted`` those that shall be. ``content`` is None where nothing has to be
    written or the file has to go (then ``post`` is empty). ``pristine`` gives the pre-image.
    ``accepted``: the pre-image is none that the lock pins; ``by_edits``: in its place the
    syntax of all that the fixes rely on is.
    """

    target: str
    path: str
    verdict: FileVerdict
    now: str
    pre: str
    post: str
    present: tuple[str, ...]
    wanted: tuple[str, ...]
    pristine: Callable[[], bytes | None] = field(compare=False, repr=False)
    content: bytes | None = field(default=None, repr=False)
    offsets: tuple[int, ...] = ()
    accepted: bool = False
    by_edits: bool = False

    @property
    def changes(self) -> bool:
        """Whether the file has to be written or removed."""
        return self.now != self.post


@dataclass(frozen=True)
class Plan:
    """All files and fixes of a run. Nothing may be written while there are ``problems``.

    ``retired`` are fixes that go and that the profile does not know any more.
    """

    wanted: tuple[str, ...]
    present: tuple[str, ...]
    files: tuple[FilePlan, ...]
    problems: tuple[Problem, ...]
    retired: tuple[str, ...] = ()

    @property
    def writes(self) -> tuple[FilePlan, ...]:
        """The files that have to be written or removed."""
        return tuple(file for file in self.files if file.changes)

    def fixes_in(self, target: str) -> tuple[str, ...]:
        """The wanted fixes that files of one target hold."""
        held = {name for file in self.files if file.target == target for name in file.wanted}
        return tuple(name for name in self.wanted if name in held)

    def digest(self, releases: Mapping[str, str]) -> str:
        """The digest of the fixed files and each target's public release."""
        fixed = ((file.target, file.path, file.post) for file in self.files if file.wanted)
        return of_fixes(fixed, releases)

    def digest_now(self, releases: Mapping[str, str]) -> str:
        """The digest of what is in before anything is written."""
        fixed = ((file.target, file.path, file.now) for file in self.files if file.present)
        return of_fixes(fixed, releases)


def make(
    lock: Lock,
    asked: Collection[str],
    seen: Mapping[str, bytes | None],
    state: State | None,
    *,
    removed: Collection[str] = (),
    foreign_allowed: Collection[str] = (),
    scope_locked: Collection[str] = (),
) -> Plan:
    """Plan the tree that holds ``asked`` and what is applied already, less ``removed``.

    ``seen`` has the bytes of every path of the lock (and of the state), None for no file.
    ``foreign_allowed`` are paths whose foreign bytes are accepted as a pre-image if every
    hunk still matches in one place. ``scope_locked`` are targets in which a file of other bytes
    is accepted if everything that the wanted fixes rely on is the syntax that the lock pins.
    """
    problems: list[Problem] = []
    recorded = set(state.fixes) if state else set()
    unknown = sorted(recorded - set(lock.fixes) - set(removed))
    for name in unknown:
        problems.append(
            Problem(
                ExitCode.MISMATCH,
                "not-offered",
                f"the tree holds {name}, which profile {lock.profile} does not know",
                hint="revert it with `revert --all`, which needs only the recorded state",
            )
        )
    files_known = {**lock.files, **_only_recorded(lock, state)}
    origins = {
        path: origin.find(lock, pinned, seen.get(path), state, path in foreign_allowed)
        for path, pinned in files_known.items()
    }
    present = _present(lock, origins)
    wanted = _in_order(lock, (set(asked) | present | (recorded & set(lock.fixes))) - set(removed))
    problems += _relations(lock, wanted, removed)
    problems += _halves(lock, origins, present | set(wanted), removed)
    files = []
    names = frozenset(wanted)
    for path, pinned in files_known.items():
        kept = bool(state and path in state.files)
        scoped = pinned.target in scope_locked
        file, found = _file(lock, pinned, origins[path], names, kept, scoped, foreign_allowed)
        problems += found
        files.append(file)
    retired = tuple(sorted((recorded & set(removed)) - set(lock.fixes)))
    return Plan(wanted, _in_order(lock, present), tuple(files), tuple(problems), retired)


def _present(lock: Lock, origins: Mapping[str, Origin]) -> set[str]:
    """The fixes that every one of their files holds."""
    return {
        fix.id
        for fix in lock.fixes.values()
        if fix.steps and all(fix.id in origins[path].present for path in paths_of(fix))
    }


def _only_recorded(lock: Lock, state: State | None) -> dict[str, PinnedFile]:
    """Files that an earlier version of our steps changed and today's do not touch."""
    return {
        path: PinnedFile(path.partition("/")[0], path, {file.pre: ()} if file.pre else {}, {})
        for path, file in (state.files.items() if state else ())
        if path not in lock.files
    }


def _in_order(lock: Lock, names: Collection[str]) -> tuple[str, ...]:
    return tuple(
        name for name, fix in lock.fixes.items() if name in names and fix.need is Need.OFFERED
    )


def _relations(lock: Lock, wanted: tuple[str, ...], removed: Collection[str]) -> list[Problem]:
    problems = []
    for name in wanted:
        for other in lock.fixes[name].requires:
            offered = other in lock.fixes and lock.fixes[other].need is Need.OFFERED
            if offered and other not in wanted:
                what = f"requires {other}, which would not be in"
                hint = f"name {other} as well, or take both out"
                if other in removed:
                    what = f"is in and requires {other}"
                    hint = f"revert {name} as well"
                problems.append(Problem(ExitCode.MISMATCH, "conflict", what, name, hint))
        for other in lock.fixes[name].conflicts:
            if other in wanted:
                what = f"{name} cannot go with {other}"
                problems.append(Problem(ExitCode.MISMATCH, "conflict", what, name))
    return problems


def _halves(
    lock: Lock, origins: Mapping[str, Origin], settled: set[str], removed: Collection[str]
) -> list[Problem]:
    """A fix that some of its files hold and others do not, and that this run leaves so.

    Taking it out leaves it so as well where one of the others is foreign: it may hold it too.
    """
    problems = []
    for fix in lock.fixes.values():
        holders = [path for path in paths_of(fix) if fix.id in origins[path].present]
        if not holders or fix.id in settled:
            continue
        lacking = [path for path in paths_of(fix) if path not in holders]
        foreign = [path for path in lacking if origins[path].verdict is FileVerdict.FOREIGN]
        if fix.id not in removed or foreign:
            problems.append(
                Problem(
                    ExitCode.MISMATCH,
                    "half-applied",
                    f"{', '.join(holders)} holds {fix.id}, {', '.join(lacking)} does not",
                    ", ".join(foreign),
                    _REINSTALL
                    if foreign
                    else f"name {fix.id} to make it whole, or revert it; or {_REINSTALL}",
                )
            )
    return problems


def _file(
    lock: Lock,
    pinned: PinnedFile,
    found: Origin,
    wanted: frozenset[str],
    recorded: bool,
    scoped: bool,
    foreign_allowed: Collection[str],
) -> tuple[FilePlan, list[Problem]]:
    path = pinned.path
    here = tuple(name for name in lock.changes.get(path, ()) if name in wanted)
    foreign = found.verdict is FileVerdict.FOREIGN
    drift = None
    by_edits = False
    # By its name a file is accepted if every hunk fits in one place. An anchor alone, which is
    # all that there is without hunks, would fit in a file that holds the fix already.
    named = found.accepted and _has_hunks(lock, path, here)
    if here and (path not in foreign_allowed or not named):
        by_edits = found.scoped or (scoped and foreign and not named)
    if by_edits:
        drift = postimage.drift(lock, path, here, found)
        if drift == []:
            found = replace(found, pre=found.now if foreign else found.pre, accepted=True)
    plan = FilePlan(
        pinned.target,
        path,
        found.verdict,
        found.now,
        found.pre,
        found.now,
        found.present,
        here,
        found.pristine,
        accepted=found.accepted,
        by_edits=by_edits,
    )
    if by_edits and drift != []:  # other syntax, or a diff, which has no scopes
        return plan, drift or [_mismatch(lock, pinned, found)]
    # Nothing to apply to it is no way to accept a file that may still hold what was recorded.
    foreign = found.verdict is FileVerdict.FOREIGN and not (found.accepted and here)
    if foreign or found.verdict is FileVerdict.MISSING:
        if not here and not recorded:
            return plan, []
        return plan, [_mismatch(lock, pinned, found)]
    if not here and found.verdict is not FileVerdict.APPLIED:
        return plan, []
    known = pinned.post.get((found.pre, here)) if here else None
    if known is not None and known == found.now:
        return plan, []
    try:
        content, offsets = postimage.through(lock, path, here, found.pristine(), by_edits)
    except DamagedStateError as error:
        problem = Problem(ExitCode.MISMATCH, "damaged-state", str(error), path, _REINSTALL)
        return plan, [problem]
    except StepError as error:
        return plan, error.problems(path)
    post = "" if content is None else sha256(content)
    fault = _fault(path, content, post, known)
    if fault is not None:
        return plan, [fault]
    outdated = found.verdict is FileVerdict.APPLIED and here == found.present
    return replace(
        plan,
        verdict=FileVerdict.OUTDATED if outdated and post != found.now else found.verdict,
        post=post,
        content=content if post != found.now else None,
        offsets=offsets,
    ), []


def _has_hunks(lock: Lock, path: str, names: Sequence[str]) -> bool:
    changes = [change for name in names for change in lock.changes[path][name]]
    return all(change.hunks or change.content is not None for change in changes)


def _fault(path: str, content: bytes | None, post: str, known: str | None) -> Problem | None:
    """Why a post-image must not be written: it is not the lock's, or is no Python."""
    if known is not None and known != post:
        what = "what the lock's hunks make of it is not the post-image that the lock names"
        return Problem(ExitCode.MISMATCH, "bad-lock", what, path, "make the lock anew")
    if content is None or known is not None or not path.endswith(".py"):
        return None
    try:
        compile(content, path, "exec", dont_inherit=True)
    except (SyntaxError, ValueError) as error:
        what = f"would not be Python any more: {error}"
        return Problem(ExitCode.MISMATCH, "not-python", what, path)
    return None


_REINSTALL = "install the release again, then apply"


def _mismatch(lock: Lock, pinned: PinnedFile, found: Origin) -> Problem:
    if found.verdict is FileVerdict.MISSING:
        what = "a file that a fix touches is not there"
        return Problem(ExitCode.MISMATCH, "missing", what, pinned.path, _REINSTALL)
    expected = " or ".join(sha[:12] for sha in pinned.pristine) or "no file"
    whose = f"neither the {lock.release} release's"
    hint = f"{_REINSTALL}; --allow-foreign accepts one file by name if every hunk fits"
    if pinned.target in lock.scope_locked:
        whose, hint = "neither a pinned release's", _REINSTALL
    elif not pinned.pristine:
        hint = f"remove it, or {_REINSTALL}"
    return Problem(
        ExitCode.MISMATCH,
        "foreign",
        f"sha256 {found.now[:12]} is {whose} ({expected}) nor one that these fixes make",
        pinned.path,
        hint,
    )
