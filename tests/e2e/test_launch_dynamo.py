"""Two nodes by `launch --engine dynamo`: Dynamo's frontend and engines, with a real etcd.

The engine is of the release that this Dynamo is made for, built for a CPU.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import cache
import pytest

from . import lab, results
from .conftest import apply
from .lab import HOSTS, THIRD, until
from .launched import ENDED, STOPPED, TOGETHER, Nodes, causes, end_together, node, probe
from .scenarios import PROMPTS, Question
from .server import BOOT, Server

RELEASE = "0.31.0"
DYNAMO = ("ai-dynamo==1.6.1", "uvloop", "blake3")
pytestmark = [
    pytest.mark.e2e,
    pytest.mark.full,
    pytest.mark.skipif(not shutil.which("etcd"), reason="not installed: etcd-server"),
]
# What transformers and Dynamo import for models that see; torchvision's wheel needs a CUDA torch.
NO_VISION = """\
import importlib.abc, importlib.machinery, sys, types

class Named(type):
    def __getattr__(cls, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return f"{cls.__name__}.{name}"

class Module(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Named(name, (), {})

class Finder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name, path, target=None):
        if name.startswith("torchvision."):
            return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec):
        return Module(spec.name)

    def exec_module(self, module):
        pass

sys.meta_path.insert(0, Finder())
"""


def no_vision(packages: Path) -> None:
    """Put a torchvision in that can be imported."""
    for name, text in (
        ("torchvision/__init__.py", NO_VISION),
        ("torchvision-0.28.0.dist-info/METADATA", "Name: torchvision\nVersion: 0.28.0\n"),
    ):
        (packages / name).parent.mkdir()
        (packages / name).write_text(text)


@pytest.fixture(scope="module")
def dynamo(alone: None) -> Iterator[Path]:
    environment = cache.copy(cache.venv(RELEASE, *DYNAMO))
    try:
        no_vision(cache.site_packages(environment))
        apply(environment, RELEASE, "pipeline-parallel")
        yield environment
    finally:
        shutil.rmtree(environment)


@pytest.fixture
def pair(dynamo: Path, logs: Path) -> Iterator[Nodes]:
    """A replica that serves. etcd is on a host of its own, as what is shared is."""
    point = f"http://{THIRD.address}:2379"
    etcd = ["etcd", "--data-dir", "/dev/shm/etcd", "--listen-client-urls", point]
    etcd += ["--advertise-client-urls", point]
    variables = {"ETCD_ENDPOINTS": point}
    with lab.lab((*HOSTS, THIRD)), (logs / "etcd.log").open("wb") as log:
        service = THIRD.start(etcd, {"PATH": os.environ["PATH"]}, log)
        leader, worker = (
            node(host, dynamo, logs, "--engine", "dynamo", variables=variables) for host in HOSTS
        )
        time.sleep(2)  # etcd: `launch` does not wait for it
        with leader, worker:
            both = (leader, worker)
            with leader.explained(), worker.explained():
                until(lambda: _ended(both) or probe(leader, "ready") == 0, BOOT)
                assert not _ended(both)
            yield both
        service.kill()
        service.wait()


def _ended(nodes: Nodes) -> list[str]:
    return [server.host.name for server in nodes if server.process.poll() is not None]


def process(server: Server, words: str) -> int:
    """A process of a node by a part of its command line."""
    titles = {
        pid: Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        for pid in server.host.processes()
    }
    found = [pid for pid, title in titles.items() if words in title and "launch" not in title]
    assert found, titles
    return found[0]


def test_a_replica_answers_and_a_clean_stop_ends_with_0(pair: Nodes) -> None:
    leader, worker = pair
    assert probe(worker, "live") == probe(worker, "ready") == 0
    plain = {"prompt": PROMPTS[0], "max_tokens": 8, "temperature": 0}  # it knows no token ids
    reply = leader.ask(Question("plain", plain)).result()
    assert reply.status == 200, reply
    told = json.loads(reply.body)
    assert told["model"] == "small" and told["choices"][0]["text"].strip(), told
    os.kill(leader.process.pid, signal.SIGTERM)
    seconds = end_together(pair, [0, 0], STOPPED)
    results.keep(RELEASE, "seconds", "launch, Dynamo, clean stop: both ended", round(seconds, 1))


@pytest.mark.parametrize(
    ("rank", "words", "said"),
    [
        (0, "-m dynamo.frontend", "dynamo.frontend exited 137 (SIGKILL)"),
        (1, "-m dynamo.vllm", "dynamo.vllm exited 137 (SIGKILL)"),
        (1, "VLLM::Worker", ""),  # its parent ends, or is too slow: then it is missed itself
    ],
)
def test_any_killed_process_ends_both_nodes(pair: Nodes, rank: int, words: str, said: str) -> None:
    os.kill(process(pair[rank], words), signal.SIGKILL)
    seconds = end_together(pair, [ENDED, ENDED], TOGETHER)
    what = f"launch, Dynamo, {words} of node {rank} killed: both ended"
    results.keep(RELEASE, "seconds", what, round(seconds, 1))
    assert all(f"node {rank} ({pair[rank].host.address}): {said}" in one for one in causes(pair))
