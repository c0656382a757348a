"""What stock vLLM does where a fixed one ends: the faults behind the tests of two nodes.

Most stock releases serve no request in two stages, so the replicas here are idle or stuck.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from . import lab
from .scenarios import PROMPTS
from .server import MODULE, STAGES, Server, replica

pytestmark = [pytest.mark.e2e, pytest.mark.full]
LONG_ENOUGH = 60  # seconds; more than any limit of the fixed engine


def test_leader_stays_healthy_without_its_worker(stock: Path, logs: Path) -> None:
    with lab.lab(), replica(stock, logs) as pair:
        pair.worker.kill()
        time.sleep(LONG_ENOUGH)
        assert pair.leader.healthy()


def test_worker_stays_without_its_leader(stock: Path, logs: Path) -> None:
    with lab.lab(), replica(stock, logs) as pair:
        pair.leader.kill()
        time.sleep(LONG_ENOUGH)
        assert pair.worker.process.poll() is None


def test_fault_on_the_first_stage_hangs(stock: Path, logs: Path) -> None:
    trigger = logs / "fail-now"
    trigger.touch()
    variables = {"STAGE_FAULT": str(trigger)}
    log = logs / "server.log"
    with lab.lab(), Server(lab.LEADER, stock, STAGES, log, variables=variables) as server:
        server.boot()
        reply = server.complete(PROMPTS[0], 4, timeout=LONG_ENOUGH).result()
        assert (reply.status, server.healthy()) == (0, True)
        assert "a fault on the first stage" in server.text()


def test_module_entry_point_ignores_headless(stock: Path, logs: Path) -> None:
    too_early = pytest.raises(AssertionError, match="ended while booting")
    with too_early, lab.lab(), replica(stock, logs, MODULE):
        pass
    log = (logs / f"{lab.WORKER.name}.log").read_text("utf-8")
    assert "collective_rpc should not be called on follower node" in log
