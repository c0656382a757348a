"""Start the engine core of a dense replica on each of several nodes, up to its executor.

The real ``EngineCoreProc.run_engine_core`` runs on a real ParallelConfig; the engine core that
it makes is a stand-in that ends it.
"""

import contextlib
import signal
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock, patch


class _StartedError(BaseException):
    """The engine core is made. No Exception, for which the engine would report its death."""


def probe() -> tuple[int, str]:
    # tp, dp, nodes, and what each node's replica must see: its nodes, and this one's rank.
    for tp, dp, nodes, wanted in (
        (2, 2, 2, [(1, 0), (1, 0)]),  # a node each
        (1, 4, 2, [(1, 0), (1, 0)]),  # two replicas on each node
        (2, 2, 4, [(2, 0), (2, 1), (2, 0), (2, 1)]),  # two nodes each
    ):
        found = [_place(tp, dp, nodes, rank) for rank in range(nodes)]
        if found != wanted:
            follower = next(rank for rank in range(nodes) if found[rank] != wanted[rank])
            spread, within = found[follower]
            return 1, (
                f"dense model, DP={dp} on {nodes} nodes: the engine core on node {follower} "
                f"takes itself for node {within} of a replica over {spread} nodes"
            )
    one = [_place(2, 1, 2, rank) for rank in range(2)]
    if one != [(2, 0), (2, 1)]:
        raise RuntimeError(f"DP=1 on 2 nodes: {one}")
    experts = [_place(2, 2, 2, rank, moe=True) for rank in range(2)]
    if experts != [(1, 0), (1, 0)]:
        raise RuntimeError(f"MoE model, DP=2 on 2 nodes: {experts}")
    return 0, "each replica of a dense model sees its own nodes"


def _place(tp, dp, nodes, node_rank, moe=False):
    from vllm.config import ParallelConfig
    from vllm.v1.engine import core

    local = max(dp // nodes, 1)
    parallel = ParallelConfig(
        tensor_parallel_size=tp,
        data_parallel_size=dp,
        data_parallel_size_local=local,
        data_parallel_rank=node_rank * dp // nodes,
        nnodes=nodes,
        node_rank=node_rank,
        distributed_executor_backend="mp",
    )
    config = SimpleNamespace(
        parallel_config=parallel,
        kv_transfer_config=None,
        model_config=SimpleNamespace(is_moe=moe),
    )
    run_engine_core = core.EngineCoreProc.run_engine_core
    started = MagicMock(side_effect=_StartedError)
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    with contextlib.ExitStack() as stack:
        for name in ("EngineCoreProc", "DPEngineCoreProc"):
            stack.enter_context(patch.object(core, name, started))
        for name in ("set_process_title", "decorate_logs", "maybe_init_worker_tracer"):
            stack.enter_context(patch.object(core, name, MagicMock()))
        try:
            run_engine_core(
                dp_rank=parallel.data_parallel_rank, local_dp_rank=0, vllm_config=config
            )
        except _StartedError:
            pass
        finally:
            for number, handler in handlers.items():
                signal.signal(number, handler)
    return parallel.nnodes_within_dp, parallel.node_rank_within_dp


if __name__ == "__main__":
    code, reason = probe()
    print(reason)
    sys.exit(code)
