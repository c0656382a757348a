"""Runs of `parity` that ask little, and what their documents say."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from scripted import Body, Script

from fixes import cli

LITTLE = (
    *("--greedy", "3", "--answer-tokens", "8", "--at-once", "3", "--positions", "300"),
    *("--needles", "500", "--depths", "0.2,0.8", "--streams", "1,2", "--prefix", "64"),
    *("--new-tokens", "8", "--repeats", "1", "--timeout", "2"),
)
PARTS = ("greedy", "batching", "forced", "needles", "speed")
WHOLE = dict(zip(PARTS, ["identical"] * 4 + ["measured"], strict=True))
Run = Callable[..., Any]


def runs(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs in this process: each gives its document, whose exit code is the run's."""

    def run(*arguments: object) -> Any:
        code = cli.main(["parity", *LITTLE, *map(str, arguments), "--json"])
        document = json.loads(capsys.readouterr().out)
        assert document["exit"] == code
        return document

    return run


def statuses(document: Any) -> dict[str, str]:
    return {name: part["status"] for name, part in document["parts"].items()}


def kinds(document: Any) -> set[tuple[str, str, str]]:
    return {(fault["part"], fault["leg"], fault["kind"]) for fault in document["faults"]}


def on(part: str, action: str | int, first: int = 1, count: int = 1_000_000) -> Script:
    """Act so on the n-th request of a part, and so many after it."""
    seen = {"number": 0}

    def script(number: int, path: str, body: Body) -> str | int | None:
        if path != "/v1/completions" or body["max_tokens"] == 4 or body.get("seed") == 7:
            return None  # the preflight
        if body.get("stream"):
            mine = "speed"
        elif body.get("prompt_logprobs") or body.get("echo"):
            mine = "forced" if len(body["prompt"]) > 30 else ""
        elif body["max_tokens"] == 24:
            mine = "needles"
        elif "batch" in body.get("cache_salt", ""):
            mine = "batching"
        else:
            mine = "greedy"
        if mine != part:
            return None
        seen["number"] += 1
        return action if first <= seen["number"] < first + count else None

    return script
