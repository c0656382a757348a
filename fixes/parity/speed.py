"""Speed: rates and latencies of streams, from when their tokens arrived."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fixes.parity.answers import Floats
from fixes.parity.greedy import NEUTRAL
from fixes.parity.sse import Timeline

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True)
class Round:
    """Streams that one leg served at once, in one repeat."""

    leg: str
    streams: int
    repeat: int
    timelines: tuple[Timeline, ...]

    @property
    def decode(self) -> Floats:
        """Each stream's tokens per second after its first ones."""
        return np.array([decode(timeline) for timeline in self.timelines])

    @property
    def first(self) -> Floats:
        """Each stream's seconds until its first token."""
        every = ((one.arrivals[0].time - one.started) for one in self.timelines)
        return np.array(list(every))

    @property
    def aggregate(self) -> float:
        """All tokens per second from the first request's start to the last token, prefill too."""
        start = min(timeline.started for timeline in self.timelines)
        end = max(timeline.arrivals[-1].time for timeline in self.timelines)
        return sum(timeline.tokens for timeline in self.timelines) / (end - start)


@dataclass(frozen=True)
class Spread:
    """A figure over repeats: its median, and the least and the most."""

    median: float
    least: float
    most: float


@dataclass(frozen=True)
class Figures:
    """One leg at one number of streams, over its repeats."""

    leg: str
    streams: int
    repeats: int
    decode: Spread
    aggregate: Spread
    first: Spread
    between: tuple[float, ...]
    counted: tuple[str, ...]
    most_in_a_chunk: float


@dataclass(frozen=True)
class Ratio:
    """Another leg's rates divided by the baseline's of the same repeat."""

    leg: str
    streams: int
    decode: Spread
    aggregate: Spread


def decode(timeline: Timeline) -> float:
    """Tokens per second after the first chunk, whose tokens the prefill made.

    Not a number if there was one chunk only.
    """
    first, last = timeline.arrivals[0], timeline.arrivals[-1]
    seconds = last.time - first.time
    return (timeline.tokens - first.tokens) / seconds if seconds > 0 else float("nan")


def between(timelines: Iterable[Timeline]) -> Floats:
    """Seconds between tokens: a chunk of several shares the time since the one before evenly."""
    every = []
    for timeline in timelines:
        times = np.array([arrival.time for arrival in timeline.arrivals])
        counts = np.array([arrival.tokens for arrival in timeline.arrivals[1:]])
        if len(counts):
            whole = np.maximum(1, np.rint(counts)).astype(int)
            every.append(np.repeat(np.diff(times) / whole, whole))
    return np.concatenate(every) if every else np.zeros(0)


def spread(values: Sequence[float] | Floats) -> Spread:
    """Median, least and most of what is a number."""
    known = np.array([value for value in values if np.isfinite(value)])
    if not len(known):
        return Spread(float("nan"), float("nan"), float("nan"))
    return Spread(float(np.median(known)), float(known.min()), float(known.max()))


def figures(rounds: Sequence[Round]) -> list[Figures]:
    """The figures of each leg and number of streams, in the order they were measured."""
    result = []
    for streams, leg in dict.fromkeys((one.streams, one.leg) for one in rounds):
        mine = [one for one in rounds if (one.streams, one.leg) == (streams, leg)]
        timelines = [timeline for one in mine for timeline in one.timelines]
        gaps = between(timelines)
        percentiles = np.percentile(gaps, PERCENTILES) if len(gaps) else [float("nan")] * 3
        result.append(
            Figures(
                leg,
                streams,
                len(mine),
                spread([float(np.median(one.decode)) for one in mine]),
                spread([one.aggregate for one in mine]),
                spread([float(np.median(one.first)) for one in mine]),
                tuple(float(value) for value in percentiles),
                tuple(sorted({timeline.counted for timeline in timelines})),
                max(timeline.most for timeline in timelines),
            )
        )
    return result


def ratios(rounds: Sequence[Round], baseline: str, leg: str) -> list[Ratio]:
    """Rates of a leg over those of the baseline, repeat by repeat: what both share cancels."""
    known: Mapping[tuple[str, int, int], Round] = {
        (one.leg, one.streams, one.repeat): one for one in rounds
    }
    result = []
    for streams in dict.fromkeys(one.streams for one in rounds):
        pairs = [
            (known[leg, streams, one.repeat], one)
            for one in rounds
            if one.leg == baseline
            and one.streams == streams
            and (leg, streams, one.repeat) in known
        ]
        if pairs:
            rates = [float(np.median(a.decode) / np.median(b.decode)) for a, b in pairs]
            totals = [a.aggregate / b.aggregate for a, b in pairs]
            result.append(Ratio(leg, streams, spread(rates), spread(totals)))
    return result


def body(tokens: Sequence[int], count: int) -> dict[str, object]:
    """The question: a stream of exactly so many tokens, with ids and usage in every chunk."""
    return {
        "prompt": list(tokens),
        "max_tokens": count,
        "ignore_eos": True,
        "return_token_ids": True,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
        **NEUTRAL,
    }
