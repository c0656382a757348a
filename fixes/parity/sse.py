"""A streamed completion: its reads, the events in them, and when each token arrived."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fixes.parity.answers import ids
from fixes.parity.faults import FaultError, Kind, message, well_formed

_DONE = b"[DONE]"
#: A chunk: when it came, how many ids it has, and how many tokens its usage tells so far.
_Chunk = tuple[float, "int | None", "int | None"]


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
    ``total`` of the usage spread evenly over the chunks. ``tokens`` are all of them.
    """

    started: float
    arrivals: tuple[Arrival, ...]
    tokens: int
    counted: str

    @property
    def most(self) -> float:
        """The most tokens that arrived at once."""
        return max(arrival.tokens for arrival in self.arrivals)


def events(reads: Reads) -> Iterator[tuple[float, bytes]]:
    """The data of each event with the time of the read that completed it.

    By the event stream format of the HTML standard: lines end with LF, CRLF or CR; an empty
    line ends an event; lines that begin with a colon are comments.
    """
    rest = b""
    parts: list[bytes] = []
    data: list[bytes] = []
    for time, read in reads.reads:
        parts.append(read)
        if b"\n" not in read and b"\r" not in read and not rest.endswith(b"\r"):
            continue  # a long line is put together once, not with each of its parts
        rest += b"".join(parts)
        parts = []
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


@well_formed()
def timeline(reads: Reads, asked: int, prompt: int) -> Timeline:
    """When the tokens arrived, if all that were asked for did, after a prompt of so many.

    Raises FaultError: a stream that was cut, told of an error, ended early, or does not say how
    many tokens its chunks hold; one that tells two numbers of them, or read another prompt.
    """
    chunks: list[_Chunk] = []
    total, done, finish = None, False, None
    for time, data in events(reads):
        if data.strip() == _DONE:
            done = True
            continue
        document = _parsed(data)
        if document.get("error") is not None:
            raise FaultError(Kind.SERVER_ERROR, f"in the stream: {message(document['error'])}")
        counts = document.get("usage") or {}
        usage = counts.get("completion_tokens")
        total = _whole(usage, total or 0) if usage is not None else total
        if counts.get("prompt_tokens", prompt) != prompt:
            what = f"it has read {counts['prompt_tokens']} tokens, not the {prompt} that were sent"
            raise FaultError(Kind.OTHER_PROMPT, what)
        for choice in document.get("choices") or ():
            finish = choice.get("finish_reason") or finish
            told = choice.get("token_ids")
            if choice.get("text") or told or usage is not None:
                chunks.append((time, None if told is None else len(ids(told)), usage))
    if not done:
        raise FaultError(Kind.CUT_SHORT, f"the stream ended without {_DONE.decode()}")
    arrivals, tokens, counted = _counts(chunks, total)
    if tokens < asked:
        what = f"{tokens} tokens of {asked}, finish_reason {finish}"
        raise FaultError(Kind.ENDED_EARLY, what)
    if tokens > asked or total not in (None, tokens):
        what = f"its {counted} tells {tokens} tokens of {asked}, its last usage {total}"
        raise FaultError(Kind.MALFORMED, what)
    return Timeline(reads.started, tuple(one for one in arrivals if one.tokens), tokens, counted)


def _counts(chunks: list[_Chunk], total: int | None) -> tuple[list[Arrival], int, str]:
    """How many tokens each chunk holds, and all; never one because it is one chunk."""
    if all(ids is not None for _, ids, _ in chunks):
        counts = [ids or 0 for _, ids, _ in chunks]
        counted = "ids"
    elif all(usage is not None for _, _, usage in chunks):
        so_far = [0, *(usage or 0 for _, _, usage in chunks)]
        counts = [now - before for now, before in zip(so_far[1:], so_far, strict=False)]
        counted = "usage"
    elif total is None:
        what = "its chunks have neither token ids nor usage: they cannot be counted"
        raise FaultError(Kind.NO_COUNTS, what)
    else:
        return [Arrival(time, total / len(chunks)) for time, _, _ in chunks], total, "total"
    times = (time for time, _, _ in chunks)
    arrivals = [Arrival(time, count) for time, count in zip(times, counts, strict=True)]
    return arrivals, sum(counts), counted


def _whole(count: object, least: int) -> int:
    """A number of tokens so far, which never falls."""
    if type(count) is not int or count < least:
        raise FaultError(Kind.MALFORMED, f"its usage tells {count!r} tokens after {least}")
    return count


def _parsed(data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise FaultError(Kind.MALFORMED, f"an event is no JSON object: {data[:60]!r}")
    return document
