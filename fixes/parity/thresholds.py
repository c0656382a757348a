"""The thresholds of a verdict: the ones that come with the tool, and the operator's."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from fixes.errors import ExitCode, FixesError, Problem

DEFAULTS = Path(__file__).with_name("thresholds.toml")
#: What the preflight compares and ``must_equal`` may name.
COMPARED = ("model", "context", "version", "tokenizer", "defaults", "digest", "speculation")


@dataclass(frozen=True)
class Thresholds:
    """What counts as the same (thresholds.toml says what each means)."""

    preflight_must_equal: list[str]
    noise_floor: float
    noise_ceiling: float
    greedy_max_different: int
    batching_max_different: int
    forced_max_different: int
    forced_max_nll_difference: float
    forced_max_logprob_difference: float
    needles_max_lost: int
    speed_min_decode_ratio: float
    speed_min_aggregate_ratio: float

    def document(self) -> dict[str, Any]:
        """The values by table and key, as in the file."""
        tables: dict[str, Any] = {}
        for field in fields(self):
            table, _, key = field.name.partition("_")
            tables.setdefault(table, {})[key] = getattr(self, field.name)
        return tables


def load(path: Path | None) -> Thresholds:
    """The thresholds in a file, over the defaults. Raises FixesError: ``bad-thresholds``."""
    values = _flat(DEFAULTS)
    problems = []
    for name, value in (_flat(path) if path else {}).items():
        if name not in values:
            problems.append(f"there is no {name.replace('_', '.', 1)}")
        elif not _fits(value, values[name]):
            problems.append(f"{name.replace('_', '.', 1)} cannot be {value!r}")
        else:
            values[name] = value
    if not problems and values["noise_floor"] > values["noise_ceiling"]:
        problems.append("noise.floor is above noise.ceiling: nothing could be compared")
    if problems:
        raise FixesError(*(_problem(what, path) for what in problems))
    return Thresholds(**values)


def _fits(value: object, default: object) -> bool:
    if isinstance(default, list):
        return isinstance(value, list) and all(one in COMPARED for one in value)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    whole = isinstance(value, int) or isinstance(default, float)
    return whole and 0 <= value < math.inf  # nor is NaN, which no comparison holds of


def _flat(path: Path) -> dict[str, Any]:
    from fixes.authoring.toml import parse

    try:
        tables = parse(path.read_bytes(), str(path), "bad-thresholds")
    except OSError as error:
        raise FixesError(_problem(f"cannot be read: {error.strerror}", path)) from None
    except FixesError as error:
        raise FixesError(
            *(problem._replace(code=ExitCode.USAGE) for problem in error.problems)
        ) from None
    flat: dict[str, Any] = {}
    for table, keys in tables.items():
        for key, value in (keys if isinstance(keys, Mapping) else {"": keys}).items():
            flat[f"{table}_{key}"] = value
    return flat


def _problem(what: str, path: Path | None) -> Problem:
    hint = f"{DEFAULTS} has all keys"
    return Problem(ExitCode.USAGE, "bad-thresholds", what, str(path), hint)
