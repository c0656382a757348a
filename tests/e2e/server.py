"""One vLLM server on a host of the lab: its command line, its life and its answers."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cache

from .lab import INTERFACE, LEADER, WORKER, Host, until

PORT = 8000
BOOT = 240  # seconds; seen: 25 to 60 on two cores
EXTRAS = Path(__file__).with_name("extras")
MODULE = ("-m", "vllm.entrypoints.openai.api_server", "--model")
SERVE = ("-m", "vllm.entrypoints.cli.main", "serve")
COMMON = (
    *("--served-model-name", "small", "--port", str(PORT), "--dtype", "float32"),
    *("--enforce-eager", "--max-model-len", "4096", "--max-num-batched-tokens", "512"),
)
STAGES = (
    *("--pipeline-parallel-size", "2", "--no-async-scheduling"),
    *("--distributed-executor-backend", "mp"),
)


@dataclass(frozen=True)
class Reply:
    """The status and body of an HTTP answer; status 0 where the connection ended."""

    status: int
    body: Any


@dataclass
class Server:
    """The processes of one command on a host, and the file that holds what they log."""

    host: Host
    environment: Path
    arguments: tuple[str, ...]
    log: Path
    entry: tuple[str, ...] = MODULE
    variables: dict[str, str] = field(default_factory=dict)

    def __enter__(self) -> Server:
        command = [
            self.environment / "bin/python",
            *self.entry,
            str(cache.model()),
            *COMMON,
            *self.arguments,
        ]
        variables = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.log.parent),
            "GLOO_SOCKET_IFNAME": INTERFACE,
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONPATH": str(EXTRAS),
            "VLLM_CACHE_ROOT": str(cache.root() / "engine"),
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_HOST_IP": self.host.address,
            "VLLM_NO_USAGE_STATS": "1",
        }
        with self.log.open("wb") as stream:
            self.process = self.host.start(command, variables | self.variables, stream)
        self.threads = self.host.threads(16)
        return self

    def __exit__(self, *exception: object) -> None:
        self.host.clear()
        self.process.wait()
        self.threads.shutdown()

    def healthy(self) -> bool:
        """Whether the server says that it is."""
        return self.threads.submit(self._http, "/health", None, 5).result().status == 200

    def boot(self, *others: Server) -> float:
        """Wait until the server is healthy; the seconds it took.

        Raises AssertionError as soon as it or another server that it waits for has ended.
        """

        def ended() -> list[str]:
            servers = (self, *others)
            return [one.host.name for one in servers if one.process.poll() is not None]

        with self.explained():
            seconds = until(lambda: ended() or self.healthy(), BOOT)
            assert not ended(), f"{ended()} ended while booting"
        return seconds

    def complete(self, prompt: str, tokens: int, timeout: float = 120) -> Future[Reply]:
        """Ask for a greedy completion of exactly so many tokens, with log probabilities."""
        question = {
            "model": "small",
            "prompt": prompt,
            "max_tokens": tokens,
            "ignore_eos": True,
            "temperature": 0,
            "logprobs": 1,
            "return_token_ids": True,
        }
        return self.threads.submit(self._http, "/v1/completions", question, timeout)

    def kill(self) -> None:
        """End the whole process group, as when the node's container is killed."""
        os.killpg(self.process.pid, signal.SIGKILL)

    def ended(self) -> bool:
        """Whether nothing of it is left."""
        return self.process.poll() is not None and not self.host.processes()

    def ends(self, limit: float) -> float:
        """Wait until nothing of it is left; the seconds it took."""
        with self.explained():
            return until(self.ended, limit)

    def text(self) -> str:
        """What was logged so far."""
        return self.log.read_text("utf-8", "replace")

    @contextlib.contextmanager
    def explained(self) -> Iterator[None]:
        """Add the end of the log to a failure."""
        try:
            yield
        except (AssertionError, TimeoutError) as error:
            tail = "\n".join(self.text().splitlines()[-60:])
            raise AssertionError(f"{error}\n{self.host.name} logged:\n{tail}") from error

    def _http(self, path: str, question: object, timeout: float) -> Reply:
        data = None if question is None else json.dumps(question).encode()
        address = f"http://{self.host.address}:{PORT}{path}"
        request = urllib.request.Request(address, data, {"Content-Type": "application/json"})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        try:
            with opener.open(request, timeout=timeout) as answer:
                return Reply(answer.status, answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return Reply(error.code, error.read())
        except (OSError, http.client.HTTPException) as error:
            return Reply(0, repr(error))


@dataclass(frozen=True)
class Replica:
    """A replica over two nodes: the leader serves, the worker is headless."""

    leader: Server
    worker: Server


@contextlib.contextmanager
def replica(
    environment: Path,
    logs: Path,
    headless: tuple[str, ...] = SERVE,
    variables: dict[str, str] | None = None,
) -> Iterator[Replica]:
    """A replica that is up; `headless` is the entry point of the second node."""
    shared = (*STAGES, "--nnodes", "2", "--master-addr", LEADER.address)

    def node(host: Host, entry: tuple[str, ...], *arguments: str) -> Server:
        log = logs / f"{host.name}.log"
        return Server(host, environment, (*shared, *arguments), log, entry, variables or {})

    with (
        node(LEADER, MODULE, "--node-rank", "0") as leader,
        node(WORKER, headless, "--node-rank", "1", "--headless") as worker,
    ):
        with worker.explained():
            leader.boot(worker)
        yield Replica(leader, worker)
