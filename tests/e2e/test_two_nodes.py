"""Two pipeline stages on two nodes: answers, and what a node does without the other."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from . import lab
from .answers import summary, unlike
from .cases import ONE
from .conftest import Record, Reference
from .scenarios import ALONE, PROMPTS, SMOKE
from .server import MODULE, SERVE, Replica, Reply, Server, replica

pytestmark = pytest.mark.e2e
LOST = re.compile(r"(?i)\blost\b.*\b(node|leader|worker)\b")
MINUTES = 3000  # tokens that take minutes
KILLED = 15  # seconds until a killed node is noticed, and its peer gone
CUT = 30  # the same where no closed connection tells


def busy(server: Server) -> Future[Reply]:
    """A request that the server is working on, and will be for minutes."""
    pending = server.complete(PROMPTS[0], MINUTES, timeout=300)
    time.sleep(3)
    assert not pending.done(), pending.result()
    return pending


@pytest.fixture(scope="class")
def served(fixed: Path, logs: Path, record: Record) -> Iterator[Replica]:
    start = time.monotonic()
    with lab.lab(), replica(fixed, logs) as served:
        record("boot, two nodes", time.monotonic() - start)
        yield served


class TestServeEntry:
    def test_answers_are_those_of_one_stage(
        self, served: Replica, reference: Reference, record: Record
    ) -> None:
        wanted = reference(ONE)
        start = time.monotonic()
        differing = unlike(served.leader, SMOKE, wanted)
        record("answers, two nodes", time.monotonic() - start)
        assert not differing, summary(differing)

    def test_killed_worker_ends_the_leader(self, served: Replica, record: Record) -> None:
        pending = busy(served.leader)
        served.worker.kill()
        record("worker killed, request pending: leader ended", served.leader.ends(KILLED))
        assert pending.result().status in (0, 500)
        assert LOST.search(served.leader.text())


@pytest.fixture(scope="class")
def module(fixed: Path, logs: Path) -> Iterator[Replica]:
    with lab.lab(), replica(fixed, logs, headless=MODULE) as module:
        yield module


class TestModuleEntry:
    def test_serves(self, module: Replica, reference: Reference) -> None:
        differing = unlike(module.leader, [ALONE], reference(ONE))
        assert not differing, summary(differing)

    def test_killed_leader_ends_the_worker(self, module: Replica, record: Record) -> None:
        module.leader.kill()
        record("leader killed: worker ended", module.worker.ends(KILLED))
        assert LOST.search(module.worker.text())


@pytest.fixture
def pair(fixed: Path, logs: Path) -> Iterator[Replica]:
    with lab.lab(), replica(fixed, logs) as pair:
        yield pair


def test_power_cut_is_noticed_by_both(pair: Replica, record: Record) -> None:
    pending = busy(pair.leader)
    lab.cut()
    start = time.monotonic()
    pair.leader.ends(CUT)
    record("power cut, request pending: leader ended", time.monotonic() - start)
    pair.worker.ends(CUT - (time.monotonic() - start))
    record("power cut, request pending: both ended", time.monotonic() - start)
    assert pending.result().status in (0, 500)
    assert LOST.search(pair.leader.text())
    assert LOST.search(pair.worker.text())


@pytest.mark.full
def test_power_cut_of_an_idle_replica_is_noticed_by_both(pair: Replica, record: Record) -> None:
    lab.cut()
    start = time.monotonic()
    pair.leader.ends(CUT)
    pair.worker.ends(CUT - (time.monotonic() - start))
    record("power cut, idle: both ended", time.monotonic() - start)


@pytest.mark.full
def test_killed_worker_ends_an_idle_leader(pair: Replica, record: Record) -> None:
    pair.worker.kill()
    record("worker killed, idle: leader ended", pair.leader.ends(KILLED))
    assert LOST.search(pair.leader.text())


@pytest.mark.full
def test_killed_headless_parent_ends_both_nodes(pair: Replica, record: Record) -> None:
    os.kill(pair.worker.process.pid, signal.SIGKILL)
    start = time.monotonic()
    pair.worker.ends(KILLED)
    record("headless parent killed: worker ended", time.monotonic() - start)
    pair.leader.ends(KILLED - (time.monotonic() - start))
    record("headless parent killed: both ended", time.monotonic() - start)


@pytest.mark.full
def test_fault_on_the_first_stage_becomes_an_error(fixed: Path, logs: Path, record: Record) -> None:
    trigger = logs / "fail-now"
    fault = {"STAGE_FAULT": str(trigger)}
    with lab.lab(), replica(fixed, logs, SERVE, fault) as pair:
        trigger.touch()
        start = time.monotonic()
        reply = pair.leader.complete(PROMPTS[0], 4, timeout=60).result()
        record("fault on the first stage, two nodes: HTTP error", time.monotonic() - start)
        assert reply.status == 500, reply
        assert time.monotonic() - start < 30
        pair.leader.ends(30)
        pair.worker.ends(30)
