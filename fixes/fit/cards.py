"""Cards: what they hold, and how vLLM divides it."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from fixes.fit.model import GIB

#: vLLM's default of --gpu-memory-utilization, in all releases from 0.26.0 to 0.33.0.
UTILIZATION = 0.92
#: What the Gaudi plugin keeps of its cache's share for graphs (VLLM_GRAPH_RESERVED_MEM).
_GRAPHS = 0.1


class Card(NamedTuple):
    """A card of ``memory`` bytes.

    ``left``: the utilization is of what is left when the weights are loaded, and a part of that
    is for graphs (the Gaudi plugin); else it is of all memory (vLLM). ``block``: tokens of a
    block of the cache by default.
    """

    name: str
    memory: int
    left: bool = False
    block: int = 16

    def room(self, weights: int, overhead: int, utilization: float) -> int:
        """Bytes for the cache beside weights of this size; negative where they do not fit."""
        if self.left:
            free = self.memory - overhead - weights
            return int(free * utilization * (1 - _GRAPHS)) if free > 0 else free
        return int(self.memory * utilization) - overhead - weights


#: GiB that drivers report, which is less than the name says on some.
_GIB = {
    "a100-40": 40.0,
    "a100-80": 80.0,
    "h100": 79.6,
    "h200": 139.8,
    "b200": 179.0,
    "l40s": 45.0,
    "mi300x": 192.0,
    "mi325x": 256.0,
    "gaudi2": 96.0,
    "gaudi3": 128.0,
}
NAMES = tuple(_GIB)


def named(name: str) -> Card:
    """A card by one of NAMES."""
    gaudi = name.startswith("gaudi")
    return Card(name, int(_GIB[name] * GIB), gaudi, 128 if gaudi else 16)


def of(gib: float) -> Card:
    """A card that is known by its memory only."""
    return Card(f"{gib:g} GiB", int(gib * GIB))


def here(environ: Mapping[str, str], root: Path = Path("/")) -> tuple[Card | None, int]:
    """The cards of this machine and their number: by device nodes, and what the driver's own
    tool says of the memory. None where that is not known.
    """
    from fixes.launch import devices

    found = devices.find(environ, root)
    command = {
        "NVIDIA": ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"],
        "Gaudi": ["hl-smi", "-Q", "memory.total", "-f", "csv,noheader,nounits"],
    }.get(found.kind)
    tool = shutil.which(command[0], path=environ.get("PATH", os.defpath)) if command else None
    sizes = _mebibytes([tool, *command[1:]]) if command and tool else []
    if not sizes:
        return None, found.number
    gaudi = found.kind == "Gaudi"
    least = min(sizes) * 2**20
    card = Card(f"{found.kind} of {least / GIB:.1f} GiB", least, gaudi, 128 if gaudi else 16)
    return card, found.number


def _mebibytes(command: list[str]) -> list[int]:
    import subprocess

    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    words = (line.split()[0] for line in done.stdout.splitlines() if line.split())
    return [int(word) for word in words if word.isdigit()]
