"""A session: the profile, the interpreter and the trees of one run, and a look at the disk."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from fixes import catalogue, disk, environment, record, transaction, tree
from fixes.catalogue import Catalogue
from fixes.digest import of_surroundings
from fixes.environment import Environment
from fixes.errors import ExitCode, FixesError, Problem
from fixes.lock import Lock
from fixes.plan import FilePlan, Plan
from fixes.state import DamagedStateError, Level, State
from fixes.state import load as load_state
from fixes.tree import Tree


@dataclass(frozen=True)
class Session:
    """What a run works on. ``trees`` has vllm's first, then those of installed plugins."""

    catalogue: Catalogue
    lock: Lock
    environment: Environment
    trees: tuple[Tree, ...]
    named_tree: bool

    @property
    def releases(self) -> dict[str, str]:
        """Each target's public release, for the digest."""
        return {found.target: found.release for found in self.trees}

    @property
    def paths(self) -> tuple[str, ...]:
        """Where the engine's packages lie: the environment's path, the tree's folder first."""
        return tuple(dict.fromkeys((str(self.trees[0].site), *self.environment.paths)))

    @property
    def ahead(self) -> tuple[str, ...]:
        """Folders that a verifying interpreter has to search first."""
        return tuple(str(found.site) for found in self.trees) if self.named_tree else ()

    def where(self, path: str) -> tuple[Tree, Path] | None:
        """The tree and absolute place of a fixed file; None if its target is not installed."""
        for found in self.trees:
            if path.startswith(found.target + "/"):
                return found, tree.resolve(found, path)
        return None


@dataclass(frozen=True)
class Look:
    """The disk at one moment: files, states and RECORDs, by path and by target."""

    seen: dict[str, bytes | None]
    states: dict[str, State]
    state_bytes: dict[str, bytes | None]
    records: dict[str, bytes | None]
    damaged: tuple[Problem, ...]
    interrupted: bool

    @property
    def unproven(self) -> dict[str, str]:
        """Fixes whose probe could not tell when the trees were verified, and why."""
        verified = [state.verified for state in self.states.values() if state.verified]
        return {name: why for item in verified for name, why in item.unproven.items()}

    @property
    def state(self) -> State | None:
        """All targets' states as one, for planning."""
        states = list(self.states.values())
        if len(states) < 2:
            return states[0] if states else None
        merged = {path: file for state in states for path, file in state.files.items()}
        fixes = tuple(dict.fromkeys(name for state in states for name in state.fixes))
        accepted = tuple(what for state in states for what in state.accepted)
        first = states[0]
        return State(
            first.tool,
            first.profile,
            first.release,
            first.lock,
            fixes,
            {name: sha for state in states for name, sha in state.steps.items()},
            merged,
            first.digest,
            accepted,
            first.verified,
        )


def open_session(options: argparse.Namespace, *, without_profile: bool = False) -> Session:
    """Find profile, interpreter and trees, and hold the release gate.

    ``without_profile``: where the profile cannot be used, go on with none; what a state
    records can then still be taken out.

    Raises FixesError: NOT_FOUND (no tree, two trees, a copy that shadows it), WRONG_VERSION,
    MISMATCH (a lock that is bad or stale), USAGE (an unknown profile).
    """
    source = catalogue.find(options.profiles)
    env = _environment(options)
    found = tree.find("vllm", env, options.tree)
    shadows = () if options.tree else _shadows(found)
    try:
        lock = source.lock(_profile(source, options.profile, found))
        _gate(lock, found, options.accept_version)
    except FixesError as error:
        if not (without_profile and found.state.is_file()):
            raise FixesError(*shadows, *error.problems) from error
        lock = Lock("(none)", found.release, {}, {}, {}, {}, {}, ())
    if shadows:
        raise FixesError(*shadows)
    return Session(source, lock, env, (found, *_plugins(lock, env, found)), bool(options.tree))


def _shadows(found: Tree) -> tuple[Problem, ...]:
    working = environment.working_directory()
    return tree.shadowing(found, working, os.environ.get("PYTHONPATH", ""))


def _environment(options: argparse.Namespace) -> Environment:
    if options.python:
        return environment.of(options.python)
    return environment.bare() if options.tree else environment.current()


def _plugins(lock: Lock, env: Environment, core: Tree) -> tuple[Tree, ...]:
    """The trees of plugins that fixes of the profile touch, where they are installed."""
    targets = dict.fromkeys(file.target for file in lock.files.values())
    paths = env.paths or (str(core.site),)
    return tuple(
        tree.find(target, env, None if env.paths else core.site)
        for target in targets
        if target != core.target and tree.installed(target, paths)
    )


def _profile(source: Catalogue, name: str, found: Tree) -> str:
    if name != "auto":
        return name
    name = f"v{found.release}"
    if name in source.profiles():
        return name
    what = f"no profile for vLLM {found.version or 'of unknown version'}"
    hint = f"profiles: {', '.join(source.profiles())}"
    raise FixesError(Problem(ExitCode.WRONG_VERSION, "wrong-version", what, str(found.site), hint))


def _gate(lock: Lock, found: Tree, accepted: str | None) -> None:
    """The installed release must be the profile's, or the one version that was named."""
    if found.release == lock.release or (accepted is not None and accepted == found.version):
        return
    version = found.version or "of unknown version"
    what = f"vLLM {version} is installed, profile {lock.profile} is for {lock.release}"
    hint = "choose the profile of this release (`vllm-fixes list` shows them)"
    if accepted is not None:
        hint = f"--accept-version {accepted} does not name it exactly"
    raise FixesError(Problem(ExitCode.WRONG_VERSION, "wrong-version", what, str(found.site), hint))


def look(session: Session) -> Look:
    """Read every file that the lock or a state names."""
    states: dict[str, State] = {}
    state_bytes: dict[str, bytes | None] = {}
    records: dict[str, bytes | None] = {}
    damaged = []
    for found in session.trees:
        records[found.target] = _bytes(found.state_record)
        state_bytes[found.target] = data = _bytes(found.state)
        if data is None:
            continue
        try:
            states[found.target] = load_state(data)
        except DamagedStateError as error:
            damaged.append(
                Problem(
                    ExitCode.MISMATCH,
                    "damaged-state",
                    str(error),
                    str(found.state),
                    "`apply` makes it anew from the files",
                )
            )
    paths = set(session.lock.files)
    paths.update(path for state in states.values() for path in state.files)
    seen: dict[str, bytes | None] = {}
    problems: list[Problem] = []
    for path in sorted(paths):
        try:
            seen[path] = read(session, path)
        except FixesError as error:
            problems += error.problems
    if problems:
        raise FixesError(*problems)
    interrupted = any(transaction.pending(found.home) for found in session.trees)
    return Look(seen, states, state_bytes, records, tuple(damaged), interrupted)


def read(session: Session, path: str) -> bytes | None:
    """The bytes of one fixed file, None if there is none. Raises FixesError."""
    place = session.where(path)
    return _bytes(place[1]) if place else None


def _bytes(path: Path | None) -> bytes | None:
    try:
        return path.read_bytes() if path else None
    except FileNotFoundError:
        return None
    except OSError as error:
        what = f"cannot be read: {error.strerror}"
        raise FixesError(Problem(ExitCode.CANNOT_WRITE, "unreadable", what, str(path))) from error


def interruption(session: Session, found: Look) -> list[Problem]:
    """That what was seen is not what it will be once a run has ended or been rolled back."""
    if not found.interrupted:
        return []
    what = "a run is under way or was interrupted"
    hint = "the next `apply` or `revert` finishes or rolls it back"
    home = str(session.trees[0].home)
    return [Problem(ExitCode.MISMATCH, "interrupted", what, home, hint)]


def unwritable(session: Session, plan: Plan) -> list[Problem]:
    """For each tree that the plan writes to, the first folder that it may not write to."""
    found: dict[str, Problem] = {}
    for file in plan.writes:
        place = session.where(file.path)
        if place is None:
            continue
        item, path = place
        for folder in (item.home, path.parent):
            problem = disk.unwritable(folder)
            if problem:
                found.setdefault(item.target, problem)
    return list(found.values())


def check_records(session: Session, found: Look, files: Sequence[FilePlan]) -> list[Problem]:
    """Entries of RECORD that do not say what the planned files will be."""
    problems = []
    for item in session.trees:
        data = found.records[item.target]
        if data is None:
            continue
        for file in files:
            content = found.seen.get(file.path)
            if file.target != item.target or content is None or not file.wanted:
                continue
            listed = record.entry(data, file.path) is not None
            if listed and not record.matches(data, file.path, file.now, len(content)):
                what = f"lists {file.path} with another hash or size"
                problems.append(
                    Problem(
                        ExitCode.MISMATCH,
                        "record",
                        what,
                        str(item.record),
                        "`apply` sets it right",
                    )
                )
    return problems


def recorded(session: Session, found: Look, plan: Plan) -> bool:
    """Whether every tree's state and RECORD already say what the plan says."""
    if found.damaged or check_records(session, found, plan.files):
        return False
    for item in session.trees:
        files = {f.path: f.post for f in plan.files if f.wanted and f.target == item.target}
        state = found.states.get(item.target)
        if state is None:
            if files:
                return False
            continue
        if state.lock != session.lock.digest or state.fixes != plan.wanted:
            return False
        if files != {path: file.post for path, file in state.files.items()}:
            return False
    return True


def wanted_level(session: Session, asked: str | None, accepted_version: str | None) -> Level:
    """The level to reach: what was asked for, else all that this environment allows.

    Raises FixesError with USAGE where a level is asked for that cannot be had.
    """
    possible = Level.BYTES if session.environment.executable is None else Level.PROBE
    level = Level[asked.upper()] if asked else possible
    if accepted_version and session.trees[0].release != session.lock.release:
        level = Level.PROBE
    if level > possible:
        what = f"level {level.word} needs an interpreter to import in"
        hint = "name the environment's by --python"
        raise FixesError(Problem(ExitCode.USAGE, "usage", what, hint=hint))
    return level


def reached(session: Session, found: Look, digest: str) -> Level:
    """The level that the states say was reached for exactly this, here; NONE if not all do."""
    levels = []
    for item in session.trees:
        state = found.states.get(item.target)
        verified = state.verified if state else None
        same = verified and verified.fingerprint == fingerprint(session, found, digest)
        levels.append(Level[verified.level.upper()] if verified and same else Level.NONE)
    return min(levels)


def fingerprint(session: Session, found: Look, digest: str) -> str:
    """What an already verified tree must still be, for its level to be believed."""
    return of_surroundings(
        session.lock.digest,
        digest,
        session.environment.version,
        [found.records[item.target] or b"" for item in session.trees],
        tree.siblings(session.trees[0], session.environment),
    )
