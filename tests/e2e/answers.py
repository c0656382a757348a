"""What a server answers to fixed questions, in a form that two servers can be compared by."""

from __future__ import annotations

import json
from dataclasses import dataclass

from .server import Reply, Server

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
# More than two chunks of 512 tokens, and nothing that repeats exactly.
LONG = "".join(f"Line {n}: {n} times {n + 7} is {n * (n + 7)}.\n" for n in range(60))
TOKENS = 16
# float32 sums in another order in another batch; greedy tokens come out the same.
TOLERANCE = 1e-3


@dataclass(frozen=True)
class Answer:
    """A completion: the number of tokens of its prompt, its token ids and their log
    probabilities."""

    prompt_tokens: int
    tokens: tuple[int, ...]
    logprobs: tuple[float, ...]

    @classmethod
    def of(cls, reply: Reply) -> Answer:
        assert reply.status == 200, reply
        document = json.loads(reply.body)
        (choice,) = document["choices"]
        return cls(
            document["usage"]["prompt_tokens"],
            tuple(choice["token_ids"]),
            tuple(choice["logprobs"]["token_logprobs"]),
        )

    def same(self, other: Answer) -> bool:
        """Whether token ids are equal, and log probabilities within the tolerance."""
        return (self.prompt_tokens, self.tokens) == (other.prompt_tokens, other.tokens) and all(
            abs(mine - theirs) <= TOLERANCE
            for mine, theirs in zip(self.logprobs, other.logprobs, strict=True)
        )


def answers(server: Server) -> dict[str, Answer]:
    """Greedy answers to the prompts one by one, to a long one, and to all at once."""
    with server.explained():
        alone = {f"alone {p!r}": server.complete(p, TOKENS).result() for p in PROMPTS}
        alone["long"] = server.complete(LONG, TOKENS).result()
        pending = {f"together {p!r}": server.complete(p, TOKENS) for p in PROMPTS + MORE}
        replies = alone | {name: reply.result() for name, reply in pending.items()}
        return {name: Answer.of(reply) for name, reply in replies.items()}


def differences(found: dict[str, Answer], wanted: dict[str, Answer]) -> dict[str, object]:
    """The answers that are not the same, both of each."""
    assert found.keys() == wanted.keys()
    return {
        name: (found[name], answer)
        for name, answer in wanted.items()
        if not found[name].same(answer)
    }
