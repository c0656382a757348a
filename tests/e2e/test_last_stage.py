"""A bare assert that fails on the last stage: what the leader, on another node, says of it."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from . import lab
from .conftest import Record
from .scenarios import PROMPTS, TOKENS
from .server import SERVE, Replica, Reply, replica

pytestmark = pytest.mark.e2e
LIMIT = 30  # seconds until the request has its answer, and the leader has ended
QUOTED = "Worker failed with error 'AssertionError: '"
LAST = "assert not (last and stage.is_last_rank"  # in the traceback that the stage logs


def failed(pair: Replica, trigger: Path) -> tuple[Reply, float]:
    """The answer to a request that the last stage fails at, and the seconds until it came."""
    trigger.touch()
    start = time.monotonic()
    reply = pair.leader.complete(PROMPTS[0], TOKENS, timeout=2 * LIMIT).result()
    seconds = time.monotonic() - start
    pair.leader.ends(LIMIT)
    assert LAST in pair.worker.text()  # which proves that the stage failed as it was to
    return reply, seconds


def test_the_leader_names_the_error(fixed: Path, logs: Path, record: Record) -> None:
    trigger = logs / "fail-now"
    fault = {"LAST_STAGE_FAULT": str(trigger)}
    with lab.lab(), replica(fixed, logs, SERVE, fault) as pair:
        assert pair.leader.complete(PROMPTS[0], TOKENS).result().status == 200
        reply, seconds = failed(pair, trigger)
        record("bare assert on the last stage, two nodes: HTTP error", seconds)
        assert reply.status == 500 and seconds < LIMIT, reply
        said = pair.leader.text()
        assert QUOTED in said and "KeyError" not in said
        pair.worker.ends(LIMIT)


@pytest.mark.full
def test_stock_names_what_follows_from_it(stock: Path, logs: Path) -> None:
    trigger = logs / "fail-now"
    with lab.lab(), replica(stock, logs, SERVE, {"LAST_STAGE_FAULT": str(trigger)}) as pair:
        reply, _ = failed(pair, trigger)
        assert reply.status == 500, reply
        said = pair.leader.text()
        assert "KeyError: 'cmpl-" in said and "AssertionError" not in said
