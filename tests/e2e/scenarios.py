"""What is asked of a server, as data: questions, and in which order or at once."""

from __future__ import annotations

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

PROMPTS = (
    "The capital of France is",
    "def fibonacci(n):\n",
    "Once upon a time, in a village by the sea,",
    "Water boils at a temperature of",
)
MORE = (
    "The three laws of motion are: 1.",
    "Q: What is 17 + 25?\nA:",
    "To bake bread you need flour,",
    "SELECT name FROM users WHERE",
)
TOKENS = 16


def lines(first: int, last: int) -> str:
    """Text of about 21 tokens a line in which nothing repeats exactly."""
    return "".join(f"Line {n}: {n} times {n + 7} is {n * (n + 7)}.\n" for n in range(first, last))


LONG = lines(0, 60)  # more than two chunks of 512 tokens
LONGEST = lines(200, 300)  # more than four
# What was said before is said again: an n-gram of the prompt tells what follows.
REPEATING = (
    "1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3, 4, 5, 6, 7, 8, 1, 2, 3,",
    "red green blue red green blue red green blue red green blue red green",
    "The cat sat on the mat. The dog sat on the mat. The cat sat on the",
    "for i in range(3):\n    print(i)\nfor j in range(3):\n    print(j)\nfor k in",
)
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "age": {"type": "integer", "minimum": 0, "maximum": 120},
        "likes": {"type": "array", "items": {"enum": ["tea", "rain", "maps"]}, "maxItems": 2},
    },
    "required": ["name", "age", "likes"],
    "additionalProperties": False,
}
REGEX = r"[A-Z][a-z]{2,8} \d{4}-\d{2}-\d{2}"


@dataclass(frozen=True)
class Question:
    """The body of a request for a completion; with `drop` it is a stream, and the client
    hangs up after so many events."""

    name: str
    body: dict[str, Any]
    drop: int = 0


@dataclass(frozen=True)
class Scenario:
    """Steps one after another, the questions of each at once. `grows` names a counter of
    the server that grows if what the scenario is about did occur."""

    name: str
    steps: tuple[tuple[Question, ...], ...]
    grows: str = ""


def greedy(prompt: str, tokens: int = TOKENS, **more: Any) -> Question:
    """Exactly so many of the likeliest tokens, with log probabilities."""
    body = {
        "prompt": prompt,
        "max_tokens": tokens,
        "ignore_eos": True,
        "temperature": 0,
        "logprobs": 1,
        "return_token_ids": True,
    }
    return Question(f"{prompt[:40]!r}", body | more)


def guided(prompt: str, **outputs: Any) -> Question:
    """As greedy, but what is said must have a form, and ends with it."""
    plain = greedy(prompt, 40, ignore_eos=False, structured_outputs=outputs)
    return Question(f"{plain.name} by {next(iter(outputs))}", plain.body)


def sampled(prompt: str, seed: int, **more: Any) -> Question:
    """Tokens drawn with a seed."""
    plain = greedy(prompt, temperature=0.9, seed=seed, **more)
    return Question(f"{plain.name} with {', '.join(more)}", plain.body)


def dropped(prompt: str, after: int) -> Question:
    """A long stream that the client leaves early."""
    plain = greedy(prompt, 200)
    return Question(f"{plain.name} left", plain.body, drop=after)


def each(questions: Iterable[Question]) -> tuple[tuple[Question, ...], ...]:
    """One question at a time."""
    return tuple((question,) for question in questions)


def many(count: int) -> tuple[Question, ...]:
    """Different questions of different lengths."""
    prompts = itertools.cycle(PROMPTS + MORE)
    return tuple(
        greedy(f"{n}. {prompt}", TOKENS + n % 5)
        for n, prompt in zip(range(count), prompts, strict=False)
    )


GUIDED = (
    guided("A person as JSON: ", json=SCHEMA),
    guided("A month and a date: ", regex=REGEX),
    guided("Is water wet? Answer: ", choice=["certainly", "perhaps", "never"]),
)

ALONE = Scenario("greedy", each(greedy(prompt, logprobs=3) for prompt in PROMPTS))
CHUNKS = Scenario("long prompt", each([greedy(LONG)]))
EIGHT = Scenario("8 at once", (tuple(greedy(prompt) for prompt in PROMPTS + MORE),))
LONGER = Scenario("longest prompt", each([greedy(LONGEST)]))
PROMPT_LOGPROBS = Scenario(
    "prompt_logprobs",
    each(greedy(prompt, 4, prompt_logprobs=1) for prompt in (PROMPTS[0], LONG)),
)
MANY = Scenario("24 at once", (many(24),))
REPEATS = Scenario(
    "prefix cache",
    each(greedy(text) for text in (LONG, LONG + "Line 60:", LONG[: len(LONG) // 2], LONG)),
    "vllm:prefix_cache_hits",
)
FORMS = Scenario("guided", each(GUIDED))
MIXED = Scenario("guided, 8 at once", ((*GUIDED, *(greedy(p) for p in MORE), GUIDED[0]),))
SEEDED = Scenario(
    "seeded",
    (
        (sampled(PROMPTS[2], 7, n=2),),
        (sampled(PROMPTS[1], 11, top_p=0.8, top_k=20, repetition_penalty=1.1),),
        tuple(sampled(prompt, 3, n=2, min_p=0.05) for prompt in PROMPTS),
    ),
)
ABORTS = Scenario(
    "aborts",
    (tuple(dropped(prompt, 4) for prompt in MORE), tuple(greedy(p) for p in PROMPTS + MORE)),
)
REPEATING_TEXT = Scenario(
    "repeating text",
    (*each(greedy(prompt, 32) for prompt in REPEATING), tuple(greedy(p, 32) for p in REPEATING)),
)
# Prompts that share no prefix and fit in five blocks of 128 tokens each, which is not enough
# for their answers: of four that are admitted to 24 blocks, at least one has to go.
CROWD = Scenario(
    "crowd",
    (tuple(greedy(lines(100 * n, 100 * n + 25), 160) for n in range(1, 7)),),
)

SMOKE = (ALONE, CHUNKS, EIGHT)
PLAIN = (
    *SMOKE,
    LONGER,
    PROMPT_LOGPROBS,
    MANY,
    REPEATS,
    FORMS,
    MIXED,
    SEEDED,
    ABORTS,
)
