"""Nodes of a replica as real processes: they meet, agree, watch each other and end as one."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import places
import pytest
import standin
from places import Place
from release import environ
from standin import TOKEN, Replica, until

from fixes.commands import launch
from fixes.launch import health, keeper

STARTED, ENDED = 11, 12
SIGNALS = (signal.SIGTERM, signal.SIGINT)
CODES = {signal.SIGTERM: 143, signal.SIGINT: 130, signal.SIGHUP: 143}


@pytest.fixture(autouse=True)
def hangup() -> Iterator[None]:
    """SIGHUP as a shell gives it to what it starts, also where these tests run under nohup."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return standin.environment(tmp_path_factory.mktemp("place") / "env")


@pytest.fixture
def pair(place: Place, tmp_path: Path) -> Iterator[Replica]:
    with standin.replica(place, tmp_path) as made:
        yield made


@pytest.fixture
def three(place: Place, tmp_path: Path) -> Iterator[Replica]:
    with standin.replica(place, tmp_path, 3) as made:
        yield made


# Together


def test_nodes_start_the_engine_that_the_plan_says(pair: Replica) -> None:
    head, worker = pair.up()
    arguments = pair.given(1)["arguments"]
    assert isinstance(arguments, list)
    assert arguments[:2] == ["serve", str(pair.model)]
    shown = " ".join(arguments)
    assert f"--nnodes 2 --node-rank 1 --master-addr 127.0.0.1 --master-port {pair.master}" in shown
    assert "--headless" in arguments and f"--port {pair.api}" in shown
    assert "--headless" not in pair.given(0)["arguments"]  # type: ignore[operator]
    environment = pair.given(1)["environment"]
    assert environment["VLLM_HOST_IP"] == "127.0.0.2"  # type: ignore[index]
    assert "VLLM_FIXES_TOKEN" not in environment  # type: ignore[operator]
    for node in (head, worker):
        assert "digest sha256:" in node.text() and TOKEN not in node.text()


def test_an_overlay_is_verified_and_the_tree_left_alone(tmp_path: Path) -> None:
    """As where the root is read-only: the fixes are in what PYTHONPATH names."""
    place = standin.script(places.environment(tmp_path / "env"))
    overlay = tmp_path / "overlay"
    said = place.ok("overlay", "pipeline-parallel", "--to", overlay)
    with standin.replica(place, tmp_path, PYTHONPATH=str(overlay)) as pair:
        for node in pair.up():
            assert said.splitlines()[-1] in node.text()  # the digest
    assert place.is_pristine()
    with standin.replica(place, tmp_path / "again", PYTHONPATH=str(overlay)) as pair:
        damaged = min(overlay.glob("post-images/vllm/*.py"))
        damaged.write_bytes(damaged.read_bytes() + b"\n")
        pair.start(1).ends(1)
        assert not pair.engines()


@pytest.mark.parametrize("first", [0, 1])
def test_either_node_may_come_first(pair: Replica, first: int) -> None:
    nodes = [pair.start(first)]
    nodes[0].says("waiting for the head" if first else "of 2 nodes")
    time.sleep(3)
    assert not pair.engines()
    nodes.append(pair.start(1 - first))
    pair.running(nodes)


def test_a_clean_stop_of_the_head_stops_all_with_0(three: Replica) -> None:
    head, *workers = three.up()
    head.send(signal.SIGTERM)
    head.ends(0)
    for worker in workers:
        worker.ends(0)
    three.gone(0.5)
    for rank in range(3):
        assert (three.folder / f"{rank}.stopped").exists(), "SIGTERM was not handed on"


def test_the_heads_engine_stops_first(place: Place, tmp_path: Path) -> None:
    with standin.replica(place, tmp_path, STANDIN_STOP="2") as pair:
        head, worker = pair.up()
        head.send(signal.SIGTERM)
        until(lambda: (pair.folder / "0.stopped").exists(), 10)
        assert not (pair.folder / "1.stopped").exists()
        head.ends(0)
        worker.ends(0)
        assert (pair.folder / "1.stopped").exists()


def test_an_engine_that_does_not_stop_is_killed_after_the_grace_time(
    place: Place, tmp_path: Path
) -> None:
    with standin.replica(place, tmp_path, STANDIN_MODE="stubborn") as pair:
        nodes = [pair.start(rank, "--grace", "2") for rank in range(2)]
        pair.running(nodes)
        nodes[0].send(signal.SIGTERM)
        seconds = nodes[0].ends(0, 15)
        assert seconds >= 2
        nodes[1].ends(0, 5)
        pair.gone(0.5)


def test_a_stop_that_comes_before_the_engine_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the fork and the exec the command still ignores what its keeper ignores."""
    monkeypatch.setattr(os, "setsid", lambda: time.sleep(0.5))
    before = signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        pid = keeper._spawn(["sleep", "60"], environ())
        os.kill(pid, signal.SIGTERM)
        until(lambda: os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT), 5)
    finally:
        signal.signal(signal.SIGTERM, before)
        os.kill(pid, signal.SIGKILL)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGTERM


def test_a_second_signal_does_not_wait(place: Place, tmp_path: Path) -> None:
    with standin.replica(place, tmp_path, STANDIN_MODE="stubborn") as pair:
        head, worker = pair.up()
        head.send(signal.SIGTERM)
        head.says("stopping the replica")
        head.send(signal.SIGTERM)
        head.ends(0, 12)
        worker.ends(0, 5)
        pair.gone(0.5)


@pytest.mark.parametrize("number", SIGNALS)
def test_signals_to_the_very_end_change_no_verdict(pair: Replica, number: signal.Signals) -> None:
    for _ in range(3):
        head, worker = pair.up()
        while head.process.poll() is None:
            head.send(number)
            time.sleep(0.002)
        head.ends(0)
        worker.ends(0)
        for file in pair.folder.glob("?.*"):
            file.unlink()


def test_a_terminal_that_is_closed_is_a_stop(pair: Replica) -> None:
    head, worker = pair.up()
    head.send(signal.SIGHUP)
    head.ends(0)
    worker.ends(0)


def test_under_nohup_a_closed_terminal_stops_nothing(pair: Replica) -> None:
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    head, worker = pair.up()
    head.send(signal.SIGHUP)
    worker.send(signal.SIGHUP)
    time.sleep(1)
    assert head.process.poll() is worker.process.poll() is None
    head.send(signal.SIGTERM)
    head.ends(0)
    worker.ends(0)


@pytest.mark.parametrize("number", CODES)
def test_a_stopped_worker_ends_the_replica(pair: Replica, number: signal.Signals) -> None:
    head, worker = pair.up()
    worker.send(number)
    worker.ends(CODES[number])
    head.ends(ENDED)
    assert f"node 1 (127.0.0.2): stopped by {number.name}" in head.text()
    pair.gone(0.5)


def test_all_nodes_stopped_at_once_is_a_clean_stop(pair: Replica) -> None:
    """As when a group is deleted."""
    head, worker = pair.up()
    worker.send(signal.SIGTERM)
    head.send(signal.SIGTERM)
    head.ends(0)
    worker.ends(0)


# What ends a replica


@pytest.mark.parametrize("rank", [0, 1, 2])
@pytest.mark.parametrize("code", [0, 5])
def test_an_engine_that_ends_ends_every_node(three: Replica, rank: int, code: int) -> None:
    nodes = three.up()
    (three.folder / f"{rank}.exit").write_text(str(code))
    for node in nodes:
        node.ends(ENDED)
        cause = f"node {rank} (127.0.0.{rank + 1}): vllm serve exited {code}"
        assert f"ending: {cause}" in node.text() and f"replica-ended: {cause}" in node.text()
    three.gone(0.5)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_engine_ends_every_node(pair: Replica, rank: int) -> None:
    nodes = pair.up()
    os.kill(pair.pid(rank, "main"), signal.SIGKILL)
    for node in nodes:
        node.ends(ENDED)
        cause = f"node {rank} (127.0.0.{rank + 1}): vllm serve exited 137 (SIGKILL)"
        assert f"ending: {cause}" in node.text()
    pair.gone(0.5)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_worker_process_is_missed(pair: Replica, rank: int) -> None:
    """Whatever `vllm serve` takes to notice, or to end: here it does neither."""
    nodes = pair.up()
    time.sleep(1.5)  # what has been started is looked at each second
    worker = pair.pid(rank, "child")
    os.kill(worker, signal.SIGKILL)
    for node in nodes:
        node.ends(ENDED)
        cause = f"node {rank} (127.0.0.{rank + 1}): process {worker} (VLLM::Worker) is gone"
        assert f"ending: {cause}" in node.text()
    pair.gone(0.5)


def test_a_killed_engine_leaves_no_shared_memory(place: Place, tmp_path: Path) -> None:
    """Python's resource tracker is not killed before it has removed what is left."""
    with standin.replica(place, tmp_path, STANDIN_MODE="memory") as pair:
        nodes = pair.up()
        files = [Path("/dev/shm", (tmp_path / f"{rank}.memory").read_text()) for rank in range(2)]
        assert all(file.exists() for file in files)
        os.kill(pair.pid(0, "main"), signal.SIGKILL)
        for node in nodes:
            node.ends(ENDED)
        assert not any(file.exists() for file in files)


def scratch(pair: Replica, rank: int) -> Path:
    """The folder for an engine's sockets."""
    environment = pair.given(rank)["environment"]
    assert isinstance(environment, dict)
    return Path(environment["VLLM_RPC_BASE_PATH"])


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_launcher_leaves_nothing(pair: Replica, rank: int) -> None:
    nodes = pair.up()
    nodes[rank].send(signal.SIGKILL)
    nodes[1 - rank].ends(ENDED)
    assert f"node {rank} (127.0.0.{rank + 1}): closed the connection" in nodes[1 - rank].text()
    pair.gone()
    until(lambda: not scratch(pair, rank).exists(), 5)
    assert not scratch(pair, 1 - rank).exists()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_keeper_leaves_nothing(pair: Replica, rank: int) -> None:
    nodes = pair.up()
    stat = Path(f"/proc/{pair.pid(rank, 'main')}/stat").read_text()
    os.kill(int(stat.rpartition(")")[2].split()[1]), signal.SIGKILL)
    for node in nodes:
        node.ends(ENDED)
        assert "the keeper of its processes is gone" in node.text()
    pair.gone(0.5)
    assert not scratch(pair, 0).exists() and not scratch(pair, 1).exists()


@pytest.mark.parametrize("rank", [0, 1])
def test_a_launcher_and_its_keeper_killed_at_once(pair: Replica, rank: int) -> None:
    """As `pkill -9 -f launch` does: the engine gets SIGTERM from the kernel."""
    nodes = pair.up()
    stat = Path(f"/proc/{pair.pid(rank, 'main')}/stat").read_text()
    for pid in (nodes[rank].process.pid, int(stat.rpartition(")")[2].split()[1])):
        os.kill(pid, signal.SIGKILL)
    nodes[1 - rank].ends(ENDED)
    until(lambda: (pair.folder / f"{rank}.stopped").exists(), 5)


def test_a_process_that_forks_and_ends_all_the_time_is_caught(place: Place, tmp_path: Path) -> None:
    with standin.replica(place, tmp_path, STANDIN_MODE="runs away") as pair:
        nodes = pair.up()
        nodes[0].send(signal.SIGTERM)
        for node in nodes:
            node.ends(0)
        mark = f"STANDIN={pair.folder}".encode()
        for _ in range(10):
            for path in Path("/proc").glob("[0-9]*/environ"):
                with contextlib.suppress(OSError):
                    assert mark not in path.read_bytes().split(b"\0")


@pytest.mark.parametrize("rank", [0, 1])
def test_a_stopped_launcher_is_missed_and_killed(pair: Replica, rank: int) -> None:
    """An orchestrator starts nothing anew before it has ended."""
    nodes = pair.up()
    nodes[rank].send(signal.SIGSTOP)
    nodes[1 - rank].ends(ENDED)
    assert f"node {rank} (127.0.0.{rank + 1}): silent for 5 s" in nodes[1 - rank].text()
    pair.gone()
    nodes[rank].ends(-signal.SIGKILL)


def test_a_stopped_process_of_an_engine_is_noticed(pair: Replica) -> None:
    nodes = pair.up()
    child = pair.pid(1, "daemon")
    os.kill(child, signal.SIGSTOP)
    for node in nodes:
        node.ends(ENDED)
        assert f"node 1 (127.0.0.2): process {child} (" in node.text()
        assert "is stopped, and hangs" in node.text()
    pair.gone(0.5)


def test_a_node_that_starts_anew_ends_the_replica_and_joins_the_next(pair: Replica) -> None:
    """Its old launcher is still there, as behind a link that was cut."""
    head, worker = pair.up()
    worker.send(signal.SIGSTOP)
    anew = pair.start(1)
    head.ends(ENDED)
    assert "node 1 (127.0.0.2): started anew" in head.text()
    anew.says("is running a replica that this node is not in any more")
    worker.send(signal.SIGKILL)
    pair.gone()
    for rank in range(2):
        for name in standin.NAMES:
            (pair.folder / f"{rank}.{name}").unlink()
    pair.running([pair.start(0), anew])


def test_an_engine_that_cannot_be_started_ends_every_node(place: Place, tmp_path: Path) -> None:
    with standin.replica(place, tmp_path, STANDIN_MODE="dies") as pair:
        for node in [pair.start(rank) for rank in range(2)]:
            node.ends(ENDED, 30)
            assert "vllm serve exited 3" in node.text()
        pair.gone(0.5)


def test_sockets_where_the_operator_wants_them(place: Place, tmp_path: Path) -> None:
    own = tmp_path / "own"
    own.mkdir()
    with standin.replica(place, tmp_path, VLLM_RPC_BASE_PATH=str(own)) as pair:
        head, worker = pair.up()
        assert scratch(pair, 0) == scratch(pair, 1) == own
        head.send(signal.SIGTERM)
        head.ends(0)
        worker.ends(0)
        assert (own / "socket").exists()


@pytest.mark.parametrize("cycles", [3, pytest.param(20, marks=[pytest.mark.e2e, pytest.mark.full])])
def test_starting_and_stopping_leaves_nothing(place: Place, tmp_path: Path, cycles: int) -> None:
    """No process, no socket and no file."""
    with (
        tempfile.TemporaryDirectory() as temporary,  # short, as a path of a socket has to be
        standin.replica(place, tmp_path, TMPDIR=temporary) as pair,
    ):
        for _ in range(cycles):
            head, worker = pair.up()
            head.send(signal.SIGTERM)
            head.ends(0)
            worker.ends(0)
            assert not [pid for pid in _pids() if standin.runs(pid, tmp_path)]
            assert not held(pair.port) and not held(pair.api)
            assert str(scratch(pair, 0).parent) == temporary and not os.listdir(temporary)
            for file in pair.folder.glob("?.*"):
                file.unlink()
        names = Path("/proc/net/unix").read_text()
        assert f"@vllm-fixes-launch/{pair.port}/" not in names


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def held(port: int) -> list[str]:
    """The sockets of a port that a process has: the kernel's own have no inode."""
    _, *lines = Path("/proc/net/tcp").read_text().splitlines()
    words = [line.split() for line in lines]
    return [word[1] for word in words if f":{port:04X}" in word[1] + word[2] and word[9] != "0"]


# Agreement


def refused(pair: Replica, *differing: str, **more: str) -> list[str]:
    """What both nodes say where the second one differs; no engine is started."""
    nodes = [pair.start(0), pair.start(1, *differing, **more)]
    for node in nodes:
        node.ends(STARTED, 30)
    assert not pair.engines()
    return [node.text() for node in nodes]


def test_other_fixes_are_refused(place: Place, tmp_path: Path) -> None:
    other = standin.environment(tmp_path / "other")
    assert other.run("revert", "end").returncode == 0
    (tmp_path / "replica").mkdir()
    with standin.replica(place, tmp_path / "replica") as pair:
        head = pair.start(0)
        pair.place = other
        worker = pair.start(1, "--fix", "begin")
        for node in (head, worker):
            node.ends(STARTED, 30)
            assert "nodes-differ: fixes: node 0 (127.0.0.1) has sha256:" in node.text()
            assert ", node 1 (127.0.0.2) has sha256:" in node.text()
        assert not pair.engines()


def test_another_model_is_refused(pair: Replica) -> None:
    other = pair.folder / "other/model"
    other.mkdir(parents=True)
    (other / "config.json").write_text('{"model_type": "other"}')
    (other / "model.safetensors").write_bytes(b"other weights")
    for said in refused(pair, "--model", str(other)):
        assert "nodes-differ: model config: node 0 (127.0.0.1) has sha256:" in said
        assert "nodes-differ: model weights: " in said and "different" not in said


def test_other_sizes_are_refused(pair: Replica) -> None:
    for said in refused(pair, "-tp", "2", "-pp", "1"):
        assert "tensor parallel: node 0 (127.0.0.1) has 1, node 1 (127.0.0.2) has 2" in said
        assert "pipeline parallel: node 0 (127.0.0.1) has 2, node 1 (127.0.0.2) has 1" in said


def test_other_options_of_the_engine_are_refused(pair: Replica) -> None:
    pair.behind[1] = ("--dtype", "float16", "--max-model-len=2048")
    for said in refused(pair, VLLM_PP_LAYER_PARTITION="20,10"):
        for name, value in (("--dtype", "float16"), ("--max-model-len", "2048")):
            both = f"option {name}: node 0 (127.0.0.1) has nothing, node 1 (127.0.0.2) has {value}"
            assert both in said
        assert "variable VLLM_PP_LAYER_PARTITION: " in said
        assert "give all nodes the same options and variables" in said


def test_options_of_the_server_may_differ(pair: Replica) -> None:
    pair.behind[0] = ("--api-key", "secret", "--uvicorn-log-level", "error")
    pair.up()


def test_two_nodes_of_one_address_are_refused(pair: Replica) -> None:
    pair.addresses[1] = pair.address(0)
    for said in refused(pair):
        assert "same-address: node 0 (127.0.0.1) and node 1 (127.0.0.1)" in said


def test_another_number_of_nodes_is_refused(pair: Replica) -> None:
    for said in refused(pair, "--nnodes", "4", "-pp", "4"):
        assert "nodes-differ: " in said


def test_a_node_of_a_rank_that_is_taken_waits_and_harms_nobody(three: Replica) -> None:
    head, first = three.start(0), three.start(1)
    head.says("node 1 (127.0.0.2) is here")
    three.addresses[1] = "127.0.0.9"
    double = three.start(1)
    head.says("node 1 (127.0.0.9) has to wait: this head has node 1 (127.0.0.2) already")
    double.says(
        "the head at 127.0.0.1, port " + str(three.port) + ": has node 1 (127.0.0.2) already"
    )
    three.running([head, first, three.start(2)])
    time.sleep(3)
    for node in three.nodes:
        assert node.process.poll() is None, node.text()
    first.send(signal.SIGKILL)
    head.ends(ENDED)
    assert "ending: node 1 (127.0.0.2): closed the connection" in head.text()


def test_a_head_of_another_address_is_refused(pair: Replica) -> None:
    """As behind a Service or a translation of addresses: torch would go there as well."""
    there = socket.create_server(("127.0.0.7", pair.port))
    threading.Thread(target=_forward, args=(there, "127.0.0.1"), daemon=True).start()
    nodes = [pair.start(0)]
    pair.addresses[0] = "127.0.0.7"
    nodes.append(pair.start(1))
    for node in nodes:
        node.ends(STARTED, 30)
        said = "head address: node 0 (127.0.0.1) has 127.0.0.1, node 1 (127.0.0.2) has 127.0.0.7"
        assert said in node.text()
    there.close()


def _forward(there: socket.socket, to: str) -> None:
    port = there.getsockname()[1]
    with contextlib.suppress(OSError):
        while True:
            one, _ = there.accept()
            other = socket.create_connection((to, port))
            for ends in ((one, other), (other, one)):
                threading.Thread(target=_copy, args=ends, daemon=True).start()


def _copy(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(65536):
            sink.sendall(piece)
    sink.close()


def test_what_is_waited_for_is_said(three: Replica) -> None:
    head, worker = three.start(0), three.start(2)
    head.says("waiting for node 1, 2")
    worker.says("the head at 127.0.0.1 is here; waiting for its word to start")


def test_a_refusal_reaches_a_node_that_comes_later(three: Replica) -> None:
    nodes = [three.start(0), three.start(1, "-tp", "3", "-pp", "1")]
    nodes[0].says("has 3; node 2 is to be told as well")
    nodes.append(three.start(2))
    for node in nodes:
        node.ends(STARTED, 30)
        assert "tensor parallel: node 0 (127.0.0.1) has 1, node 1" in node.text()
    assert not three.engines()


def test_a_wrong_token_is_refused_and_harms_nobody(pair: Replica) -> None:
    head = pair.start(0)
    stranger = pair.start(1, VLLM_FIXES_TOKEN="another token, of somebody else")
    stranger.ends(STARTED, 30)
    assert "wrong-token: the head at 127.0.0.1 does not take this node's token" in stranger.text()
    head.says("a connection from 127.0.0.1 is refused: it does not know the token")
    pair.running([head, pair.start(1)])


def test_tokens_of_bytes_and_without_end(pair: Replica) -> None:
    by_bytes = pair.folder / "token"
    by_bytes.write_bytes(b"\xff\xfe" * 16 + b"\n")
    nodes = [pair.start(0, "--token-file", str(by_bytes))]
    nodes.append(pair.start(1, VLLM_FIXES_TOKEN="\udcff\udcfe" * 16))
    pair.running(nodes)
    endless = pair.start(0, "--token-file", "/dev/zero")
    endless.ends(2)
    assert "a token has 16 to 4096 bytes" in endless.text()


def test_no_process_gets_the_token(pair: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """The verifying ones neither, which import vLLM."""
    monkeypatch.setenv("VLLM_FIXES_TOKEN", TOKEN)
    assert launch._token(None, dict(os.environ)) == TOKEN.encode()
    assert "VLLM_FIXES_TOKEN" not in os.environ


@pytest.mark.parametrize("token", ["", "short"])
def test_no_token_is_a_usage_error(pair: Replica, token: str) -> None:
    node = pair.start(0, VLLM_FIXES_TOKEN=token)
    node.ends(2)
    assert "token" in node.text() and "urandom" in node.text()


def test_a_token_from_a_file(pair: Replica) -> None:
    file = pair.folder / "token"
    file.write_text(f"{TOKEN}\n")
    by_file = pair.start(0, "--token-file", str(file), VLLM_FIXES_TOKEN="")
    pair.running([by_file, pair.start(1)])


def test_a_node_that_never_comes(pair: Replica) -> None:
    head = pair.start(0, "--meet-timeout", "3")
    head.ends(STARTED, 15)
    assert "not-met: node 1 did not come to 127.0.0.1 in time" in head.text()
    worker = pair.start(1, "--meet-timeout", "3")
    worker.ends(STARTED, 15)
    assert "did not take this node in time: connection refused" in worker.text()


def test_a_failed_start_may_be_slow(pair: Replica) -> None:
    """So that an orchestrator without a back-off does not restart in a storm."""
    head = pair.start(0, "--meet-timeout", "0.5", "--fail-slow", "3")
    head.says("not-met: ")
    time.sleep(1.5)
    assert head.process.poll() is None
    head.ends(STARTED)
    slow = pair.start(0, "--meet-timeout", "0.5", "--fail-slow", "60")
    slow.says("ending in 60 s")
    slow.send(signal.SIGTERM)
    slow.ends(143)


@pytest.mark.parametrize("number", SIGNALS)
@pytest.mark.parametrize("rank", [0, 1])
def test_a_signal_while_waiting(pair: Replica, rank: int, number: signal.Signals) -> None:
    node = pair.start(rank)
    node.says("waiting for the head" if rank else "digest")
    time.sleep(0.5)
    node.send(number)
    node.ends(128 + number)


def test_a_signal_while_the_name_of_the_head_is_waited_for(pair: Replica) -> None:
    pair.addresses[0] = "nobody.invalid"
    node = pair.start(1)
    node.says("nobody.invalid resolves to no address yet")
    node.send(signal.SIGTERM)
    node.ends(143)


def test_a_head_that_starts_anew_while_nodes_wait(three: Replica) -> None:
    head, worker = three.start(0), three.start(1)
    head.says("node 1 (127.0.0.2) is here")
    head.send(signal.SIGKILL)
    worker.says("waiting for the head at 127.0.0.1")
    three.running([worker, three.start(0), three.start(2)])


# Strangers


def test_strangers_do_no_harm(pair: Replica) -> None:
    """Garbage, too much, and silence, before and after the nodes have met."""
    head = pair.start(0)
    until(lambda: _reachable(pair.port), 30)
    held = [_stranger(pair.port, sends) for sends in (b"", b"\0" * 100_000, b"{}\n", b"GET / \r\n")]
    worker = pair.start(1)
    pair.running([head, worker])
    held += [_stranger(pair.port, sends) for sends in (b"[" * 60_000 + b"\n", b"x" * 1000 + b"\n")]
    held += [_stranger(pair.port, b"") for _ in range(40)]
    time.sleep(7)
    assert head.process.poll() is None and worker.process.poll() is None
    assert not pair.probe("live", 0).returncode
    assert "sent what is no message" in head.text() or "too long" in head.text()
    for one in held:
        one.close()


def test_a_crowd_of_strangers_does_not_keep_a_node_out(pair: Replica) -> None:
    """They take every place, say nothing, and come again as soon as they are sent away."""
    head = pair.start(0)
    until(lambda: _reachable(pair.port), 30)
    over = threading.Event()

    def come_again() -> None:
        while not over.wait(0.2):
            there = ("127.0.0.1", pair.port)
            with (
                contextlib.suppress(OSError),
                socket.create_connection(there, 5, ("127.0.0.66", 0)) as one,
            ):
                one.recv(4096)
                one.recv(4096)

    with ThreadPoolExecutor(100) as pool:
        for _ in range(100):
            pool.submit(come_again)
        try:
            time.sleep(2)
            pair.running([head, pair.start(1)])
        finally:
            over.set()
            for node in pair.nodes:
                node.process.kill()
    assert head.text().count("is refused: ") < 15


def _reachable(port: int) -> bool:
    try:
        _stranger(port, b"").close()
    except OSError:
        return False
    return True


def _stranger(port: int, sends: bytes) -> socket.socket:
    made = socket.create_connection(("127.0.0.1", port), 5)
    with contextlib.suppress(OSError):
        made.sendall(sends)
    return made


# Preflight


def unfit(pair: Replica, rank: int, kind: str, *options: str, **more: str) -> str:
    node = pair.start(rank, *options, **more)
    node.ends(STARTED, 20)
    assert f"{kind}: " in node.text(), node.text()
    assert not pair.engines()
    return node.text()


def test_ports_that_are_taken(pair: Replica) -> None:
    with socket.create_server(("127.0.0.1", pair.port)):
        assert f"port {pair.port} of 127.0.0.1 is taken" in unfit(pair, 0, "port-taken")
    with socket.create_server(("127.0.0.1", pair.api)):
        assert "--port behind --" in unfit(pair, 0, "port-taken")


def test_an_address_that_is_empty_or_wrong(pair: Replica) -> None:
    unfit(pair, 0, "no-interface", "--interface", "nothing0")
    unfit(pair, 0, "not-local", "--host-ip", "192.0.2.1")
    unfit(pair, 0, "not-local", "--host-ip", "0.0.0.0")
    assert "0.0.0.0 leads every node to itself" in unfit(pair, 1, "loopback", "--head-ip=0.0.0.0")
    assert "localhost resolves to 127.0.0.1" in unfit(pair, 0, "loopback", "--head-ip=localhost")
    unfit(pair, 1, "not-literal", "--host-ip", "localhost")
    said = unfit(pair, 0, "other-address", "--host-ip", "127.0.0.8")
    assert "to be at 127.0.0.1, which the others come to, and at 127.0.0.8" in said
    unfit(pair, 1, "loopback", "--head-ip", "192.0.2.1")
    said = unfit(pair, 1, "no-address", "--head-ip", "nobody.invalid", "--meet-timeout", "1")
    assert "resolves to no address" in said
    node = pair.start(1, "--head-ip", "")
    node.ends(2)


def test_a_model_that_is_not_there(pair: Replica) -> None:
    assert "/nowhere/model is not there" in unfit(pair, 1, "no-model", "--model", "/nowhere/model")
    offline = {"HF_HUB_OFFLINE": "1", "HF_HOME": str(pair.folder)}
    assert "HF_HUB_OFFLINE" in unfit(pair, 1, "no-model", "--model", "some/model", **offline)


def test_a_port_from_service_links(pair: Replica) -> None:
    said = unfit(pair, 0, "service-link", VLLM_PORT="tcp://10.0.0.1:8000")
    assert "enableServiceLinks: false" in said


def test_fixes_that_do_not_go_in(pair: Replica) -> None:
    for name in ("no-such-fix", "--dry-run", "--verify=bytes"):
        node = pair.start(0, f"--fix={name}")
        node.ends(2)
        assert f"unknown-fix: no fix or bundle {name}" in node.text()
    for option in ("--watch-port=-1", "--watch-port=70000", "--master-port=0"):
        node = pair.start(0, option)
        node.ends(2)
        assert "is no port" in node.text()
    node = pair.start(0, "--expect-digest", "0" * 64)
    node.ends(10)
    assert not pair.engines()


# Probes


def test_probes_of_a_running_replica(pair: Replica) -> None:
    assert "no such launcher here" in pair.probe("live", 1).stderr or not pair.nodes
    pair.up()
    until(lambda: pair.probe("ready", 0).returncode == 0, 20)
    assert (pair.folder / "0.asked").exists(), "no completion was asked for"
    assert pair.probe("ready", 1).stdout == "ready\n"
    assert pair.probe("live", 0).stdout == pair.probe("live", 1).stdout == "live\n"


def test_probes_while_nodes_wait(pair: Replica) -> None:
    node = pair.start(1)
    node.says("waiting for the head")
    assert pair.probe("live", 1).returncode == 0
    assert pair.probe("ready", 1).returncode == 1


def test_a_replica_that_makes_no_tokens_is_not_ready(pair: Replica) -> None:
    pair.up()
    until(lambda: pair.probe("ready", 0).returncode == 0, 20)
    (pair.folder / "hang").touch()
    start = time.monotonic()
    done = pair.probe("ready", 0)
    assert done.returncode == 1 and "no completion of one token" in done.stderr
    assert time.monotonic() - start < 5.5
    assert pair.probe("live", 0).returncode == 0


SQUATTER = """
import contextlib, os, socket, sys
os.setuid(65534)
made = socket.socket(socket.AF_UNIX)
made.bind("\\0vllm-fixes-launch/" + sys.argv[1])
made.listen()
print("listening", flush=True)
while True:
    asking, _ = made.accept()
    with asking, contextlib.suppress(OSError):
        asking.sendall(b'{"why": ""}\\n')
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_cannot_answer_for_a_launcher(pair: Replica) -> None:
    """On the host's network everybody can make such sockets."""
    command = [sys.executable, "-c", SQUATTER, f"{pair.port}/0/0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as squatter:
        assert squatter.stdout and squatter.stdout.readline()
        try:
            assert "no such launcher here, of this user" in pair.probe("live", 0).stderr
            pair.up()
            assert pair.probe("live", 0).stdout == "live\n"
            os.kill(pair.pid(0, "main"), signal.SIGKILL)
            pair.nodes[0].ends(ENDED)
            assert pair.probe("live", 0).returncode == 1
        finally:
            squatter.kill()


def test_a_launcher_of_the_own_container_goes_first(pair: Replica) -> None:
    """Pods on the host's network, all of root: each has processes of its own."""
    unshare = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    if subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("no PID namespaces here")
    command = [sys.executable, "-c", SQUATTER.replace("os.setuid(65534)", ""), f"{pair.port}/0/0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout and other.stdout.readline()
        try:
            pair.before[0] = unshare
            head = pair.start(0)
            head.says("waiting for node 1")
            children = Path(f"/proc/{head.process.pid}/task/{head.process.pid}/children")
            launcher = children.read_text().split()[0]
            pair.before[0] = ("nsenter", "-t", launcher, "-p", "-m")
            assert pair.probe("live", 0).stdout == "live\n"
            assert "waits for the others" in pair.probe("ready", 0).stderr
            del pair.before[0]
            assert "several launchers here" in pair.probe("live", 0).stderr
        finally:
            other.kill()


def test_the_first_process_of_a_container(pair: Replica) -> None:
    """It has signals only where it asks for them, and everybody's orphans."""
    unshare = ("unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
    if subprocess.run([*unshare, "true"], capture_output=True).returncode:
        pytest.skip("no PID namespaces here")
    pair.before[0] = unshare
    head = pair.start(0)
    head.says("waiting for node 1")
    children = Path(f"/proc/{head.process.pid}/task/{head.process.pid}/children")
    launcher = int(children.read_text())
    inside = ("nsenter", "-t", str(launcher), "-p", "-m")
    orphan = "import os, time; os.fork() or time.sleep(0.3)"
    subprocess.run([*inside, sys.executable, "-c", orphan], check=True)
    adopted = Path(f"/proc/{launcher}/task/{launcher}/children")
    until(lambda: len(adopted.read_text().split()) == 1, 5)  # the keeper
    pair.running([head, pair.start(1)])
    os.kill(launcher, signal.SIGTERM)
    for node in pair.nodes:
        node.ends(0)


def test_many_probes_at_once(pair: Replica) -> None:
    """And some that connect and ask nothing."""
    pair.up()
    until(lambda: pair.probe("ready", 0).returncode == 0, 20)
    with contextlib.ExitStack() as stack:
        for name in health._launchers():
            if f"/{pair.port}/0/" in name:
                for _ in range(20):
                    silent = stack.enter_context(socket.socket(socket.AF_UNIX))
                    silent.connect(f"\0{name}")
        with ThreadPoolExecutor(100) as pool:
            asked = [pool.submit(health.ask, "ready", 0, pair.port, 4.5) for _ in range(100)]
        assert {one.result() for one in asked} == {""}


def test_one_node_needs_no_token(place: Place, tmp_path: Path) -> None:
    with standin.replica(place, tmp_path, 1) as one:
        node = one.start(0, VLLM_FIXES_TOKEN="")
        one.running([node])
        assert "--nnodes" not in one.given(0)["arguments"]  # type: ignore[operator]
        until(lambda: one.probe("ready", 0).returncode == 0, 20)
        node.send(signal.SIGTERM)
        node.ends(0)
        one.gone(0.5)


@pytest.mark.parametrize("rank", [0, 1])
def test_the_dry_run_is_what_is_run(pair: Replica, rank: int) -> None:
    options = ("--interface", "lo", "-tp", "2")
    shown = pair.start(rank, *options, "--dry-run", "--json")
    shown.ends(0)
    assert not pair.engines()
    node = json.loads(shown.text())["nodes"][rank]
    pair.running([pair.start(number, *options) for number in range(2)])
    given = pair.given(rank)
    assert node["commands"][0][1:] == given["arguments"]
    assert node["commands"][0][0] == str(pair.place.site.parents[2] / "bin/vllm")
    assert node["environment"].items() <= given["environment"].items()  # type: ignore[attr-defined]
    added = set(given["environment"]) - set(environ())  # type: ignore[call-overload]
    assert added <= {*node["environment"], "STANDIN", "LC_CTYPE", "VLLM_RPC_BASE_PATH"}


def test_the_dry_run_is_one_document(place: Place) -> None:
    done = place.run(
        "launch", "--head", "--head-ip", "10.0.0.1", "--dry-run", "--json", "--model=m"
    )
    document = json.loads(done.stdout)
    assert [node["role"] for node in document["nodes"]] == ["head", "worker"]
