"""Needles: codes planted in long texts, which an answer must tell exactly."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fixes.parity.answers import Answer
from fixes.parity.legs import BASELINE, CANDIDATE, CONTROL

_TOWNS = ("Arden", "Belmora", "Corvin", "Dunmere", "Estral", "Farrow", "Galway", "Hollin", "Istria")
_WORDS = ("amber", "basalt", "cobalt", "dahlia", "ember", "fennel", "garnet", "heron", "indigo")
ANSWER_TOKENS = 24
#: Tokens left free for the needle, the question and the answer.
RESERVE = 160


@dataclass(frozen=True)
class Needle:
    """A code at a depth of a text of so many tokens."""

    tokens: int
    depth: float
    place: str
    code: str

    @property
    def name(self) -> str:
        """What a report calls it."""
        return f"{self.tokens} tokens, depth {self.depth:g}"

    @property
    def sentence(self) -> str:
        """What is planted."""
        return f"\nThe access code of the archive in {self.place} is {self.code}.\n"

    @property
    def question(self) -> str:
        """What comes at the end; a model continues it with the code, with or without a chat."""
        return (
            f"\n\nQuestion: What is the access code of the archive in {self.place}?\n"
            f"Answer: The access code of the archive in {self.place} is"
        )

    def found_in(self, answer: Answer) -> bool:
        """Whether the answer begins with the code, exactly."""
        said = answer.text.lstrip()
        after = said[len(self.code) :]
        return said.startswith(self.code) and not after[:1].isalnum()


@dataclass(frozen=True)
class Row:
    """All needles of one length: how many each leg told, and which ones not all told alike.

    ``unsteady`` are those that the baseline told once of two times; of the others, ``lost`` are
    those that the candidate does not tell, and ``gained`` those that only it does.
    """

    tokens: int
    needles: int
    found: Mapping[str, int]
    lost: tuple[str, ...]
    gained: tuple[str, ...]
    unsteady: tuple[str, ...]


def plan(lengths: Sequence[int], depths: Sequence[float], context: int) -> list[Needle]:
    """The needles for all lengths that the context holds; a longer one becomes the longest."""
    most = context - RESERVE
    fitting = sorted({min(length, most) for length in lengths if most > 0})
    drawn = random.Random(20260)  # the same codes in each run and on each machine
    needles = []
    for length in fitting:
        for depth in depths:
            code = f"{drawn.choice(_WORDS)}-{drawn.randrange(1000, 10000)}"
            needles.append(Needle(length, depth, drawn.choice(_TOWNS), code))
    return needles


def haystack(
    hay: Sequence[int], needle: Needle, planted: Sequence[int], asked: Sequence[int]
) -> list[int]:
    """The prompt: so many tokens of hay with the needle at its depth, and the question."""
    room = needle.tokens - len(planted) - len(asked)
    at = int(room * needle.depth)
    return [*hay[:at], *planted, *hay[at:room], *asked]


def rows(needles: Sequence[Needle], legs: Mapping[str, Mapping[str, Answer]]) -> list[Row]:
    """Count, for each length, what each leg found, over the needles that all of them answered."""
    shared = [one for one in needles if all(one.name in leg for leg in legs.values())]
    return [
        _row(length, [one for one in shared if one.tokens == length], legs)
        for length in sorted({needle.tokens for needle in shared})
    ]


def _row(tokens: int, these: Sequence[Needle], legs: Mapping[str, Mapping[str, Answer]]) -> Row:
    told = {
        leg: {one.name for one in these if one.found_in(answers[one.name])}
        for leg, answers in legs.items()
    }
    once = told[BASELINE] ^ told[CONTROL]
    other = told.get(CANDIDATE, told[BASELINE])

    def named(names: set[str]) -> tuple[str, ...]:
        return tuple(one.name for one in these if one.name in names)

    return Row(
        tokens,
        len(these),
        {leg: len(names) for leg, names in told.items()},
        named(told[BASELINE] - other - once),
        named(other - told[BASELINE] - once),
        named(once),
    )
