"""A look: the disk at one moment, as a plan needs it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from fixes import distribution, transaction
from fixes.disk import UnreadableError
from fixes.errors import ExitCode, FixesError, Problem
from fixes.session import Session
from fixes.state import DamagedStateError, State, load
from fixes.tree import Tree

_REMOVE = "remove it, then `apply`, which makes it anew from the files"
_REINSTALL = "install the release again, then apply"


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


def take(session: Session) -> Look:
    """Read every file that the lock or a state names.

    Raises FixesError with everything that is there and cannot be read (``unreadable``), or
    that is no file: ``foreign`` for a file that a fix touches, ``damaged-state`` for a state.
    """
    problems: list[Problem] = []
    states: dict[str, State] = {}
    state_bytes: dict[str, bytes | None] = {}
    records: dict[str, bytes | None] = {}
    damaged = []
    for found in session.trees:
        try:
            records[found.target] = _record(found)
            state_bytes[found.target] = data = _bytes(found.state, "damaged-state", _REMOVE)
        except FixesError as error:
            problems += error.problems
            continue
        if data is None:
            continue
        try:
            states[found.target] = load(data)
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
    return _bytes(place[1], "foreign", _REINSTALL) if place else None


def _record(found: Tree) -> bytes | None:
    path = found.state_record
    return distribution.read(path, distribution.RECORD_LIMIT) if path else None


def _bytes(path: Path, kind: str, hint: str) -> bytes | None:
    """A file's bytes; ``kind`` and ``hint`` are for what is there and is no file."""
    try:
        return distribution.read(path)
    except FixesError as error:
        if not isinstance(error.__cause__, UnreadableError):
            raise
        what = str(error.__cause__.strerror)
        raise FixesError(Problem(ExitCode.MISMATCH, kind, what, str(path), hint)) from error


def interruption(session: Session, found: Look) -> list[Problem]:
    """That what was seen is not what it will be once a run has ended or been rolled back."""
    if not found.interrupted:
        return []
    what = "a run is under way or was interrupted"
    hint = "the next `apply` or `revert` finishes or rolls it back"
    home = str(session.trees[0].home)
    return [Problem(ExitCode.MISMATCH, "interrupted", what, home, hint)]
