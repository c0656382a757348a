"""One comparison from the options to the report."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from datetime import datetime, timezone

from fixes.errors import ExitCode, FixesError, Problem
from fixes.parity import facts, preflight, run
from fixes.parity.client import Endpoint
from fixes.parity.faults import LOG
from fixes.parity.legs import BASELINE, CANDIDATE, CONTROL, Legs, Progress
from fixes.parity.preflight import Facts, Line
from fixes.parity.report import Report
from fixes.parity.thresholds import Thresholds
from fixes.parity.verdict import Status, Verdict, judge
from fixes.parity.workload import Counts


@dataclass(frozen=True)
class Target:
    """An endpoint as it is named on the command line."""

    url: str
    model: str | None
    key: str


async def compare(
    targets: Mapping[str, Target],
    counts: Counts,
    prompts: Sequence[str],
    limits: Thresholds,
    stall: float,
    progress: Progress,
) -> Report:
    """Look at the endpoints, measure, and judge.

    Raises FixesError: ``unreachable``, ``preflight``, ``usage``; nothing is measured then.
    """
    begun = time.monotonic()
    started = datetime.now(timezone.utc).isoformat(timespec="seconds")
    async with AsyncExitStack() as stack:
        endpoints = {
            leg: await stack.enter_async_context(Endpoint(one.url, one.key, stall))
            for leg, one in targets.items()
        }
        known = await _gather(endpoints, targets)
        lines = _lines(known)
        if refused := preflight.refusals(lines, limits.preflight_must_equal):
            raise FixesError(*refused)
        if len({(endpoints[leg].url, one.model) for leg, one in known.items()}) < len(known):
            what = "is the baseline as well: one server cannot be compared with itself"
            hint = "one URL alone gives its figures, and how far it differs from itself"
            raise FixesError(Problem(ExitCode.USAGE, "usage", what, known[CANDIDATE].url, hint))
        # The control is the same endpoint: one leg more.
        endpoints[CONTROL] = endpoints[BASELINE]
        told = {**known, CONTROL: known[BASELINE]}
        legs = Legs(endpoints, told, progress)
        measured = await run.measure(legs, counts, prompts)
        unknown = preflight.unknown(lines, limits.preflight_must_equal if len(known) > 1 else ())
        for leg, one in known.items():
            if not endpoints[leg].gone:
                unknown += [f"{leg}: {what}" for what in await facts.changed(endpoints[leg], one)]
    verdict = judge(measured, limits, CANDIDATE in known, unknown)
    return Report(
        known,
        lines,
        measured,
        verdict,
        limits,
        counts,
        _problems(verdict, legs),
        {leg: endpoints[leg].retried for leg in known},
        started,
        time.monotonic() - begun,
    )


async def _gather(
    endpoints: Mapping[str, Endpoint], targets: Mapping[str, Target]
) -> dict[str, Facts]:
    """The facts of all endpoints; what is wrong with each is told at once."""
    found: dict[str, Facts] = {}
    problems: list[Problem] = []
    for leg, endpoint in endpoints.items():
        try:
            found[leg] = await facts.gather(endpoint, targets[leg].model)
        except FixesError as error:
            problems += error.problems
    if problems:
        raise FixesError(*problems)
    return found


def _lines(known: Mapping[str, Facts]) -> list[Line]:
    baseline = known[BASELINE]
    return preflight.lines(baseline, known.get(CANDIDATE, baseline))


def _problems(verdict: Verdict, legs: Legs) -> list[Problem]:
    """What the exit code is made of. An endpoint that has gone decides before a difference."""
    problems = [
        Problem(ExitCode.NOT_FOUND, "unreachable", fault.what, f"{leg} {legs.facts[leg].url}", LOG)
        for leg, fault in legs.gone.items()
    ]
    if verdict.unknown:
        what = "; ".join(verdict.unknown)
        problems.append(Problem(ExitCode.MISMATCH, "incomplete", what, "preflight"))
    for part in verdict.parts:
        if part.status in (Status.DIFFERENT, Status.INCOMPLETE):
            what = "; ".join(part.reasons)
            problems.append(Problem(ExitCode.MISMATCH, part.status.value, what, part.name))
    return problems
