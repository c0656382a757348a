"""Two hosts on one machine: network namespaces joined by a cable.

Each host has its own network stack and, for whatever is started on it, its own /dev/shm
and temporary folder. With a shared /dev/shm a mistake in choosing shared memory between
hosts would stay hidden. Needs root and iproute2.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
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
# The tmpfs is on the mount namespace that `ip netns exec` makes, and goes with its processes.
ENTER = 'mount -t tmpfs tmpfs /dev/shm && exec "$@"'


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
            ["ip", "netns", "exec", self.name, "sh", "-ec", ENTER, "sh", *command],
            env={**environment, "TMPDIR": "/dev/shm"},
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def processes(self) -> list[int]:
        """The processes that run on this host; none that has ended, reaped or not."""
        return [int(pid) for pid in _ip("netns", "pids", self.name).split()]

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
Pair = tuple[Host, Host]
HOSTS: Pair = (LEADER, WORKER)


def missing(hosts: Pair = HOSTS) -> str:
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
def lab(hosts: Pair = HOSTS) -> Iterator[None]:
    """The two hosts with a new cable; what an earlier run has left is removed first."""
    _remove(hosts)
    try:
        for host in hosts:
            _ip("netns", "add", host.name)
        one, other = hosts
        ends = ["type", "veth", "peer", "name", INTERFACE, "netns", other.name]
        _ip("-n", one.name, "link", "add", INTERFACE, *ends)
        for host in hosts:
            _ip("-n", host.name, "address", "add", f"{host.address}/24", "dev", INTERFACE)
            for interface in ("lo", INTERFACE):
                _ip("-n", host.name, "link", "set", interface, "up")
        yield
    finally:
        _remove(hosts)


def cut(hosts: Pair = HOSTS) -> None:
    """Lose every packet between the hosts, in silence: each sends to a card nobody has.

    As in a power cut nobody sees a closed connection, a lost carrier or a missing route.
    """
    for host, peer in (hosts, hosts[::-1]):
        nobody = ["lladdr", "02:00:00:00:00:ff", "dev", INTERFACE, "nud", "permanent"]
        _ip("-n", host.name, "neighbour", "replace", peer.address, *nobody)


def until(condition: Callable[[], object], limit: float) -> float:
    """Wait for a condition; the seconds it took, or TimeoutError after the limit."""
    start = time.monotonic()
    while not condition():
        if time.monotonic() - start > limit:
            raise TimeoutError(f"not within {limit:.0f} s")
        time.sleep(0.1)
    return time.monotonic() - start


def _remove(hosts: Pair) -> None:
    there = {line.split()[0] for line in _ip("netns", "list").splitlines()}
    for host in hosts:
        if host.name in there:
            host.clear()
            _ip("netns", "delete", host.name)


def _ip(*arguments: str) -> str:
    result = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=True)
    return result.stdout
