"""A fixed replica answers as stock vLLM does with one stage."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from . import lab, results
from .answers import differences, summary, told
from .cases import CASES, Case, Engine
from .conftest import Reference
from .scenarios import Scenario
from .server import SERVE, Server, replica

pytestmark = [pytest.mark.e2e, pytest.mark.full]


@contextlib.contextmanager
def serving(engine: Engine, environment: Path, logs: Path) -> Iterator[Server]:
    """The server that answers for an engine, which is up."""
    variables = dict(engine.variables)
    arguments = engine.arguments()
    with lab.lab():
        if engine.nodes > 1:
            with replica(environment, logs, SERVE, variables, arguments, engine.model) as pair:
                yield pair.leader
        else:
            log = logs / "server.log"
            alone = Server(
                lab.LEADER, environment, arguments, log, variables=variables, model=engine.model
            )
            with alone as server:
                server.boot()
                yield server


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_answers_are_those_of_one_stage(
    case: Case,
    release: str,
    stock: Path,
    environment: Callable[..., Path],
    reference: Reference,
    logs: Path,
    subtests: pytest.Subtests,
) -> None:
    wanted = reference(case.reference)

    def keep(scenario: str, result: str, **more: object) -> None:
        results.keep(release, "scenarios", f"{case.name}: {scenario}", {"result": result, **more})

    unsure: list[tuple[Scenario, list[str]]] = []
    fixed = environment("pipeline-parallel", *case.engine.fixes)
    with serving(case.engine, fixed, logs) as server:
        for scenario in case.scenarios:
            with subtests.test(scenario.name):
                keep(scenario.name, "failed")
                found = told(server, scenario)
                differing = list(differences(found.answers, wanted[scenario.name].answers))
                seconds = [round(found.seconds, 1), round(wanted[scenario.name].seconds, 1)]
                result = "differs" if differing else "equal"
                keep(scenario.name, result, seconds=seconds, differences=differing[:20])
                if case.control and differing:
                    unsure.append((scenario, differing))
                else:
                    assert not differing, summary(differing)
        if case.grows:
            count = server.counter(case.grows)
            keep(case.grows, f"{count:.0f}")
            assert count, f"{case.grows} has not grown"
    if unsure:
        again = logs / "again"
        again.mkdir()
        with serving(case.reference, stock, again) as server:
            for scenario, differing in unsure:
                with subtests.test(f"control of {scenario.name}"):
                    control = told(server, scenario).answers
                    shaky = list(differences(control, wanted[scenario.name].answers))
                    result = "one stage differs from itself" if shaky else "differs"
                    keep(scenario.name, result, differences=differing[:20])
                    assert shaky, summary(differing)
