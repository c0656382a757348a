"""What happens to a running node, as the one queue of events that the watch reads."""

from __future__ import annotations

from typing import NamedTuple

from fixes.launch.wire import Message


class Said(NamedTuple):
    """A node said something."""

    rank: int
    message: Message


class Gone(NamedTuple):
    """A node is lost, and how that shows."""

    rank: int
    why: str


class Kept(NamedTuple):
    """The keeper said something."""

    message: Message


class Signalled(NamedTuple):
    """A signal arrived."""

    number: int


Event = Said | Gone | Kept | Signalled


def name_of(rank: int, ip: str) -> str:
    """How a node is called in messages."""
    return f"node {rank} ({ip})"
