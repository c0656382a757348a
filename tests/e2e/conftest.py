"""Environments and servers that the engine tests share.

E2E_RELEASES names the releases that are tested, separated by commas; each needs a profile.
E2E_RESULTS names a file for what was seen (`results`).
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import cache
import pytest

from . import lab, results, scenarios
from .answers import Told, told
from .cases import ONE, Case, Engine
from .server import Server

RELEASES = (os.environ.get("E2E_RELEASES") or "0.30.0").split(",")
CHECKOUT = Path(__file__).parents[2]
Record = Callable[[str, float], None]
Faulty = Callable[[str], bool]
Reference = Callable[[Engine], dict[str, Told]]


def apply(environment: Path, release: str, *names: str) -> None:
    """The apply line with some names, in an environment."""
    line = [CHECKOUT / "fixes/apply_all.py", "--profile", f"v{release}", *names]
    result = subprocess.run(
        [environment / "bin/python", *line],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.fixture(scope="session")
def alone() -> Iterator[None]:
    """One run at a time on a machine, and none where there can be no lab."""
    with cache.locked("e2e"):
        if reason := lab.missing():
            pytest.skip(reason)
        yield


@pytest.fixture(scope="session", params=RELEASES)
def release(request: pytest.FixtureRequest, alone: None) -> str:
    """The release that is tested."""
    name: str = request.param
    return name


@pytest.fixture(scope="session")
def record(release: str) -> Record:
    """Keep a measured time, in seconds."""
    return lambda name, seconds: results.keep(release, "seconds", name, round(seconds, 1))


@pytest.fixture(scope="session")
def faulty(release: str) -> Faulty:
    """Whether a release has the fault that a fix is for, as its profile says."""
    lock = json.loads((CHECKOUT / f"profiles/v{release}.lock.json").read_text("utf-8"))
    return lambda fix: lock["fixes"][fix]["need"] == "offered"


@pytest.fixture(scope="session")
def stock(release: str) -> Path:
    """An environment with vLLM as published."""
    return cache.venv(release)


@pytest.fixture(scope="session")
def environment(release: str, stock: Path, record: Record) -> Iterator[Callable[..., Path]]:
    """Environments after an apply line with some names."""
    made: dict[tuple[str, ...], Path] = {}

    def environment(*names: str) -> Path:
        if names not in made:
            made[names] = cache.copy(stock)
            start = time.monotonic()
            apply(made[names], release, *names)
            record(f"apply {' '.join(names)}", time.monotonic() - start)
        return made[names]

    try:
        yield environment
    finally:
        for copy in made.values():
            shutil.rmtree(copy)


@pytest.fixture(scope="session")
def fixed(environment: Callable[..., Path]) -> Path:
    """An environment after the apply line."""
    return environment("pipeline-parallel")


@pytest.fixture(scope="session")
def reference(
    request: pytest.FixtureRequest,
    stock: Path,
    record: Record,
    tmp_path_factory: pytest.TempPathFactory,
) -> Reference:
    """What stock vLLM answers with one stage, to all that the selected tests compare."""
    asked: dict[Engine, dict[str, scenarios.Scenario]] = {
        ONE: {scenario.name: scenario for scenario in scenarios.SMOKE}
    }
    at_once = False
    for item in request.session.items:
        case = item.callspec.params.get("case") if hasattr(item, "callspec") else None
        if not isinstance(case, Case):
            at_once |= "reference" in getattr(item, "fixturenames", ())
        else:
            named = {scenario.name: scenario for scenario in case.scenarios}
            asked.setdefault(case.reference, {}).update(named)
    known: dict[Engine, dict[str, Told]] = {}

    def reference(engine: Engine) -> dict[str, Told]:
        if engine not in known:
            log = tmp_path_factory.mktemp("reference") / "server.log"
            arguments = engine.arguments()
            with (
                lab.lab(),
                Server(lab.LEADER, stock, arguments, log, model=engine.model) as server,
            ):
                record(f"boot, one stage, {engine.model}", server.boot())
                start = time.monotonic()
                known[engine] = {
                    name: told(server, scenario) for name, scenario in asked[engine].items()
                }
                record(f"answers, one stage, {engine.model}", time.monotonic() - start)
        return known[engine]

    if at_once:  # a test that asks has a server of its own on the lab's hosts by then
        reference(ONE)
    return reference


@pytest.fixture(scope="class")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the logs of the servers of a class or a test."""
    return tmp_path_factory.mktemp("logs")
