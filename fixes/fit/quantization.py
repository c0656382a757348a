"""What a quantised checkpoint's weights take, where only its config says how it is quantised."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

#: Never quantised by any of these methods, whatever a config lists.
_PLAIN = (
    "norm",
    "embed_tokens",
    "lm_head",
    "conv1d",
    ".gate.weight",
    "router",
    "shared_expert_gate",
)

Size = Callable[[str, tuple[int, ...]], "int | None"]


class Quantization:
    """What a config says of it. Raises KeyError where that is no object."""

    def __init__(self, config: dict[str, Any]) -> None:
        given = config.get("quantization_config") or config.get("compression_config") or {}
        if not isinstance(given, dict):
            raise KeyError("quantization_config")
        self._given = given
        #: The method; empty for none.
        self.method = str(given.get("quant_method") or ("unnamed" if given else ""))

    @property
    def kv_cache(self) -> str:
        """The dtype of the KV cache that a checkpoint brings scales for; empty for none."""
        scheme = self._given.get("kv_cache_scheme")
        return "fp8" if isinstance(scheme, dict) and scheme.get("num_bits") == 8 else ""

    @property
    def block(self) -> tuple[int, ...]:
        """Rows and columns of a block that shares a scale; empty for none."""
        given = self._given.get("weight_block_size")
        if not isinstance(given, list) or len(given) != 2:
            return ()
        return tuple(given) if all(type(one) is int and one > 0 for one in given) else ()

    def sizes(self) -> Size | None:
        """What gives the bytes of a tensor by its name and shape, or None for one that stays as
        it is. None where the method is not known, or is used in a way that is not.
        """
        given, skipped = self._given, self._skipped()
        if self.method == "mxfp4":
            return _experts
        if self.method == "fp8":
            return _size(8, skipped, square=self.block)
        bits: Any = given.get("bits", 4)
        group: Any = given.get("group_size")
        if self.method in ("awq", "gptq"):
            return _size(bits, skipped, group, zeros=True) if _known(bits, group) else None
        groups = given.get("config_groups")
        if self.method == "compressed-tensors" and isinstance(groups, dict) and len(groups) == 1:
            (one,) = groups.values()
            weights = one.get("weights") if isinstance(one, dict) else None
            if isinstance(weights, dict):
                bits, group = weights.get("num_bits"), weights.get("group_size")
                if _known(bits, group or 1):
                    return _size(bits, skipped, group or 0)
        return None

    def _skipped(self) -> tuple[str, ...]:
        keys = ("modules_to_not_convert", "ignored_layers", "ignore")
        return tuple(str(one) for key in keys for one in self._given.get(key) or ())


def _known(bits: Any, group: Any) -> bool:
    """Whether these are bits of a number, and numbers that share a scale."""
    return bits in (4, 8) and type(group) is int and group > 0


def _size(
    bits: int,
    skipped: tuple[str, ...],
    group: int = 0,
    square: tuple[int, ...] = (),
    zeros: bool = False,
) -> Size:
    """Packed numbers with scales: of each block in fp32, of each group or row in 16 bit."""

    def size(name: str, shape: tuple[int, ...]) -> int | None:
        if len(shape) < 2 or any(word in name for word in _PLAIN) or _listed(name, skipped):
            return None
        rows, columns = shape[-2:]
        count = 1
        for each in shape[:-2]:
            count *= each
        packed = rows * columns * bits // 8
        if square:
            packed += -(-rows // square[0]) * -(-columns // square[1]) * 4
        else:
            scales = rows * (columns // group if group else 1)
            packed += scales * 2 + (scales * bits // 8 if zeros else 0)
        return packed * count

    return size


def _listed(name: str, skipped: tuple[str, ...]) -> bool:
    """Whether a config leaves a module out: by name, a part of it, or a regular expression."""
    import re

    for one in skipped:
        if one.startswith("re:"):
            if re.match(one[3:], name.removesuffix(".weight")):
                return True
        elif f".{one}." in f".{name}":
            return True
    return False


def _experts(name: str, shape: tuple[int, ...]) -> int | None:
    """4 bit and a byte for each 32 of them, in the experts' matrices only (gpt-oss)."""
    if ".experts." not in name or len(shape) != 3:
        return None
    numbers = shape[0] * shape[1] * shape[2]
    return numbers // 2 + numbers // 32
