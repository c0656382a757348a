"""Four external-LB replicas on two nodes: ask the real EngineArgs and ParallelConfig.

``EngineArgs.create_engine_config`` runs up to the ParallelConfig that it makes, with the model's
own configuration left out; a real ParallelConfig is then made of the same arguments.
"""

import contextlib
import sys
from unittest.mock import MagicMock, patch


class _ReachedError(Exception):
    """The parallel configuration is about to be made."""


def probe() -> tuple[int, str]:
    from vllm.engine import arg_utils

    # Node 1 has one more than rank 2, which its node rank alone would give.
    for node_rank, dp_rank in ((0, 0), (0, 1), (1, 2), (1, 3)):
        options = {"data_parallel_size": 4, "nnodes": 2, "node_rank": node_rank}
        config = _parallel_config(arg_utils, **options, data_parallel_rank=dp_rank)
        where = f"4 replicas on 2 nodes, replica {dp_rank}"
        try:
            place = config.nnodes_within_dp, config.node_rank_within_dp, config.local_world_size
        except ZeroDivisionError as error:
            return 1, f"{where}: its node's rank within it is no number: {error}"
        if place != (1, 0, 1):
            return 1, f"{where}: nodes, node rank, local workers are {place}"
        if config.data_parallel_rank != dp_rank:
            return 1, f"{where} is told that it is replica {config.data_parallel_rank}"

    try:
        config = _parallel_config(arg_utils, data_parallel_size=4, nnodes=2, node_rank=1)
    except ValueError as error:
        if "--data-parallel-rank" not in str(error):
            raise
    else:
        rank = config.data_parallel_rank
        return 1, f"4 replicas on 2 nodes: both of the second node's are replica {rank}"

    for dp_size, nnodes, node_rank, wanted in (
        (2, 2, 1, (1, 1, 0, 2)),  # a node each
        (2, 4, 3, (1, 2, 1, 1)),  # two nodes each
        (2, 1, 0, (1, 1, 0, 2)),  # one node, which tells no ranks
    ):
        options = {"data_parallel_size": dp_size, "nnodes": nnodes, "node_rank": node_rank}
        if nnodes == 1:
            options["data_parallel_rank"] = 1
        config = _parallel_config(arg_utils, **options, tensor_parallel_size=2)
        found = (
            config.data_parallel_rank,
            config.nnodes_within_dp,
            config.node_rank_within_dp,
            config.local_world_size,
        )
        if found != wanted:
            raise RuntimeError(f"{options}: {found} instead of {wanted}")
    return 0, "replicas that share a node keep their ranks and have a node each"


def _parallel_config(arg_utils, **options):
    args = arg_utils.EngineArgs(
        model="/nowhere",
        distributed_executor_backend="mp",
        data_parallel_external_lb=True,
        enable_prefix_caching=False,
        **options,
    )
    real = arg_utils.ParallelConfig
    left_out = {
        "maybe_override_with_speculators": lambda **kw: (kw["model"], kw["tokenizer"], None),
        "resolve_kv_cache_dtype_string": lambda *_: "auto",
        "is_interleaved": lambda _: True,
        "DeviceConfig": MagicMock(),
        "CacheConfig": MagicMock(),
        "ParallelConfig": MagicMock(
            side_effect=_ReachedError,
            data_parallel_master_ip=real.data_parallel_master_ip,
            data_parallel_rpc_port=real.data_parallel_rpc_port,
        ),
    }
    methods = {
        "create_model_config": lambda _: MagicMock(is_moe=True),
        "_check_feature_supported": lambda _: None,
        "_set_default_chunked_prefill_and_prefix_caching_args": lambda *_: None,
        "_set_default_reasoning_config_args": lambda _: None,
    }
    with contextlib.ExitStack() as stack:
        stack.enter_context(patch.multiple(arg_utils.EngineArgs, **methods))
        for name, stub in left_out.items():
            if hasattr(arg_utils, name):
                stack.enter_context(patch.object(arg_utils, name, stub))
        with contextlib.suppress(_ReachedError):
            args.create_engine_config()
    return real(**left_out["ParallelConfig"].call_args.kwargs)


if __name__ == "__main__":
    code, reason = probe()
    print(reason)
    sys.exit(code)
