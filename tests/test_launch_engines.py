"""`launch` with Ray and with Dynamo: what is started, what has to answer, and how it ends.

Ray and Dynamo are scripts that note what they were given and when they were stopped, and the
services are servers that say as much of NATS and etcd as they are asked for.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import threading
from collections.abc import Iterator, Mapping
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
import standin
from places import Place
from standin import Replica, until

from fixes.launch import plan, services
from fixes.launch.plan import Settings

PARTS = {"ray": "ray/scripts/scripts", "engine": "dynamo/vllm/__main__"}
PARTS["frontend"] = "dynamo/frontend/__main__"
PART = """\
import json, os, signal, sys, time

def note(what):
    name = f"{{os.environ['STANDIN']}}/{{os.environ['VLLM_HOST_IP']}}.{name}.{{what}}"
    told = {{"pid": os.getpid(), "time": time.time(), "arguments": sys.argv[1:]}}
    with open(f"{{name}}.new", "w") as stream:
        json.dump({{**told, "environment": dict(os.environ)}}, stream)
    os.rename(f"{{name}}.new", name)

def stop(number, frame):
    time.sleep(0.5)
    note("stopped")
    sys.exit(1)

signal.signal(signal.SIGTERM, stop)
note("started")
time.sleep(600)
"""
NODES = {0: "127.7.0.1", 1: "127.7.0.2"}
ENDED, NOT_STARTED = 12, 11


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    made = standin.environment(tmp_path_factory.mktemp("place") / "env")
    for name, path in PARTS.items():
        file = made.site / f"{path}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(PART.format(name=name))
    return made


@pytest.fixture
def pair(place: Place, tmp_path: Path) -> Iterator[Replica]:
    with standin.replica(place, tmp_path) as made:
        made.addresses.update(NODES)
        yield made


def noted(pair: Replica, rank: int, part: str, what: str) -> dict[str, Any]:
    """What a part of a node has noted, waited for."""
    file = pair.folder / f"{NODES[rank]}.{part}.{what}"
    until(file.exists, 30)
    found: dict[str, Any] = json.loads(file.read_text())
    return found


class Health(BaseHTTPRequestHandler):
    """etcd's /health."""

    body = b'{"health":"true"}'

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *given: object) -> None:
        pass


@contextlib.contextmanager
def etcd(body: bytes = Health.body) -> Iterator[str]:
    handler = type("Handler", (Health,), {"body": body})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@contextlib.contextmanager
def greeting(words: bytes) -> Iterator[str]:
    """A server that says something to each that connects, as a NATS server does."""

    def serve() -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = server.accept()
                with connection:
                    connection.sendall(words)

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{server.getsockname()[1]}"
        server.shutdown(socket.SHUT_RDWR)
        thread.join()


# Ray


def test_ray_is_started_on_each_node_and_stopped_after_the_engine(pair: Replica) -> None:
    nodes = [pair.start(rank, "--engine", "ray") for rank in range(2)]
    head, worker = (noted(pair, rank, "ray", "started") for rank in range(2))
    assert head["arguments"] == [
        *("start", "--block", "--node-ip-address=127.7.0.1"),
        *("--head", "--port=6379"),
    ]
    assert worker["arguments"][-1] == "--address=127.7.0.1:6379"
    until(lambda: pair.pids(0), 30)
    given = pair.given(0)
    assert "--distributed-executor-backend ray" in " ".join(given["arguments"])  # type: ignore[arg-type]
    for environment in (given["environment"], head["environment"], worker["environment"]):
        assert isinstance(environment, Mapping)
        assert environment["RAY_ADDRESS"] == "127.7.0.1:6379"
        assert environment["RAY_USAGE_STATS_ENABLED"] == "0"
        assert environment["RAY_AUTH_MODE"] == "token" and len(environment["RAY_AUTH_TOKEN"]) == 64
        assert environment["RAY_AUTH_TOKEN"] == head["environment"]["RAY_AUTH_TOKEN"]
        assert standin.TOKEN not in environment.values()
    nodes[0].send(signal.SIGTERM)
    for node in nodes:
        node.ends(0)
    engine = (pair.folder / "0.stopped").stat().st_mtime
    assert noted(pair, 0, "ray", "stopped")["time"] > engine
    assert noted(pair, 1, "ray", "stopped")["time"] > engine


@pytest.mark.parametrize("rank", [0, 1])
def test_a_node_whose_ray_ends_ends_both(pair: Replica, rank: int) -> None:
    nodes = [pair.start(node, "--engine", "ray") for node in range(2)]
    until(lambda: pair.pids(0), 30)
    os.kill(noted(pair, rank, "ray", "started")["pid"], signal.SIGKILL)
    for node in nodes:
        node.ends(ENDED)
        cause = f"ending: node {rank} ({NODES[rank]}): ray start exited 137 (SIGKILL)"
        assert cause in node.text(), node.text()
    pair.gone(0.5)


def test_a_ray_cluster_that_is_there_is_joined(pair: Replica) -> None:
    with greeting(b"") as address:
        nodes = [pair.start(rank, "--engine", "ray", RAY_ADDRESS=address) for rank in range(2)]
        until(lambda: pair.pids(0), 30)
        nodes[1].says("nothing started (process none)")
        assert pair.given(0)["environment"]["RAY_ADDRESS"] == address  # type: ignore[index]
        nodes[0].send(signal.SIGTERM)
        for node in nodes:
            node.ends(0)
    assert not list(pair.folder.glob("*.ray.*"))


@pytest.mark.parametrize(
    ("environment", "token"),
    [
        ({"RAY_AUTH_MODE": "disabled"}, b"t"),
        ({"RAY_AUTH_TOKEN_PATH": "/run/token"}, b"t"),
        ({}, b""),
    ],
)
def test_how_a_ray_cluster_is_closed_is_the_operators(
    environment: dict[str, str], token: bytes
) -> None:
    settings = plan.settings(2, 1, 2, "ray", "m", (), environment)
    assert not plan.ray_token(settings, token, environment)
    assert plan.ray_token(settings, b"t", {}) != plan.ray_token(settings, b"u", {})
    joined = settings._replace(ray_address="10.0.0.1:6379")
    assert not plan.ray_token(joined, b"t", {})


def test_a_ray_cluster_that_is_not_there_is_told(pair: Replica) -> None:
    node = pair.start(1, "--engine", "ray", RAY_ADDRESS="127.0.0.1:1")
    node.ends(NOT_STARTED)
    assert (
        "no-service: RAY_ADDRESS: Ray: 127.0.0.1:1 does not answer: Connection refused"
        in node.text()
    )
    node = pair.start(1, "--engine", "ray", RAY_ADDRESS="ray://127.0.0.1:10001")
    node.ends(NOT_STARTED)
    assert "vLLM joins the cluster itself, by HOST:PORT" in node.text()


@pytest.mark.parametrize(
    ("engine", "name"), [("ray", "ray-1.dist-info"), ("dynamo", "ai_dynamo-1.dist-info")]
)
def test_nodes_with_another_ray_or_dynamo_are_refused(
    place: Place, pair: Replica, engine: str, name: str
) -> None:
    """Ray itself would end a node that joins with another version, and say so there only."""
    own = place.site / name
    with etcd() as address:
        nodes = [pair.start(1, "--engine", engine, ETCD_ENDPOINTS=address)]
        nodes[0].says("waiting for the head")
        own.mkdir()
        try:
            distribution = name.partition("-")[0].replace("_", "-")
            (own / "METADATA").write_text(f"Name: {distribution}\nVersion: 1\n")
            nodes.append(pair.start(0, "--engine", engine, ETCD_ENDPOINTS=address))
            for node in nodes:
                node.ends(NOT_STARTED, 30)
        finally:
            shutil.rmtree(own)
    said = f"nodes-differ: {distribution}: node 0 (127.7.0.1) has 1, node 1 (127.7.0.2) has nothing"
    assert all(said in node.text() for node in nodes), nodes[0].text()


# Dynamo


def test_dynamo_has_a_frontend_on_the_head(pair: Replica) -> None:
    with etcd() as address:
        nodes = [
            pair.start(rank, "--engine", "dynamo", ETCD_ENDPOINTS=address) for rank in range(2)
        ]
        frontend = noted(pair, 0, "frontend", "started")
        head, worker = (noted(pair, rank, "engine", "started") for rank in range(2))
    asked = ["--http-host", "127.0.0.1", "--http-port", str(pair.api)]
    assert frontend["arguments"] == asked
    for rank, said in enumerate((head, worker)):
        words = " ".join(said["arguments"])
        assert f"--nnodes 2 --node-rank {rank} --master-addr 127.7.0.1" in words
        assert "--port" not in said["arguments"] and "--host" not in said["arguments"]
        assert ("--headless" in said["arguments"]) is bool(rank)
    nodes[0].send(signal.SIGTERM)
    for node in nodes:
        node.ends(0)
    stopped = noted(pair, 0, "engine", "stopped")["time"]
    assert noted(pair, 0, "frontend", "stopped")["time"] > stopped
    assert not (pair.folder / f"{NODES[1]}.frontend.started").exists()


@pytest.mark.parametrize(("rank", "part"), [(0, "frontend"), (0, "engine"), (1, "engine")])
def test_a_part_of_dynamo_that_ends_ends_both(pair: Replica, rank: int, part: str) -> None:
    with etcd() as address:
        nodes = [
            pair.start(node, "--engine", "dynamo", ETCD_ENDPOINTS=address) for node in range(2)
        ]
        for node in range(2):
            noted(pair, node, "engine", "started")
        os.kill(noted(pair, rank, part, "started")["pid"], signal.SIGKILL)
        for one in nodes:
            one.ends(ENDED)
            name = {"frontend": "dynamo.frontend", "engine": "dynamo.vllm"}[part]
            assert f"): {name} exited 137 (SIGKILL)" in one.text()


def test_dynamo_without_its_services_is_not_started(pair: Replica) -> None:
    closed = {"ETCD_ENDPOINTS": "127.0.0.1:1", "NATS_SERVER": "nats://me:secret@127.0.0.1:2"}
    node = pair.start(0, "--engine", "dynamo", **closed)
    node.ends(NOT_STARTED)
    assert (
        "no-service: ETCD_ENDPOINTS: etcd: 127.0.0.1:1 does not answer: Connection refused"
        in node.text()
    )
    assert (
        "no-service: NATS_SERVER: NATS: 127.0.0.1:2 does not answer: Connection refused"
        in node.text()
    )
    assert "secret" not in node.text()


def dynamo(*arguments: str) -> Settings:
    return plan.settings(2, 1, 2, "dynamo", "m", arguments, {})


@pytest.mark.parametrize(
    ("arguments", "environment", "wanted"),
    [
        ((), {}, ["etcd"]),
        ((), {"NATS_SERVER": "nats://n"}, ["etcd", "NATS"]),
        ((), {"DYN_EVENT_PLANE": "nats"}, ["etcd", "NATS"]),
        (("--request-plane", "nats"), {}, ["etcd", "NATS"]),
        (("--request-plane=tcp",), {"DYN_REQUEST_PLANE": "nats"}, ["etcd"]),
        ((), {"DYN_DISCOVERY_BACKEND": "kubernetes"}, []),
        (("--discovery-backend", "file"), {"DYN_DISCOVERY_BACKEND": "etcd"}, []),
    ],
)
def test_what_dynamo_needs(
    arguments: tuple[str, ...], environment: dict[str, str], wanted: list[str]
) -> None:
    settings = dynamo(*arguments)
    assert [one.name for one in services.needed(settings, True, environment)] == wanted
    assert not list(services.needed(settings, False, environment))


def test_the_frontend_gets_what_is_its_own_and_what_both_must_know() -> None:
    words = ("--port=81", "--ssl-certfile", "c", "--event-plane", "nats", "--seed", "1")
    settings = dynamo(*words)
    frontend, engine = plan.node(settings, 0, "a", "a", {}).commands
    assert frontend[3:] == ("--http-port", "81", "--tls-cert-path", "c", "--event-plane", "nats")
    assert engine[-4:] == ("--event-plane", "nats", "--seed", "1") and "--port=81" not in engine
    assert settings.api_port == 81


# Services


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (Health.body, ""),
        (b'{"health":"false"}', "is not healthy: has it a leader?"),
        (b"[1]", "answers, but not as etcd does over http"),
        (b"hello", "answers, but not as etcd does over http"),
    ],
)
def test_etcd_answers(body: bytes, said: str) -> None:
    with etcd(body) as address:
        assert services.etcd(address, {}).endswith(said) and bool(said) is bool(
            services.etcd(f"http://{address}", {})
        )
        assert bool(services.etcd(f"127.0.0.1:1, {address}", {})) is bool(said)
        assert "TLS" in services.etcd(f"https://{address}", {})


def test_etcd_with_a_file_that_is_not_there(tmp_path: Path) -> None:
    missing = {"ETCD_AUTH_CA": str(tmp_path / "ca.crt")}
    assert "a file that ETCD_AUTH_CA" in services.etcd("127.0.0.1:1", missing)


def test_nats_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    with greeting(b'INFO {"server_id":"x"}\r\n') as address:
        assert not services.nats(address) and not services.nats(f"nats://{address}")
        assert not services.nats(f"tls://me:secret@{address}")
    with greeting(b"HTTP/1.1 400 Bad Request\r\n") as address:
        assert services.nats(address) == f"{address} answers, but not as NATS does"
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setattr(services, "TIMEOUT", 0.2)
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        assert "not as NATS does" in services.nats(address)
        assert not services.nats(f"tls://{address}")


@pytest.mark.parametrize("where", ["127.0.0.1:x", "", ":4222", "nats://"])
def test_what_is_no_address(where: str) -> None:
    assert services.nats(where) == "an address that is no HOST:PORT"
