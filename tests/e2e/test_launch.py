"""Nodes by `vllm-fixes launch`, with real engines: they agree, serve, and stop as one."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import cache
import pytest

from . import lab, models
from .answers import summary, unlike
from .cases import ONE
from .conftest import Record, Reference
from .lab import HOSTS, LEADER, THIRD, WORKER
from .launched import (
    ENDED,
    STARTED,
    STOPPED,
    Nodes,
    causes,
    clean,
    end_together,
    node,
    probe,
    process,
    serving,
    started,
)
from .scenarios import PROMPTS, SMOKE

pytestmark = pytest.mark.e2e
MINUTE = 60
CYCLES = int(os.environ.get("E2E_CYCLES") or "5")


@pytest.fixture
def pair(fixed: Path, logs: Path) -> Iterator[Nodes]:
    with lab.lab(), started(fixed, logs) as made:
        yield made


def test_a_replica_serves_and_an_idle_one_ends_when_a_nodes_engine_is_killed(
    pair: Nodes, record: Record
) -> None:
    leader, worker = pair
    reply = leader.complete(PROMPTS[0], 4).result()
    assert reply.status == 200, reply
    for server in pair:
        assert probe(server, "live") == probe(server, "ready") == 0, server.text()[-3000:]
    os.kill(process(worker, "serve"), signal.SIGKILL)
    seconds = end_together(pair, [ENDED, ENDED])
    record("launch, serve of the worker killed, idle: both ended", seconds)
    assert causes(pair) == ["node 1 (10.77.0.2): vllm serve exited 137 (SIGKILL)"] * 2


@pytest.mark.full
def test_answers_are_those_of_one_stage_and_a_clean_stop_ends_with_0(
    pair: Nodes, reference: Reference, record: Record
) -> None:
    differing = unlike(pair[0], SMOKE, reference(ONE))
    assert not differing, summary(differing)
    os.kill(pair[0].process.pid, signal.SIGTERM)
    record("launch, clean stop of the head: both ended", end_together(pair, [0, 0], STOPPED))
    clean()


@pytest.mark.full
def test_tensor_parallelism_over_two_nodes(fixed: Path, logs: Path) -> None:
    with lab.lab(), started(fixed, logs, "-tp", "2", "-pp", "1", model="qwen3-moe") as pair:
        reply = pair[0].complete(PROMPTS[0], 8).result()
        assert reply.status == 200, reply
        assert "warning: TP 2 goes over nodes that have no RDMA device" in pair[1].text()
        os.kill(process(pair[1], "serve"), signal.SIGKILL)
        end_together(pair, [ENDED, ENDED])


@pytest.mark.full
def test_three_nodes(fixed: Path, logs: Path, reference: Reference, record: Record) -> None:
    hosts = (*HOSTS, THIRD)
    three = ("--nnodes", "3")
    with lab.lab(hosts), contextlib.ExitStack() as stack:
        nodes = [stack.enter_context(node(host, fixed, logs, *three)) for host in hosts]
        record("launch, three nodes: boot", serving(*nodes))
        differing = unlike(nodes[0], SMOKE, reference(ONE))
        assert not differing, summary(differing)
        os.kill(process(nodes[2], "Worker"), signal.SIGKILL)
        seconds = end_together(nodes, [ENDED] * 3)
        record("launch, Worker of the third node killed: all ended", seconds)
        assert len(set(causes(nodes))) == 1


@pytest.mark.full
@pytest.mark.parametrize("first", [LEADER, WORKER], ids=["head", "worker"])
def test_a_minute_between_the_starts(
    fixed: Path, logs: Path, record: Record, first: lab.Host
) -> None:
    with lab.lab(), contextlib.ExitStack() as stack:
        nodes = {first: stack.enter_context(node(first, fixed, logs))}
        time.sleep(MINUTE)
        assert nodes[first].process.poll() is None, nodes[first].text()
        assert "vllm serve started" not in nodes[first].text()
        (second,) = {LEADER, WORKER} - {first}
        nodes[second] = stack.enter_context(node(second, fixed, logs))
        seconds = serving(nodes[LEADER], nodes[WORKER])
        record(f"launch, {first.name} a minute earlier: boot after the other", seconds)
        assert nodes[LEADER].complete(PROMPTS[0], 4).result().status == 200


@pytest.mark.full
def test_starting_and_stopping_again_and_again_leaves_nothing(
    fixed: Path, logs: Path, record: Record
) -> None:
    with lab.lab():
        start = time.monotonic()
        for cycle in range(CYCLES):
            with started(fixed, logs) as pair:
                assert pair[0].complete(PROMPTS[0], 2).result().status == 200
                os.kill(pair[0].process.pid, signal.SIGTERM)
                end_together(pair, [0, 0], STOPPED)
            clean()
            homes = [{one.name for one in server.log.parent.iterdir()} for server in pair]
            assert homes == [{"launch.log", "names"}] * 2, cycle
        record(f"launch, {CYCLES} starts and stops", time.monotonic() - start)


# What is refused before a model is loaded


@dataclass(frozen=True)
class Other:
    """How the second node differs from the first, and what both say of it."""

    said: str
    release: str = "0.30.0"
    fixes: tuple[str, ...] = ("pipeline-parallel",)
    model: str = models.LLAMA
    behind: tuple[str, ...] = ()
    variables: tuple[tuple[str, str], ...] = ()


BOTH = "{}: node 0 (10.77.0.1) has {}, node 1 (10.77.0.2) has {}"
OTHERS = {
    "release": Other(BOTH.format("vLLM", "0.30.0", "0.32.0"), "0.32.0"),
    "fixes": Other(
        "fixes: node 0 (10.77.0.1) has sha256:", fixes=("pipeline-parallel", "cpu-ngram")
    ),
    "model": Other(
        BOTH.format("model", "SmolLM2-135M-Instruct", "random-qwen3-moe"), model="qwen3-moe"
    ),
    "option": Other(
        BOTH.format("option --max-model-len", "4096", "2048"), behind=("--max-model-len", "2048")
    ),
    "layers": Other(
        BOTH.format("variable VLLM_PP_LAYER_PARTITION", "nothing", "20,10"),
        variables=(("VLLM_PP_LAYER_PARTITION", "20,10"),),
    ),
}


@pytest.mark.full
@pytest.mark.parametrize("what", OTHERS)
def test_a_node_that_differs_is_refused_before_a_model_is_loaded(
    environment: Callable[..., Path], fixed: Path, logs: Path, record: Record, what: str
) -> None:
    other = OTHERS[what]
    if other.release == "0.30.0":
        second = environment(*other.fixes)
    else:
        second = cache.copy(cache.venv(other.release))
    fixes = [word for fix in other.fixes for word in ("--fix", fix)]
    more = {"model": other.model, "behind": other.behind, "variables": dict(other.variables)}
    start = time.monotonic()
    with (
        lab.lab(),
        node(LEADER, fixed, logs) as leader,
        node(WORKER, second, logs, *fixes, **more) as worker,
    ):
        end_together([leader, worker], [STARTED, STARTED], 300)
        record(f"launch, another {what}: both refused", time.monotonic() - start)
        for server in (leader, worker):
            said = server.text()
            assert other.said in said, said
            assert "vllm serve started" not in said and "Loading" not in said


@pytest.mark.full
@pytest.mark.parametrize("address", ["10.77.0.9", "192.0.2.1"], ids=["nobody has it", "no route"])
def test_a_head_that_cannot_be_reached(fixed: Path, logs: Path, address: str) -> None:
    options = ("--head-ip", address, "--meet-timeout", "8")
    with lab.lab(), node(WORKER, fixed, logs, *options) as worker:
        end_together([worker], [STARTED], 60)
        assert f"not-met: the head at {address}, port 29590, did not take" in worker.text()
