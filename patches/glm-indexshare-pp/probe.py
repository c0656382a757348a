"""Build the stages of GLM-5.2's layers: does each start at a layer with an indexer?

The real make_layers() runs on every rank of a pretended group, and the config is asked for
the same stages, which is what KV transfer between replicas does.
"""

import contextlib
import sys
from types import SimpleNamespace
from unittest.mock import patch

LAYERS = 78
# GLM-5.2's published fields. Layers 0, 1, 2, 6, 10, ... 74 have an indexer.
GLM = {
    "num_hidden_layers": LAYERS,
    "index_topk": 2048,
    "index_topk_freq": 4,
    "index_skip_topk_offset": 3,
}
OWNERS = {0, 1, *range(2, LAYERS, 4)}
PATTERN = "".join("F" if layer in OWNERS else "S" for layer in range(LAYERS))
SHARED = {
    "freq and offset": GLM,
    "pattern": {**GLM, "index_topk_freq": 1, "index_topk_pattern": PATTERN},
    "types": {
        "num_hidden_layers": LAYERS,
        "index_topk": 2048,
        "indexer_types": [{"F": "full", "S": "shared"}[kind] for kind in PATTERN],
    },
}
UNSHARED = {
    "each layer with an indexer": {"num_hidden_layers": LAYERS, "index_topk": 2048},
    "no indexers": {"num_hidden_layers": LAYERS, "index_topk_freq": 4},
    "another stack": {**GLM, "num_hidden_layers": LAYERS + 1},
}
# Of two layers that are as near the later one is taken.
ALIGNED = {
    1: [LAYERS],
    2: [38, 40],
    3: [26, 28, 24],
    4: [18, 20, 20, 20],
    8: [10, 8, 12, 8, 12, 8, 12, 8],
}
STOCK = {2: [39, 39], 4: [19, 20, 20, 19]}


class _FaultError(Exception):
    pass


def probe() -> tuple[int, str]:
    try:
        for name, config in SHARED.items():
            for size, wanted in ALIGNED.items():
                found = _stages(config, size)
                if found != wanted:
                    raise _FaultError(f"{name}: {size} stages are {found}, {_start(found)}")
        for name, config in UNSHARED.items():
            for size, wanted in STOCK.items():
                found = _stages(config, size)
                if found != wanted:
                    raise RuntimeError(f"{name}: {size} stages are {found}")
        _explicit()
    except _FaultError as error:
        return 1, str(error)
    return 0, "each stage starts at a layer with an indexer, or is refused"


def _explicit():
    for partition in ("38,40", "39,39", "78,0", "26,26,26", "2,76", "1,1,76"):
        sizes = [int(size) for size in partition.split(",")]
        starts = {sum(sizes[:rank]) for rank in range(len(sizes))} - {LAYERS}
        try:
            found = _stages(GLM, len(sizes), partition)
        except ValueError as error:
            if starts <= OWNERS:
                raise
            _, _, advice = str(error).rpartition("VLLM_PP_LAYER_PARTITION=")
            advised = [int(size) for size in advice.split(",")]
            if advised != ALIGNED[len(sizes)]:
                raise RuntimeError(f"for {partition} it advises {advice}") from error
            continue
        if found != sizes:
            raise RuntimeError(f"partition {partition} gives {found}")
        if not starts <= OWNERS:
            raise _FaultError(f"partition {partition} is taken, {_start(found)}")
    few = {**GLM, "index_topk_freq": LAYERS}  # 0, 1 and 2 only
    with contextlib.suppress(ValueError):
        raise _FaultError(f"too many stages for the indexers: {_stages(few, 4)}")


def _start(sizes):
    starts = [sum(sizes[:rank]) for rank in range(len(sizes))]
    wrong = [start for start in starts if start not in OWNERS]
    return f"and one starts at layer {wrong[0]}, without an indexer" if wrong else "unaligned"


def _stages(fields, size, partition=None):
    """The sizes of all stages, as they are built."""
    from torch import nn
    from vllm import envs
    from vllm.config import ModelConfig
    from vllm.config import vllm as current
    from vllm.distributed import parallel_state
    from vllm.model_executor.models.utils import make_layers

    config = ModelConfig.__new__(ModelConfig)
    config.hf_config = config.hf_text_config = SimpleNamespace(**fields)
    config.model_arch_config = SimpleNamespace(total_num_hidden_layers=LAYERS)
    stages = []
    for rank in range(size):
        group = SimpleNamespace(rank_in_group=rank, world_size=size)
        parallel = SimpleNamespace(rank=rank, tensor_parallel_size=1, pipeline_parallel_size=size)
        with (
            patch.dict(vars(envs), VLLM_PP_LAYER_PARTITION=partition),
            patch.object(parallel_state, "_PP", group),
            patch.object(current, "_current_vllm_config", SimpleNamespace(model_config=config)),
        ):
            try:
                start, end, layers = make_layers(
                    LAYERS, lambda prefix: nn.Linear(1, 1), prefix="model.layers"
                )
                asked = config.get_layers_start_end_indices(parallel)
            except TypeError as error:
                raise _FaultError(f"the stages cannot be calculated: {error}") from error
        built = [layer for layer, module in enumerate(layers) if isinstance(module, nn.Linear)]
        if built != list(range(start, end)) or len(layers) != LAYERS:
            raise RuntimeError(f"stage {rank} from {start} to {end} has layers {built}")
        if asked != (start, end):
            raise _FaultError(f"the config has {asked} for the stage {(start, end)}")
        stages.append((start, end))
    starts, ends = zip(*stages, strict=True)
    if (0, *ends) != (*starts, LAYERS):
        raise RuntimeError(f"the stages are {stages}")
    return [end - start for start, end in stages]


if __name__ == "__main__":
    code, reason = probe()
    print(reason)
    sys.exit(code)
