"""The meeting: nodes find each other, prove that they belong together, and compare facts.

The head listens; every other node comes to it. Once all are there and agree, the same
connections are what each hears the other's life by. Before that a connection that is lost is
made again, so that either side may start first, or start anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Container, Mapping
from typing import Any

from fixes.errors import ExitCode, FixesError, Problem
from fixes.launch import address, wire
from fixes.launch.events import Gone, Said
from fixes.launch.facts import differences, same_address
from fixes.launch.keeper import SILENCE
from fixes.launch.link import Card, Link, Say
from fixes.launch.strangers import Strangers
from fixes.launch.wire import Channel, Message, TokenError, WireError

#: Differences that are sent to nodes: a line is bounded. The head's own log has them all.
_TOLD = 20
#: Seconds until it is said again what is waited for.
_REMINDER = 60.0
#: Seconds that a refusing head waits for nodes that are not there yet, to tell them as well.
REFUSING = 30.0
#: Seconds between a worker's attempts.
PAUSE = 1.0


class Head(Link):
    """Node 0's link: it listens, and takes one connection of every other rank."""

    def __init__(self, own: Card, nnodes: int, token: bytes, say: Say) -> None:
        super().__init__(_at(own, own.ip), say)
        self._nnodes, self._token = nnodes, token
        self._server: asyncio.AbstractServer | None = None
        self._strangers = Strangers(say)
        self._sent_off: set[str] = set()
        self._all = asyncio.Event()
        self._refused: list[Problem] = []
        self._told: set[int] = set()

    async def open(self, port: int) -> None:
        """Listen. Raises FixesError where the port is taken."""
        try:
            self._server = await asyncio.start_server(
                self._accept, self.own.ip, port, limit=wire.LIMIT, reuse_address=True
            )
        except OSError as error:
            what = f"port {port} of {self.own.ip} cannot be listened on: {error.strerror}"
            hint = "another launcher is running here?"
            raise FixesError(
                Problem(ExitCode.NOT_STARTED, "port-taken", what, "--watch-port", hint)
            ) from None
        self.keep(self.beat())

    async def meet(self, deadline: float) -> None:
        """Wait for all nodes, compare, and tell them to start.

        Raises FixesError: a node did not come, or differs. Those that came are told.
        """
        while not self._refused:
            left = deadline - time.monotonic()
            if left <= 0:
                what = f"node {self._but(self._channels)} did not come to {self.own.ip} in time"
                self._refuse([_problem("not-met", what, "is it started, with the same token?")])
                break
            self._say(f"waiting for node {self._but(self._channels)}")
            with contextlib.suppress(asyncio.TimeoutError):
                await asyncio.wait_for(self._all.wait(), min(left, _REMINDER))
            if len(self._channels) == self._nnodes - 1:
                break
            self._all.clear()
        if self._refused:
            await self._linger(min(deadline, time.monotonic() + REFUSING))
            raise FixesError(*self._refused)
        self.together = True
        self.tell(start=self.own.incarnation)

    def _but(self, those: Container[int]) -> str:
        """The other nodes' ranks but those."""
        return ", ".join(str(rank) for rank in range(1, self._nnodes) if rank not in those)

    async def _linger(self, deadline: float) -> None:
        """Tell the refusal to nodes that come late, too: they would wait for nobody."""
        if any(problem.kind == "not-met" for problem in self._refused):
            return
        if untold := self._but(self._told):
            self._say(f"{self._refused[0].what}; node {untold} is to be told as well")
        while self._but(self._told) and time.monotonic() < deadline:
            await asyncio.sleep(0.1)

    async def close(self) -> None:
        """Close the port as well."""
        if self._server:
            self._server.close()
        await super().close()

    def _refuse(self, problems: list[Problem]) -> None:
        self._refused += problems
        told = self._refused[:_TOLD]
        if more := len(self._refused) - len(told):
            told.append(_problem("nodes-differ", f"and {more} more", "see the head's log"))
        self.tell(refused=[problem._asdict() for problem in told])
        self._told |= set(self._channels)
        self._all.set()

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer = writer.get_extra_info("peername")[0]
        if self._strangers.admit(writer, peer):
            self.keep(self._serve(reader, writer, peer))

    async def _serve(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, peer: str
    ) -> None:
        """One connection. Whatever a stranger sends, nothing but its own connection ends."""
        try:
            channel = await wire.challenge(reader, writer, self._token)
            theirs = _read_card(await asyncio.wait_for(channel.receive(), wire.INTRODUCTION))
            if writer not in self._strangers:
                raise WireError("had to make room for others")
        except (WireError, asyncio.TimeoutError) as error:
            self._strangers.refuse(peer, str(error) or "says nothing")
            writer.close()
            return
        finally:
            self._strangers.leave(writer)
        await self._take(theirs, channel)

    async def _take(self, theirs: Card, channel: Channel) -> None:
        """A node that belongs to this replica came, for the first time or anew."""
        rank = theirs.rank
        if theirs.replica and self.own.replica and theirs.replica != self.own.replica:
            self._send_off(theirs, channel, f"is of another replica: {self.own.replica}")
            return
        if not 0 < rank < self._nnodes:
            what = f"{theirs.name} says rank {rank}, and the head counts {self._nnodes} nodes"
            problem = _problem("nodes-differ", what, "give all nodes the same --nnodes")
            channel.send({"refused": [problem._asdict()]})
            self._say(what)
            self._refuse([problem])
            channel.close()
            return
        if self._is_double(theirs):
            self._send_off(theirs, channel, f"has {self.name(rank)} already")
            return
        if self.together:
            channel.send({"busy": "is running a replica that this node is not in any more"})
            channel.close()
            if theirs.incarnation != self.cards[rank].incarnation:
                self.events.put_nowait(Gone(rank, "started anew"))
            return
        if rank in self._channels:
            self._channels.pop(rank).abort()
        self.cards[rank], self._channels[rank] = theirs, channel
        self.heard[rank] = time.monotonic()
        self._say(f"{theirs.name} is here, {len(self._channels) + 1} of {self._nnodes}")
        known = [self.own, theirs]
        found = differences([(one.name, one.facts) for one in known])
        others = [one for number, one in sorted(self.cards.items()) if number != rank]
        found += same_address([(one.name, one.ip) for one in (*others, theirs)])
        if self._refused or found:
            self._refuse(found)
        if len(self._channels) == self._nnodes - 1:
            self._all.set()
        await self._hold(rank, channel)

    def _send_off(self, theirs: Card, channel: Channel, why: str) -> None:
        """A node that is not wanted here now: it comes again, and nobody is harmed."""
        channel.send({"busy": why})
        channel.close()
        if theirs.incarnation not in self._sent_off:
            self._say(f"{theirs.name} has to wait: this head {why}")
        self._sent_off.add(theirs.incarnation)

    def _is_double(self, theirs: Card) -> bool:
        """Whether another node of this rank, at another address, is well: then that one stays.

        One that has been replaced is silent soon, and then counts as lost.
        """
        old = self.cards.get(theirs.rank)
        if old is None or old.incarnation == theirs.incarnation or old.ip == theirs.ip:
            return False
        return time.monotonic() - self.heard.get(theirs.rank, 0.0) <= SILENCE

    async def _hold(self, rank: int, channel: Channel) -> None:
        """Hear a node. Before the start it may go and come again."""
        while not self.together:
            try:
                message = await asyncio.wait_for(channel.receive(), SILENCE * 2)
                self.heard[rank] = time.monotonic()
                if self.together and "beat" not in message:  # told to start meanwhile
                    self.events.put_nowait(Said(rank, message))
            except (WireError, asyncio.TimeoutError) as error:
                if self.together:
                    self.events.put_nowait(Gone(rank, str(error) or "is silent"))
                elif self._channels.get(rank) is channel:
                    del self._channels[rank]
                    self.heard.pop(rank, None)
                    if not self._refused:
                        self._say(f"{self.name(rank)} {error or 'is silent'}; waiting for it again")
                channel.abort()
                return
        await self.listen(rank, channel)


class Worker(Link):
    """Another node's link: one connection, to the head."""

    def __init__(self, own: Card, head: str, port: int, token: bytes, say: Say) -> None:
        super().__init__(own, say)
        self._head, self._port, self._token = head, port, token
        self.head_ip = ""

    async def meet(self, deadline: float) -> None:
        """Come to the head until it says that all may start.

        Raises FixesError: the head is not found in time, refuses, or is not the one.
        """
        last = told = ""
        while time.monotonic() < deadline:
            try:
                await self._try(deadline)
                return
            except TokenError as error:
                what = f"the head at {self.head_ip} {error}"
                hint = "give all nodes of a replica the same token"
                raise FixesError(_problem("wrong-token", what, hint)) from None
            except (OSError, WireError, asyncio.TimeoutError) as error:
                last = _why(error)
            if last != told:
                self._say(f"waiting for the head at {self._head}, port {self._port}: {last}")
                told = last
            await asyncio.sleep(PAUSE)
        what = (
            f"the head at {self._head}, port {self._port}, did not take this node in time: {last}"
        )
        raise FixesError(_problem("not-met", what, "is it started, with the same --watch-port?"))

    async def _try(self, deadline: float) -> None:
        found = await address.lookup_beside(self._head)
        if len(found) != 1:
            raise WireError(f"the name resolves to {' and '.join(found) or 'no address'}")
        (self.head_ip,) = found
        reader, writer = await asyncio.wait_for(
            asyncio.open_connection(self.head_ip, self._port, limit=wire.LIMIT), wire.INTRODUCTION
        )
        beating = None
        try:
            channel = await wire.introduce(reader, writer, self._token)
            channel.send({"card": _at(self.own, self.head_ip)._asdict()})
            self._channels[0] = channel
            beating = self.keep(self.beat())
            told = False
            while True:
                # The head beats: where nothing comes, the way to it is gone.
                message = await asyncio.wait_for(channel.receive(), SILENCE * 2)
                if "refused" in message:
                    raise FixesError(*_read_problems(message["refused"]))
                if "busy" in message:
                    raise WireError(str(message["busy"]))
                if "start" in message:
                    break
                # Where it waits as long as this node, its word says which one is missing.
                if time.monotonic() > deadline + REFUSING:
                    raise WireError("has not said that all are here")
                if not told:
                    self._say(f"the head at {self.head_ip} is here; waiting for its word to start")
                    told = True
            self.cards[0] = Card(0, self.head_ip, str(message["start"]), {})
            self.heard[0] = time.monotonic()
            self.together = True
            self.keep(self.listen(0, channel))
        except BaseException:
            self._channels.clear()
            if beating:
                beating.cancel()
            writer.transport.abort()
            raise


def _at(own: Card, head_ip: str) -> Card:
    """A card with the head's address as this node knows it: all engines are to use that one."""
    return own._replace(facts={**own.facts, "head address": head_ip})


def _why(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno:
        return os.strerror(error.errno).lower()
    return str(error) or "it does not answer"


def _read_card(message: Message) -> Card:
    """A card as it came. Raises WireError where it is none."""
    try:
        given: Mapping[str, Any] = message["card"]
        facts = {str(key): str(value) for key, value in dict(given["facts"]).items()}
        replica = str(given.get("replica", ""))
        return Card(int(given["rank"]), str(given["ip"]), str(given["incarnation"]), facts, replica)
    except (AttributeError, KeyError, TypeError, ValueError):
        raise WireError("sends no card") from None


def _read_problems(given: Any) -> list[Problem]:
    try:
        return [
            Problem(ExitCode.NOT_STARTED, str(one["kind"]), str(one["what"]), hint=str(one["hint"]))
            for one in given
        ] or [_problem("nodes-differ", "the head refuses without a reason", "see its log")]
    except (KeyError, TypeError):
        return [_problem("nodes-differ", "the head refuses without a reason", "see its log")]


def _problem(kind: str, what: str, hint: str) -> Problem:
    return Problem(ExitCode.NOT_STARTED, kind, what, hint=hint)
