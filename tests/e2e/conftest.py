"""Environments and servers that the engine tests share."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import cache
import pytest

from . import lab
from .answers import Answer, answers
from .server import Server

RELEASE = "0.30.0"
CHECKOUT = Path(__file__).parents[2]
Record = Callable[[str, float], None]


@pytest.fixture(scope="session", autouse=True)
def alone() -> Iterator[None]:
    """One run at a time on a machine, and none where there can be no lab."""
    with cache.locked("e2e"):
        if reason := lab.missing():
            pytest.skip(reason)
        yield


@pytest.fixture(scope="session")
def record() -> Record:
    """Keep a measured time, in seconds, in the JSON file that E2E_TIMINGS names."""
    timings: dict[str, float] = {}

    def record(name: str, seconds: float) -> None:
        timings[name] = round(seconds, 1)
        print(f"{name}: {seconds:.1f} s")
        if file := os.environ.get("E2E_TIMINGS"):
            Path(file).write_text(json.dumps(timings, indent=2) + "\n", "utf-8")

    return record


@pytest.fixture(scope="session")
def stock() -> Path:
    """An environment with vLLM as published."""
    return cache.venv(RELEASE)


@pytest.fixture(scope="session")
def fixed(stock: Path, record: Record) -> Iterator[Path]:
    """An environment after the apply line."""
    environment = cache.copy(stock)
    try:
        apply = [CHECKOUT / "fixes/apply_all.py", "--profile", f"v{RELEASE}"]
        start = time.monotonic()
        result = subprocess.run(
            [environment / "bin/python", *apply, "pipeline-parallel"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        assert result.returncode == 0, result.stdout + result.stderr
        record("apply", time.monotonic() - start)
        yield environment
    finally:
        shutil.rmtree(environment)


@pytest.fixture(scope="session")
def reference(
    stock: Path, record: Record, tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Answer]:
    """What stock vLLM answers with one stage."""
    log = tmp_path_factory.mktemp("reference") / "server.log"
    with lab.lab(), Server(lab.LEADER, stock, (), log) as server:
        record("boot, one stage", server.boot())
        start = time.monotonic()
        found = answers(server)
        record("answers, one stage", time.monotonic() - start)
    return found


@pytest.fixture(scope="class")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for the logs of the servers of a class or a test."""
    return tmp_path_factory.mktemp("logs")
