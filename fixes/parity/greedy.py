"""Greedy answers: the questions, and two legs' answers to all of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fixes.parity.answers import Answer
from fixes.parity.comparing import Likeness, Noise, Pair, pair

#: How many of the likeliest tokens a server is asked for at each place; no API refuses five.
LIKELIEST = 5
#: What a server's own defaults (``--generation-config``) would change of a greedy answer.
NEUTRAL = {
    "temperature": 0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "repetition_penalty": 1.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "seed": 0,
}


@dataclass(frozen=True)
class Row:
    """Two legs in one state of the prefix cache, over all questions that both answered."""

    state: str
    pairs: tuple[Pair, ...]

    def count(self, likeness: Likeness) -> int:
        """How many answers compare so."""
        return sum(pair.likeness is likeness for pair in self.pairs)

    @property
    def tokens(self) -> int:
        """How many tokens are the same before the answers part."""
        return sum(pair.tokens for pair in self.pairs)

    @property
    def largest(self) -> float:
        """The largest change of a log-probability while the answers were alike."""
        return max((pair.largest for pair in self.pairs), default=0.0)


def body(tokens: Sequence[int], count: int) -> dict[str, object]:
    """The question: the likeliest tokens, exactly so many, with the next ones at each."""
    return {
        "prompt": list(tokens),
        "max_tokens": count,
        "ignore_eos": True,
        "logprobs": LIKELIEST,
        "return_token_ids": True,
        "return_tokens_as_token_ids": True,
        **NEUTRAL,
    }


def row(state: str, one: Mapping[str, Answer], other: Mapping[str, Answer], noise: Noise) -> Row:
    """Compare all questions that both legs answered."""
    pairs = (pair(name, one[name], other[name], noise) for name in one if name in other)
    return Row(state, tuple(pairs))
