"""What a replica does when the link between its nodes fails: two network namespaces."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import cache
import pytest
import standin
from e2e import lab
from places import Place
from standin import Replica

HOSTS = (
    lab.Host("vllm-fixes-launch-a", "10.77.0.1"),
    lab.Host("vllm-fixes-launch-b", "10.77.0.2"),
)
STARTED, ENDED = 11, 12


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    with cache.locked("launch-links"):
        if reason := lab.missing(HOSTS):
            pytest.skip(reason)
        yield standin.environment(tmp_path_factory.mktemp("place") / "env")


@pytest.fixture
def pair(place: Place, tmp_path: Path) -> Iterator[Replica]:
    with lab.lab(HOSTS), standin.replica(place, tmp_path) as made:
        for rank, host in enumerate(HOSTS):
            made.before[rank] = ("ip", "netns", "exec", host.name)
            made.addresses[rank] = host.address
        yield made


def inside(rank: int, *command: str) -> str:
    where = ["ip", "netns", "exec", HOSTS[rank].name]
    return subprocess.run([*where, *command], check=True, stdout=subprocess.PIPE, text=True).stdout


def ended(pair: Replica, *causes: str) -> None:
    """Both nodes end within 10 s, each with its cause, and leave nothing."""
    start = time.monotonic()
    for node, cause in zip(pair.nodes, causes, strict=True):
        node.ends(ENDED, 10 - (time.monotonic() - start))
        assert f"ending: {cause}" in node.text()
    pair.gone(0.5)
    assert not any(host.processes() for host in HOSTS)


def test_the_interface_is_found_and_handed_on(pair: Replica) -> None:
    pair.up()
    given = pair.given(1)["environment"]
    assert isinstance(given, dict)
    assert given["VLLM_HOST_IP"] == "10.77.0.2"
    assert {given[f"{name}_SOCKET_IFNAME"] for name in ("GLOO", "NCCL", "HCCL")} == {"cable"}
    assert pair.probe("ready", 1).returncode == 0


def test_an_address_of_another_interface(pair: Replica) -> None:
    node = pair.start(1, "--interface", "lo")
    node.ends(STARTED)
    assert "other-interface: --host-ip: 10.77.0.2 is on cable, not on lo" in node.text()


def test_every_packet_lost(pair: Replica) -> None:
    """As in a power cut: nobody sees a closed connection."""
    pair.up()
    lab.cut(HOSTS)
    silent = "silent for 5 s"
    ended(pair, f"node 1 (10.77.0.2): {silent}", f"node 0 (10.77.0.1): {silent}")


def test_the_cable_pulled(pair: Replica) -> None:
    pair.up()
    inside(1, "ip", "link", "set", "cable", "down")
    silent = "silent for 5 s"
    ended(pair, f"node 1 (10.77.0.2): {silent}", f"node 0 (10.77.0.1): {silent}")


def test_some_packets_lost_and_then_all(pair: Replica) -> None:
    """TCP sends again, and nobody is missed: here every fifth packet is lost."""
    head, worker = pair.up()
    lab.lose(0.2, HOSTS)
    time.sleep(15)
    assert min(lab.lost(host) for host in HOSTS) > 5
    assert head.process.poll() is None and worker.process.poll() is None, head.text()
    assert pair.probe("ready", 0).returncode == pair.probe("live", 1).returncode == 0
    lab.lose(1.0, HOSTS)
    silent = "silent for 5 s"
    ended(pair, f"node 1 (10.77.0.2): {silent}", f"node 0 (10.77.0.1): {silent}")


def test_a_link_that_is_cut_while_nodes_wait(pair: Replica) -> None:
    """The connection of before is of no use after, and nobody takes it for one."""
    worker = pair.start(1)
    lab.cut(HOSTS)
    worker.says("waiting for the head at 10.77.0.1")
    head = pair.start(0)
    head.says("digest")
    for rank in range(2):
        inside(rank, "ip", "neighbour", "flush", "dev", "cable", "nud", "permanent")
    pair.running([head, worker])


def test_a_head_that_cannot_be_reached(pair: Replica) -> None:
    pair.addresses[0] = "10.77.0.9"
    worker = pair.start(1, "--meet-timeout", "5")
    worker.ends(STARTED, 20)
    assert "not-met: the head at 10.77.0.9" in worker.text()
