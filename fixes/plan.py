"""The plan: which bytes each file shall have. Pure: bytes in, bytes out.

The result is always computed from the pristine bytes through all wanted fixes in profile
order, so the order of calls does not matter, a fix added later equals asking for both at
once, and taking a fix back is the same computation with one fix fewer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace

from fixes import hunks, origin
from fixes.digest import of_fixes, sha256
from fixes.errors import ExitCode, Problem
from fixes.lock import Fix, Lock, Need, PinnedFile
from fixes.origin import FileVerdict, Origin, paths_of
from fixes.state import DamagedStateError, State


@dataclass(frozen=True)
class FilePlan:
    """One file: what it is, what it was, and what it shall be.

    ``now``, ``pre`` and ``post`` are sha256, empty where there is no file. ``present`` are the
    fixes in it now, ``wanted`` those that shall be. ``content`` is None where nothing has to be
    written or the file has to go (then ``post`` is empty). ``pristine`` gives the pre-image.
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
) -> Plan:
    """Plan the tree that holds ``asked`` and what is applied already, less ``removed``.

    ``seen`` has the bytes of every path of the lock (and of the state), None for no file.
    ``foreign_allowed`` are paths whose foreign bytes are accepted as a pre-image if every
    hunk still matches in one place.
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
    problems += _relations(lock, wanted)
    problems += _halves(lock, origins, present | set(wanted), removed)
    files = []
    names = frozenset(wanted)
    for path, pinned in files_known.items():
        kept = bool(state and path in state.files)
        file, found = _file(lock, pinned, origins[path], names, kept)
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


def _relations(lock: Lock, wanted: tuple[str, ...]) -> list[Problem]:
    problems = []
    for name in wanted:
        for other in lock.fixes[name].requires:
            offered = other in lock.fixes and lock.fixes[other].need is Need.OFFERED
            if offered and other not in wanted:
                problems.append(
                    Problem(
                        ExitCode.MISMATCH,
                        "conflict",
                        f"{name} requires {other}, which would not be in",
                        name,
                        hint=f"name {other} as well, or take both out",
                    )
                )
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
                    f"name {fix.id} to make it whole, or revert it; or {_REINSTALL}",
                )
            )
    return problems


def _file(
    lock: Lock,
    pinned: PinnedFile,
    found: Origin,
    wanted: frozenset[str],
    recorded: bool,
) -> tuple[FilePlan, list[Problem]]:
    path = pinned.path
    here = tuple(name for name in lock.changes.get(path, ()) if name in wanted)
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
    )
    # Nothing to apply to it is no way to accept a file that may still hold what was recorded.
    foreign = found.verdict is FileVerdict.FOREIGN and not (found.accepted and here)
    if foreign or found.verdict is FileVerdict.MISSING:
        return plan, [_mismatch(lock, pinned, found)] if here or recorded else []
    if not here and found.verdict is not FileVerdict.APPLIED:
        return plan, []
    known = pinned.post.get((found.pre, here)) if here else None
    if known is not None and known == found.now:
        return plan, []
    try:
        content, offsets = _through(lock, path, here, found.pristine())
    except DamagedStateError as error:
        problem = Problem(ExitCode.MISMATCH, "damaged-state", str(error), path, _REINSTALL)
        return plan, [problem]
    except _StepError as error:
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


class _StepError(Exception):
    def __init__(self, fix: Fix, error: hunks.HunkError | None, earlier: tuple[str, ...]) -> None:
        super().__init__(fix.id)
        self.fix = fix
        self.error = error
        self.earlier = earlier

    def problems(self, path: str) -> list[Problem]:
        if self.error is None:
            what = f"{self.fix.id} adds this file, but it is there"
            return [Problem(ExitCode.MISMATCH, "conflict", what, path)]
        found = []
        for failure in self.error.failures:
            what = f"{self.fix.id}, hunk {failure.index + 1}: {failure.detail}"
            if self.earlier:
                what += f" (behind {', '.join(self.earlier)})"
            found.append(Problem(ExitCode.MISMATCH, failure.kind, what, path))
        return found


def _through(
    lock: Lock, path: str, names: tuple[str, ...], pristine: bytes | None
) -> tuple[bytes | None, tuple[int, ...]]:
    """The pre-image through the steps of ``names``, and the offsets of the hunks in lines."""
    data = pristine
    offsets: tuple[int, ...] = ()
    for position, name in enumerate(names):
        fix = lock.fixes[name]
        for change in lock.changes[path][name]:
            if change.content is not None:
                if data is not None:
                    raise _StepError(fix, None, names[:position])
                data = change.content
                continue
            try:
                done = hunks.apply(data or b"", change.hunks)
            except hunks.HunkError as error:
                raise _StepError(fix, error, names[:position]) from error
            data = done.data
            offsets += done.offsets
    return data, offsets


def _mismatch(lock: Lock, pinned: PinnedFile, found: Origin) -> Problem:
    if found.verdict is FileVerdict.MISSING:
        what = "a file that a fix touches is not there"
        return Problem(ExitCode.MISMATCH, "missing", what, pinned.path, _REINSTALL)
    expected = " or ".join(sha[:12] for sha in pinned.pristine) or "no file"
    return Problem(
        ExitCode.MISMATCH,
        "foreign",
        f"sha256 {found.now[:12]} is neither the {lock.release} release's ({expected}) "
        "nor one that these fixes make",
        pinned.path,
        f"{_REINSTALL}; --allow-foreign accepts one file by name if every hunk fits",
    )
