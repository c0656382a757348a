"""Tensors of a checkpoint, from the headers of its safetensors files: no weight is read.

A file begins with the length of a JSON object (8 bytes, little endian) that gives each tensor's
dtype, shape and place (the format's own description, at huggingface/safetensors).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

INDEX = "model.safetensors.index.json"
#: Larger headers are not of this format: its own library refuses them too.
_LIMIT = 100 * 2**20
_FLOATS = ("F64", "F32", "F16", "BF16")
#: vLLM keeps these in 32 bit, whatever the dtype that it runs in.
_WIDE = ("A_log", "e_score_correction_bias")


class Stored(NamedTuple):
    """A tensor as it lies in a file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    size: int

    def loaded(self, size: int) -> int:
        """Bytes when loaded in a dtype of this size: what is quantised stays as it is."""
        if self.dtype not in _FLOATS or "scale" in self.name:
            return self.size
        count = 1
        for each in self.shape:
            count *= each
        return count * (4 if self.name.endswith(_WIDE) else size)


#: What reading them raises where they are not what they should be.
_DAMAGE = (OSError, ValueError, KeyError, AttributeError, TypeError, RecursionError)


class DamagedError(Exception):
    """A file is no safetensors file, or is cut short."""


def files(folder: Path) -> tuple[list[Path], list[str]]:
    """The files of the weights, and those that the index names and that are not there."""
    index = folder / INDEX
    if index.is_file():
        try:
            names = sorted(set(json.loads(index.read_bytes())["weight_map"].values()))
        except _DAMAGE as error:
            raise DamagedError(f"{INDEX} cannot be read") from error
        missing = [name for name in names if not (folder / name).is_file()]
        return [folder / name for name in names if name not in missing], missing
    found = sorted(folder.glob("*.safetensors"))
    # A consolidated file is the same weights again, in Mistral's own names.
    return [path for path in found if not path.name.startswith("consolidated")] or found, []


def read(path: Path) -> list[Stored]:
    """The tensors of one file. Raises DamagedError."""
    try:
        with path.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if not 2 <= length <= _LIMIT:
                raise DamagedError(f"{path.name} is no safetensors file")
            text = stream.read(length)
        entries = json.loads(text)
        return [_stored(name, entry) for name, entry in entries.items() if name != "__metadata__"]
    except _DAMAGE as error:
        raise DamagedError(f"{path.name} is no whole safetensors file") from error


def _stored(name: str, entry: dict[str, Any]) -> Stored:
    start, end = entry["data_offsets"]
    return Stored(name, entry["dtype"], tuple(entry["shape"]), end - start)
