"""Hosts on one machine: network namespaces joined by a cable, or by a switch if there are more.

Each host has its own network stack and, for whatever is started on it, its own /dev/shm
and temporary folder. With a shared /dev/shm a mistake in choosing shared memory between
hosts would stay hidden. Needs root and iproute2.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

INTERFACE = "cable"
CLONE_NEWNET = 0x40000000  # <linux/sched.h>
# `ip netns exec` makes a mount namespace: what is mounted in it goes with its processes.
ENTER = 'mount --bind "/dev/shm/$0" /dev/shm && exec "$@"'


@dataclass(frozen=True)
class Host:
    """One host, named as its network namespace, with its address on the cable."""

    name: str
    address: str

    def start(
        self, command: Sequence[str | Path], environment: Mapping[str, str], log: BinaryIO
    ) -> subprocess.Popen[bytes]:
        """Start a command as the leader of a process group of its own."""
        return subprocess.Popen(
            ["ip", "netns", "exec", self.name, "sh", "-ec", ENTER, self.name, *command],
            env={**environment, "TMPDIR": "/dev/shm"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def processes(self) -> list[int]:
        """The processes that run on this host; none that has ended, reaped or not."""
        return [int(pid) for pid in _ip("netns", "pids", self.name).split()]

    @property
    def memory(self) -> Path:
        """What is /dev/shm, and the temporary folder, for what runs on this host."""
        return Path("/dev/shm", self.name)

    def left(self) -> list[str]:
        """What has been left: processes, files in memory, sockets that something holds.

        What PyTorch's compiler keeps for the next start is no such thing.
        """
        sockets = []
        for kind, inode in (("tcp", 9), ("tcp6", 9), ("udp", 9), ("udp6", 9), ("unix", 6)):
            _, *lines = _ip("netns", "exec", self.name, "cat", f"/proc/net/{kind}").splitlines()
            # One without an inode is the kernel's own: a connection in TIME_WAIT (proc_pid_net(5)).
            sockets += [f"{kind} {line}" for line in lines if line.split()[inode] != "0"]
        kept = self.memory.glob("torchinductor_*/**/*")
        files = sorted({*self.memory.rglob("*")} - {*kept, *self.memory.glob("torchinductor_*")})
        return [*map(str, [*self.processes(), *files]), *sockets]

    def clear(self) -> None:
        """End whatever runs on this host."""
        while pids := self.processes():
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)

    def threads(self, count: int) -> ThreadPoolExecutor:
        """Threads whose sockets are on this host."""

        def enter() -> None:
            with Path("/run/netns", self.name).open() as stream:
                if ctypes.CDLL(None, use_errno=True).setns(stream.fileno(), CLONE_NEWNET):
                    raise OSError(ctypes.get_errno(), "setns")

        return ThreadPoolExecutor(count, initializer=enter)


LEADER = Host("vllm-fixes-leader", "10.77.0.1")
WORKER = Host("vllm-fixes-worker", "10.77.0.2")
THIRD = Host("vllm-fixes-third", "10.77.0.3")
Hosts = Sequence[Host]
HOSTS: Hosts = (LEADER, WORKER)


def missing(hosts: Hosts = HOSTS) -> str:
    """Why there can be no lab here, or nothing."""
    if os.geteuid():
        return "network namespaces need root"
    if not shutil.which("ip"):
        return "network namespaces need iproute2 (`ip` is not there)"
    try:
        with lab(hosts):
            return ""
    except subprocess.CalledProcessError as error:
        return f"no network namespaces here: {error.stderr.strip()}"


@contextlib.contextmanager
def lab(hosts: Hosts = HOSTS) -> Iterator[None]:
    """The hosts with new cables; what an earlier run has left is removed first."""
    _remove(hosts)
    try:
        for host in hosts:
            _ip("netns", "add", host.name)
            host.memory.mkdir()
            host.memory.chmod(0o1777)
        first, *others = hosts
        if switch := len(others) > 1:
            _ip("-n", first.name, "link", "add", INTERFACE, "type", "bridge")
        for number, other in enumerate(others):
            end = f"port{number}" if switch else INTERFACE
            peer = ["type", "veth", "peer", "name", INTERFACE, "netns", other.name]
            _ip("-n", first.name, "link", "add", end, *peer)
            if switch:
                _ip("-n", first.name, "link", "set", end, "up", "master", INTERFACE)
        for host in hosts:
            _ip("-n", host.name, "address", "add", f"{host.address}/24", "dev", INTERFACE)
            for interface in ("lo", INTERFACE):
                _ip("-n", host.name, "link", "set", interface, "up")
        yield
    finally:
        _remove(hosts)


def cut(hosts: Hosts = HOSTS) -> None:
    """Lose every packet between the hosts, in silence: each sends to a card nobody has.

    As in a power cut nobody sees a closed connection, a lost carrier or a missing route.
    """
    for host, peer in itertools.permutations(hosts, 2):
        nobody = ["lladdr", "02:00:00:00:00:ff", "dev", INTERFACE, "nud", "permanent"]
        _ip("-n", host.name, "neighbour", "replace", peer.address, *nobody)


def lose(share: float, hosts: Hosts = HOSTS) -> None:
    """Lose this share of the packets that arrive, at random and in silence.

    A classifier of four instructions (bpf(4)) draws a number for each packet and sends what
    is to be lost into a switch without ports: kernels without netem can do that, too.
    """
    below = int(share * (2**32 - 1))
    program = f"4,32 0 0 4294963256,53 1 0 {below},6 0 0 4294967295,6 0 0 0"
    for host in hosts:
        if " lost: " not in _ip("-n", host.name, "link", "show"):
            _ip("-n", host.name, "link", "add", "lost", "type", "bridge")
            _ip("-n", host.name, "link", "set", "lost", "up")
            _tc(host, "qdisc", "add", "dev", INTERFACE, "ingress")
        to_lose = ["parent", "ffff:", "bpf", "bytecode", program]
        into = ["action", "mirred", "egress", "redirect", "dev", "lost"]
        _tc(host, "filter", "add", "dev", INTERFACE, *to_lose, *into)


def lost(host: Host) -> int:
    """How many packets to a host have been lost since `lose`."""
    told = _ip("-s", "-n", host.name, "link", "show", "lost")
    found = re.search(r"TX:.*\n\s+\d+\s+(\d+)", told)
    assert found, told
    return int(found[1])


def until(condition: Callable[[], object], limit: float) -> float:
    """Wait for a condition; the seconds it took, or TimeoutError after the limit."""
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > limit:
            raise TimeoutError(f"not within {limit:.0f} s")
        time.sleep(0.1)
    return time.monotonic() - start


def _remove(hosts: Hosts) -> None:
    there = {line.split()[0] for line in _ip("netns", "list").splitlines()}
    for host in hosts:
        if host.name in there:
            host.clear()
            _ip("netns", "delete", host.name)
        shutil.rmtree(host.memory, ignore_errors=True)


def _ip(*arguments: str) -> str:
    result = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True)
    return result.stdout


def _tc(host: Host, *arguments: str) -> None:
    subprocess.run(["tc", "-n", host.name, *arguments], capture_output=True, check=True)
