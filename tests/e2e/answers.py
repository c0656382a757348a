"""What a server answers, in a form that two servers can be compared by."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from .scenarios import Question, Scenario
from .server import Reply, Server

# float32 sums in another order in another batch; greedy tokens come out the same.
TOLERANCE = 1e-3
# What no two answers share; and the rank of an unlikely token, which a rounding can change.
PASSING = {"id", "created", "system_fingerprint", "rank"}
ASKING = 600  # seconds for one answer, on a machine that is busy with others

Answers = dict[str, Any]


@dataclass(frozen=True)
class Told:
    """What a server answered to a scenario, and the seconds it took."""

    answers: Answers
    seconds: float


def told(server: Server, scenario: Scenario) -> Told:
    """Ask a scenario's questions; AssertionError unless its counter has grown."""
    before = server.counter(scenario.grows) if scenario.grows else 0
    start = time.monotonic()
    answers: Answers = {}
    with server.explained():
        for number, step in enumerate(scenario.steps):
            pending = [(question, server.ask(question, ASKING)) for question in step]
            for place, (question, reply) in enumerate(pending):
                answers[f"{number}.{place} {question.name}"] = answer(question, reply.result())
        seconds = time.monotonic() - start
        if scenario.grows:
            assert server.counter(scenario.grows) > before, f"{scenario.grows} has not grown"
    return Told(answers, seconds)


def unlike(server: Server, asked: Iterable[Scenario], wanted: Mapping[str, Told]) -> list[str]:
    """In what a server answers another way than another one did."""
    return [
        f"{scenario.name}: {difference}"
        for scenario in asked
        for difference in differences(told(server, scenario).answers, wanted[scenario.name].answers)
    ]


def answer(question: Question, reply: Reply) -> Any:
    """The part of an answer that another server's is to equal."""
    assert reply.status == 200, (question.name, reply)
    if question.drop:
        return reply.body  # the number of events that came before the client left
    return _lasting(json.loads(reply.body))


def differences(found: Any, wanted: Any, where: str = "") -> Iterator[str]:
    """What is not the same, each named by its place in the answer."""
    if isinstance(found, Mapping) and isinstance(wanted, Mapping):
        for key in dict.fromkeys((*wanted, *found)):
            if key in found and key in wanted:
                yield from differences(found[key], wanted[key], f"{where}/{key}")
            else:
                yield f"{where}/{key}: only in the {'found' if key in found else 'wanted'} one"
    elif isinstance(found, list) and isinstance(wanted, list):
        if len(found) != len(wanted):
            yield f"{where}: {len(found)} items for {len(wanted)}"
        for number, (one, other) in enumerate(zip(found, wanted, strict=False)):
            yield from differences(one, other, f"{where}[{number}]")
    elif isinstance(found, float) and isinstance(wanted, float):
        if abs(found - wanted) > TOLERANCE:
            yield f"{where}: {found:.5f} for {wanted:.5f}"
    elif found != wanted:
        yield f"{where}: {found!r} for {wanted!r}"


def summary(differing: Iterable[str], limit: int = 12) -> str:
    """The first differences, a line each, and the number of the others."""
    lines = list(differing)
    rest = [f"... and {len(lines) - limit} more"] if len(lines) > limit else []
    return "\n".join([*lines[:limit], *rest])


def _lasting(document: Any) -> Any:
    if isinstance(document, dict):
        return {key: _lasting(value) for key, value in document.items() if key not in PASSING}
    if isinstance(document, list):
        return [_lasting(item) for item in document]
    return document
