"""Devices of a node, counted without a driver, and links faster than plain TCP."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple


class Kind(NamedTuple):
    """A kind of accelerator: the nodes of its devices, and variables that restrict them."""

    name: str
    folder: str
    pattern: str
    visible: tuple[str, ...]


#: /dev/accel/accel0 (and accel_controlD0, which is none) are Habana's; renderD* are of every
#: graphics card, so AMD's are counted only where there is its kernel driver.
KINDS = (
    Kind("Gaudi", "dev/accel", r"accel\d+", ("HABANA_VISIBLE_MODULES",)),
    Kind("NVIDIA", "dev", r"nvidia\d+", ("CUDA_VISIBLE_DEVICES",)),
    Kind("AMD", "dev/dri", r"renderD\d+", ("HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")),
)


class Devices(NamedTuple):
    """What a node has: the kind (empty: none that is known), their number, and what says so."""

    kind: str
    number: int
    seen: str


def find(environ: Mapping[str, str], root: Path = Path("/")) -> Devices:
    """The devices that an engine started here would see."""
    for kind in KINDS:
        if kind.name == "AMD" and not (root / "dev/kfd").exists():
            continue
        found = _names(root / kind.folder, kind.pattern)
        if not found:
            continue
        seen = f"{len(found)} in /{kind.folder}"
        for variable in kind.visible:
            value = environ.get(variable)
            if value is not None and value != "all":
                listed = [one for one in value.split(",") if one.strip() not in ("", "-1")]
                return Devices(kind.name, min(len(found), len(listed)), f"{variable}={value}")
        return Devices(kind.name, len(found), seen)
    return Devices("", 0, "no device node of a kind that is known")


def fast_links(environ: Mapping[str, str], root: Path = Path("/")) -> list[str]:
    """Links between nodes that are made for collectives: RDMA devices, Gaudi's own ports."""
    rdma = _names(root / "sys/class/infiniband", r".+")
    gaudi = []
    if environ.get("HCCL_OVER_OFI", "0") != "1":
        for device in sorted((root / "sys/class/net").glob("*/device/driver")):
            if "habanalabs" in str(device.resolve()):
                gaudi.append(device.parent.parent.name)
    return [*rdma, *gaudi]


def _names(folder: Path, pattern: str) -> list[str]:
    try:
        return sorted(one.name for one in folder.iterdir() if re.fullmatch(pattern, one.name))
    except OSError:
        return []
