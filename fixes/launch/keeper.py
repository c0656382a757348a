"""The keeper: a process between the launcher and the engine, so that neither outlives a loss.

It starts the engine's commands, each in a session and process group of its own, adopts what
they leave behind, and ends all of it when it is told to, or when the launcher is gone or
silent: even a launcher that was killed leaves no engine, and one that hangs is killed. If the
keeper itself is killed, the launcher, which adopts too, ends what is left.

The two talk over a socket pair in lines of JSON. It is forked before the launcher has an
event loop or a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import select
import signal
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from fixes.launch import processes, scratch

#: Seconds between signs of life, and until silence counts as an end.
BEAT = 1.0
SILENCE = 5.0
#: Seconds from SIGTERM to SIGKILL where there is nothing left to be saved.
SHORT_GRACE = 3.0
#: Seconds that a process has to be stopped (SIGSTOP) to count as hung.
STOPPED = 4.0
#: How vLLM calls its processes, and the seconds that its command has to end when one has ended.
ENGINE = "VLLM::"
GONE = 2.0
_TURN = 0.1
#: Signals that are ignored or handled here, and by default in a command.
_DEFAULT = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGPIPE, signal.SIGXFSZ)


class Keeper:
    """The launcher's side: one order at a time, and what the keeper says."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self._writer: asyncio.StreamWriter | None = None
        self._running = False

    def order(self, **order: Any) -> None:
        """Send an order; a keeper that is gone shows where it is listened to."""
        if self._writer:
            self._writer.write(json.dumps(order).encode() + b"\n")

    async def open(self) -> None:
        """Take over the connection in an event loop."""
        self._reader, self._writer = await asyncio.open_connection(sock=self.connection)

    async def listen(self, put: Callable[[dict[str, Any]], None]) -> None:
        """Hand on what the keeper says, and at last that it is lost."""
        put({"lost": await self._listen(put)})
        self._writer = None

    async def _listen(self, put: Callable[[dict[str, Any]], None]) -> str:
        while True:
            try:
                silence = SILENCE if self._running else None
                line = await asyncio.wait_for(self._reader.readline(), silence)
            except asyncio.TimeoutError:
                return "is silent"
            except OSError:
                return "is gone"
            if not line:
                return "is gone"
            message: dict[str, Any] = json.loads(line)
            self._running = True  # it begins to beat when it has something to keep
            if "beat" not in message:
                put(message)

    def run(self, commands: Sequence[Sequence[str]], environment: Mapping[str, str]) -> None:
        """Start the commands."""
        self.order(run=[list(command) for command in commands], environment=dict(environment))

    def beat(self) -> None:
        """Say that the launcher lives."""
        self.order(beat=1)

    def end(self, grace: float) -> None:
        """SIGTERM to the commands, the last one first, and SIGKILL to all that is left after
        the grace time.
        """
        self.order(end=grace)


def start(folder: str) -> Keeper:
    """Fork the keeper. ``folder`` is removed with what it keeps; empty: none."""
    processes.adopt_orphans()
    ours, theirs = socket.socketpair()
    launcher = os.getpid()
    if os.fork():
        theirs.close()
        return Keeper(ours)
    code = 1
    try:
        ours.close()
        os.setsid()  # a terminal's Ctrl-C is the launcher's to hand on
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        processes.adopt_orphans()
        _Kept(theirs, launcher).serve()
        code = 0
    finally:
        processes.end_all()
        scratch.remove(folder)
        os._exit(code)


class _Kept:
    """The keeper's own side."""

    def __init__(self, connection: socket.socket, launcher: int) -> None:
        self.connection, self.launcher = connection, launcher
        self.commands: dict[int, int] = {}  # pid to number
        self.started = False
        self.deadline: float | None = None
        self.asked: set[int] = set()  # who has got SIGTERM
        self.heard = self.told = time.monotonic()
        self.stopped: dict[int, float] = {}
        self.engine: dict[int, tuple[str, float]] = {}  # pid to name, and when it was seen
        self.pending = b""

    def serve(self) -> None:
        """Keep until everything has been ended."""
        while not self._done():
            readable, _, _ = select.select([self.connection], [], [], _TURN)
            if readable and not self._listen():
                self._end(SHORT_GRACE)
                break
            now = time.monotonic()
            for pid, status in processes.reap().items():
                if pid in self.commands:
                    self._say(ended=self.commands.pop(pid), status=status)
            self._ask()
            if self.started and now - self.told >= BEAT:
                self.told = now
                self._say(beat=1)
                self._look(now)
            if self._silent():
                self._end(SHORT_GRACE)
        hung = self.heard if self._silent() else 0.0
        while not self._done():
            time.sleep(_TURN)
            for pid in processes.reap():
                self.commands.pop(pid, None)
            self._ask()
        for pid, status in processes.end_all().items():
            if pid in self.commands:
                self._say(ended=self.commands.pop(pid), status=status)
        left = [one.pid for one in processes.below(os.getpid()) if one.state != "Z"]
        self._say(empty=1, left=left)
        if hung:
            self._kill_launcher(hung + SILENCE + 2 * BEAT)

    def _silent(self) -> bool:
        return self.started and time.monotonic() - self.heard > SILENCE

    def _kill_launcher(self, not_before: float) -> None:
        """End a launcher that hangs: nobody else would, and so nothing would start it anew.

        Not before the other nodes have missed it: that is the cause that they are to log.
        """
        time.sleep(max(0.0, not_before - time.monotonic()))
        if os.getppid() == self.launcher:
            processes.send(self.launcher, signal.SIGKILL)

    def _done(self) -> bool:
        """Whether the time to end has come, and every command has, or has had its grace."""
        if self.deadline is None:
            return False
        return not self.commands or time.monotonic() >= self.deadline

    def _listen(self) -> bool:
        """Take orders; False where the launcher is gone."""
        try:
            piece = self.connection.recv(1 << 20)
        except OSError:
            return False
        self.heard = time.monotonic()
        *lines, self.pending = (self.pending + piece).split(b"\n")
        for line in lines:
            order = json.loads(line)
            if "run" in order:
                for number, command in enumerate(order["run"]):
                    self.commands[_spawn(command, order["environment"])] = number
                self.started = True
                self._say(started=sorted(self.commands))
            elif "end" in order:
                self._end(float(order["end"]))
        return bool(piece)

    def _end(self, grace: float) -> None:
        deadline = time.monotonic() + grace
        self.deadline = deadline if self.deadline is None else min(self.deadline, deadline)
        self._ask()

    def _ask(self) -> None:
        """SIGTERM to the last command that runs, once there is to be an end.

        Those before it are asked when it has ended: it may need them until then, as an engine
        that finishes its requests needs its Ray cluster.
        """
        if self.deadline is None or not self.commands:
            return
        last = max(self.commands, key=lambda pid: self.commands[pid])
        if last not in self.asked:
            self.asked.add(last)
            processes.send(last, signal.SIGTERM)
            processes.send(last, signal.SIGCONT)  # one that is stopped takes no other

    def _look(self, now: float) -> None:
        """Say which process of the engine is stopped, or gone: to every other node it hangs.

        A headless `vllm serve` whose worker was killed was seen to take 10 s to end.
        """
        there = {one.pid: one for one in processes.below(os.getpid()) if one.state != "Z"}
        stopped = [pid for pid, one in there.items() if one.state == "T"]
        self.stopped = {pid: self.stopped.get(pid, now) for pid in stopped}
        for pid, since in self.stopped.items():
            if now - since >= STOPPED:
                self._say(stopped=pid, name=there[pid].name)
        for pid, one in there.items():
            parent = there.get(one.parent)
            # What a process of the engine forks has its name for a while, and may end.
            if one.name.startswith(ENGINE) and (not parent or one.name[:12] != parent.name[:12]):
                self.engine[pid] = (one.name, now)
        for pid, (name, seen) in self.engine.items():
            if now - seen >= GONE:
                self._say(gone=pid, name=name)

    def _say(self, **what: Any) -> None:
        with contextlib.suppress(OSError):  # the launcher is gone, which is seen elsewhere
            self.connection.sendall(json.dumps(what).encode() + b"\n")


def _spawn(command: Sequence[str], environment: Mapping[str, str]) -> int:
    """Start a command in a session and group of its own, with signals as they are by default."""
    keeper = os.getpid()
    # One that is sent before the command has them by default waits: the keeper's are ignored.
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _DEFAULT)
    try:
        return os.fork() or _become(command, environment, keeper, before)
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _become(
    command: Sequence[str],
    environment: Mapping[str, str],
    keeper: int,
    mask: set[int | signal.Signals],
) -> NoReturn:
    try:
        os.setsid()
        for number in _DEFAULT:
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        processes.end_with(keeper)  # it may be killed together with the launcher
        nothing = os.open(os.devnull, os.O_RDONLY)
        os.dup2(nothing, 0)
        os.execvpe(command[0], list(command), dict(environment))
    except OSError as error:
        os.write(2, f"vllm-fixes launch: {command[0]}: {error.strerror}\n".encode())
    finally:
        os._exit(127)
