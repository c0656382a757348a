"""What can go wrong, as data: a code, a kind, a place and what to do about it."""

from __future__ import annotations

import enum
from collections.abc import Iterable
from typing import NamedTuple


class ExitCode(enum.IntEnum):
    """Exit codes of every verb (docs/exit-codes.md)."""

    OK = 0
    MISMATCH = 1
    USAGE = 2
    NOT_FOUND = 3
    WRONG_VERSION = 4
    VERIFICATION_FAILED = 5
    CANNOT_WRITE = 6
    LOCKED = 7
    UNRECOVERABLE = 8
    INTERNAL = 9
    DIGEST_DIFFERS = 10
    NOT_STARTED = 11
    REPLICA_ENDED = 12
    INTERRUPTED = 130
    TERMINATED = 143


#: Where several codes hold, the first of these decides; all problems are reported.
PRECEDENCE = (
    ExitCode.INTERRUPTED,
    ExitCode.TERMINATED,
    ExitCode.INTERNAL,
    ExitCode.USAGE,
    ExitCode.UNRECOVERABLE,
    ExitCode.LOCKED,
    ExitCode.NOT_FOUND,
    ExitCode.WRONG_VERSION,
    ExitCode.MISMATCH,
    ExitCode.DIGEST_DIFFERS,
    ExitCode.CANNOT_WRITE,
    ExitCode.VERIFICATION_FAILED,
    ExitCode.NOT_STARTED,
    ExitCode.REPLICA_ENDED,
)


class Problem(NamedTuple):
    """One thing that is wrong.

    ``kind`` is a stable word for programs (``drifted``, ``foreign``, ``not-offered``);
    ``what`` says it to a person, ``where`` names the file, key or option, and ``hint``
    what to do next.
    """

    code: ExitCode
    kind: str
    what: str
    where: str = ""
    hint: str = ""

    def __str__(self) -> str:
        text = f"{self.kind}: {self.what}"
        if self.where:
            text = f"{self.where}: {text}"
        return f"{text} ({self.hint})" if self.hint else text


class FixesError(Exception):
    """One or more problems that end a run. Nothing has been changed when it is raised."""

    def __init__(self, *problems: Problem) -> None:
        super().__init__("; ".join(str(problem) for problem in problems))
        self.problems = problems

    @property
    def exit_code(self) -> ExitCode:
        """The exit code of these problems, by PRECEDENCE."""
        return worst(self.problems)


class TerminatedError(BaseException):
    """SIGTERM arrived. Unwinds like KeyboardInterrupt, so that a transaction rolls back."""


def worst(problems: Iterable[Problem]) -> ExitCode:
    """The exit code of a set of problems, by PRECEDENCE; OK for none."""
    codes = {problem.code for problem in problems}
    for code in PRECEDENCE:
        if code in codes:
            return code
    return ExitCode.OK
