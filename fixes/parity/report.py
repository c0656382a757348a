"""The report of a run, as a document with stable keys (docs/parity.md)."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from typing import Any

from fixes import __version__
from fixes.errors import Problem, worst
from fixes.parity import reading
from fixes.parity.legs import CANDIDATE, grouped
from fixes.parity.preflight import Facts, Line
from fixes.parity.run import Measured
from fixes.parity.thresholds import Thresholds
from fixes.parity.verdict import Status, Verdict
from fixes.parity.workload import Counts
from fixes.report import problem_document


@dataclass(frozen=True)
class Report:
    """All that a run has found out. ``gone`` names endpoints that stopped to answer."""

    facts: Mapping[str, Facts]
    preflight: Sequence[Line]
    measured: Measured
    verdict: Verdict
    thresholds: Thresholds
    counts: Counts
    problems: Sequence[Problem]
    retried: Mapping[str, int]
    started: str
    seconds: float

    @property
    def compared(self) -> bool:
        """Whether there is a candidate."""
        return CANDIDATE in self.facts

    def headline(self) -> str:
        """The verdict in one line: what it is, and of what."""
        by = {part.name: part.status for part in self.verdict.parts}
        asked = [name for name, status in by.items() if status is not Status.NOT_ASKED]
        rest = [name for name in by if name not in asked]
        named = ", ".join(f"{name} {by[name].value}" for name in asked) or "nothing was asked"
        left = f"; not asked: {', '.join(rest)}" if rest else ""
        return f"verdict: {self.verdict.status.value} ({named}{left})"

    def document(self) -> dict[str, Any]:
        """The document that ``--json`` prints."""
        return {
            "verb": "parity",
            "tool": __version__,
            "started": self.started,
            "seconds": round(self.seconds, 1),
            "verdict": self.verdict.status.value,
            "reasons": self.verdict.reasons,
            "exit": int(worst(self.problems)),
            "problems": [problem_document(problem) for problem in self.problems],
            "endpoints": {leg: plain(facts) for leg, facts in self.facts.items()},
            "preflight": [plain(line) for line in self.preflight],
            "noise": {
                "logprob": self.verdict.noise.logprob,
                "at_once": self.verdict.batch_noise.logprob,
            },
            "parts": {
                part.name: {
                    "status": part.status.value,
                    "asked": self.measured.asked.get(part.name, 0),
                    "reasons": list(part.reasons),
                    "rows": plain(part.rows),
                }
                for part in self.verdict.parts
            },
            "faults": faults(self.measured),
            "notes": self.notes(),
            "counts": plain(self.counts),
            "thresholds": self.thresholds.document(),
        }

    def notes(self) -> list[str]:
        """What a reader has to know to judge the figures."""
        said = list(self.measured.notes)
        for leg, count in self.retried.items():
            if count:
                said.append(f"{leg}: {count} requests were tried again after a 429 or 503")
        for leg, facts in self.facts.items():
            if not facts.salted:
                said.append(f"{leg}: takes no cache_salt, so nothing is known to be cold")
            if facts.caching == "off":
                said.append(f"{leg}: has no prefix cache, so nothing is warm")
        return said + reading.hints(self.verdict, self.preflight)


def faults(measured: Measured) -> list[dict[str, Any]]:
    """The faults of all parts; equal ones once, with the questions that had them."""
    return [
        {
            "part": part,
            "kind": kind.value,
            "leg": leg,
            "what": what,
            "questions": [fault.question for fault in each],
        }
        for part, found in measured.faults.items()
        for (kind, leg, what), each in grouped(found).items()
    ]


def plain(value: Any) -> Any:
    """A value as JSON has it: dataclasses as objects, enumerations as words, NaN as null."""
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(each) for each in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
