"""Does every worker have the blocks that the scheduler of SimpleCPUOffloadConnector hands out?

The engine plans the KV cache of two pipeline stages, one with two layers, one with three, in
either order. The real connectors then make the workers' buffers, on CPU tensors, and the
scheduler's pool. The executor, the configuration and what copies blocks are stubs, and so is
the reduction that 0.33.0 makes between the workers: a first round collects what they bring.
"""

import contextlib
import pickle
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock, patch

BLOCK_SIZE, LAYOUT = 16, "LBNHC"
CAPACITY = 1 << 20
STAGES = (2, 3), (3, 2)
MODES = {  # the connector's options; a disk is one since 0.28.0
    "memory": {"cpu_bytes_to_use": 2 * CAPACITY},
    "disk": {
        "cpu_bytes_to_use": 2 * CAPACITY,
        "kv_offload_backend": "disk",
        "disk_path": "/nonexistent/blocks",
        "disk_capacity_bytes": CAPACITY,
    },
}


def _layer():
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    return FullAttentionSpec(
        block_size=BLOCK_SIZE, num_kv_heads=2, head_size=16, dtype=torch.float16
    )


def _config(stages, options):
    """What the engine and the connectors read of the configuration."""
    from vllm.config import CacheConfig, KVTransferConfig

    config = MagicMock()
    config.cache_config = CacheConfig(block_size=BLOCK_SIZE, enable_prefix_caching=True)
    config.cache_config.kv_cache_layout = LAYOUT  # since 0.29.0
    config.kv_transfer_config = KVTransferConfig(
        kv_connector="SimpleCPUOffloadConnector",
        kv_role="kv_both",
        kv_connector_extra_config=dict(options),
    )
    config.model_config.max_model_len = config.model_config.original_max_model_len = 64
    config.model_config.supports_kv_cache_grouping = False
    config.scheduler_config.disable_hybrid_kv_cache_manager = False
    config.scheduler_config.max_num_batched_tokens = config.max_in_flight_tokens = 64
    config.attention_config.hisparse_config = None
    config.speculative_config = config.kv_events_config = None
    config.num_prefill_lookahead_tokens = 0
    config.compilation_config.compilation_time = 0.0
    config.compilation_config.encoder_compilation_time = 0.0
    parallel = config.parallel_config
    parallel.world_size = parallel.pipeline_parallel_size = len(stages)
    parallel.tensor_parallel_size = parallel.decode_context_parallel_size = 1
    parallel.prefill_context_parallel_size = 1
    return config


def _tensors(kv_cache_config):
    """A worker's KV cache, by layer."""
    import torch

    caches = {}
    tensors, blocks = kv_cache_config.kv_cache_tensors, kv_cache_config.num_blocks
    if hasattr(tensors[0], "shared_by"):  # until 0.28.0
        for tensor in tensors:
            cache = torch.zeros(tensor.size, dtype=torch.int8).view(blocks, -1)
            caches.update(dict.fromkeys(tensor.shared_by, cache))
        return caches
    storage = torch.zeros(tensors[0].size, dtype=torch.int8)
    for tensor in tensors:
        for index, layer in enumerate(tensor.layers):
            start = tensor.offset + index * tensor.layer_stride
            shape, strides = (blocks, _layer().page_size_bytes), (tensor.block_stride, 1)
            caches[layer] = storage.as_strided(shape, strides, start)
    return caches


@contextlib.contextmanager
def _stubs(reduce):
    """No device to copy with, and a world of workers that reduce by ``reduce()``."""
    import torch
    from vllm.distributed import parallel_state
    from vllm.v1.simple_kv_offload import worker

    stream = MagicMock()
    stream.priority_range.return_value = (0, 0)
    world = SimpleNamespace(world_size=2, cpu_group=None)
    with contextlib.ExitStack() as stack:
        for owner, name, stub in (
            (torch.cuda, "Stream", stream),
            (torch.distributed, "is_initialized", lambda: True),
            (torch.distributed, "all_reduce", reduce),
            (parallel_state, "get_world_group", lambda: world),
            (worker, "DmaCopyBackend", MagicMock()),
            (worker, "DiskBackend", MagicMock()),
            (worker, "PIN_MEMORY", False),
        ):
            stack.enter_context(patch.object(owner, name, stub, create=True))
        yield


class _Workers:
    """The workers' connectors, made when the engine sends its plan."""

    def __init__(self, config):
        self.config = config
        self.connectors = []

    def initialize_from_config(self, plan):
        from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
        from vllm.distributed.kv_transfer.kv_connector.v1.simple_cpu_offload_connector import (
            SimpleCPUOffloadConnector,
        )

        brought = []

        def reduce(number, **_options):
            brought.append(number.item())
            number.fill_(min(brought))

        plan = pickle.loads(pickle.dumps(plan))
        with _stubs(reduce):
            for _round in ("collect", "answer"):
                self.connectors = [
                    SimpleCPUOffloadConnector(self.config, KVConnectorRole.WORKER, one)
                    for one in plan
                ]
                for connector, one in zip(self.connectors, plan, strict=True):
                    connector.register_kv_caches(_tensors(one))

    def aligned(self):
        """What the engine of 0.33.0 asks its executor for."""
        from vllm.v1.executor import Executor

        answers = [connector.get_aligned_num_cpu_blocks() for connector in self.connectors]
        executor = SimpleNamespace(collective_rpc=lambda _method: answers)
        return Executor.get_simple_cpu_offload_num_blocks(executor)

    def numbers(self):
        return [connector.worker_handler.num_cpu_blocks for connector in self.connectors]


def _offloaded(stages, options):
    """The number of blocks that the scheduler hands out, and that each worker has."""
    from vllm.distributed.kv_transfer.kv_connector.v1 import KVConnectorRole
    from vllm.distributed.kv_transfer.kv_connector.v1.simple_cpu_offload_connector import (
        SimpleCPUOffloadConnector,
    )
    from vllm.v1.engine.core import EngineCore

    config = _config(stages, options)
    workers = _Workers(config)
    layers = iter(range(sum(stages)))
    core = MagicMock()
    executor = core.model_executor
    executor.get_kv_cache_specs.return_value = [
        {f"layers.{next(layers)}.attn": _layer() for _ in range(stage)} for stage in stages
    ]
    executor.get_supported_kv_cache_layouts.return_value = [[LAYOUT]] * len(stages)
    executor.determine_available_memory.return_value = [1 << 18] * len(stages)
    executor.initialize_from_config.side_effect = workers.initialize_from_config
    executor.get_simple_cpu_offload_num_blocks.side_effect = workers.aligned
    plan = EngineCore._initialize_kv_caches(core, config)
    connector = SimpleCPUOffloadConnector(config, KVConnectorRole.SCHEDULER, plan)
    return connector.scheduler_manager.num_cpu_blocks, workers.numbers()


def probe() -> tuple[int, str]:
    """Offload to memory and to a disk, with two stages of different size in either order."""
    from vllm.v1.simple_kv_offload import worker

    wrong = []
    for mode, options in MODES.items():
        if mode == "disk" and not hasattr(worker, "DiskBackend"):
            continue
        for stages in STAGES:
            scheduler, workers = _offloaded(stages, options)
            what = f"{mode}, stages of {stages} layers: the scheduler hands out {scheduler} blocks"
            if any(number != scheduler for number in workers):
                wrong.append(f"{what}, the workers have {workers}")
            elif scheduler != CAPACITY // (_layer().page_size_bytes * max(stages)):
                raise RuntimeError(f"{what}, which is not what the largest worker has room for")
    if wrong:
        return 1, "; ".join(wrong)
    return 0, "the scheduler hands out the blocks that all workers have"


if __name__ == "__main__":
    code, reason = probe()
    print(reason)
    sys.exit(code)
