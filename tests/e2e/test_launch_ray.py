"""Two nodes by `launch --engine ray`: a Ray cluster of their own, vLLM's Ray executor on it.

The executor reserves one of Ray's devices for each worker, and refuses a platform that has no
name for them, as the CPU's has none. One line gives it one; all else is as on cards.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import cache
import pytest

from . import lab
from .answers import summary, unlike
from .cases import ONE
from .conftest import Record, Reference, apply
from .launched import ENDED, STOPPED, TOGETHER, Nodes, causes, end_together, probe, started
from .scenarios import SMOKE
from .server import Server

pytestmark = [pytest.mark.e2e, pytest.mark.full]
RAY = "ray==2.60.0"
DEVICE = '\nCpuPlatform.ray_device_key = "GPU"\n'
# One for each node, so that the two stages cannot be on one.
VARIABLES = {"RAY_OVERRIDE_RESOURCES": '{"GPU": 1}', "RAY_TMPDIR": "/dev/shm"}
# In the place of `vllm`: it reserves a device on each node, and answers when both do.
DRIVER = """\
#!{python}
import http.server, json, sys
import ray

ray.init(log_to_driver=False)

@ray.remote(num_cpus=0, num_gpus=1)
class Stage:
    def where(self):
        return ray.util.get_node_ip_address()

stages = [Stage.remote() for _ in range(2)]

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        where = ray.get([stage.where.remote() for stage in stages])
        body = json.dumps({{"data": [{{"id": "small"}}], "choices": where}}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_GET

    def log_message(self, *given):
        pass

http.server.ThreadingHTTPServer(("", 8000), Handler).serve_forever()
"""


@pytest.fixture(scope="module")
def rayed(release: str) -> Iterator[Path]:
    environment = cache.copy(cache.venv(release, RAY))
    try:
        with (cache.site_packages(environment) / "vllm/platforms/cpu.py").open("a") as module:
            module.write(DEVICE)
        apply(environment, release, "pipeline-parallel")
        yield environment
    finally:
        shutil.rmtree(environment)


@pytest.fixture(scope="module")
def scripted(rayed: Path) -> Iterator[Path]:
    """The same with the scripted driver in the place of `vllm`."""
    environment = cache.copy(rayed)
    try:
        script = environment / "bin/vllm"
        script.unlink(missing_ok=True)
        script.write_text(DRIVER.format(python=environment / "bin/python"))
        script.chmod(0o755)
        yield environment
    finally:
        shutil.rmtree(environment)


def pair(environment: Path, logs: Path) -> contextlib.AbstractContextManager[Nodes]:
    return started(environment, logs, "--engine", "ray", variables=VARIABLES)


def process(server: Server, words: str) -> int:
    """A process of a node by a part of its command line."""
    titles = {pid: title(pid) for pid in server.host.processes()}
    found = [pid for pid, title in titles.items() if words in title]
    assert found, titles
    return found[0]


def title(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace")


def test_answers_are_those_of_one_stage_and_a_clean_stop_ends_with_0(
    rayed: Path, logs: Path, reference: Reference, record: Record
) -> None:
    with lab.lab(), pair(rayed, logs) as nodes:
        for server in nodes:
            assert probe(server, "live") == probe(server, "ready") == 0, server.text()[-3000:]
            process(server, "ray::RayWorkerProc")
        differing = unlike(nodes[0], SMOKE, reference(ONE))
        assert not differing, summary(differing)
        os.kill(nodes[0].process.pid, signal.SIGTERM)
        record("launch, Ray, clean stop: both ended", end_together(nodes, [0, 0], STOPPED))


def test_a_lost_stage_ends_both_nodes(rayed: Path, logs: Path, record: Record) -> None:
    """Ray keeps its nodes; vLLM's executor sees that the worker is gone, and ends."""
    with lab.lab(), pair(rayed, logs) as nodes:
        os.kill(process(nodes[1], "ray::RayWorkerProc"), signal.SIGKILL)
        seconds = end_together(nodes, [ENDED, ENDED], TOGETHER)
        record("launch, Ray, RayWorkerProc of the worker killed: both ended", seconds)
        assert all("node 0 (10.77.0.1): vllm serve exited" in cause for cause in causes(nodes))


KILLED = [
    (1, "raylet/raylet", "ray start exited 1"),
    (1, "ray.scripts.scripts start", "ray start exited 137 (SIGKILL)"),
    (0, "gcs/gcs_server", "ray start exited 1"),
    (0, "bin/vllm serve", "vllm serve exited 137 (SIGKILL)"),
]


@pytest.mark.parametrize(("rank", "words", "said"), KILLED)
def test_a_killed_process_ends_both_nodes(
    scripted: Path, logs: Path, record: Record, rank: int, words: str, said: str
) -> None:
    with lab.lab(), pair(scripted, logs) as nodes:
        assert probe(nodes[0], "ready") == probe(nodes[1], "ready") == 0
        os.kill(process(nodes[rank], words), signal.SIGKILL)
        seconds = end_together(nodes, [ENDED, ENDED], TOGETHER)
        record(f"launch, Ray, {words} of node {rank} killed: both ended", seconds)
        cause = f"node {rank} ({nodes[rank].host.address}): {said}"
        assert causes(nodes) == [cause, cause]
