"""A streamed completion: its reads, the events in them, and when each token arrived."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fixes.parity.faults import FaultError, Kind

_DONE = b"[DONE]"


@dataclass(frozen=True)
class Reads:
    """What came from the socket, and when, in seconds of one monotonic clock."""

    started: float
    reads: tuple[tuple[float, bytes], ...]


@dataclass(frozen=True)
class Arrival:
    """Tokens that arrived at one time. Parts of a token occur where only a total is known."""

    time: float
    tokens: float


@dataclass(frozen=True)
class Timeline:
    """When the tokens of one stream arrived.

    ``counted`` says by what they were counted: ``ids``, ``usage`` with every chunk, or the
    ``total`` of the usage spread evenly over the chunks. ``most`` is the most in one chunk.
    """

    started: float
    arrivals: tuple[Arrival, ...]
    counted: str
    most: float

    @property
    def tokens(self) -> float:
        """All tokens of the stream."""
        return sum(arrival.tokens for arrival in self.arrivals)


def events(reads: Reads) -> Iterator[tuple[float, bytes]]:
    """The data of each event with the time of the read that completed it.

    By the event stream format of the HTML standard: lines end with LF, CRLF or CR; an empty
    line ends an event; lines that begin with a colon are comments.
    """
    rest = b""
    data: list[bytes] = []
    for time, read in reads.reads:
        rest += read
        held = rest[-1:] if rest.endswith(b"\r") else b""  # a LF may follow
        lines = (rest[: len(rest) - len(held)]).replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        *whole, last = lines.split(b"\n")
        rest = last + held
        for line in whole:
            if line.startswith(b"data:"):
                data.append(line[5:].removeprefix(b" "))
            elif not line and data:
                yield time, b"\n".join(data)
                data = []


def timeline(reads: Reads, asked: int) -> Timeline:
    """When the tokens arrived, if all that were asked for did.

    Raises FaultError: a stream that was cut, told of an error, ended early, or does not say how
    many tokens its chunks hold.
    """
    chunks: list[tuple[float, int | None, int | None]] = []
    total, done, finish = None, False, None
    for time, data in events(reads):
        if data.strip() == _DONE:
            done = True
            continue
        document = _parsed(data)
        if "error" in document:
            raise FaultError(Kind.SERVER_ERROR, f"in the stream: {json.dumps(document['error'])}")
        usage = (document.get("usage") or {}).get("completion_tokens")
        total = usage if usage is not None else total
        for choice in document.get("choices") or ():
            finish = choice.get("finish_reason") or finish
            ids = choice.get("token_ids")
            if choice.get("text") or ids or usage is not None:
                chunks.append((time, None if ids is None else len(ids), usage))
    if not done:
        raise FaultError(Kind.CUT_SHORT, f"the stream ended without {_DONE.decode()}")
    found, counted = _counts(chunks, total)
    arrivals = tuple(Arrival(time, count) for time, count in found if count)
    tokens = sum(arrival.tokens for arrival in arrivals)
    if tokens < asked:
        what = f"{tokens:g} tokens of {asked}, finish_reason {finish}"
        raise FaultError(Kind.ENDED_EARLY, what)
    most = max(arrival.tokens for arrival in arrivals)
    return Timeline(reads.started, arrivals, counted, most)


def _counts(
    chunks: list[tuple[float, int | None, int | None]], total: int | None
) -> tuple[list[tuple[float, float]], str]:
    """How many tokens each chunk holds; never one because it is one chunk."""
    if all(ids is not None for _, ids, _ in chunks):
        return [(time, float(ids or 0)) for time, ids, _ in chunks], "ids"
    if all(usage is not None for _, _, usage in chunks):
        before = [0, *(usage or 0 for _, _, usage in chunks)]
        steps = zip(chunks, before[1:], before, strict=False)
        return [(chunk[0], float(now - then)) for chunk, now, then in steps], "usage"
    if total is None:
        what = "its chunks have neither token ids nor usage: they cannot be counted"
        raise FaultError(Kind.NO_COUNTS, what)
    return [(time, total / len(chunks)) for time, _, _ in chunks], "total"


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise FaultError(Kind.MALFORMED, f"an event is no JSON object: {data[:60]!r}")
    return document
