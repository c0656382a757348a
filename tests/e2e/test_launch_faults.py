"""Faults of a replica by `vllm-fixes launch`, with real engines: both nodes end within 10 s."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from . import lab
from .conftest import Record
from .lab import LEADER, WORKER, Host
from .launched import (
    ENDED,
    STARTED,
    TOGETHER,
    WATCH_PORT,
    Nodes,
    causes,
    end_together,
    node,
    probe,
    process,
    started,
)
from .scenarios import PROMPTS

pytestmark = [pytest.mark.e2e, pytest.mark.full]
HEAD = ("launcher", "keeper", "serve", "EngineCore", "Worker")
HEADLESS = ("launcher", "keeper", "serve", "Worker")
ANY = [*itertools.product([0], HEAD), *itertools.product([1], HEADLESS)]
LONG = 4000  # tokens: longer than any of these tests


@pytest.fixture
def pair(fixed: Path, logs: Path) -> Iterator[Nodes]:
    with lab.lab(), started(fixed, logs) as made:
        yield made


@pytest.mark.parametrize(("rank", "name"), ANY)
def test_any_killed_process_ends_both_nodes(
    pair: Nodes, record: Record, rank: int, name: str
) -> None:
    os.kill(process(pair[rank], name), signal.SIGKILL)
    codes = [ENDED, ENDED]
    if name == "launcher":
        codes[rank] = -signal.SIGKILL
    seconds = end_together(pair, codes)
    record(f"launch, {name} of node {rank} killed: both ended", seconds)


@pytest.mark.parametrize(("rank", "name"), ANY)
def test_any_stopped_process_ends_both_nodes(
    pair: Nodes, record: Record, rank: int, name: str
) -> None:
    os.kill(process(pair[rank], name), signal.SIGSTOP)
    codes = [ENDED, ENDED]
    if name == "launcher":  # which cannot end by itself
        codes[rank] = -signal.SIGKILL
    seconds = end_together(pair, codes)
    record(f"launch, {name} of node {rank} stopped: both ended", seconds)
    if name not in ("launcher", "keeper"):
        assert all("is stopped, and hangs" in cause for cause in causes(pair))


def test_a_link_that_is_cut_under_load(pair: Nodes, record: Record) -> None:
    replies = [pair[0].complete(prompt, LONG) for prompt in PROMPTS * 2]
    lab.until(lambda: pair[0].counter("vllm:generation_tokens") > 20, 60)
    lab.cut()
    seconds = end_together(pair, [ENDED, ENDED])
    record("launch, link cut under load: both ended", seconds)
    assert all(reply.result(1).status != 200 for reply in replies)


def test_a_replica_stands_lost_packets_and_ends_when_all_are_lost(
    pair: Nodes, record: Record
) -> None:
    told = pair[0].complete(PROMPTS[0], 16).result().body
    lab.lose(0.05)
    start = time.monotonic()
    while time.monotonic() - start < 60:
        reply = pair[0].complete(PROMPTS[0], 16).result()
        assert reply.status == 200, reply
    assert tokens(reply.body) == tokens(told)
    for server in pair:
        assert lab.lost(server.host) > 20
        assert server.process.poll() is None, server.text()
        assert probe(server, "live") == 0
    record("launch, 5 % of packets lost: packets lost in a minute", lab.lost(WORKER))
    lab.lose(1.0)
    record("launch, every packet lost: both ended", end_together(pair, [ENDED, ENDED]))


def test_strangers_do_a_busy_replica_no_harm(
    pair: Nodes, fixed: Path, logs: Path, record: Record
) -> None:
    """Garbage, too much, silence, a slow line, and a node that has another token."""
    told = tokens(pair[0].complete(PROMPTS[0], 16).result().body)
    other = {"VLLM_FIXES_TOKEN": "a token that the replica does not have"}
    with strangers(WORKER, LEADER) as sent:
        # Not as a context: its end would clear the host, on which the worker runs.
        stranger = node(WORKER, fixed, logs, variables=other).__enter__()
        start = time.monotonic()
        while stranger.process.poll() is None or time.monotonic() - start < 30:
            reply = pair[0].complete(PROMPTS[0], 16).result()
            assert reply.status == 200 and tokens(reply.body) == told, reply
        assert stranger.process.wait() == STARTED, stranger.text()
        assert "wrong-token: the head at 10.77.0.1 does not take" in stranger.text()
    for server in pair:
        assert server.process.poll() is None, server.text()
        assert probe(server, "live") == probe(server, "ready") == 0
    record("launch, strangers: connections", len(sent))
    os.kill(process(pair[1], "serve"), signal.SIGKILL)
    assert end_together(pair, [ENDED, ENDED]) < TOGETHER


SENT = (
    b"",
    b"\0" * 200_000,
    b"GET /metrics HTTP/1.1\r\nHost: node\r\n\r\n",
    b"{}\n",
    b"[" * 60_000 + b"\n",
    b'{"nonce": "' + b"0" * 64 + b'", "proof": "' + b"0" * 64 + b'"}\n',
    b"x" * 1000 + b"\n",
)


@contextlib.contextmanager
def strangers(*hosts: Host) -> Iterator[list[bytes]]:
    """Connections to the head's port that are no node's, as many as there can be; what was sent.

    Each host keeps forty open that say nothing, and one that says a byte every half second.
    """
    over = threading.Event()
    sent: list[bytes] = []

    def connect(data: bytes) -> socket.socket:
        made = socket.create_connection((LEADER.address, WATCH_PORT), 10)
        with contextlib.suppress(OSError):  # it may be closed before all has been sent
            made.sendall(data)
        sent.append(data)
        return made

    def molest() -> None:
        with contextlib.ExitStack() as stack:
            silent = [stack.enter_context(connect(b"")) for _ in range(40)]
            slow = silent[0]
            for turn, data in enumerate(itertools.cycle(SENT)):
                if over.wait(0.05):
                    return
                connect(data).close()
                if turn % 10 == 0:
                    with contextlib.suppress(OSError):
                        slow.sendall(b"{")

    pools = [host.threads(1) for host in hosts]
    working = [pool.submit(molest) for pool in pools]
    try:
        yield sent
    finally:
        over.set()
        for work, pool in zip(working, pools, strict=True):
            pool.shutdown()
            work.result()


def tokens(body: bytes) -> list[int]:
    """The tokens of an answer."""
    found: list[int] = json.loads(body)["choices"][0]["token_ids"]
    return found
