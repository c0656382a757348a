"""What can go wrong with one request, as data: named, and never taken for an answer."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator
from contextlib import contextmanager
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
#: What to do where an endpoint has ended, or is stuck.
LOG = "its log says why; `vllm-fixes explain LOGFILE` tells which fixes are for it"


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


@contextmanager
def well_formed() -> Iterator[None]:
    """What is read meanwhile is a server's: where it is not of the form that it must have, that is
    the server's fault and not ours. Raises FaultError: malformed.
    """
    try:
        yield
    except (AttributeError, LookupError, ArithmeticError, TypeError, ValueError) as error:
        what = f"what it answers has another form than it must ({error})"
        raise FaultError(Kind.MALFORMED, what) from None


def message(error: object) -> str:
    """The message in an error object of vLLM or OpenAI, or whatever stands in its place."""
    said = error.get("message", error) if isinstance(error, dict) else error
    return json.dumps(said) if said else ""
