"""What a stage of a pipeline hands to the next one, once per forward.

The runner runs several forwards in a step, one for each batch of prompts and one for all
decodes, and every stage splits a step in the same way: what one stage sends and what the next
one receives pair one to one, in order. The tensors cross in the memory of the hosts, so that
they take gloo's connections, and no HCCL is needed between the nodes.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed
from vllm.distributed.kv_transfer import get_kv_transfer_group, has_kv_transfer_group
from vllm.distributed.parallel_state import get_pp_group, get_tp_group, get_world_group
from vllm.sequence import IntermediateTensors
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, KVConnectorOutput, ModelRunnerOutput
from vllm_gaudi.extension.logger import logger as init_logger
from vllm_gaudi.extension.runtime import get_config

logger = init_logger()

#: Names the entry that is no tensor: the whole shapes of those that were sent in slices.
SHAPES = "shapes of sliced tensors"


def configure(vllm_config: Any) -> None:
    """Turn off what stages cannot do together. Raises ValueError for what was asked for."""
    import habana_frameworks.torch as htorch

    model, parallel = vllm_config.model_config, vllm_config.parallel_config
    refused = {
        "pooling models": model is not None and model.pooler_config is not None,
        "speculative decoding": vllm_config.speculative_config is not None,
        "lazy mode: set PT_HPU_LAZY_MODE=0": htorch.utils.internal.is_lazy(),
        "Ray: use --distributed-executor-backend mp": (
            parallel.distributed_executor_backend == "ray"
        ),
    }
    if wrong := [what for what, asked in refused.items() if asked]:
        raise ValueError(
            f"--pipeline-parallel-size {parallel.pipeline_parallel_size} on HPU does not go with "
            + "; ".join(wrong)
        )
    if vllm_config.scheduler_config.async_scheduling:
        # Sampled tokens reach the other stages through the scheduler, one step later.
        logger.warning("Pipeline parallelism on HPU: asynchronous scheduling is off")
        vllm_config.scheduler_config.async_scheduling = False


def check_groups() -> None:
    """Add up ones over the ranks of the stage on its devices, and over all ranks on the hosts.

    Raises RuntimeError where a rank is missing.
    """
    stage, world = get_tp_group(), get_world_group()
    for group, size, device in (
        (stage.device_group, stage.world_size, "hpu"),
        (world.cpu_group, world.world_size, "cpu"),
    ):
        count = torch.ones(1).to(device)
        torch.distributed.all_reduce(count, group=group)
        if count.item() != size:
            raise RuntimeError(f"{count.item():g} of {size} ranks answered on {device}")


def send(tensors: IntermediateTensors, vllm_config: Any) -> None:
    """Send what a forward made to the next stage; returns when it has been taken.

    The ranks of a stage hold the same rows, so each sends a slice to its peer where the rows
    can be divided.
    """
    stage = get_tp_group()
    # With sequence parallelism each rank has rows of its own.
    whole = stage.world_size == 1 or vllm_config.compilation_config.pass_config.enable_sp
    parts: dict[str, Any] = {SHAPES: {}}
    for name, tensor in tensors.items():
        if not whole and tensor.numel() % stage.world_size == 0:
            parts[SHAPES][name] = tuple(tensor.shape)
            tensor = tensor.reshape(stage.world_size, -1)[stage.rank_in_group]
        parts[name] = tensor.cpu().contiguous()
    get_pp_group().send_tensor_dict(parts)


def receive(runner: Any, token_ids: torch.Tensor, warmup_mode: bool) -> IntermediateTensors | None:
    """What the forward of these tokens takes from the stage before; None in the first stage.

    A warm-up takes zeros, since each stage warms up on its own.
    """
    if get_pp_group().is_first_rank:
        return None
    if warmup_mode:
        return blank(runner, token_ids)
    parts = get_pp_group().recv_tensor_dict()
    shapes = parts.pop(SHAPES)
    for name, tensor in parts.items():
        parts[name] = tensor.to(runner.device)
        if name in shapes:
            parts[name] = get_tp_group().all_gather(parts[name], dim=0).reshape(shapes[name])
    return IntermediateTensors(parts)


def blank(runner: Any, token_ids: torch.Tensor) -> IntermediateTensors:
    """Zeros in the shapes that the stage before sends for these tokens."""
    model = runner.get_model()
    make = getattr(model, "make_empty_intermediate_tensors", None)
    if make is None:
        raise NotImplementedError(f"{type(model).__name__} does not support pipeline parallelism")
    rows = (token_ids.numel(),) if get_config().flatten_input else tuple(token_ids.shape)
    like = make(batch_size=1, dtype=runner.dtype, device=runner.device)
    return IntermediateTensors(
        {name: one.new_zeros((*rows, *one.shape[1:])) for name, one in like.items()}
    )


def finish(runner: Any, scheduler_output: Any, warmup_mode: bool) -> ModelRunnerOutput:
    """The output of a step in a stage that samples nothing: what its KV connector has to say."""
    if warmup_mode or not has_kv_transfer_group():
        return EMPTY_MODEL_RUNNER_OUTPUT
    runner.maybe_wait_for_kv_save()
    sent, received = runner.get_finished_kv_transfers(scheduler_output)
    get_kv_transfer_group().clear_connector_metadata()
    return ModelRunnerOutput.with_kv_conn_output_only(
        KVConnectorOutput(finished_sending=sent, finished_recving=received)
    )
