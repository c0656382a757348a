"""Two greedy answers side by side, and the noise that a deployment has against itself."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum

from fixes.parity.answers import Answer


class Likeness(str, Enum):
    """How two answers, or two positions of a text, compare."""

    SAME = "same"
    WITHIN_NOISE = "within-noise"
    DIFFERENT = "different"


@dataclass(frozen=True)
class Noise:
    """By how much a deployment differs from itself: the largest change of a log-probability.

    Two tokens can swap places when one rises by that much and the other falls by it.
    """

    logprob: float

    @property
    def gap(self) -> float:
        """The largest lead of a token over the next one that the noise can turn round."""
        return 2 * self.logprob


@dataclass(frozen=True)
class Divergence:
    """The first place where two greedy answers part.

    ``probabilities`` are the log-probabilities of the baseline's token by the baseline and by the
    other, then of the other's token by both; None where it is not among the likeliest there.
    ``gaps`` are the leads of the first token over the second, by the baseline and by the other.
    """

    place: int
    tokens: tuple[int | None, int | None]
    probabilities: tuple[float | None, float | None, float | None, float | None]
    gaps: tuple[float | None, float | None]
    likeness: Likeness


@dataclass(frozen=True)
class Pair:
    """One question as two legs answered it."""

    question: str
    tokens: int
    largest: float
    divergence: Divergence | None

    @property
    def likeness(self) -> Likeness:
        """Whether the answers are the same, part within the noise, or are different."""
        return self.divergence.likeness if self.divergence else Likeness.SAME


def pair(question: str, one: Answer, other: Answer, noise: Noise) -> Pair:
    """Compare two answers; a divergence is judged by the noise."""
    found = divergence(one, other, noise)
    alike = found.place if found else len(one.tokens)
    return Pair(question, alike, max(changes(one, other), default=0.0), found)


def divergence(one: Answer, other: Answer, noise: Noise) -> Divergence | None:
    """The first place where the tokens are not the same; what is not known there makes it a
    difference.
    """
    place = parting(one, other)
    if place is None:
        return None
    if place in (len(one.tokens), len(other.tokens)):  # one has stopped
        ends = [
            answer.tokens[place] if place < len(answer.tokens) else None for answer in (one, other)
        ]
        nothing = (None, None, None, None)
        return Divergence(place, (ends[0], ends[1]), nothing, (None, None), Likeness.DIFFERENT)
    mine, others = one.tokens[place], other.tokens[place]
    here, there = dict(one.tops[place]), dict(other.tops[place])
    near = close((here, others), (there, mine), noise)
    likeness = Likeness.WITHIN_NOISE if near else Likeness.DIFFERENT
    told = (here.get(mine), there.get(mine), here.get(others), there.get(others))
    return Divergence(place, (mine, others), told, (one.gap(place), other.gap(place)), likeness)


def close(
    one: tuple[Mapping[int, float], int], other: tuple[Mapping[int, float], int], noise: Noise
) -> bool:
    """Whether the noise can turn round what two legs hold for the likeliest token of a place.

    Each leg comes with the log-probabilities of its likely tokens, and with the token that the
    other leg holds for the likeliest: neither may lie further behind than the noise reaches.
    """
    return noise.gap > 0 and all(
        token in likely and max(likely.values()) - likely[token] <= noise.gap
        for likely, token in (one, other)
    )


def parting(one: Answer, other: Answer) -> int | None:
    """The first place where two answers have other tokens, or one has none."""
    for place, (mine, others) in enumerate(zip(one.tokens, other.tokens, strict=False)):
        if mine != others:
            return place
    shorter = min(len(one.tokens), len(other.tokens))
    return None if len(one.tokens) == len(other.tokens) else shorter


def changes(one: Answer, other: Answer) -> Iterator[float]:
    """How the log-probability of each likely token changed, while the answers were alike.

    The place where they part still has the same tokens before it, so it counts.
    """
    place = parting(one, other)
    last = len(one.tops) if place is None else place + 1
    for mine, others in zip(one.tops[:last], other.tops[:last], strict=False):
        if mine[0][0] < 0 or others[0][0] < 0:  # the texts of tokens are not told apart
            yield abs(mine[0][1] - others[0][1])
            continue
        here, there = dict(mine), dict(others)
        yield from (abs(here[token] - there[token]) for token in here if token in there)
        # One that the other does not tell is no likelier there than the last that it tells.
        for told, by in ((here, there), (there, here)):
            least = min(by.values())
            yield from (value - least for token, value in told.items() if token not in by)


def noise(pairs: Iterable[tuple[Answer, Answer]], *others: float, floor: float = 0.0) -> Noise:
    """The noise of a control: of pairs of answers that should have been the same, and more."""
    found = (change for one, other in pairs for change in changes(one, other))
    return Noise(max(floor, *others, max(found, default=0.0)))
