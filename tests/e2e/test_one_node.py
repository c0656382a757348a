"""Two pipeline stages on one node."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from . import lab
from .answers import summary, unlike
from .cases import ONE
from .conftest import Faulty, Record, Reference
from .scenarios import LONG, PROMPTS, SMOKE
from .server import STAGES, Server

pytestmark = pytest.mark.e2e
FAULT = "a fault on the first stage"


def test_stock_dies_at_the_first_request(
    stock: Path, faulty: Faulty, logs: Path, record: Record
) -> None:
    if not faulty("pp-intermediate-buffers"):
        pytest.skip("this release serves in two stages as published")
    with lab.lab(), Server(lab.LEADER, stock, STAGES, logs / "server.log") as server:
        server.boot()
        start = time.monotonic()
        reply = server.complete(PROMPTS[0], 4).result()
        assert reply.status == 500, reply
        server.ends(60)
        record("stock: end after the first request", time.monotonic() - start)
        assert "assert self.intermediate_tensors is not None" in server.text()


@pytest.fixture(scope="class")
def trigger(logs: Path) -> Path:
    return logs / "fail-now"


@pytest.fixture(scope="class")
def server(fixed: Path, logs: Path, trigger: Path, record: Record) -> Iterator[Server]:
    fault = {"STAGE_FAULT": str(trigger)}
    log = logs / "server.log"
    with lab.lab(), Server(lab.LEADER, fixed, STAGES, log, variables=fault) as server:
        record("boot, two stages", server.boot())
        yield server


class TestFixed:
    def test_answers_are_those_of_one_stage(
        self, server: Server, reference: Reference, record: Record
    ) -> None:
        wanted = reference(ONE)
        start = time.monotonic()
        differing = unlike(server, SMOKE, wanted)
        record("answers, two stages", time.monotonic() - start)
        assert not differing, summary(differing)

    def test_fault_on_the_first_stage_becomes_an_error(
        self, server: Server, trigger: Path, record: Record
    ) -> None:
        trigger.touch()
        start = time.monotonic()
        reply = server.complete(LONG, 4, timeout=60).result()
        record("fault on the first stage: HTTP error", time.monotonic() - start)
        assert reply.status == 500, reply
        assert time.monotonic() - start < 30
        server.ends(30)
        assert FAULT in server.text()
