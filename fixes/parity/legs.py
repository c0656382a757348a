"""The legs of a comparison, and asking all of them the same."""

from __future__ import annotations

import gc
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fixes.parity.client import Endpoint
from fixes.parity.facts import COMPLETIONS
from fixes.parity.faults import SILENCES, Fault, FaultError, Kind
from fixes.parity.preflight import Facts
from fixes.parity.sse import Timeline, timeline

BASELINE = "baseline"
CANDIDATE = "candidate"
#: The baseline once more, asked the same in the same way.
CONTROL = "control"

Read = TypeVar("Read")
#: What is said of how far a part has come: its name, done, of how many.
Progress = Callable[[str, int, int], None]


@dataclass
class Legs:
    """The endpoints by leg, what they are, and what went wrong so far."""

    endpoints: Mapping[str, Endpoint]
    facts: Mapping[str, Facts]
    progress: Progress
    faults: list[Fault] = field(default_factory=list)
    #: Where a prefix cache is shared with others, or with a run before, nothing is cold.
    salt: str = field(default_factory=lambda: secrets.token_hex(8))

    @property
    def names(self) -> tuple[str, ...]:
        """The legs, in the order of a report."""
        return tuple(self.endpoints)

    @property
    def gone(self) -> dict[str, Fault]:
        """The endpoints that have stopped to answer, by their first leg."""
        found: dict[str, Fault] = {}
        for leg, endpoint in self.endpoints.items():
            if endpoint.gone and leg != CONTROL:
                found[leg] = endpoint.gone
        return found

    def turn(self, number: int) -> tuple[str, ...]:
        """The order for one question: each leg comes first, second and last equally often."""
        start = number % len(self.names)
        return self.names[start:] + self.names[:start]

    async def each(
        self,
        part: str,
        questions: Mapping[str, Callable[[str], Awaitable[Mapping[str, Read]]]],
    ) -> dict[str, dict[str, Read]]:
        """Ask each question on every leg in turn; a question gives what it has read, by name.

        The result is by leg and by that name. A fault is noted, and leaves its place empty.
        """
        found: dict[str, dict[str, Read]] = {leg: {} for leg in self.names}
        for number, question in enumerate(questions.values()):
            self.progress(part, number, len(questions))
            for leg in self.turn(number):
                found[leg].update(await question(leg))
        self.progress(part, len(questions), len(questions))
        return found

    async def ask(
        self,
        leg: str,
        question: str,
        body: Mapping[str, Any],
        read: Callable[[Any], Read],
        salt: str = "",
    ) -> Read | None:
        """Ask one leg; None where there was a fault, which is noted."""
        endpoint = self.endpoints[leg]
        try:
            return read(await endpoint.post(COMPLETIONS, self._complete(leg, body, salt)))
        except FaultError as error:
            await self.note(leg, question, error.fault)
            return None

    async def stream(
        self, leg: str, question: str, body: Mapping[str, Any], salt: str = ""
    ) -> Timeline | None:
        """Stream one answer of a leg; None where there was a fault, which is noted."""
        endpoint = self.endpoints[leg]
        try:
            reads = await endpoint.stream(COMPLETIONS, self._complete(leg, body, salt))
            return timeline(reads, body["max_tokens"], len(body["prompt"]))
        except FaultError as error:
            await self.note(leg, question, error.fault)
            return None

    async def note(self, leg: str, question: str, fault: Fault) -> None:
        """Keep a fault with its place; after a silence, see whether the endpoint is there."""
        self.faults.append(self.endpoints[leg].told(fault).at(leg, question))
        if fault.kind in SILENCES:
            await self.endpoints[leg].check(fault)

    def since(self, number: int) -> tuple[Fault, ...]:
        """The faults after the first so many."""
        return tuple(self.faults[number:])

    def _complete(self, leg: str, body: Mapping[str, Any], salt: str) -> dict[str, Any]:
        facts = self.facts[leg]
        salted = {"cache_salt": f"{self.salt}-{salt}"} if salt and facts.salted else {}
        return {"model": facts.model, **body, **salted}


def known(found: Mapping[str, Read | None]) -> dict[str, Read]:
    """What was read, without what was not."""
    return {name: value for name, value in found.items() if value is not None}


def grouped(faults: Sequence[Fault]) -> dict[tuple[Kind, str, str], list[Fault]]:
    """Faults of one kind, leg and wording, in the order in which they came first."""
    result: dict[tuple[Kind, str, str], list[Fault]] = {}
    for fault in faults:
        result.setdefault((fault.kind, fault.leg, fault.what), []).append(fault)
    return result


@contextmanager
def uncollected() -> Iterator[None]:
    """No collection of garbage meanwhile: it would stop the clock's reader."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()
