"""What is asked: prompts, texts and hay, all of which come with the tool or from a file."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fixes.errors import ExitCode, FixesError, Problem

TEXTS = Path(__file__).with_name("texts")
PROMPTS = Path(__file__).with_name("prompts.jsonl")
#: Strings in which tokenizers differ: cases, digits, spaces, scripts, signs, line ends.
STRINGS = (
    "The quick brown fox",
    "THE QUICK BROWN FOX, naïve café, O'Brien's",
    "1234567890 3.14159 1,000,000 0x1F 2026-05-17T08:30:00Z",
    "  two  spaces\tand\ttabs\n\n\nlines\r\nend ",
    "def f(x: int) -> None:\n    return {'a': [x ** 2, None]}\n",
    "Строка по-русски. Γραμμή στα ελληνικά. سطر بالعربية.",
    "一行中文。日本語の一行。한국어 한 줄.",
    "emoji 👩🏽‍🚀 🇺🇳 and signs ∑ ≠ → €",
    "<s> </s> <|endoftext|> [INST] <|im_start|>user",
)


@dataclass(frozen=True)
class Counts:
    """How much is asked. A zero, or nothing, leaves a part out."""

    greedy: int
    answer_tokens: int
    batch: int
    positions: int
    lengths: tuple[int, ...]
    depths: tuple[float, ...]
    streams: tuple[int, ...]
    prefix: int
    new_tokens: int
    repeats: int

    @property
    def nothing(self) -> bool:
        """Whether every part is left out."""
        needles = self.lengths and self.depths
        speed = self.streams and self.repeats
        return not (self.greedy or self.batch > 1 or self.positions or needles or speed)


def prompts(path: Path | None) -> list[str]:
    """The prompts of a file: JSON Lines, each an object with ``prompt``.

    Raises FixesError: ``bad-prompts``.
    """
    source = path or PROMPTS
    try:
        lines = source.read_text("utf-8-sig").split("\n")  # splitlines() would part texts as well
    except (OSError, UnicodeDecodeError) as error:
        raise FixesError(_bad(f"cannot be read: {error}", str(source))) from None
    found: list[str] = []
    problems = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            prompt = json.loads(line)["prompt"]
            prompt.encode("utf-8")  # half of a character is no text
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
            prompt = ""
        if prompt:
            found.append(prompt)
        else:
            problems.append(_bad("is no JSON object with a text as prompt", f"{source}:{number}"))
    if not found and not problems:
        problems.append(_bad("holds no prompt", str(source)))
    if problems:
        raise FixesError(*problems)
    return found


def texts() -> dict[str, str]:
    """The texts that are forced: name to text, in the order of their names."""
    return {path.stem: path.read_text("utf-8") for path in sorted(TEXTS.glob("*.txt"))}


def sequences(
    tokenized: Mapping[str, Sequence[int]], positions: int, context: int
) -> dict[str, list[int]]:
    """Token sequences with so many positions in all, none longer than the context.

    The first token of a sequence has nothing before it: it is no position.
    """
    result: dict[str, list[int]] = {}
    left = positions
    for name, tokens in tokenized.items():
        for number, start in enumerate(range(0, len(tokens), context - 1)):
            part = list(tokens[start : start + min(context - 1, left + 1)])
            if len(part) > 1:
                result[f"{name}.{number}" if number else name] = part
                left -= len(part) - 1
            if left <= 0:
                return result
    return result


def hay() -> Iterator[str]:
    """Text without end in which no line comes twice: the texts, then a ledger."""
    yield from texts().values()
    drawn = random.Random(4711)
    for line in range(1, 1_000_000):
        goods = drawn.choice(("barley", "copper wire", "felt", "glass", "lamp oil", "paper", "tea"))
        weight, price = drawn.randrange(3, 900), drawn.randrange(100, 99_999) / 100
        yield (
            f"Entry {line}: {weight} kg of {goods} for {price:.2f}, shelf {drawn.randrange(1, 400)}"
            f", signed for by clerk {drawn.randrange(10, 99)}.\n"
        )


def _bad(what: str, where: str) -> Problem:
    hint = 'one line for each: {"prompt": "..."}'
    return Problem(ExitCode.USAGE, "bad-prompts", what, where, hint)
