"""Run by the interpreter of an environment with vLLM: what vLLM itself makes of a model.

For each case its own model classes are built for one rank of each stage, on torch's meta device
and with a process group that only counts: no weight, no memory, no other process. Printed are the
bytes of all parameters and what vLLM's own KV cache code says of blocks.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

import torch
import vllm.distributed.parallel_state as parallel
from torch.testing._internal.distributed.fake_pg import FakeStore
from vllm.config import set_current_vllm_config
from vllm.distributed.device_communicators.shm_broadcast import MessageQueue
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.kernels.linear.scaled_mm.cpu import CPUFp8BlockScaledMMKernel
from vllm.model_executor.layers.attention_layer_base import AttentionLayerBase
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.platforms import current_platform
from vllm.utils.torch_utils import set_default_torch_dtype
from vllm.v1.core import kv_cache_utils

COMMUNICATOR = "vllm.distributed.device_communicators.base_device_communicator"


def without_processes() -> None:
    """Groups of ranks that are not there, and a kernel that this CPU may lack: none is called."""
    CPUFp8BlockScaledMMKernel.is_supported = classmethod(lambda cls, *given: (True, None))
    plain = f"{COMMUNICATOR}.DeviceCommunicatorBase"
    type(current_platform).get_device_communicator_cls = classmethod(lambda cls: plain)
    MessageQueue.create_from_process_group = staticmethod(lambda *given, **named: None)
    new_group = torch.distributed.new_group
    torch.distributed.new_group = lambda ranks=None, **given: new_group(ranks, backend="fake")


def stage(case: dict[str, Any], number: int) -> tuple[Any, int, dict[str, Any]]:
    """The engine's config, the bytes of the parameters, and the KV cache specs of one stage."""
    tensor, pipeline = case["tensor"], case["pipeline"]
    made = EngineArgs(
        model=case["folder"],
        tensor_parallel_size=tensor,
        pipeline_parallel_size=pipeline,
        max_model_len=case["context"],
        max_num_batched_tokens=case["batched"],
        skip_tokenizer_init=True,
        enforce_eager=True,
        dtype="bfloat16",
        mamba_ssm_cache_dtype="float32",  # what a CPU falls back to, said aloud
        async_scheduling=False,
    ).create_engine_config()
    os.environ.pop("VLLM_PP_LAYER_PARTITION", None)
    if listed := case.get("partition"):
        os.environ["VLLM_PP_LAYER_PARTITION"] = ",".join(map(str, listed))
    rank, size = number * tensor, tensor * pipeline
    store = FakeStore()
    torch.distributed.init_process_group(backend="fake", rank=rank, world_size=size, store=store)
    try:
        with set_current_vllm_config(made):
            parallel.init_distributed_environment(size, rank, "env://", 0, "fake")
            parallel.initialize_model_parallel(tensor, pipeline)
            with set_default_torch_dtype(torch.bfloat16), torch.device("meta"):
                model = initialize_model(made)
            current_platform.update_block_size_for_backend(made)
            layers = made.compilation_config.static_forward_context
            kept = (
                (name, layer.get_kv_cache_spec(made))
                for name, layer in layers.items()
                if isinstance(layer, AttentionLayerBase)
            )
            specs = {name: spec for name, spec in kept if spec is not None}
    finally:
        parallel.destroy_model_parallel()
        parallel.destroy_distributed_environment()
    weights = sum(one.numel() * one.element_size() for one in model.parameters())
    return made, weights, specs


def answer(case: dict[str, Any]) -> dict[str, Any]:
    """What vLLM says of a case."""
    stages = [stage(case, number) for number in range(case["pipeline"])]
    made = stages[0][0]
    made.cache_config.kv_cache_layout = "LBNHC"
    everything = {name: spec for _, _, specs in stages for name, spec in specs.items()}
    groups = kv_cache_utils.get_kv_cache_groups(made, everything)
    own = [kv_cache_utils._project_kv_cache_groups_to_worker(groups, s) for _, _, s in stages]
    per_block = [kv_cache_utils._pool_bytes_per_block(one) for one in own]
    needed = [kv_cache_utils._max_memory_usage_bytes_from_groups(made, one) for one in own]
    room = [2**40] * len(stages)
    pools = kv_cache_utils.get_kv_cache_configs(made, [specs for _, _, specs in stages], room)
    return {
        "pool": [one.num_blocks for one in pools],
        "weights": [weights for _, weights, _ in stages],
        "per_block": per_block,
        "blocks": needed[0] // per_block[0],
        "block_size": made.cache_config.block_size,
        "in_flight": made.max_in_flight_tokens,
        "states": 2 if made.cache_config.mamba_cache_mode == "align" else 1,
    }


def main(asked: Path, told: Path) -> None:
    """Answer every case of a file into another one; an error is an answer too."""
    without_processes()
    answers = []
    for case in json.loads(asked.read_text("utf-8")):
        try:
            answers.append(answer(case))
        except Exception:
            answers.append({"error": traceback.format_exc()})
    told.write_text(json.dumps(answers), "utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
