"""Pipeline stages of models whose layers share an indexer of sparse attention.

A layer without an indexer attends to the top-k indices that an earlier layer left in a
buffer of this rank. The buffer does not travel between stages, so that a stage has to start
at a layer with an indexer of its own.
"""

from typing import Any

import vllm.envs as envs
from vllm.distributed import utils
from vllm.logger import init_logger

logger = init_logger(__name__)


def get_pp_indices(
    num_hidden_layers: int, pp_rank: int, pp_size: int, model_config: Any
) -> tuple[int, int]:
    """Start and end of a stage as utils.get_pp_indices() has them, or aligned.

    All ranks calculate the same stages from the same config. Raises ValueError if
    VLLM_PP_LAYER_PARTITION starts a stage at a layer without an indexer, and if there are
    more stages than layers with one.
    """
    stage = utils.get_pp_indices(num_hidden_layers, pp_rank, pp_size)
    config = getattr(model_config, "hf_text_config", None)
    owners = indexer_layers(config, num_hidden_layers)
    if len(owners) == num_hidden_layers:
        return stage

    starts = [utils.get_pp_indices(num_hidden_layers, rank, pp_size)[0] for rank in range(pp_size)]
    # A stage without layers may start behind the last one.
    wrong = set(starts[1:]).difference(owners, [num_hidden_layers])
    if not wrong:
        return stage

    starts = nearest_starts(starts, owners)
    ends = [*starts[1:], num_hidden_layers]
    partition = ",".join(str(end - start) for start, end in zip(starts, ends, strict=True))
    if envs.VLLM_PP_LAYER_PARTITION is not None:
        raise ValueError(
            f"VLLM_PP_LAYER_PARTITION={envs.VLLM_PP_LAYER_PARTITION} starts a pipeline "
            f"stage at layer {min(wrong)}, which reuses the top-k indices of an earlier "
            "layer, and those stay on the stage before. Set "
            f"VLLM_PP_LAYER_PARTITION={partition}"
        )
    logger.info_once(
        "Hidden layers are partitioned as [%s], so that each pipeline stage starts at a "
        "layer with an indexer of its own.",
        partition,
    )
    return starts[pp_rank], ends[pp_rank]


def indexer_layers(config: Any, num_hidden_layers: int) -> list[int]:
    """The layers that depend on no indexer but their own, in order.

    These are all layers of a model that shares none, and of a stack that is not the one
    that ``config`` describes (a vision tower, a draft).
    """
    layers = range(num_hidden_layers)
    if (
        not hasattr(config, "index_topk")
        or getattr(config, "num_hidden_layers", None) != num_hidden_layers
    ):
        return list(layers)
    # HY V4 lists the types, the DeepSeek V3.2 family has the other three.
    types = getattr(config, "indexer_types", None) or ()
    pattern = getattr(config, "index_topk_pattern", None)
    freq = getattr(config, "index_topk_freq", None) or 1
    offset = getattr(config, "index_skip_topk_offset", 2)

    def shared(layer: int) -> bool:
        if "shared" in types[layer : layer + 1]:
            return True
        if pattern is not None:
            return "S" in pattern[layer : layer + 1]
        return max(layer - offset + 1, 0) % freq != 0

    return [layer for layer in layers if not shared(layer)]


def nearest_starts(starts: list[int], owners: list[int]) -> list[int]:
    """Each start but the first, moved to the nearest of ``owners`` with no empty stage.

    Of two that are as near it is the later one: the last stage has the output layer too.
    """
    later = [layer for layer in owners if layer > 0]
    if len(later) < len(starts) - 1:
        raise ValueError(
            f"{len(starts)} pipeline stages are too many: only {len(later) + 1} layers of "
            "this model can start one, since the others reuse the top-k indices of an "
            "earlier layer"
        )
    moved = [0]
    for stage, start in enumerate(starts[1:], 1):
        # Each later stage needs a layer as well.
        free = later[: len(later) - (len(starts) - 1 - stage)]
        free = [layer for layer in free if layer > moved[-1]]
        moved.append(min(free, key=lambda layer: (abs(layer - start), -layer)))
    return moved
