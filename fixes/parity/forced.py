"""Teacher-forced: what two models think of the same text, at every position."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fixes.parity.answers import Floats, Positions
from fixes.parity.comparing import Noise, close
from fixes.parity.greedy import LIKELIEST, NEUTRAL


@dataclass(frozen=True)
class Place:
    """A position where the likeliest tokens differ."""

    text: str
    place: int
    tokens: tuple[int, int]
    gaps: tuple[float, float]
    within_noise: bool


@dataclass(frozen=True)
class Agreement:
    """Two legs over all positions that both have measured."""

    positions: int
    agreeing: int
    nll: tuple[float, float]
    largest: float
    largest_at: tuple[str, int] | None
    close: int
    differing: tuple[Place, ...]

    @property
    def different(self) -> int:
        """Positions whose likeliest token is another one, beyond the noise."""
        return sum(not place.within_noise for place in self.differing)


def body(tokens: Sequence[int]) -> dict[str, object]:
    """The question: a text, and what the model thinks of it. One token has to be generated.

    A request for ``prompt_logprobs`` does not read the prefix cache (SamplingParams of vLLM,
    ``skip_reading_prefix_cache``): this measures the path without it.
    """
    return {
        "prompt": list(tokens),
        "max_tokens": 1,
        "prompt_logprobs": LIKELIEST,
        "return_token_ids": True,
        **NEUTRAL,
    }


def echoing(tokens: Sequence[int]) -> dict[str, object]:
    """The same question to an endpoint that has no ``prompt_logprobs``."""
    return {
        "prompt": list(tokens),
        "max_tokens": 1,
        "echo": True,
        "logprobs": LIKELIEST,
        "return_tokens_as_token_ids": True,
        **NEUTRAL,
    }


def agreement(
    one: Mapping[str, Positions], other: Mapping[str, Positions], noise: Noise
) -> Agreement:
    """Compare two legs text by text. ``close`` counts leads that the noise can turn round."""
    shared = [name for name in one if name in other]
    differing: list[Place] = []
    count = agreeing = near = 0
    largest, largest_at = 0.0, None
    for name in shared:
        mine, others = one[name], other[name]
        apart = np.abs(mine.nll - others.nll)
        worst = int(apart.argmax())
        if apart[worst] > largest:
            largest, largest_at = float(apart[worst]), (name, worst + 1)
        count += len(mine)
        agreeing += int((mine.top == others.top).sum())
        near += int((mine.gap <= noise.gap).sum()) if noise.gap else 0
        for place in np.flatnonzero(mine.top != others.top):
            gaps = (float(mine.gap[place]), float(others.gap[place]))
            tokens = (int(mine.top[place]), int(others.top[place]))
            turned = close(
                (mine.likely[place], tokens[1]), (others.likely[place], tokens[0]), noise
            )
            differing.append(Place(name, int(place) + 1, tokens, gaps, turned))
    means = (mean(one, shared), mean(other, shared))
    return Agreement(count, agreeing, means, largest, largest_at, near, tuple(differing))


def mean(leg: Mapping[str, Positions], names: Sequence[str]) -> float:
    """The mean negative log-probability over the positions of these texts."""
    every = [leg[name].nll for name in names]
    return float(np.concatenate(every).mean()) if every else float("nan")


def largest_change(one: Mapping[str, Positions], other: Mapping[str, Positions]) -> float:
    """The largest change of a log-probability between two legs; 0 if they share no text."""
    shared = (np.abs(one[name].nll - other[name].nll).max() for name in one if name in other)
    return float(max(shared, default=0.0))


def profile(one: Mapping[str, Positions], other: Mapping[str, Positions]) -> Floats:
    """The other's NLL less the first's, along all positions of the texts that both have."""
    every = [other[name].nll - one[name].nll for name in one if name in other]
    return np.concatenate(every) if every else np.zeros(0)
