"""Processes: those below this one, and how all of them are ended (proc(5))."""

from __future__ import annotations

import ctypes
import os
import signal
import time
from typing import NamedTuple

_PR_SET_PDEATHSIG = 1  # <linux/prctl.h>
_PR_SET_CHILD_SUBREAPER = 36
#: Looks at the children for each listing of /proc.
_CHASES = 100
#: Seconds that resource trackers have.
_TIDYING = 1.0
_SIGNALS = {number.value: number.name for number in signal.Signals}


class Process(NamedTuple):
    """One process: its parent, its state (T: stopped, Z: ended, not reaped) and its name."""

    pid: int
    parent: int
    state: str
    name: str


def adopt_orphans() -> None:
    """Have every process that loses its parent below this one become a child of this one."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_with(parent: int) -> None:
    """Have this process get SIGTERM when its parent ends, also after an exec."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != parent:  # it has ended already
        os.kill(os.getpid(), signal.SIGTERM)


def below(root: int) -> list[Process]:
    """Every process that descends from one, ended ones among them."""
    children: dict[int, list[Process]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (found := _read(int(name))):
            children.setdefault(found.parent, []).append(found)
    found_below: list[Process] = []
    parents = [root]
    while parents:
        own = children.pop(parents.pop(), [])
        found_below += own
        parents += [process.pid for process in own]
    return found_below


def reap() -> dict[int, int]:
    """The children that have ended, and how: an exit code, or minus a signal."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if not pid:
            return ended
        ended[pid] = os.waitstatus_to_exitcode(status)


def end_all(limit: float = 10.0) -> dict[int, int]:
    """SIGKILL whatever is below this process until nothing is; what was reaped meanwhile.

    A listing of /proc comes too late for a process that forks and ends all the time: each of
    them is a child of this one for a moment, and is chased as that. That none is left is the
    kernel's word. A process that it does not let go of (in an operation of a
    driver) is left after ``limit`` seconds.

    Python's resource trackers come last: they end by themselves when all others have, after
    they have removed the shared memory of those that could not.
    """
    ended: dict[int, int] = {}
    start = time.monotonic()
    while _has_children() and time.monotonic() < start + limit:
        tidying = time.monotonic() < start + _TIDYING
        alive = [process.pid for process in below(os.getpid()) if process.state != "Z"]
        spared = {pid for pid in alive if tidying and _is_tracker(pid)}
        for pid in alive:
            if pid not in spared:
                send(pid, signal.SIGKILL)
        for _ in range(_CHASES):
            for pid in _children():
                if pid not in spared:
                    send(pid, signal.SIGKILL)
        ended |= reap()
        time.sleep(0.001)
    return ended


def _children() -> list[int]:
    """The children of this process, where the kernel lists them (CONFIG_PROC_CHILDREN)."""
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as stream:
            return [int(pid) for pid in stream.read().split()]
    except OSError:
        return []


def _is_tracker(pid: int) -> bool:
    """Whether a process is a resource tracker of `multiprocessing`."""
    try:
        with open(f"/proc/{pid}/cmdline", "rb") as stream:
            return b"multiprocessing.resource_tracker" in stream.read()
    except OSError:
        return False


def _has_children() -> bool:
    """Whether any child is there; what lost its parent below this process is one, too."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def send(pid: int, number: int) -> None:
    """Send a signal to a process; one that has ended already is no error."""
    try:
        os.kill(pid, number)
    except (ProcessLookupError, PermissionError):
        return


def told(status: int) -> str:
    """How a process ended, as a shell counts it, with the signal's name."""
    if status >= 0:
        return f"exited {status}"
    return f"exited {128 - status} ({_SIGNALS.get(-status, -status)})"


def _read(pid: int) -> Process | None:
    try:
        with open(f"/proc/{pid}/stat", "rb") as stream:
            head, _, tail = stream.read().rpartition(b")")
        state, parent = tail.split()[:2]
    except (OSError, ValueError):  # it has ended meanwhile
        return None
    return Process(
        pid, int(parent), state.decode(), head.partition(b"(")[2].decode("utf-8", "replace")
    )
