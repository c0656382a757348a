"""Which part of a tensor a card holds, and which stages hold it: vLLM's own rules."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from fixes.fit.model import Model, State, Tensor

#: vLLM fills its vocabulary up to a multiple of this before it splits it.
_VOCABULARY = 64
_TABLES = ("embed_tokens", "lm_head")
#: Modules that every card holds whole.
_WHOLE = ("q_a_proj", "kv_a_proj_with_mqa", "gate", "router", "layer", "shared_expert_gate")
#: Modules that are split by their columns: a bias of theirs is whole on every card.
_ROWS = ("o_proj", "down_proj", "w2", "out_proj", "output_linear")
_SPLIT = (
    *_ROWS,
    *("q_proj", "q_b_proj", "kv_b_proj", "gate_proj", "up_proj", "w1", "w3", "input_linear"),
    *("in_proj_qkvz", "in_proj_ba", "conv1d", "in_proj", "experts"),
)
#: Parameters that are no module's weight.
_LOOSE = ("A_log", "D", "dt_bias", "sinks")


def card(tensor: Tensor, model: Model, parallel: int, by_expert: bool = False) -> int:
    """Bytes of a tensor on one card of a tensor-parallel group."""
    total = tensor.size * tensor.count
    if parallel == 1 and not tensor.name.rpartition(".")[0].endswith(_TABLES):
        return total
    words = tensor.name.split(".")
    leaf, module = words[-1], words[-2] if len(words) > 1 else ""
    if module in _TABLES:
        rows = -(-tensor.shape[0] // _VOCABULARY) * _VOCABULARY
        return tensor.size // tensor.shape[0] * -(-rows // parallel)
    if leaf in _LOOSE:
        return -(-total // parallel)
    if "experts" in words or (
        module in ("input_linear", "output_linear") and len(tensor.shape) == 3
    ):
        if by_expert:
            return -(-model.experts // parallel) * (total // model.experts)
        whole = leaf.endswith("down_proj_bias")
        return total if whole else -(-total // parallel)
    if module in ("k_proj", "v_proj"):
        return total // model.kv_heads * max(1, model.kv_heads // parallel)
    over_heads = module in ("q_norm", "k_norm") and model.kind == "minimax_m2"
    if over_heads or (module == "norm" and "mamba" in words):
        return -(-total // parallel)
    if module not in _SPLIT or (leaf == "bias" and module in _ROWS):
        return total
    if "mamba" in words and module in ("in_proj", "conv1d"):
        total += total // tensor.shape[0] * _extra(model, parallel)
    return -(-total // parallel)


def unknown(tensors: Sequence[Tensor]) -> list[str]:
    """Names of modules that no rule is for: they are counted whole on every card."""
    known = {*_SPLIT, *_WHOLE, *_TABLES, "k_proj", "v_proj", "moe_statics", "block_sparse_moe"}
    found = {}
    for tensor in tensors:
        words = tensor.name.split(".")
        module = words[-2] if len(words) > 1 else words[0]
        if not ("norm" in module or module in known or words[-1] in _LOOSE or "experts" in words):
            found[module] = tensor
    return sorted(found)


def _extra(model: Model, parallel: int) -> int:
    states = (cache for caches in model.layers for cache in caches if isinstance(cache, State))
    return next(states).extra(parallel)


@dataclass(frozen=True)
class Sharing:
    """A model's weights over ``tensor`` cards of a stage; ``by_expert``: whole experts each."""

    model: Model
    tensor: int
    by_expert: bool = False

    @cached_property
    def layers(self) -> tuple[int, ...]:
        """Bytes of each layer on a card."""
        found = [-(-self.model.absorbed // self.tensor)] * len(self.model.layers)
        for tensor in self.model.tensors:
            if tensor.layer is not None:
                found[tensor.layer] += card(tensor, self.model, self.tensor, self.by_expert)
        return tuple(found)

    @cached_property
    def before(self) -> tuple[int, ...]:
        """Bytes of all layers before each, and of all."""
        return tuple(accumulate(self.layers, initial=0))

    @cached_property
    def outside(self) -> tuple[int, int, int]:
        """Bytes on a card of what lies outside of the layers: on the first stage, on the last
        one, and on one that is both.
        """
        table = rest = 0
        for tensor in self.model.tensors:
            if tensor.layer is None:
                taken = card(tensor, self.model, self.tensor)
                if "embed_tokens" in tensor.name:
                    table += taken
                else:
                    rest += taken
        # A head that is the embedding is the same table: once on one stage, again on the last.
        return table, rest + table if self.model.tied else rest, table + rest

    def ends(self, stage: int, stages: int) -> int:
        """Bytes on a card of a stage that are of no layer."""
        first, last, both = self.outside
        if self.model.everywhere or stages == 1:
            return both
        return first if stage == 0 else last if stage == stages - 1 else 0

    def stage(self, stage: int, stages: int, start: int, end: int) -> int:
        """Bytes of the weights on a card of a stage that has the layers from start up to end."""
        return self.ends(stage, stages) + self.before[end] - self.before[start]
