"""``parity BASELINE [CANDIDATE]``: do two endpoints answer alike, and how fast."""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from fixes import report
from fixes.errors import ExitCode, FixesError, Problem, worst

if TYPE_CHECKING:
    from fixes.parity.report import Report

KEY = "VLLM_FIXES_API_KEY"
CANDIDATE_KEY = "VLLM_FIXES_CANDIDATE_API_KEY"
#: What the extra installs, by the names that are imported.
PACKAGES = (
    "httpx",
    "matplotlib",
    "numpy",
    "rich",
    *(("tomli",) if sys.version_info < (3, 11) else ()),
)
_MOST = 10_000_000
_OTHER_FILES = 64  # that are open beside the connections
_Value = TypeVar("_Value", int, float)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this verb."""
    from fixes.cli import filled, folder

    add = parser.add_argument
    add("baseline", type=filled, metavar="BASELINE", help="URL of an OpenAI-compatible server")
    add("candidate", type=filled, nargs="?", metavar="CANDIDATE", help="the one that has changed")
    add("--model", type=filled, metavar="NAME", help="the baseline's model, if it serves several")
    add("--candidate-model", type=filled, metavar="NAME", help="the candidate's (default: --model)")
    add("--prompts", type=folder, metavar="FILE", help="your own prompts, as JSON Lines")
    add("--thresholds", type=folder, metavar="FILE", help="your own thresholds, as TOML")
    add("--greedy", type=_whole, metavar="N", help="prompts to answer (all: 12, or your own)")
    add("--answer-tokens", type=_some, default=128, metavar="N", help="tokens of each (128)")
    add("--at-once", type=_at_once, default=8, metavar="N", help="prompts to ask at once (8)")
    add("--positions", type=_whole, default=8400, metavar="N", help="teacher-forced (8400)")
    _list(parser, "--needles", _some, (2048, 6144, 12288), "lengths in tokens")
    _list(parser, "--depths", _share, (0.1, 0.5, 0.9), "depths of a needle")
    _list(parser, "--streams", _streams, (1, 4, 8), "streams at once")
    add("--prefix", type=_whole, default=2048, metavar="N", help="cached tokens of each (2048)")
    add("--new-tokens", type=_some, default=128, metavar="N", help="tokens of each (128)")
    add("--repeats", type=_whole, default=3, metavar="N", help="of each number of streams (3)")
    add("--timeout", type=_seconds, default=300.0, metavar="S", help="longest silence (300)")
    add("--markdown", type=folder, metavar="FILE", help="write the report as Markdown")
    add("--html", type=folder, metavar="FILE", help="write the report as one page with plots")
    add("--json", action="store_true", help="print one JSON document")
    add("--quiet", action="store_true", help="print the verdict and problems only")
    parser.epilog = (
        "0 or `none` leaves a part out. API keys are read from the environment variables"
        f" {KEY} and {CANDIDATE_KEY} (default: the same)."
    )


def run(options: argparse.Namespace) -> int:
    """Compare two endpoints, or measure one.

    USAGE without the packages of the extra, for a wrong URL, prompts or thresholds; NOT_FOUND for
    an endpoint that cannot be reached or goes away; VERIFICATION_FAILED where the endpoints cannot
    be compared; MISMATCH for what is different or incomplete; CANNOT_WRITE.
    """
    if missing := [name for name in PACKAGES if find_spec(name) is None]:
        hint = "in a checkout: pip install '.[parity]'"
        what = f"needs the package {', '.join(missing)}"
        raise FixesError(Problem(ExitCode.USAGE, "usage", what, "parity", hint))
    if options.candidate_model and not options.candidate:
        what = "there is no CANDIDATE that it could be the model of"
        raise FixesError(Problem(ExitCode.USAGE, "usage", what, "--candidate-model"))
    _can_be_written([path for path in (options.markdown, options.html) if path])
    found = _compare(options)
    try:
        _write(found, options)
    except FixesError as error:  # what was measured is not lost with it
        found = replace(found, problems=(*found.problems, *error.problems))
    if options.json:
        report.emit(json.dumps(found.document(), indent=1) + "\n")
    else:
        from fixes.parity.tables import markdown

        report.emit(found.headline() + "\n" if options.quiet else markdown(found))
        report.complain(found.problems, "parity")
    return worst(found.problems)


def _compare(options: argparse.Namespace) -> Report:
    import asyncio

    from fixes.parity import thresholds, workload
    from fixes.parity.comparison import Target, compare
    from fixes.parity.legs import BASELINE, CANDIDATE
    from fixes.parity.progress import shown

    key = _key(KEY)
    targets = {BASELINE: Target(_url(options.baseline), options.model, key)}
    if options.candidate:
        model = options.candidate_model or options.model
        other = _key(CANDIDATE_KEY) if CANDIDATE_KEY in os.environ else key
        targets[CANDIDATE] = Target(_url(options.candidate), model, other)
    prompts = workload.prompts(options.prompts)
    counts = workload.Counts(
        len(prompts) if options.greedy is None else options.greedy,
        options.answer_tokens,
        options.at_once,
        options.positions,
        options.needles,
        options.depths,
        options.streams,
        options.prefix,
        options.new_tokens,
        options.repeats,
    )
    if counts.nothing:
        raise FixesError(Problem(ExitCode.USAGE, "usage", "every part is left out", "parity"))
    limits = thresholds.load(options.thresholds)
    with shown(options.quiet) as progress:
        made = compare(targets, counts, prompts, limits, options.timeout, progress)
        return asyncio.run(made)


def _can_be_written(paths: Sequence[Path]) -> None:
    """Raises FixesError where a report could not be written, before an hour is spent on it."""
    problems = []
    for path in paths:
        if not path.parent.is_dir():
            what = "there is no such folder to write to"
            problems.append(Problem(ExitCode.USAGE, "usage", what, str(path.parent)))
        elif path.exists() and not path.is_file():
            problems.append(Problem(ExitCode.USAGE, "usage", "is no file to write to", str(path)))
        elif not os.access(path.parent, os.W_OK | os.X_OK):
            what = "cannot be written to"
            problems.append(Problem(ExitCode.CANNOT_WRITE, "permission", what, str(path.parent)))
    if len({path.resolve() for path in paths}) < len(paths):
        what = "is to hold both reports"
        problems.append(Problem(ExitCode.USAGE, "usage", what, str(paths[0])))
    if problems:
        raise FixesError(*problems)


def _write(found: Report, options: argparse.Namespace) -> None:
    from fixes.outfile import replacing
    from fixes.parity.page import page
    from fixes.parity.tables import markdown

    for path, make in ((options.markdown, markdown), (options.html, page)):
        if path:
            with replacing(path) as stream:
                stream.write(make(found).encode("utf-8"))


def _key(name: str) -> str:
    """An API key of the environment. Raises FixesError: USAGE; its value is shown nowhere."""
    key = os.environ.get(name, "").strip()  # files end with a line end
    if not key.isascii() or not key.isprintable() or " " in key:
        what = "holds what no API key does: a space, a line end, or no ASCII"
        raise FixesError(Problem(ExitCode.USAGE, "usage", what, name))
    return key


def _url(text: str) -> str:
    """A base URL. Raises FixesError: USAGE."""
    import httpx

    from fixes.parity.client import address

    try:
        url = address(text)
        if url.scheme in ("http", "https") and url.host:
            return text
        what = "is no URL of a server"
    except (httpx.InvalidURL, ValueError) as error:
        what = f"is no URL: {error}"
    shown = re.sub(r"//[^/@]*@", "//***@", text)
    raise FixesError(Problem(ExitCode.USAGE, "usage", what, shown, "such as http://host:8000"))


def _list(
    parser: argparse.ArgumentParser,
    name: str,
    one: Callable[[str], _Value],
    default: tuple[_Value, ...],
    about: str,
) -> None:
    """An option whose value is numbers with commas between, or ``none``."""
    nothing = ("none",) if one is _share else ("none", "0")

    def several(text: str) -> tuple[_Value, ...]:
        return () if text in nothing else tuple(dict.fromkeys(map(one, text.split(","))))

    several.__name__ = "list of numbers"
    shown = ",".join(map(str, default))
    parser.add_argument(
        name, type=several, default=default, metavar="LIST", help=f"{about} ({shown})"
    )


def _whole(text: str) -> int:
    return _number(text, int, 0, _MOST)


def _some(text: str) -> int:
    return _number(text, int, 1, _MOST)


def _streams(text: str) -> int:
    return _number(text, int, 1, _connections())


def _at_once(text: str) -> int:
    return _number(text, int, 0, _connections())


def _connections() -> int:
    """How many may be open at once; each is a file to this process."""
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return _MOST if most == resource.RLIM_INFINITY else min(most - _OTHER_FILES, _MOST)


def _share(text: str) -> float:
    return _number(text, float, 0.0, 1.0)


def _seconds(text: str) -> float:
    return _number(text, float, 0.1, 86_400.0)


def _number(text: str, kind: Callable[[str], _Value], least: _Value, most: _Value) -> _Value:
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or not least <= value <= most:
        raise argparse.ArgumentTypeError(f"{text!r} is no number from {least} to {most}")
    return value
