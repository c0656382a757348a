"""The verdict: what was measured, the control's noise and the thresholds; no network."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

from fixes.parity import comparing, forced, greedy, needles, speed
from fixes.parity.answers import Answer
from fixes.parity.comparing import Likeness, Noise
from fixes.parity.faults import Fault
from fixes.parity.legs import BASELINE, CANDIDATE, CONTROL, grouped
from fixes.parity.run import Measured
from fixes.parity.thresholds import Thresholds


class Status(str, Enum):
    """What a part comes to, and the whole run. ``measured``: there was nothing to compare."""

    DIFFERENT = "different"
    INCOMPLETE = "incomplete"
    WITHIN_NOISE = "within-noise"
    IDENTICAL = "identical"
    MEASURED = "measured"
    NOT_ASKED = "not-asked"


@dataclass(frozen=True)
class Part:
    """One part of the report. ``rows`` holds what its table shows, by the leg compared with."""

    name: str
    status: Status
    reasons: tuple[str, ...]
    rows: Mapping[str, object]
    faults: tuple[Fault, ...]


@dataclass(frozen=True)
class Verdict:
    """All parts, the noise that they were judged by, and what the whole comes to.

    ``unknown`` is what the preflight had to know of the endpoints and does not.
    """

    status: Status
    noise: Noise
    batch_noise: Noise
    parts: tuple[Part, ...]
    unknown: tuple[str, ...] = ()

    @property
    def reasons(self) -> list[str]:
        """Why: the reasons of all parts that are not simply the same."""
        return [
            *(f"preflight: {what}" for what in self.unknown),
            *(f"{part.name}: {reason}" for part in self.parts for reason in part.reasons),
        ]


def judge(
    measured: Measured, limits: Thresholds, compared: bool, unknown: Sequence[str] = ()
) -> Verdict:
    """Judge every part; ``compared`` says whether there is a candidate."""
    noise = _noise(measured, limits)
    batch = _batch_noise(measured, noise)
    parts = (
        _answers("greedy", measured.greedy, measured, noise, limits, compared),
        _answers("batching", {"at once": measured.batched}, measured, batch, limits, compared),
        _forced(measured, noise, limits, compared),
        _needles(measured, noise, limits, compared),
        _speed(measured, limits, compared),
    )
    statuses = [part.status for part in parts] + [Status.INCOMPLETE] * bool(unknown)
    return Verdict(_whole(statuses), noise, batch, parts, tuple(unknown))


def _noise(measured: Measured, limits: Thresholds) -> Noise:
    """How the baseline differs from itself, one question at a time."""
    pairs = [pair for legs in measured.greedy.values() for pair in _pairs(legs, CONTROL)]
    pairs += _pairs(measured.needled, CONTROL)
    known = measured.forced
    change = forced.largest_change(known.get(BASELINE, {}), known.get(CONTROL, {}))
    return comparing.noise(pairs, change, floor=limits.noise_floor)


def _batch_noise(measured: Measured, noise: Noise) -> Noise:
    """The same at once; what a batch changes of the baseline's own answers is noise as well."""
    pairs = list(_pairs(measured.batched, CONTROL))
    alone = next(iter(measured.greedy.values()), {}).get(BASELINE, {})
    names = measured.batched.get(BASELINE, {})
    pairs += [(alone[name], names[name]) for name in alone if name in names]
    return comparing.noise(pairs, floor=noise.logprob)


def _pairs(legs: Mapping[str, Mapping[str, Answer]], leg: str) -> Iterable[tuple[Answer, Answer]]:
    one, other = legs.get(BASELINE, {}), legs.get(leg, {})
    return ((one[name], other[name]) for name in one if name in other)


def _answers(
    name: str,
    states: Mapping[str, Mapping[str, Mapping[str, Answer]]],
    measured: Measured,
    noise: Noise,
    limits: Thresholds,
    compared: bool,
) -> Part:
    rows = {
        leg: [
            greedy.row(state, legs.get(BASELINE, {}), legs.get(leg, {}), noise)
            for state, legs in states.items()
        ]
        for leg in _others(compared)
    }
    beyond, near, unsteady = _parted(rows, getattr(limits, f"{name}_max_different"))
    counts = [len(row.pairs) for found in rows.values() for row in found]
    missing = _steady(noise, limits) or unsteady or _missing(name, min(counts, default=0), measured)
    return _part(name, measured, rows, beyond, near, compared, missing)


def _parted(
    rows: Mapping[str, Sequence[greedy.Row]], allowed: int
) -> tuple[list[str], list[str], str]:
    """How answers part: beyond the noise and what is allowed, within them, and the control's."""
    beyond, near, unsteady = [], [], ""
    for row in rows.get(CANDIDATE, ()):
        of = len(row.pairs)
        if count := row.count(Likeness.DIFFERENT):
            first = next(pair for pair in row.pairs if pair.likeness is Likeness.DIFFERENT)
            said = f"{row.state}: {count} of {of} answers part beyond the noise; {_first(first)}"
            if count > allowed:
                beyond.append(said)
            else:
                near.append(f"{said} (the thresholds allow {allowed})")
        if count := row.count(Likeness.WITHIN_NOISE):
            near.append(f"{row.state}: {count} of {of} answers part within the noise")
    for row in rows[CONTROL]:
        if row.count(Likeness.DIFFERENT):
            unsteady = f"{row.state}: the baseline's own answers part beyond its noise"
        elif count := row.count(Likeness.WITHIN_NOISE):
            of = len(row.pairs)
            near.append(f"{row.state}: {count} of {of} of the baseline's answers part from its own")
    return beyond, near, unsteady


def _first(pair: comparing.Pair) -> str:
    found = pair.divergence
    assert found
    gap = "" if found.gaps[0] is None else f", where its first token leads by {found.gaps[0]:.4g}"
    tokens = " for ".join(
        "the end" if token is None else str(token) for token in found.tokens[::-1]
    )
    return f"{pair.question} first at token {found.place + 1}: {tokens}{gap}"


def _steady(noise: Noise, limits: Thresholds) -> str:
    """What keeps the control from being one, or nothing."""
    if noise.logprob > limits.noise_ceiling:
        return (
            f"the baseline differs from itself by {noise.logprob:.3g} in a log-probability, above"
            f" the ceiling of {limits.noise_ceiling:g}: nothing can be compared with it"
        )
    return ""


def _missing(name: str, compared: int, measured: Measured) -> str:
    """A part is whole only if all that was asked could be compared, the control's too."""
    asked = measured.asked.get(name, 0)
    return f"{compared} of {asked} could be compared" if compared < asked else ""


def _forced(measured: Measured, noise: Noise, limits: Thresholds, compared: bool) -> Part:
    one = measured.forced.get(BASELINE, {})
    rows: dict[str, object] = {}
    for leg in _others(compared):
        rows[leg] = forced.agreement(one, measured.forced.get(leg, {}), noise)
    control = rows[CONTROL]
    assert isinstance(control, forced.Agreement)
    beyond, near = [], []
    found = rows.get(CANDIDATE)
    if isinstance(found, forced.Agreement) and found.positions:
        if found.different > limits.forced_max_different:
            first = next(place for place in found.differing if not place.within_noise)
            beyond.append(
                f"the likeliest token is another one at {found.different} of {found.positions}"
                f" positions beyond the noise; first in {first.text} at {first.place}"
            )
        elif found.differing:
            near.append(
                f"the likeliest token is another one at {len(found.differing)} positions"
                " within the noise or the thresholds"
            )
        apart = abs(found.nll[1] - found.nll[0])
        own = abs(control.nll[1] - control.nll[0]) if control.positions else 0.0
        if apart > limits.forced_max_nll_difference + own:
            beyond.append(f"the mean NLL is {found.nll[1]:.4f} for {found.nll[0]:.4f}")
        if found.largest > limits.forced_max_logprob_difference + noise.logprob:
            where = found.largest_at or ("", 0)
            beyond.append(
                f"a log-probability differs by {found.largest:.3g}"
                f" ({where[0]} at {where[1]}), and in the control by {noise.logprob:.3g}"
            )
        elif found.largest:
            near.append(
                f"a log-probability differs by {found.largest:.3g}, within the noise or the"
                " thresholds"
            )
    unsteady = _steady(noise, limits)
    if control.different:
        unsteady = unsteady or (
            f"the baseline's own likeliest token is another one at {control.different} positions"
            " beyond its noise"
        )
    elif control.differing or control.largest:
        near.append(
            f"the baseline differs from itself by {control.largest:.3g} in a log-probability, and"
            f" in the likeliest token of {len(control.differing)} positions"
        )
    counts = [each.positions for each in rows.values() if isinstance(each, forced.Agreement)]
    missing = unsteady or _missing("forced", min(counts), measured)
    return _part("forced", measured, rows, beyond, near, compared, missing)


def _needles(measured: Measured, noise: Noise, limits: Thresholds, compared: bool) -> Part:
    """The codes first; and the answers of those that all legs told alike, token by token."""
    other = CANDIDATE if compared else CONTROL
    rows = needles.rows(measured.needles, measured.needled) if measured.needled else []
    lost = [name for row in rows for name in row.lost]
    gained = [name for row in rows for name in row.gained]
    unsteady = [name for row in rows for name in row.unsteady]
    apart = {*lost, *gained, *unsteady}
    alike = {
        leg: {name: one for name, one in answers.items() if name not in apart}
        for leg, answers in measured.needled.items()
    }
    answered = {
        leg: [greedy.row("token ids", alike.get(BASELINE, {}), alike.get(leg, {}), noise)]
        for leg in _others(compared)
    }
    beyond, near, wavers = _parted(answered, 0)
    if len(lost) > limits.needles_max_lost:
        beyond.append(f"lost what the baseline found: {', '.join(lost)}")
    elif lost:
        near.append(f"lost, which the thresholds allow: {', '.join(lost)}")
    if gained:
        near.append(f"found what the baseline did not: {', '.join(gained)}")
    if unsteady:
        near.append(f"the baseline itself found only once of two times: {', '.join(unsteady)}")
    missing = wavers or _missing("needles", sum(row.needles for row in rows), measured)
    part = _part("needles", measured, {other: rows}, beyond, near, compared, missing)
    if part.status is Status.IDENTICAL and not any(row.found[BASELINE] for row in rows):
        reason = "the baseline finds none: they say nothing of the candidate"
        return replace(part, status=Status.MEASURED, reasons=(reason,))
    return part


def _speed(measured: Measured, limits: Thresholds, compared: bool) -> Part:
    found = {leg: speed.ratios(measured.rounds, BASELINE, leg) for leg in _others(compared)}
    beyond, unknown = [], []
    for ratio in found.get(CANDIDATE, []):
        for what, figure, least in (
            ("decode", ratio.decode.median, limits.speed_min_decode_ratio),
            ("aggregate", ratio.aggregate.median, limits.speed_min_aggregate_ratio),
        ):
            if least and math.isnan(figure):
                unknown.append(f"no {what} at {ratio.streams} streams: all tokens came at once")
            elif least and figure < least:
                beyond.append(
                    f"{what} at {ratio.streams} streams is {figure:.3f} of the"
                    f" baseline's, below {least:g}"
                )
    rows = {"figures": speed.figures(measured.rounds), "ratios": found}
    legs = (BASELINE, *_others(compared))
    count = min(sum(one.leg == leg for one in measured.rounds) for leg in legs)
    missing = _missing("speed", count, measured) or "; ".join(unknown)
    part = _part("speed", measured, rows, beyond, [], compared, missing)
    if part.status is Status.IDENTICAL:  # rates are never identical
        return replace(part, status=Status.MEASURED)
    return part


def _part(
    name: str,
    measured: Measured,
    rows: Mapping[str, object],
    beyond: Sequence[str],
    near: Sequence[str],
    compared: bool,
    unsteady: str,
) -> Part:
    """What differs decides first, then what is missing, then the noise."""
    faults = measured.faults.get(name, ())
    lacking = [unsteady] if unsteady else []
    lacking += [
        f"{leg}: {kind.value}: {what} ({_times(len(each))})"
        for (kind, leg, what), each in grouped(faults).items()
    ]
    if not measured.asked.get(name):
        return Part(name, Status.NOT_ASKED, (), rows, faults)
    if beyond:
        return Part(name, Status.DIFFERENT, (*beyond, *lacking), rows, faults)
    if lacking:
        return Part(name, Status.INCOMPLETE, tuple(lacking), rows, faults)
    if not compared:
        return Part(name, Status.MEASURED, tuple(near), rows, faults)
    status = Status.WITHIN_NOISE if near else Status.IDENTICAL
    return Part(name, status, tuple(near), rows, faults)


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"


def _others(compared: bool) -> tuple[str, ...]:
    return (CANDIDATE, CONTROL) if compared else (CONTROL,)


def _whole(statuses: Iterable[Status]) -> Status:
    """The first of these that any part has; with nothing asked, nothing was measured."""
    found = set(statuses)
    order = (Status.DIFFERENT, Status.INCOMPLETE, Status.WITHIN_NOISE, Status.IDENTICAL)
    return next((status for status in order if status in found), Status.MEASURED)
