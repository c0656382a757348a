"""A Model from a folder: config.json, and the headers of the weights where they are there."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from fixes.errors import ExitCode, FixesError, Problem
from fixes.fit import headers
from fixes.fit.config import Config
from fixes.fit.families import FAMILIES, Family
from fixes.fit.model import EXPERTS, SIZES, Cache, Latent, Model, State, Tensor
from fixes.fit.quantization import Quantization

CONFIG = "config.json"
#: No model has more layers.
_DEEPEST = 4096


def find(name: str) -> Path:
    """The folder of a model that is named by a folder, its config.json, or a repository that is
    in the cache of huggingface_hub. Raises FixesError.
    """
    from fixes.launch.model import is_path, snapshot

    path = Path(name).expanduser()
    if path.name == CONFIG and path.is_file():
        return path.parent
    if is_path(name):
        if (path / CONFIG).is_file():
            return path
        raise _bad(f"{name} holds no {CONFIG}", name)
    found = snapshot(name, "main", os.environ)
    if found is None or not (found / CONFIG).is_file():
        hint = f"give the folder that holds {CONFIG}; nothing is downloaded"
        raise _bad("is no folder, and not in the cache of models", name, hint)
    return found


def read(folder: Path, dtype: str = "auto", recurrent: str = "auto") -> Model:
    """The model of a folder. Raises FixesError: an architecture or a quantisation that is not
    known is refused, and never guessed.
    """
    try:
        values = json.loads((folder / CONFIG).read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise _bad(f"cannot be read: {error}", str(folder / CONFIG)) from None
    if not isinstance(values, dict):
        raise _bad("is no JSON object", str(folder / CONFIG))
    try:
        present, missing = headers.files(folder)
        stored = [] if missing else [one for path in present for one in headers.read(path)]
    except headers.DamagedError as error:
        raise _bad(str(error), str(folder), "bring the file again") from None
    notes = []
    if missing:
        some = f"{len(missing)} of {len(missing) + len(present)} files of the weights"
        notes.append(f"{some} are not there: sizes are from the config")
    return describe(folder.resolve().name, values, stored, dtype, recurrent, tuple(notes))


def describe(
    name: str,
    values: dict[str, Any],
    stored: list[headers.Stored] | None = None,
    dtype: str = "auto",
    recurrent: str = "auto",
    notes: tuple[str, ...] = (),
) -> Model:
    """The model of a config and, where they are known, its stored tensors. ``recurrent`` is the
    dtype of recurrent states. Raises FixesError.
    """
    kind = str(values.get("model_type"))
    family = FAMILIES.get(kind)
    if family is None:
        what = f"model_type {kind} is not one whose sizes are known"
        hint = f"known: {', '.join(sorted(FAMILIES))}"
        raise FixesError(Problem(ExitCode.USAGE, "unknown-architecture", what, name, hint))
    config, said = Config(values), list(notes)
    if dtype == "auto":
        dtype = str(values.get("dtype") or values.get("torch_dtype") or "bfloat16")
        if dtype == "float32":  # what vLLM makes of it
            dtype = "bfloat16"
            said.append("the config's float32 is run in bfloat16, as vLLM does by default")
    size = SIZES.get(dtype)
    if size is None:
        raise _bad(f"dtype {dtype} is not known", name, "give --dtype")
    try:
        packed = Quantization(values)
        number = config["num_hidden_layers"]
        if number > _DEEPEST:
            raise KeyError("num_hidden_layers")
        tied = config.flag("tie_word_embeddings", family.tied)
        state = SIZES.get(recurrent, size)
        layers = tuple(
            tuple(_sized(cache, size, state) for cache in family.keeps(config, layer))
            for layer in range(number)
        )
        if stored:
            behind = [one for one in stored if not _used(one, number, tied)]
            if behind:
                said.append(_left_out(behind))
            loaded = (one for one in stored if _used(one, number, tied))
            tensors = tuple(_gathered(loaded, family, size))
        else:
            tensors = tuple(_derived(name, config, family, size, tied, packed))
        latent = any(isinstance(cache, Latent) for caches in layers for cache in caches)
        return Model(
            name,
            kind,
            dtype,
            heads=config["num_attention_heads"],
            kv_heads=1 if latent else config.kv_heads,
            longest=config["max_position_embeddings"],
            layers=layers,
            tensors=tensors,
            exact=bool(stored),
            tied=tied,
            everywhere=family.everywhere,
            repeats=family.repeats,
            experts=_experts(config),
            widths=_widths(config, family),
            quantization=packed.method,
            kv_cache=packed.kv_cache,
            block=packed.block[0] if packed.block else 0,
            absorbed=_absorbed(config, size) if latent else 0,
            notes=tuple(said),
        )
    except KeyError as error:
        what = f"has no usable {error.args[0]}, which {kind} needs"
        raise _bad(what, f"{name}/{CONFIG}") from None


def _derived(
    name: str, config: Config, family: Family, size: int, tied: bool, quantization: Quantization
) -> Iterator[Tensor]:
    """The tensors that a config stands for."""
    packed = quantization.sizes()
    if quantization.method and packed is None:
        what = f"how {quantization.method} packs this model's weights is not known"
        hint = "bring the weights: their headers say it"
        raise FixesError(Problem(ExitCode.USAGE, "unknown-quantization", what, name, hint))

    def tensor(name: str, shape: tuple[int, ...], count: int = 1) -> Tensor:
        taken = packed(name, shape) if packed else None
        if taken is None:
            stored = headers.Stored(name, "F32", shape, 0)
            taken = stored.loaded(_width(name, family, size))
        return Tensor(name, shape, taken, count)

    table = (config["vocab_size"], config["hidden_size"])
    yield tensor("model.embed_tokens.weight", table)
    for layer in range(config["num_hidden_layers"]):
        for part, shape, count in family.tensors(config, layer):
            yield tensor(f"model.layers.{layer}.{part}", shape, count)
    yield tensor(f"model.{family.final}.weight", table[1:])
    if not tied:
        yield tensor("lm_head.weight", table)


def _gathered(stored: Iterator[headers.Stored], family: Family, size: int) -> Iterator[Tensor]:
    """The tensors of a checkpoint, with those of the experts of a layer as one."""
    counted = Counter(
        (re.sub(r"\.experts\.\d+\.", ".experts.*.", one.name), one.shape, one.loaded(width))
        for one in stored
        for width in (_width(one.name, family, size),)
    )
    for (name, shape, taken), count in counted.items():
        yield Tensor(name, shape, taken, count)


def _width(name: str, family: Family, size: int) -> int:
    """Bytes of a number of a tensor that is not quantised."""
    return 4 if family.wide and name.endswith("gate.weight") else size


def _used(stored: headers.Stored, layers: int, tied: bool) -> bool:
    """Whether vLLM loads it: neither layers behind the last, nor a head that is the embedding."""
    layer = Tensor(stored.name, stored.shape, 0).layer
    if layer is None:
        return not (tied and stored.name == "lm_head.weight") and not stored.name.startswith("mtp.")
    return layer < layers and not stored.name.endswith("rotary_emb.inv_freq")


def _left_out(stored: list[headers.Stored]) -> str:
    size = sum(one.size for one in stored) / 2**30
    why = "layers of multi-token prediction, or a head that is the embedding"
    return f"{len(stored)} stored tensors ({size:.2f} GiB) are not loaded: {why}"


def _sized(cache: Cache, size: int, recurrent: int) -> Cache:
    """A state in the dtypes that it is kept in."""
    if isinstance(cache, State):
        return replace(cache, size=size, recurrent_size=recurrent)
    return cache


def _absorbed(config: Config, size: int) -> int:
    """Bytes of a layer's second copy of kv_b_proj, which vLLM makes unquantised to decode with."""
    widths = config["qk_nope_head_dim"] + config["v_head_dim"]
    return config["kv_lora_rank"] * config["num_attention_heads"] * widths * size


def _experts(config: Config) -> int:
    keys = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
    return max(config.number(key) for key in keys)


def _widths(config: Config, family: Family) -> tuple[tuple[str, int], ...]:
    """The inner widths of the networks, by what they are of."""
    found: dict[tuple[str, int], None] = {}
    for layer in range(config["num_hidden_layers"]):
        for name, shape, _ in family.tensors(config, layer):
            if name.endswith(("down_proj.weight", "w2.weight", "output_linear.weight")):
                of = EXPERTS if ".experts." in name or len(shape) == 3 else "a network's"
                found[of, shape[-1]] = None
    return tuple(found)


def _bad(what: str, where: str, hint: str = "") -> FixesError:
    return FixesError(Problem(ExitCode.USAGE, "bad-model", what, where, hint))
