"""Strangers: connections that have not introduced themselves, and how many there may be."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from typing import NamedTuple

from fixes.launch.link import Say

LIMIT = 64
#: Seconds that a node needs to introduce itself, even where the head has much to do.
_ENOUGH = 1.0


class _Stranger(NamedTuple):
    """Where a connection comes from, and since when it is there."""

    peer: str
    since: float


class Strangers:
    """Bounded, and yet nobody keeps a node out: where all places are taken, a crowd makes room."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._there: dict[asyncio.StreamWriter, _Stranger] = {}  # the oldest first
        self._refused = 0

    def __contains__(self, writer: asyncio.StreamWriter) -> bool:
        return writer in self._there

    def admit(self, writer: asyncio.StreamWriter, peer: str) -> bool:
        """Let one in; False where there is no room, and then its connection is closed."""
        if len(self._there) >= LIMIT and not self._make_room(peer):
            writer.transport.abort()
            return False
        self._there[writer] = _Stranger(peer, time.monotonic())
        return True

    def leave(self, writer: asyncio.StreamWriter) -> None:
        """It is no stranger any more, or is gone."""
        self._there.pop(writer, None)

    def refuse(self, peer: str, why: str) -> None:
        """Say why one was refused, but not so often that it fills a disk."""
        self._refused += 1
        if self._refused < 10:
            self._say(f"a connection from {peer} is refused: it {why}")
        elif str(self._refused).strip("0") == "1":
            self._say(f"a connection from {peer} is refused: it {why} ({self._refused} by now)")

    def _make_room(self, peer: str) -> bool:
        """Send one of a crowd away for a connection from elsewhere, or one that had its time."""
        crowds = Counter(one.peer for one in self._there.values())
        crowd, size = crowds.most_common(1)[0]
        oldest = next(writer for writer, one in self._there.items() if one.peer == crowd)
        waited = time.monotonic() - self._there[oldest].since
        if crowds[peer] + 1 >= size and waited < _ENOUGH:
            return False
        self.leave(oldest)
        oldest.transport.abort()
        return True
