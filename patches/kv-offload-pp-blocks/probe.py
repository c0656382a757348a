"""Do all workers and the scheduler offload to the same number of blocks, each of one size?

The engine plans the KV cache of two pipeline stages, one with two layers, one with three,
in either order, and what it sends to the workers and keeps for the scheduler is what they
make their offloading specs of. Only the executor and the configuration are stubs.
"""

import pickle
import sys
from unittest.mock import MagicMock

BLOCK_SIZE, LAYOUT = 16, "LBNHC"
CPU_BYTES = 1 << 20
STAGES = (2, 3), (3, 2)


def _layer():
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    return FullAttentionSpec(
        block_size=BLOCK_SIZE, num_kv_heads=2, head_size=16, dtype=torch.float16
    )


def _config(stages):
    """What the engine, the workers and the scheduler read of the configuration."""
    from vllm.config import CacheConfig, KVTransferConfig

    config = MagicMock()
    config.cache_config = CacheConfig(block_size=BLOCK_SIZE, enable_prefix_caching=True)
    config.cache_config.kv_cache_layout = LAYOUT  # since 0.29.0
    config.kv_transfer_config = KVTransferConfig(
        kv_connector="OffloadingConnector",
        kv_role="kv_both",
        kv_connector_extra_config={"cpu_bytes_to_use": CPU_BYTES},
    )
    config.model_config.max_model_len = config.model_config.original_max_model_len = 64
    config.model_config.use_mla = False
    config.model_config.supports_kv_cache_grouping = False
    config.model_config.get_total_num_kv_heads.return_value = 2
    config.scheduler_config.disable_hybrid_kv_cache_manager = False
    config.attention_config.hisparse_config = None
    config.speculative_config = config.kv_events_config = None
    config.num_prefill_lookahead_tokens = 0
    config.compilation_config.compilation_time = 0.0
    config.compilation_config.encoder_compilation_time = 0.0
    parallel = config.parallel_config
    parallel.world_size = parallel.pipeline_parallel_size = len(stages)
    parallel.tensor_parallel_size = parallel.decode_context_parallel_size = 1
    parallel.prefill_context_parallel_size = parallel.nnodes_within_dp = 1
    parallel.data_parallel_size = 1
    parallel.rank = parallel.data_parallel_index = 0
    parallel.distributed_executor_backend = "mp"
    return config


def _plan(config, stages):
    """What each worker receives of the engine's plan, and what the scheduler gets."""
    from vllm.v1.engine.core import EngineCore

    layers = iter(range(sum(stages)))
    core = MagicMock()
    core.model_executor.get_kv_cache_specs.return_value = [
        {f"layers.{next(layers)}.attn": _layer() for _ in range(stage)} for stage in stages
    ]
    core.model_executor.get_supported_kv_cache_layouts.return_value = [[LAYOUT]] * len(stages)
    core.model_executor.determine_available_memory.return_value = [1 << 20] * len(stages)
    scheduler = EngineCore._initialize_kv_caches(core, config)
    ((workers,), _) = core.model_executor.initialize_from_config.call_args
    return pickle.loads(pickle.dumps(workers)), scheduler


def _offloaded(config, kv_cache_config, name):
    """The number of blocks on the CPU and the bytes of one, over all workers."""
    from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import (
        build_offloading_config,
    )
    from vllm.v1.kv_offload.factory import OffloadingSpecFactory

    spec = OffloadingSpecFactory.create_spec(build_offloading_config(config, kv_cache_config))
    number = spec.num_chunks if hasattr(spec, "num_chunks") else spec.num_blocks  # 0.29.0
    return name, number, spec.kv_bytes_per_chunk


def probe() -> tuple[int, str]:
    """Plan for two stages of different size, in either order."""
    for stages in STAGES:
        config = _config(stages)
        workers, scheduler = _plan(config, stages)
        found = [_offloaded(config, scheduler, "scheduler")]
        for rank, worker in enumerate(workers):
            config.parallel_config.rank = rank
            found.append(_offloaded(config, worker, f"worker {rank}"))
        what = ", ".join(f"{name} {number} of {size} bytes" for name, number, size in found)
        if len({(number, size) for _, number, size in found}) > 1:
            return 1, f"stages of {stages} layers, blocks to offload to: {what}"
        _, number, size = found[0]
        if size < _layer().page_size_bytes * max(stages) * len(stages) or not number:
            raise RuntimeError(f"stages of {stages} layers have too little room: {what}")
    return 0, "the scheduler and all workers offload to the same blocks"


if __name__ == "__main__":
    code, reason = probe()
    print(reason)
    sys.exit(code)
