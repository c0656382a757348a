"""A link: a node's connections to the others, and what it hears of their life.

The head has one to every other node, each other node has one to the head.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable
from typing import Any, NamedTuple

from fixes.launch.events import Event, Gone, Said, name_of
from fixes.launch.facts import Facts
from fixes.launch.keeper import BEAT, SILENCE
from fixes.launch.wire import Channel, WireError

Say = Callable[[str], None]


class Card(NamedTuple):
    """What a node says of itself. ``incarnation`` is new with every start of a launcher."""

    rank: int
    ip: str
    incarnation: str
    facts: Facts
    replica: str = ""

    @property
    def name(self) -> str:
        """How it is called in messages."""
        return name_of(self.rank, self.ip)


def card(rank: int, ip: str, facts: Facts, replica: str = "") -> Card:
    """A card for this start of this node."""
    return Card(rank, ip, secrets.token_hex(8), facts, replica)


class Link:
    """A node's connections to others, and the events that they bring."""

    def __init__(self, own: Card, say: Say) -> None:
        self.own, self._say = own, say
        self.events: asyncio.Queue[Event] = asyncio.Queue()
        self.cards: dict[int, Card] = {own.rank: own}
        self.heard: dict[int, float] = {}
        self._channels: dict[int, Channel] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.together = False

    def name(self, rank: int) -> str:
        """How a node is called in messages."""
        return self.cards[rank].name if rank in self.cards else f"node {rank}"

    def tell(self, **message: Any) -> None:
        """Send a message to every node that this one is connected to."""
        for channel in self._channels.values():
            channel.send(message)

    async def close(self) -> None:
        """Give what was sent a moment to leave, and close all."""
        for channel in list(self._channels.values()):  # others go while one is waited for
            await channel.flush(0.5)
            channel.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def keep(self, work: Any) -> asyncio.Task[None]:
        """Run something beside, until the link is closed."""
        task: asyncio.Task[None] = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    async def beat(self) -> None:
        """Send signs of life, and miss those of others once the group is together."""
        while True:
            self.tell(beat=1)
            now = time.monotonic()
            for rank, heard in list(self.heard.items()):
                if self.together and now - heard > SILENCE:
                    del self.heard[rank]
                    self.events.put_nowait(Gone(rank, f"silent for {SILENCE:.0f} s"))
            await asyncio.sleep(BEAT)

    async def listen(self, rank: int, channel: Channel) -> None:
        """Take a node's messages, once the group is together, as events."""
        try:
            while True:
                message = await channel.receive()
                self.heard[rank] = time.monotonic()
                if "beat" not in message:
                    self.events.put_nowait(Said(rank, message))
        except WireError as error:
            self.heard.pop(rank, None)
            self.events.put_nowait(Gone(rank, str(error)))
