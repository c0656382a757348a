"""Does a pipeline stage start that has no layer of one group of the KV cache?

The engine plans the KV cache of two stages of a hybrid model: the first has only layers with
a sliding window, the second also one with full attention, of another page size. Each worker
then allocates what it is sent, on the CPU. Only the executor and the configuration are stubs.
"""

import pickle
import sys
from unittest.mock import MagicMock

BLOCK_SIZE, LAYOUT = 16, "BLHNC"
STAGES = {"layers.0": "window", "layers.1": "window"}, {"layers.2": "window", "layers.3": "full"}


def _layer(kind):
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

    shared = {"block_size": BLOCK_SIZE, "num_kv_heads": 2, "dtype": torch.float16}
    if kind == "full":
        return FullAttentionSpec(head_size=24, **shared)
    return SlidingWindowSpec(head_size=16, sliding_window=32, **shared)


def _config():
    """What the engine reads of the configuration to plan."""
    from vllm.config import CacheConfig

    config = MagicMock()
    config.cache_config = CacheConfig(block_size=BLOCK_SIZE, enable_prefix_caching=True)
    config.cache_config.kv_cache_layout = LAYOUT
    config.model_config.max_model_len = config.model_config.original_max_model_len = 64
    config.model_config.supports_kv_cache_grouping = False
    config.scheduler_config.disable_hybrid_kv_cache_manager = False
    config.scheduler_config.max_num_batched_tokens = 64
    config.max_in_flight_tokens = 64
    config.attention_config.hisparse_config = None
    config.kv_transfer_config = config.speculative_config = config.kv_events_config = None
    config.num_prefill_lookahead_tokens = 0
    config.compilation_config.compilation_time = 0.0
    config.compilation_config.encoder_compilation_time = 0.0
    parallel = config.parallel_config
    parallel.world_size = parallel.pipeline_parallel_size = len(STAGES)
    parallel.tensor_parallel_size = parallel.decode_context_parallel_size = 1
    parallel.prefill_context_parallel_size = 1
    return config


def _plan(config):
    """What each worker receives of the engine's plan."""
    from vllm.v1.engine.core import EngineCore

    core = MagicMock()
    core.model_executor.get_kv_cache_specs.return_value = [
        {layer: _layer(kind) for layer, kind in stage.items()} for stage in STAGES
    ]
    core.model_executor.get_supported_kv_cache_layouts.return_value = [[LAYOUT]] * len(STAGES)
    core.model_executor.determine_available_memory.return_value = [1 << 20] * len(STAGES)
    EngineCore._initialize_kv_caches(core, config)
    ((workers,), _) = core.model_executor.initialize_from_config.call_args
    return pickle.loads(pickle.dumps(workers))


def probe() -> tuple[int, str]:
    """Plan for the two stages and allocate on each."""
    import torch
    from vllm.v1.worker.utils import allocate_kv_cache

    config = _config()
    workers = _plan(config)
    if all(group.layer_names for group in workers[0].kv_cache_groups):
        raise RuntimeError(f"the first stage has a layer of each group: {workers[0]}")
    layout = config.cache_config.get_resolved_kv_cache_layout()
    for rank, (worker, stage) in enumerate(zip(workers, STAGES, strict=True)):
        try:
            caches = allocate_kv_cache(worker, torch.device("cpu"), layout)
        except StopIteration:
            planned = sorted(layer for tensor in worker.kv_cache_tensors for layer in tensor.layers)
            return 1, (
                f"StopIteration in allocate_kv_cache on stage {rank}, which has "
                f"{', '.join(stage)} and was sent a plan for {', '.join(planned)}"
            )
        if caches.keys() != stage.keys():
            raise RuntimeError(f"stage {rank} allocated for {sorted(caches)}")
    return 0, "each stage allocates for its own layers"


if __name__ == "__main__":
    code, reason = probe()
    print(reason)
    sys.exit(code)
