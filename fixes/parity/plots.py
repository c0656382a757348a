"""Plots of a report as SVG, to stand inside a page."""

from __future__ import annotations

import io

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from fixes.parity import forced, speed
from fixes.parity.answers import Floats
from fixes.parity.legs import BASELINE, CANDIDATE, CONTROL
from fixes.parity.report import Report

_COLOURS = {BASELINE: "#1f6f8b", CANDIDATE: "#d1495b", CONTROL: "#8d99ae"}
#: In how many parts the positions are drawn.
_PARTS = 400


def plots(report: Report) -> list[tuple[str, str]]:
    """A caption and an SVG each, for all that there are figures of."""
    found = [
        (
            "NLL difference along the positions: the mean of each stretch, its least and most",
            _along(report),
        ),
        ("Decode of each stream, with the least and the most over the repeats", _rates(report)),
        (
            "Time between tokens, and until the first: which share took no longer",
            _latencies(report),
        ),
    ]
    return [(caption, _svg(caption, figure)) for caption, figure in found if figure]


def _along(report: Report) -> Figure | None:
    known = report.measured.forced
    legs = [leg for leg in (CANDIDATE, CONTROL) if known.get(leg)]
    profiles = {leg: forced.profile(known.get(BASELINE, {}), known[leg]) for leg in legs}
    if not any(len(profile) for profile in profiles.values()):
        return None
    figure, axes = _figure(1)
    for leg, profile in profiles.items():
        if not len(profile):
            continue
        # Thousands of points are a smudge: parts of the text, from their least to their most.
        parts = np.array_split(profile, min(_PARTS, len(profile)))
        ends = np.cumsum([len(part) for part in parts])
        low, high = [part.min() for part in parts], [part.max() for part in parts]
        label = f"{leg} less baseline"
        axes[0].fill_between(ends, low, high, step="pre", alpha=0.4, color=_COLOURS[leg])
        mean = [part.mean() for part in parts]
        axes[0].plot(ends, mean, linewidth=1, color=_COLOURS[leg], label=label)
    axes[0].axhline(0, color="black", linewidth=0.5)
    axes[0].set_xlabel("position")
    axes[0].set_ylabel("NLL difference")
    return _with_legend(figure, axes[0])


def _rates(report: Report) -> Figure | None:
    figures = speed.figures(report.measured.rounds)
    if not figures:
        return None
    streams = sorted({one.streams for one in figures})
    legs = [leg for leg in _COLOURS if any(one.leg == leg for one in figures)]
    figure, (one, whole) = _figure(2)
    for axes, name in ((one, "decode"), (whole, "aggregate")):
        for number, leg in enumerate(legs):
            mine = [each for each in figures if each.leg == leg]
            spreads = [getattr(each, name) for each in mine]
            middle = np.array([spread.median for spread in spreads])
            low = middle - [spread.least for spread in spreads]
            high = np.array([spread.most for spread in spreads]) - middle
            places = [streams.index(each.streams) + (number - 1) * 0.2 for each in mine]
            axes.errorbar(
                places, middle, yerr=[low, high], fmt="o", capsize=4, color=_COLOURS[leg], label=leg
            )
        axes.set_xticks(range(len(streams)), [str(count) for count in streams])
        axes.set_xlabel("streams at once")
        axes.set_ylabel(f"{name}, tok/s")
        axes.set_ylim(bottom=0)
    return _with_legend(figure, one)


def _latencies(report: Report) -> Figure | None:
    rounds = report.measured.rounds
    if not rounds:
        return None
    most = max(one.streams for one in rounds)
    figure, (gaps, first) = _figure(2)
    for leg in _COLOURS:
        mine = [one for one in rounds if one.leg == leg and one.streams == most]
        if not mine:
            continue
        timelines = [timeline for one in mine for timeline in one.timelines]
        _share(gaps, speed.between(timelines) * 1000, leg)
        _share(first, np.concatenate([one.first for one in mine]) * 1000, leg)
    gaps.set_xlabel(f"ms between tokens, {most} streams")
    first.set_xlabel(f"ms until the first token, {most} streams")
    gaps.set_ylabel("share of them")
    return _with_legend(figure, gaps)


def _figure(count: int) -> tuple[Figure, list[Axes]]:
    """A figure with so many axes beside each other."""
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    return figure, list(figure.subplots(1, count, squeeze=False)[0])


def _with_legend(figure: Figure, axes: Axes) -> Figure:
    """The figure with the legend of these axes above all, where it covers nothing."""
    handles, labels = axes.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside upper right", ncols=3, frameon=False)
    return figure


def _share(axes: Axes, values: Floats, leg: str) -> None:
    """The share of values that are no larger, for each value."""
    if len(values):
        axes.ecdf(values, color=_COLOURS[leg], label=leg)


def _svg(caption: str, figure: Figure) -> str:
    stream = io.StringIO()
    # Texts stay text; and each plot salts its ids, as they share one page.
    with matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": caption}):
        figure.savefig(stream, format="svg", metadata={"Date": None, "Creator": None})
    text = stream.getvalue()
    return text[text.index("<svg") :]
