"""The watch: a node's engine runs, and the node ends with its replica, as one.

The head decides. What ends a node is told to the head, the head tells all, and so the first
cause is the one that every node logs. A clean stop begins at the head: its engine first, as
a stage that is lost under a running head is an error.
"""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from fixes.errors import ExitCode
from fixes.launch import processes
from fixes.launch.events import Event, Gone, Kept, Signalled
from fixes.launch.keeper import BEAT, SHORT_GRACE, Keeper
from fixes.launch.link import Link, Say
from fixes.launch.plan import RAY_MODULE, Node

#: Seconds that a head waits for the others at the end of a stop.
_FAREWELL = SHORT_GRACE + 2.0
#: Seconds that the keeper may take to end what is left, beyond the grace time.
_SWEEP = 12.0


class Ending(NamedTuple):
    """How a node ended: its exit code, and the first cause; empty after a clean stop."""

    code: ExitCode
    cause: str = ""


class Watch:
    """One node, from the start of its engine to the end of everything that it started."""

    def __init__(
        self,
        link: Link,
        keeper: Keeper,
        node: Node,
        grace: float,
        say: Say,
    ) -> None:
        self._link, self._keeper, self._node = link, keeper, node
        self._grace, self._say = grace, say
        self._events: asyncio.Queue[Event] = link.events
        self._others = {rank for rank in link.cards if rank != node.rank}
        self.phase = "starting"
        self._empty = self._clean = self._stopping = False
        self._signal = 0
        self._first = ""

    async def run(self, environment: Mapping[str, str]) -> Ending:
        """Run the engine until the node has to end, end it, and give how."""
        beating = self._link.keep(self._beat())
        self._keeper.run(self._node.commands, environment)
        try:
            while True:
                ending = await self._handle(await self._events.get())
                if ending:
                    return ending
        finally:
            self.phase = "ended"
            beating.cancel()

    async def _beat(self) -> None:
        while True:
            self._keeper.beat()
            await asyncio.sleep(BEAT)

    async def _handle(self, event: Event) -> Ending | None:
        """One event of a running node."""
        if isinstance(event, Kept):
            return await self._kept(event.message)
        if isinstance(event, Gone):
            return await self._fail(f"{self._link.name(event.rank)}: {event.why}")
        if isinstance(event, Signalled):
            return await self._signalled(event.number)
        said = event.message
        if "failed" in said or "end" in said:
            return await self._fail(str(said.get("end") or said["failed"]))
        if "leaving" in said:
            return await self._lead_out(f"{self._link.name(event.rank)}: {said['leaving']}")
        if "stopping" in said:
            return await self._follow_out()
        return None

    async def _kept(self, said: Mapping[str, Any]) -> Ending | None:
        own = self._link.own.name
        if "started" in said:
            self.phase = "running"
            pids = ", ".join(map(str, said["started"]))
            self._say(f"{self._labels() or 'nothing'} started (process {pids or 'none'})")
        elif "ended" in said:
            how = processes.told(int(said["status"]))
            return await self._fail(f"{own}: {_label(self._node, said['ended'])} {how}", own=True)
        elif "stopped" in said:
            what = f"process {said['stopped']} ({said['name']}) is stopped, and hangs"
            return await self._fail(f"{own}: {what}", own=True)
        elif "gone" in said:
            what = f"process {said['gone']} ({said['name']}) is gone"
            return await self._fail(f"{own}: {what}", own=True)
        elif "lost" in said:
            self._lost()
            return await self._fail(f"{own}: the keeper of its processes {said['lost']}", own=True)
        return None

    async def _fail(self, cause: str, *, own: bool = False) -> Ending:
        """End the node, because it or another one has; the head's word is the first cause."""
        self.phase = "ending"
        if self._node.rank == 0:
            self._link.tell(end=cause)
        elif own:
            self._link.tell(failed=cause)
        self._keeper.end(SHORT_GRACE)
        if own and self._node.rank and self._others:
            cause = await self._word_of_the_head(cause)
        self._say(f"ending: {cause}")
        await self._until(lambda: self._empty, SHORT_GRACE + _SWEEP)
        return Ending(ExitCode.REPLICA_ENDED, cause)

    async def _word_of_the_head(self, cause: str) -> str:
        await self._until(lambda: bool(self._first), 1.0)
        return self._first or cause

    async def _signalled(self, number: int) -> Ending:
        """A stop was asked for: on the head of the whole replica, elsewhere of this node."""
        self._signal = number
        name = signal.Signals(number).name
        if self._node.rank == 0:
            self._clean = True
            return await self._lead_out(f"{self._link.own.name}: {name}")
        self.phase = "stopping"
        self._say(f"{name}: asking the head to stop the replica")
        self._link.tell(leaving=f"stopped by {name}")
        await self._until(lambda: self._stopping or bool(self._first), self._grace)
        return await self._follow_out()

    async def _lead_out(self, why: str) -> Ending:
        """The head's stop: its own engine first, then the others'."""
        self.phase = "stopping"
        self._say(f"stopping the replica: {why}")
        self._link.tell(stopping=1)
        self._keeper.end(self._grace)
        await self._until(lambda: self._empty, self._grace + _SWEEP)
        self._link.tell(stop=1, clean=self._clean, why=why)
        await self._until(lambda: not self._others, _FAREWELL)
        return Ending(ExitCode.OK) if self._clean else Ending(ExitCode.REPLICA_ENDED, why)

    async def _follow_out(self) -> Ending:
        """Another node's stop: the engine runs on until the head's has ended."""
        self.phase = "stopping"
        self._stopping = True
        if not self._first:
            await self._until(lambda: bool(self._first) or self._empty, self._grace + _SWEEP)
        why = self._first
        self._keeper.end(SHORT_GRACE)
        await self._until(lambda: self._empty, SHORT_GRACE + _SWEEP)
        self._link.tell(stopped=1)
        if self._clean:
            return Ending(ExitCode.OK)
        if self._signal:
            code = ExitCode.INTERRUPTED if self._signal == signal.SIGINT else ExitCode.TERMINATED
            return Ending(code, "")
        return Ending(ExitCode.REPLICA_ENDED, why or "the head did not say that it stopped")

    async def _until(self, done: Callable[[], bool], limit: float) -> None:
        """Take events that change nothing any more, until it is done or the time is over."""
        deadline = time.monotonic() + limit
        while not done():
            left = deadline - time.monotonic()
            try:
                event = await asyncio.wait_for(self._events.get(), max(0.0, left))
            except asyncio.TimeoutError:
                return
            self._note(event)

    def _lost(self) -> None:
        """The keeper is gone or hangs: what it kept is adopted by this process, or will be."""
        processes.end_all()
        self._empty = True

    def _note(self, event: Event) -> None:
        if isinstance(event, Kept):
            if "empty" in event.message:
                self._empty = True
                if event.message["left"]:
                    self._say(f"processes that cannot be ended: {event.message['left']}")
            elif "lost" in event.message and not self._empty:
                self._lost()
        elif isinstance(event, Gone):
            self._others.discard(event.rank)
            if event.rank == 0:
                self._first = self._first or f"{self._link.name(0)}: {event.why}"
        elif isinstance(event, Signalled):
            if self._node.rank == 0 and not self._clean:
                self._clean = True  # another node asked first: now it is a stop of all
            elif self._signal:
                self._say("a second signal: not waiting any longer")
                self._keeper.end(0)
            self._signal = event.number
        elif "stopping" in event.message:
            self._stopping = True
        elif "stop" in event.message:
            self._clean = bool(event.message["clean"])
            self._first = str(event.message["why"])
        elif "end" in event.message:
            self._first = str(event.message["end"])
        elif "stopped" in event.message:
            self._others.discard(event.rank)

    def _labels(self) -> str:
        return " and ".join(_label(self._node, at) for at in range(len(self._node.commands)))


#: What modules are called that do the work of a script.
_SCRIPTS = {"vllm.entrypoints.cli.main": "vllm serve", RAY_MODULE: "ray start"}


def _label(node: Node, number: int) -> str:
    """A command in a word or two: `vllm serve`, `dynamo.vllm`, `ray start`."""
    command = node.commands[number]
    for at, word in enumerate(command[:4]):
        if word == "-m":
            return _SCRIPTS.get(command[at + 1], command[at + 1])
    return " ".join((command[0].rpartition("/")[2], *command[1:2]))
