"""What an endpoint answered, in a form that can be compared token by token."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fixes.parity.faults import FaultError, Kind, message, well_formed

#: How vLLM writes a token with ``return_tokens_as_token_ids``.
_ID = "token_id:"
Floats = npt.NDArray[np.float64]
Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Answer:
    """A greedy answer: its tokens, and the likeliest tokens at each place, the best first."""

    tokens: tuple[int, ...]
    tops: tuple[tuple[tuple[int, float], ...], ...]
    text: str

    def gap(self, place: int) -> float:
        """By how much the first token leads the second there; infinite if only one is known."""
        first, *others = self.tops[place]
        return first[1] - others[0][1] if others else math.inf


@dataclass(frozen=True)
class Positions:
    """What a model thinks of a given text: arrays with a value for each token but the first.

    ``nll`` is the negative log-probability of the token that stands there, ``top`` the likeliest
    token, ``gap`` by how much it leads the second; ``likely`` has the log-probabilities of all
    tokens that were told.
    """

    nll: Floats
    top: Integers
    gap: Floats
    likely: tuple[Mapping[int, float], ...]

    def __len__(self) -> int:
        return len(self.nll)


@well_formed()
def generated(document: Any, prompt: Sequence[int], asked: int) -> Answer:
    """The answer in a completion that was asked for with ``logprobs`` and token ids.

    Raises FaultError: lacks-token-ids, lacks-logprobs, ended-early, other-prompt, malformed.
    """
    choice = _choice(document)
    _same_prompt(document, choice, prompt)
    logprobs = choice.get("logprobs") or {}
    named = [_number(name) for name in logprobs.get("tokens") or ()]
    told = named and None not in named
    if choice.get("token_ids") is None and not told:
        what = "gives no token ids, neither by return_token_ids nor in its logprobs"
        raise FaultError(Kind.NO_TOKEN_IDS, what)
    tokens = ids(named if choice.get("token_ids") is None else choice["token_ids"])
    if told and named != tokens:
        what = "its token_ids are not the tokens of its logprobs"
        raise FaultError(Kind.MALFORMED, what)
    reason = choice.get("finish_reason")
    if len(tokens) < asked and reason != "stop":
        what = f"{len(tokens)} tokens of {asked}, finish_reason {reason}"
        raise FaultError(Kind.ENDED_EARLY, what)
    tops = logprobs.get("top_logprobs")
    if not tops or len(tops) != len(tokens):
        raise FaultError(Kind.NO_LOGPROBS, "gives no logprobs for the tokens of its answer")
    ranked = tuple(_ranked(top) for top in tops)
    if not all(ranked):
        raise FaultError(Kind.NO_LOGPROBS, "gives no log-probability for a token of its answer")
    return Answer(tuple(tokens), ranked, str(choice.get("text", "")))


@well_formed()
def prompted(document: Any, prompt: Sequence[int]) -> Positions:
    """What a completion says of its prompt, by ``prompt_logprobs`` or else by ``echo``.

    Raises FaultError: lacks-prompt-logprobs, other-prompt, malformed.
    """
    choice = _choice(document)
    _same_prompt(document, choice, prompt)
    places = choice.get("prompt_logprobs")
    if places is not None:
        found = [_told(place) for place in places[1:]]
    else:
        found = _echoed(choice.get("logprobs"))[: len(prompt) - 1]
    if len(found) != len(prompt) - 1:
        what = f"gives the log-probabilities of {len(found)} tokens of {len(prompt) - 1}"
        raise FaultError(Kind.NO_PROMPT_LOGPROBS, what if found else "gives no prompt_logprobs")
    top, gap = [], []
    for token, place in zip(prompt[1:], found, strict=True):
        ranked = sorted(place.items(), key=lambda item: -item[1])
        if token not in place or len(ranked) < 2:
            what = "lacks the token itself or the two likeliest at a place of the prompt"
            raise FaultError(Kind.NO_PROMPT_LOGPROBS, what)
        top.append(ranked[0][0])
        gap.append(ranked[0][1] - ranked[1][1])
    nll = [-place[token] for token, place in zip(prompt[1:], found, strict=True)]
    return Positions(np.array(nll), np.array(top, np.int64), np.array(gap), tuple(found))


@well_formed()
def tokens_of_prompt(document: Any) -> list[int]:
    """The ids that a text became, as ``return_token_ids`` gives them. Raises FaultError."""
    found = _choice(document).get("prompt_token_ids")
    if not found:
        raise FaultError(Kind.NO_TOKEN_IDS, "does not tell the token ids of a prompt")
    return ids(found)


def ids(tokens: object) -> list[int]:
    """The same, if it is a list of token ids. Raises FaultError: malformed."""
    if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
        raise FaultError(Kind.MALFORMED, "its token ids are no list of whole numbers")
    return tokens


def _choice(document: Any) -> dict[str, Any]:
    if isinstance(document, dict) and document.get("error") is not None:
        raise FaultError(Kind.SERVER_ERROR, f"with status 200: {message(document['error'])}")
    try:
        choice = document["choices"][0]
    except (KeyError, IndexError, TypeError):
        choice = None
    if not isinstance(choice, dict):
        raise FaultError(Kind.MALFORMED, "the answer has no choice")
    return choice


def _same_prompt(document: Any, choice: Mapping[str, Any], prompt: Sequence[int]) -> None:
    """Where the endpoint says what it has read, it must be what was sent."""
    read = choice.get("prompt_token_ids")
    usage = document.get("usage") or {}
    count = usage.get("prompt_tokens", len(prompt))
    if (read is not None and list(read) != list(prompt)) or count != len(prompt):
        what = f"it has read {count} tokens, not the {len(prompt)} that were sent"
        raise FaultError(Kind.OTHER_PROMPT, what)


def _number(name: str) -> int | None:
    """The id in ``token_id:17``; None for the text of a token."""
    digits = name.removeprefix(_ID)
    return int(digits) if name.startswith(_ID) and digits.isdecimal() else None


def _ranked(top: Mapping[str, float] | None) -> tuple[tuple[int, float], ...]:
    """Tokens and log-probabilities, the best first; -1 for a token that is known as text only."""
    ids = ((_number(name), value) for name, value in (top or {}).items())
    found = [
        (-1 if token is None else token, _finite(value, Kind.NO_LOGPROBS)) for token, value in ids
    ]
    return tuple(sorted(found, key=lambda item: -item[1]))


def _told(place: Mapping[str, Any] | None) -> dict[int, float]:
    """One place of ``prompt_logprobs``: token id to its log-probability."""
    return {
        int(token): _finite(entry["logprob"], Kind.NO_PROMPT_LOGPROBS)
        for token, entry in (place or {}).items()
    }


def _finite(value: object, lacking: Kind) -> float:
    """A log-probability. Nothing, a text, NaN or an infinity is none: it equals nothing."""
    if type(value) not in (int, float) or not math.isfinite(value):  # type: ignore[arg-type]
        raise FaultError(lacking, f"gives {value!r} for a log-probability")
    return float(value)  # type: ignore[arg-type]


def _echoed(logprobs: Any) -> list[dict[int, float]]:
    """The places of an echoed prompt but the first, which has none."""
    if not isinstance(logprobs, dict) or not logprobs.get("top_logprobs"):
        return []
    found = []
    rows = zip(
        logprobs["tokens"], logprobs["token_logprobs"], logprobs["top_logprobs"], strict=True
    )
    for name, value, top in list(rows)[1:]:
        token = _number(name)
        if token is None or top is None:
            return []
        found.append({**dict(_ranked(top)), token: _finite(value, Kind.NO_PROMPT_LOGPROBS)})
    return found
