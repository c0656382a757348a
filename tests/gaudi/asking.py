"""Questions to a server, and in how far two servers answer them the same."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

from e2e import scenarios
from e2e.scenarios import Question
from e2e.server import Reply, Server

ANSWERING = 300  # seconds for one answer, on a machine that is busy with others

#: The tokens of each answer with their log probabilities.
Answers = dict[str, list[tuple[int, float]]]


@dataclass(frozen=True)
class Likeness:
    """In how far two servers answered the same: requests, tokens up to the first that differs,
    and the biggest difference of log probabilities among these."""

    requests: int
    same_requests: int
    tokens: int
    same_tokens: int
    biggest: float

    def __str__(self) -> str:
        return (
            f"{self.same_requests}/{self.requests} requests, "
            f"{self.same_tokens}/{self.tokens} tokens, logprobs within {self.biggest:.2g}"
        )

    @property
    def complete(self) -> bool:
        """Whether every token was the same."""
        return self.same_requests == self.requests


def likeness(found: Answers, wanted: Answers) -> Likeness:
    """Compare the answers to the same questions."""
    requests = tokens = same = 0
    biggest = 0.0
    for name, wish in wanted.items():
        given = found[name]
        tokens += len(wish)
        pairs = list(zip(given, wish, strict=False))
        alike = next((n for n, (one, two) in enumerate(pairs) if one[0] != two[0]), len(pairs))
        same += alike
        requests += alike == len(wish) == len(given)
        biggest = max([biggest, *(abs(one[1] - two[1]) for one, two in pairs[:alike])])
    return Likeness(len(wanted), requests, tokens, same, biggest)


def alone() -> list[Question]:
    """Questions that are asked one at a time; the last one is longer than a batch."""
    asked = [*scenarios.PROMPTS, *scenarios.MORE, scenarios.LONG]
    return [scenarios.greedy(prompt) for prompt in asked]


def together() -> list[Question]:
    """Questions that are asked at once, so that prompts and decodes share steps."""
    return [*scenarios.many(20), scenarios.greedy(scenarios.LONG)]


def ask(server: Server, questions: Sequence[Question], at_once: bool) -> Answers:
    """The tokens of each answer with their log probabilities."""
    answers: Answers = {}
    pending = []
    for number, question in enumerate(questions):
        pending.append((f"{number} {question.name}", server.ask(question, ANSWERING)))
        if not at_once:
            pending[-1][1].result()
    for name, reply in pending:
        answers[name] = tokens(reply.result())
    return answers


def tokens(reply: Reply) -> list[tuple[int, float]]:
    """The tokens of one answer. Raises AssertionError for an error."""
    assert reply.status == 200, f"the server answered {reply.status}: {reply.body!r}"
    (choice,) = json.loads(reply.body)["choices"]
    return list(zip(choice["token_ids"], choice["logprobs"]["token_logprobs"], strict=True))
