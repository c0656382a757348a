"""Replicas by `vllm-fixes launch` on the hosts of the lab."""

from __future__ import annotations

import contextlib
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from . import lab, models
from .conftest import CHECKOUT
from .lab import HOSTS, LEADER, THIRD, WORKER, Host, Hosts
from .server import Server

PROGRAM = str(CHECKOUT / "apply_all.py")
TOKEN = {"VLLM_FIXES_TOKEN": "the token of a test's replica"}
STARTED, ENDED = 11, 12
TOGETHER = 10  # seconds within which all nodes end once one has
STOPPED = 30  # the same for a stop, which lets requests end
WATCH_PORT = 29590
Nodes = Sequence[Server]


def node(
    host: Host,
    environment: Path,
    logs: Path,
    *options: str,
    model: str = models.LLAMA,
    behind: tuple[str, ...] = (),
    variables: dict[str, str] | None = None,
) -> Server:
    """One node by `launch`; the model and the engine's options come behind what is given."""
    rank = (*HOSTS, THIRD).index(host)
    entry = (PROGRAM, "launch", "--rank", str(rank), "--nnodes", "2", "--head-ip", LEADER.address)
    entry = (*entry, "--interface", lab.INTERFACE, *options, "--")
    folder = logs / f"{host.name}-{len(list(logs.iterdir()))}"
    folder.mkdir()  # what `Server` puts beside the log is of one release
    log = folder / "launch.log"
    return Server(host, environment, behind, log, entry, TOKEN | (variables or {}), model)


@contextlib.contextmanager
def started(environment: Path, logs: Path, *options: str, **more: Any) -> Iterator[Nodes]:
    """Two nodes that serve, on hosts that are there."""
    with (
        node(LEADER, environment, logs, *options, **more) as leader,
        node(WORKER, environment, logs, *options, **more) as worker,
    ):
        serving(leader, worker)
        yield leader, worker


def serving(leader: Server, *workers: Server) -> float:
    """Wait until the head serves; the seconds it took."""
    with contextlib.ExitStack() as stack:
        for worker in workers:
            stack.enter_context(worker.explained())
        return leader.boot(*workers)


def probe(server: Server, verb: str) -> int:
    """What an exec probe on a node ends with."""
    command = [str(server.environment / "bin/python"), PROGRAM, verb]
    start = time.monotonic()
    done = subprocess.run(["ip", "netns", "exec", server.host.name, *command], timeout=30)
    assert time.monotonic() - start < 6
    return done.returncode


def end_together(nodes: Nodes, codes: Sequence[int], limit: float = TOGETHER) -> float:
    """Wait until all launchers have ended, with nothing left running; the seconds it took."""
    start = time.monotonic()
    for server in nodes:
        server.ends(limit - (time.monotonic() - start))
    seconds = time.monotonic() - start
    said = "".join(server.text()[-3000:] for server in nodes)
    assert [server.process.wait() for server in nodes] == list(codes), said
    return seconds


def causes(nodes: Nodes) -> list[str]:
    """The first cause that each node logged."""
    return [re.findall(r"vllm-fixes node \d: ending: (.*)", server.text())[-1] for server in nodes]


def process(server: Server, name: str) -> int:
    """One process of a node: the launcher, its keeper, `vllm serve`, or one by its title."""
    launcher = server.process.pid
    (keeper,) = _children(launcher)
    if name == "launcher":
        return launcher
    if name == "keeper":
        return keeper
    (serve,) = _children(keeper)
    if name == "serve":
        return serve
    titles = {pid: _title(pid) for pid in server.host.processes()}
    found = [pid for pid, told in titles.items() if told.startswith(f"VLLM::{name}")]
    assert found, titles
    return found[0]


def clean(hosts: Hosts = HOSTS) -> None:
    """Nothing is left on any host: no process, no file, no socket."""
    left = {host.name: left for host in hosts if (left := host.left())}
    assert not left, left


def _children(parent: int) -> list[int]:
    return [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]


def _title(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")
