"""A vLLM plugin that makes the first pipeline stage fail while a file exists.

vLLM loads it in every process through its entry point `vllm.general_plugins`. The file is
named by the environment variable STAGE_FAULT; without that nothing is changed.
"""

import functools
import os
from pathlib import Path


def install():
    if "STAGE_FAULT" not in os.environ:
        return
    trigger = Path(os.environ["STAGE_FAULT"])

    from vllm.distributed import parallel_state
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    execute_model = GPUModelRunner.execute_model

    @functools.wraps(execute_model)
    def failing(self, *args, **kwargs):
        if trigger.exists() and parallel_state.get_pp_group().is_first_rank:
            raise RuntimeError("a fault on the first stage")
        return execute_model(self, *args, **kwargs)

    GPUModelRunner.execute_model = failing
