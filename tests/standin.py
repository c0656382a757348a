"""Launchers of a replica on this machine, with a scripted engine in the place of vLLM.

The nodes are loopback addresses, so that no test needs more than a plain user. The engine is
a script called `vllm` in the environment of the small release: it serves HTTP on the head,
has a child and a daemon in a session of its own, and does what a test tells it to do.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import places
from places import Place
from release import LAUNCHER, environ

TOKEN = "a token that all nodes know"
ENGINE = """\
#!{python}
import http.server, json, os, signal, sys, threading, time

def option(name, otherwise):
    words = sys.argv
    return words[words.index(name) + 1] if name in words else otherwise

folder, rank = os.environ["STANDIN"], option("--node-rank", "0")
mode = os.environ.get("STANDIN_MODE", "")

def note(name):
    with open(f"{{folder}}/{{rank}}.{{name}}.new", "w") as stream:
        stream.write(str(os.getpid()))
    os.rename(f"{{folder}}/{{rank}}.{{name}}.new", f"{{folder}}/{{rank}}.{{name}}")

def child(name, daemon):
    if os.fork():
        return
    if daemon:
        os.setsid()
        if os.fork():
            os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if name == "child":
        with open("/proc/self/comm", "w") as stream:
            stream.write("VLLM::Worker")
        if not os.fork():
            time.sleep(3)
            os._exit(0)
    note(name)
    time.sleep(600)
    os._exit(0)

def run_away():
    if os.fork():
        return
    os.setsid()
    ends = time.monotonic() + 60
    while time.monotonic() < ends and not os.fork():
        pass
    os._exit(0)

def stop(number, frame):
    if mode == "stubborn":
        return
    time.sleep(float(os.environ.get("STANDIN_STOP", "0")))
    note("stopped")
    os._exit(0)

class Handler(http.server.BaseHTTPRequestHandler):
    def log_message(self, *given):
        pass

    def answer(self, status, body):
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def do_GET(self):
        self.answer(200, {{"data": [{{"id": "small"}}]}})

    def do_POST(self):
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        assert asked["max_tokens"] == 1 and asked["model"] == "small"
        note("asked")
        hang = os.path.exists(f"{{folder}}/hang")
        if hang:
            time.sleep(30)
        self.answer(200, {{"choices": [{{"text": "b"}}]}})

signal.signal(signal.SIGTERM, stop)
open(os.path.join(os.environ.get("VLLM_RPC_BASE_PATH", folder), "socket"), "w").close()
if mode == "memory":
    from multiprocessing.shared_memory import SharedMemory
    memory = SharedMemory(create=True, size=4096)
    with open(f"{{folder}}/{{rank}}.memory", "w") as stream:
        stream.write(memory.name)
child("child", False)
child("daemon", True)
if mode == "runs away":
    run_away()
with open(f"{{folder}}/{{rank}}.json", "w") as stream:
    json.dump({{"arguments": sys.argv[1:], "environment": dict(os.environ)}}, stream)
note("main")
if mode == "dies":
    sys.exit(3)
if rank == "0":
    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(option("--port", "0"))), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
while True:
    if os.path.exists(f"{{folder}}/{{rank}}.exit"):
        os._exit(int(open(f"{{folder}}/{{rank}}.exit").read()))
    time.sleep(0.05)
"""
NAMES = ("main", "child", "daemon")


def until(condition: Callable[[], object], limit: float) -> float:
    """Wait for a condition; the seconds it took, or TimeoutError after the limit."""
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > limit:
            raise TimeoutError(f"not within {limit:.0f} s")
        time.sleep(0.02)
    return time.monotonic() - start


def runs(pid: int, folder: Path) -> bool:
    """Whether a process of an engine runs. Its number alone may be another one's by now."""
    try:
        mark = f"STANDIN={folder}".encode()
        return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Node:
    """One launcher and what it said."""

    process: subprocess.Popen[bytes]
    log: Path
    rank: int

    def text(self) -> str:
        return self.log.read_text("utf-8", "replace")

    def says(self, text: str, limit: float = 30) -> None:
        """Wait until it has said something."""
        try:
            until(lambda: text in self.text() or self.process.poll() is not None, limit)
        finally:
            assert text in self.text(), self.text()

    def ends(self, code: int, limit: float = 10) -> float:
        """Wait until it ends, with this code; the seconds it took."""
        start = time.monotonic()
        try:
            found = self.process.wait(limit)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still there after {limit:.0f} s\n{self.text()}") from None
        assert found == code, f"{found}\n{self.text()}"
        assert "Traceback" not in self.text(), self.text()
        return time.monotonic() - start

    def send(self, number: int) -> None:
        os.kill(self.process.pid, number)


@dataclass
class Replica:
    """A folder for one replica, on ports that are free."""

    place: Place
    folder: Path
    nnodes: int = 2
    environment: dict[str, str] = field(default_factory=dict)
    before: dict[int, Sequence[str]] = field(default_factory=dict)
    addresses: dict[int, str] = field(default_factory=dict)
    behind: dict[int, Sequence[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.port, self.api, self.master = free_port(), free_port(), free_port()
        self.nodes: list[Node] = []
        self.model = self.folder / "model"
        self.model.mkdir(parents=True)
        (self.model / "config.json").write_text('{"model_type": "none"}')
        (self.model / "model.safetensors").write_bytes(b"weights")

    def address(self, rank: int) -> str:
        return self.addresses.get(rank, f"127.0.0.{rank + 1}")

    def start(self, rank: int, *options: str, **more: str) -> Node:
        """Start a node's launcher."""
        log = self.folder / f"node{rank}.{len(self.nodes)}.log"
        command: list[str | Path] = [*self.before.get(rank, ()), self.place.python or "", LAUNCHER]
        command += ["launch", "--rank", str(rank), "--nnodes", str(self.nnodes)]
        command += ["--head-ip", self.address(0), "--host-ip", self.address(rank)]
        command += ["--watch-port", str(self.port), "--master-port", str(self.master)]
        command += ["--profiles", self.place.release.root, "--model", str(self.model), *options]
        command += ["--", "--port", str(self.api), "--host", "127.0.0.1"]
        command += self.behind.get(rank, ())
        variables = {"STANDIN": str(self.folder), "VLLM_FIXES_TOKEN": TOKEN}
        with log.open("wb") as stream:
            process = subprocess.Popen(
                command,
                cwd="/",
                env=environ(**{**variables, **self.environment, **more}),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        made = Node(process, log, rank)
        self.nodes.append(made)
        return made

    def up(self) -> list[Node]:
        """Start all nodes, and wait until their engines run."""
        nodes = [self.start(rank) for rank in range(self.nnodes)]
        self.running(nodes)
        return nodes

    def running(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            with contextlib.suppress(TimeoutError):
                until(lambda node=node: self.pids(node.rank) or node.process.poll() is not None, 30)
            assert self.pids(node.rank), node.text()
            node.says("started (process")

    def pid(self, rank: int, name: str) -> int:
        return int((self.folder / f"{rank}.{name}").read_text())

    def pids(self, rank: int) -> list[int]:
        """The processes of a node's engine; none before all of them are there."""
        if not all((self.folder / f"{rank}.{name}").exists() for name in NAMES):
            return []
        return [self.pid(rank, name) for name in NAMES]

    def given(self, rank: int) -> dict[str, object]:
        """What the engine was started with."""
        found: dict[str, object] = json.loads((self.folder / f"{rank}.json").read_text())
        return found

    def left(self) -> list[int]:
        """Every process of every engine that still runs."""
        return [
            pid for rank in range(self.nnodes) for pid in self.pids(rank) if runs(pid, self.folder)
        ]

    def gone(self, limit: float = 10) -> None:
        """Wait until no process of any engine is left."""
        until(lambda: not self.left(), limit)

    def engines(self) -> int:
        """How many engines were ever started."""
        return len(list(self.folder.glob("*.json")))

    def probe(self, verb: str, rank: int) -> subprocess.CompletedProcess[str]:
        """What an exec probe does."""
        where = ["--rank", str(rank), "--watch-port", str(self.port)]
        command = [*self.before.get(rank, ()), sys.executable, str(LAUNCHER), verb, *where]
        return subprocess.run(command, capture_output=True, text=True, env=environ(), timeout=30)

    def clear(self) -> None:
        """End whatever is left after a test."""
        for node in self.nodes:
            if node.process.poll() is None:
                node.send(signal.SIGCONT)
                node.process.kill()
                node.process.wait()
        for pid in self.left():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def script(place: Place) -> Place:
    """The release's environment with the scripted engine."""
    program = place.site.parents[2] / "bin/vllm"
    program.write_text(ENGINE.format(python=place.python))
    program.chmod(0o755)
    return place


def engine(place: Place) -> Place:
    """The same, and its fixes in."""
    script(place).ok("pipeline-parallel")
    return place


def environment(folder: Path) -> Place:
    return engine(places.environment(folder))


@contextlib.contextmanager
def replica(place: Place, folder: Path, nnodes: int = 2, **environment: str) -> Iterator[Replica]:
    """A replica of which nothing is left afterwards."""
    made = Replica(place, folder, nnodes, environment)
    try:
        yield made
    finally:
        made.clear()
