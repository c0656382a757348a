"""A vLLM plugin that makes a pipeline stage fail while a file exists.

vLLM loads it in every process through its entry point `vllm.general_plugins`. The file is
named by an environment variable: STAGE_FAULT for an error with a text on the first stage,
LAST_STAGE_FAULT for a bare assert on the last one. Without them nothing is changed.
"""

import functools
import os
from pathlib import Path


def install():
    first, last = (os.environ.get(name) for name in ("STAGE_FAULT", "LAST_STAGE_FAULT"))
    if not first and not last:
        return

    from vllm.distributed import parallel_state
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    execute_model = GPUModelRunner.execute_model

    @functools.wraps(execute_model)
    def failing(self, *args, **kwargs):
        stage = parallel_state.get_pp_group()
        if first and stage.is_first_rank and Path(first).exists():
            raise RuntimeError("a fault on the first stage")
        assert not (last and stage.is_last_rank and Path(last).exists())
        return execute_model(self, *args, **kwargs)

    GPUModelRunner.execute_model = failing
