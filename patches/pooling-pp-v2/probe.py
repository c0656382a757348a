"""Send a pooling request in chunks through the first stage of a pipeline.

The real ``Worker.execute_model`` and the V2 runner's real ``pool`` run; the forward pass is a
stand-in that starts each chunk where the runner says that the last one ended, and the kernel
that advances this is done with torch.
"""

import contextlib
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock, patch

CHUNKS = [4, 4, 2]
STARTS = [0, 4, 8]


def probe() -> tuple[int, str]:
    starts, sends = _stage(pooling=True, v2=True)
    if sends != len(CHUNKS):
        raise RuntimeError(f"{len(CHUNKS)} chunks, {sends} sends to the next stage")
    if starts != STARTS:
        return 1, f"the chunks of a pooling request start at tokens {starts}, not {STARTS}"
    for pooling, v2 in ((False, True), (True, False)):
        if _stage(pooling, v2)[0] != [0, 0, 0]:
            return 1, f"pool() is called where pooling is {pooling} and the V2 runner {v2}"
    return 0, "each chunk of a pooling request starts where the last one ended"


def _stage(pooling, v2):
    """Where the chunks start on the first stage, and how many were sent on."""
    import torch
    from vllm.sequence import IntermediateTensors
    from vllm.v1.worker import gpu_worker
    from vllm.v1.worker.gpu import model_runner

    computed = torch.zeros(1, dtype=torch.int32)
    starts = []

    def execute_model(scheduler_output, _intermediate_tensors):
        starts.append(int(computed[0]))
        size = scheduler_output.total_num_scheduled_tokens
        runner.execute_model_state = SimpleNamespace(
            input_batch=SimpleNamespace(
                idx_mapping=torch.tensor([0]), query_start_loc=torch.tensor([0, size])
            ),
            hidden_states=None,
            finished_req_ids=set(),
            ec_connector_output=None,
        )
        return IntermediateTensors({})

    def advance(idx_mapping, num_computed_tokens, query_start_loc):
        num_computed_tokens[idx_mapping] += query_start_loc.diff().to(torch.int32)

    runner = model_runner.GPUModelRunner.__new__(model_runner.GPUModelRunner)
    runner.eplb = MagicMock()
    runner.is_pooling_model = pooling
    runner.is_last_pp_rank = False
    runner.kv_connector = SimpleNamespace(post_forward=lambda _: None)
    runner.req_states = SimpleNamespace(num_computed_tokens=SimpleNamespace(gpu=computed))
    runner.execute_model = execute_model

    group = SimpleNamespace(is_first_rank=True, is_last_rank=False)
    group.isend_tensor_dict = MagicMock(return_value=[])
    worker = gpu_worker.Worker.__new__(gpu_worker.Worker)
    worker._pp_send_work = []
    worker.use_v2_model_runner, worker.model_runner = v2, runner
    worker.profiler = None
    worker.vllm_config = MagicMock()
    worker.vllm_config.parallel_config.pipeline_parallel_size = 2
    worker.vllm_config.compilation_config.pass_config.enable_sp = False
    with contextlib.ExitStack() as stack:
        for name in ("get_pp_group", "get_tp_group"):
            stack.enter_context(patch.object(gpu_worker, name, lambda: group))
        stack.enter_context(patch.object(model_runner, "post_update_num_computed_tokens", advance))
        for size in CHUNKS:
            worker.execute_model(SimpleNamespace(total_num_scheduled_tokens=size))
    return starts, group.isend_tensor_dict.call_count


if __name__ == "__main__":
    code, reason = probe()
    print(reason)
    sys.exit(code)
