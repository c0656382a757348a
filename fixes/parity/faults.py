"""What can go wrong with one request, as data: named, and never taken for an answer."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace


class Kind(str, enum.Enum):
    """The kinds of faults (docs/parity.md)."""

    UNREACHABLE = "unreachable"
    TOO_MANY_REQUESTS = "too-many-requests"
    SERVER_ERROR = "server-error"
    REFUSED = "refused"
    STALLED = "stalled"
    CUT_SHORT = "cut-short"
    ENDED_EARLY = "ended-early"
    MALFORMED = "malformed"
    OTHER_PROMPT = "other-prompt"
    NO_TOKEN_IDS = "lacks-token-ids"
    NO_LOGPROBS = "lacks-logprobs"
    NO_PROMPT_LOGPROBS = "lacks-prompt-logprobs"
    NO_COUNTS = "lacks-token-counts"
    GONE = "gone"


#: After one of these the endpoint may be gone: it is asked whether it is still there.
SILENCES = frozenset({Kind.UNREACHABLE, Kind.STALLED, Kind.CUT_SHORT, Kind.SERVER_ERROR})


@dataclass(frozen=True)
class Fault:
    """One request that gave no answer: what happened, on which leg, and to which question."""

    kind: Kind
    what: str
    leg: str = ""
    question: str = ""

    def at(self, leg: str, question: str) -> Fault:
        """The same fault with its place."""
        return replace(self, leg=leg, question=question)


class FaultError(Exception):
    """Raised where an answer cannot be had; carries the fault."""

    def __init__(self, kind: Kind, what: str) -> None:
        super().__init__(f"{kind.value}: {what}")
        self.fault = Fault(kind, what)
