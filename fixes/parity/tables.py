"""The report as tables, and those as Markdown."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fixes import __version__
from fixes.parity import forced, greedy, needles, speed
from fixes.parity.comparing import Likeness
from fixes.parity.legs import BASELINE, CANDIDATE, CONTROL
from fixes.parity.report import Report, faults
from fixes.parity.verdict import Part, Status
from fixes.parity.words import printable

_LEGS = {
    CANDIDATE: "candidate against baseline",
    CONTROL: "control: baseline against itself",
}

_ORDER = (BASELINE, CANDIDATE, CONTROL)
_ANSWERS = (
    "legs",
    "cache",
    "answers",
    "the same",
    "within noise",
    "different",
    "tokens alike",
    "largest change",
)
_PARTED = (
    "legs",
    "answer",
    "token",
    "baseline's",
    "other's",
    "gap",
    "gap of the other",
    "log-probabilities",
    "",
)
_FORCED = (
    "legs",
    "positions",
    "same top-1",
    "different beyond noise",
    "NLL of baseline",
    "NLL of other",
    "largest change",
    "where",
    "leads below noise",
)
_APART = ("legs", "text", "position", "baseline's", "other's", "gap", "gap of the other", "")
_SPEED = (
    "streams",
    "leg",
    "decode of one, tok/s",
    "aggregate, tok/s",
    "first token, s",
    "between tokens, ms: p50 / p90 / p99",
    "counted by; in a chunk",
)


@dataclass(frozen=True)
class Table:
    """A heading, a sentence, and rows of cells under their names."""

    title: str
    about: str
    names: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables(report: Report) -> list[Table]:
    """All tables of a report, in their order; none that would be empty."""
    parts = {part.name: part for part in report.verdict.parts}
    found = [
        _preflight(report),
        *_answers("Greedy answers, one at a time", parts["greedy"]),
        *_answers("The same at once (batching)", parts["batching"]),
        *_forced(report, parts["forced"]),
        *_needles(parts["needles"]),
        *_speed(parts["speed"]),
        _faults(report),
    ]
    return [table for table in found if table.rows]


def markdown(report: Report) -> str:
    """The whole report as Markdown, aligned so that it can be read as text."""
    lines = [f"# Parity, by vllm-fixes {__version__}", "", f"**{report.headline()}**", ""]
    lines += [f"- {_escaped(item)}" for item in summary(report)]
    for table in tables(report):
        lines += ["", f"## {table.title}", ""]
        lines += [_escaped(table.about), ""] if table.about else []
        lines += _grid(table)
    return "\n".join(lines) + "\n"


def summary(report: Report) -> list[str]:
    """What stands above the tables: the endpoints, the noise, the reasons, what to know."""
    return [
        *(f"{leg}: {facts.url}" for leg, facts in report.facts.items()),
        f"{report.started}, {report.seconds:.0f} s; {noise(report)}",
        *report.verdict.reasons,
        *(f"note: {note}" for note in report.notes()),
    ]


def _escaped(text: str) -> str:
    """Text as Markdown shows it as it is: a server's words are no markup of the report."""
    return re.sub(r"[\\`*\[\]<>|]", r"\\\g<0>", printable(text))


def noise(report: Report) -> str:
    """The control's noise in words."""
    one, other = report.verdict.noise.logprob, report.verdict.batch_noise.logprob
    return f"the control's noise is {one:.3g} in a log-probability, and {other:.3g} at once"


def _grid(table: Table) -> list[str]:
    cells = [table.names, *table.rows]
    escaped = [[_escaped(cell) for cell in row] for row in cells]
    widths = [max(map(len, column)) for column in zip(*escaped, strict=True)]
    lines = [
        "| " + " | ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) + " |"
        for row in escaped
    ]
    return [lines[0], "|" + "|".join("-" * (width + 2) for width in widths) + "|", *lines[1:]]


def _preflight(report: Report) -> Table:
    words = {True: "", False: "differs", None: "cannot tell"}
    if report.compared:
        rows = tuple(
            (one.name, one.baseline, one.candidate, words[one.equal]) for one in report.preflight
        )
        return Table("What they are", "", ("", BASELINE, CANDIDATE, ""), rows)
    alone = tuple((one.name, one.baseline) for one in report.preflight)
    return Table("What it is", "", ("", BASELINE), alone)


def _answers(title: str, part: Part) -> Iterable[Table]:
    rows: list[tuple[str, ...]] = []
    parted: list[tuple[str, ...]] = []
    for leg, found in part.rows.items():
        for row in _as_rows(found):
            if not row.pairs:
                continue
            counts = [row.count(likeness) for likeness in Likeness]
            rows.append(
                (
                    _LEGS[leg],
                    row.state,
                    str(len(row.pairs)),
                    *map(str, counts),
                    str(row.tokens),
                    f"{row.largest:.3g}",
                )
            )
            parted += [_parted(leg, row, pair) for pair in row.pairs if pair.divergence]
    yield Table(title, _said(part), _ANSWERS, tuple(rows))
    about = (
        "Token ids; the lead of the first token over the second by each of the two; and the"
        " log-probabilities of the baseline's token (by the baseline, by the other), then of the"
        " other's token."
    )
    yield Table(f"{title}: where they part", about, _PARTED, tuple(parted))


def _parted(leg: str, row: greedy.Row, pair: Any) -> tuple[str, ...]:
    found = pair.divergence
    tokens = tuple("the end" if token is None else str(token) for token in found.tokens)
    values = ", ".join("-" if one is None else f"{one:.4f}" for one in found.probabilities)
    return (
        leg,
        f"{pair.question}, {row.state}",
        str(found.place + 1),
        *tokens,
        *("-" if gap is None else f"{gap:.4g}" for gap in found.gaps),
        values,
        found.likeness.value,
    )


def _as_rows(found: object) -> Sequence[greedy.Row]:
    return found if isinstance(found, list) else []


def _forced(report: Report, part: Part) -> Iterable[Table]:
    rows: list[tuple[str, ...]] = []
    apart: list[tuple[str, ...]] = []
    for leg, found in part.rows.items():
        if not isinstance(found, forced.Agreement) or not found.positions:
            continue
        where = "{} at {}".format(*found.largest_at) if found.largest_at else "-"
        rows.append(
            (
                _LEGS[leg],
                str(found.positions),
                str(found.agreeing),
                str(found.different),
                f"{found.nll[0]:.4f}",
                f"{found.nll[1]:.4f}",
                f"{found.largest:.3g}",
                where,
                str(found.close),
            )
        )
        apart += [
            (
                leg,
                place.text,
                str(place.place),
                *map(str, place.tokens),
                *(f"{gap:.4g}" for gap in place.gaps),
                (Likeness.WITHIN_NOISE if place.within_noise else Likeness.DIFFERENT).value,
            )
            for place in found.differing[:20]
        ]
    yield Table("Teacher-forced", _said(part), _FORCED, tuple(rows))
    yield Table(
        "Teacher-forced: where the likeliest token differs",
        "The first 20 of each.",
        _APART,
        tuple(apart),
    )


def _needles(part: Part) -> Iterable[Table]:
    rows: list[tuple[str, ...]] = []
    legs: list[str] = []
    for found in part.rows.values():
        for row in found if isinstance(found, list) else []:
            assert isinstance(row, needles.Row)
            legs = list(row.found)
            rows.append((str(row.tokens), *(f"{n} of {row.needles}" for n in row.found.values())))
    yield Table("Needles", _said(part), ("tokens", *legs), tuple(rows))


def _speed(part: Part) -> Iterable[Table]:
    figures = part.rows["figures"]
    assert isinstance(figures, list)
    rows = tuple(
        (
            str(one.streams),
            one.leg,
            _spread(one.decode, "{:.1f}"),
            _spread(one.aggregate, "{:.1f}"),
            _spread(one.first, "{:.3f}"),
            " / ".join(f"{value * 1000:.1f}" if value >= 0 else "-" for value in one.between),
            f"{', '.join(one.counted)}; at most {one.most_in_a_chunk:g}",
        )
        for one in sorted(figures, key=lambda one: (one.streams, _ORDER.index(one.leg)))
    )
    about = "Median over the repeats (least to most). "
    yield Table("Speed", about + _said(part), _SPEED, rows)
    ratios = part.rows["ratios"]
    assert isinstance(ratios, dict)
    against = tuple(
        (
            str(one.streams),
            _LEGS[leg],
            _spread(one.decode, "{:.3f}"),
            _spread(one.aggregate, "{:.3f}"),
        )
        for leg, found in ratios.items()
        for one in found
    )
    about = (
        "Rates divided by the baseline's of the same repeat. A ratio of the candidate inside the"
        " control's spread is no difference."
    )
    yield Table("Speed: ratios", about, ("streams", "legs", "decode", "aggregate"), against)


def _spread(spread: speed.Spread, form: str) -> str:
    if not math.isfinite(spread.median):
        return "-"
    least, most = form.format(spread.least), form.format(spread.most)
    return f"{form.format(spread.median)} ({least} to {most})"


def _said(part: Part) -> str:
    said = f"{part.status.value}"
    if part.status in (Status.DIFFERENT, Status.INCOMPLETE, Status.WITHIN_NOISE):
        said += f": {'; '.join(part.reasons)}"
    return said + "."


def _faults(report: Report) -> Table:
    rows = []
    for fault in faults(report.measured):
        questions = fault["questions"]
        more = f" and {len(questions) - 2} more" if len(questions) > 2 else ""
        where = "; ".join(questions[:2]) + more
        rows.append((fault["part"], fault["leg"], fault["kind"], fault["what"], where))
    names = ("part", "leg", "fault", "what", "where")
    return Table("What gave no answer", "", names, tuple(rows))
