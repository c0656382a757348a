"""Two nodes by `vllm-fixes launch`, with real engines: they serve, and they end as one."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import cache
import pytest

from . import lab, models
from .answers import summary, unlike
from .cases import ONE
from .conftest import CHECKOUT, Record, Reference
from .lab import HOSTS, LEADER, WORKER, Host
from .scenarios import PROMPTS, SMOKE
from .server import Replica, Server

pytestmark = [pytest.mark.e2e, pytest.mark.full]
PROGRAM = str(CHECKOUT / "apply_all.py")
TOKEN = {"VLLM_FIXES_TOKEN": "the token of a test's replica"}
STARTED, ENDED = 11, 12
TOGETHER = 10  # seconds within which all nodes end once one has
STOPPED = 30  # the same for a stop, which lets requests end


def node(
    host: Host, environment: Path, logs: Path, *options: str, model: str = models.LLAMA
) -> Server:
    """One node by `launch`; the model and the engine's options come behind what is given."""
    rank = str(HOSTS.index(host))
    entry = (PROGRAM, "launch", "--rank", rank, "--nnodes", "2", "--head-ip", LEADER.address)
    entry = (*entry, "--interface", lab.INTERFACE, *options, "--")
    folder = logs / host.name  # what `Server` puts beside the log is of one release
    folder.mkdir()
    return Server(host, environment, (), folder / "launch.log", entry, TOKEN, model)


@contextlib.contextmanager
def launched(
    environment: Path, logs: Path, *options: str, model: str = models.LLAMA
) -> Iterator[Replica]:
    """A replica that serves."""
    with (
        lab.lab(),
        node(LEADER, environment, logs, *options, model=model) as leader,
        node(WORKER, environment, logs, *options, model=model) as worker,
    ):
        with worker.explained():
            leader.boot(worker)
        yield Replica(leader, worker)


@pytest.fixture
def pair(fixed: Path, logs: Path) -> Iterator[Replica]:
    with launched(fixed, logs) as made:
        yield made


def probe(server: Server, verb: str) -> int:
    """What an exec probe on a node ends with."""
    command = [str(server.environment / "bin/python"), PROGRAM, verb]
    start = time.monotonic()
    done = subprocess.run(["ip", "netns", "exec", server.host.name, *command], timeout=30)
    assert time.monotonic() - start < 6
    return done.returncode


def end_together(pair: Replica, code: int, limit: float) -> float:
    """Wait until both launchers have ended with this code, with nothing left; the seconds."""
    start = time.monotonic()
    for server in (pair.leader, pair.worker):
        server.ends(limit - (time.monotonic() - start))
    codes = [server.process.wait() for server in (pair.leader, pair.worker)]
    assert codes == [code, code], pair.leader.text()[-3000:] + pair.worker.text()[-3000:]
    return time.monotonic() - start


def causes(pair: Replica) -> list[str]:
    """The first cause that each node logged."""
    return [
        re.findall(r"vllm-fixes node \d: ending: (.*)", server.text())[-1]
        for server in (pair.leader, pair.worker)
    ]


def process(server: Server, name: str) -> int:
    """One process of a node: the launcher, its keeper, `vllm serve`, or one by its title."""
    launcher = server.process.pid
    (keeper,) = children(launcher)
    if name == "launcher":
        return launcher
    if name == "keeper":
        return keeper
    (serve,) = children(keeper)
    if name == "serve":
        return serve
    titles = {pid: title(pid) for pid in server.host.processes()}
    found = [pid for pid, told in titles.items() if told.startswith(f"VLLM::{name}")]
    assert found, titles
    return found[0]


def children(parent: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def title(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")


def test_a_replica_serves_and_an_idle_one_ends_when_a_nodes_engine_is_killed(
    pair: Replica, record: Record
) -> None:
    reply = pair.leader.complete(PROMPTS[0], 4).result()
    assert reply.status == 200, reply
    for server in (pair.leader, pair.worker):
        assert probe(server, "live") == probe(server, "ready") == 0, server.text()[-3000:]
    os.kill(process(pair.worker, "serve"), signal.SIGKILL)
    record(
        "launch, serve of the worker killed, idle: both ended", end_together(pair, ENDED, TOGETHER)
    )
    killed = "node 1 (10.77.0.2): vllm serve exited 137 (SIGKILL)"
    assert causes(pair) == [killed, killed]


def test_answers_are_those_of_one_stage_and_a_clean_stop_ends_with_0(
    pair: Replica, reference: Reference, record: Record
) -> None:
    differing = unlike(pair.leader, SMOKE, reference(ONE))
    assert not differing, summary(differing)
    os.kill(pair.leader.process.pid, signal.SIGTERM)
    record("launch, clean stop of the head: both ended", end_together(pair, 0, STOPPED))


def test_tensor_parallelism_over_two_nodes(fixed: Path, logs: Path) -> None:
    with launched(fixed, logs, "-tp", "2", "-pp", "1", model="qwen3-moe") as pair:
        reply = pair.leader.complete(PROMPTS[0], 8).result()
        assert reply.status == 200, reply
        assert "warning: TP 2 goes over nodes that have no RDMA device" in pair.worker.text()
        os.kill(process(pair.worker, "serve"), signal.SIGKILL)
        end_together(pair, ENDED, TOGETHER)


KILLED = [
    *(("leader", name) for name in ("launcher", "keeper", "serve", "EngineCore", "Worker")),
    *(("worker", name) for name in ("launcher", "keeper", "Worker")),
]


@pytest.mark.parametrize(("which", "name"), KILLED)
def test_any_killed_process_ends_both_nodes(
    pair: Replica, record: Record, which: str, name: str
) -> None:
    server = {"leader": pair.leader, "worker": pair.worker}[which]
    os.kill(process(server, name), signal.SIGKILL)
    start = time.monotonic()
    for one in (pair.leader, pair.worker):
        one.ends(TOGETHER - (time.monotonic() - start))
    record(f"launch, {name} of the {which} killed: both ended", time.monotonic() - start)
    for one in (pair.leader, pair.worker):
        killed = one is server and name == "launcher"
        assert one.process.wait() == (-signal.SIGKILL if killed else ENDED), one.text()[-3000:]


@pytest.mark.parametrize("which", ["leader", "worker"])
def test_a_stopped_worker_process_ends_both_nodes(
    pair: Replica, record: Record, which: str
) -> None:
    server = {"leader": pair.leader, "worker": pair.worker}[which]
    os.kill(process(server, "Worker"), signal.SIGSTOP)
    seconds = end_together(pair, ENDED, TOGETHER)
    record(f"launch, Worker of the {which} stopped: both ended", seconds)
    assert all("is stopped, and hangs" in cause for cause in causes(pair))


def test_a_power_cut_ends_both_nodes(pair: Replica, record: Record) -> None:
    lab.cut()
    record("launch, power cut, idle: both ended", end_together(pair, ENDED, TOGETHER))


def test_a_node_of_another_release_is_refused_before_a_model_is_loaded(
    fixed: Path, logs: Path, record: Record
) -> None:
    other = cache.copy(cache.venv("0.32.0"))
    start = time.monotonic()
    with lab.lab(), node(LEADER, fixed, logs) as leader, node(WORKER, other, logs) as worker:
        both = Replica(leader, worker)
        end_together(both, STARTED, 300)
        record("launch, another release: both refused", time.monotonic() - start)
        for server in (leader, worker):
            said = server.text()
            assert "vLLM: node 0 (10.77.0.1) has 0.30.0" in said, said
            assert "node 1 (10.77.0.2) has 0.32.0" in said
            assert "fixes: node 0 (10.77.0.1) has sha256:" in said
            assert "vllm serve started" not in said and "Loading" not in said
