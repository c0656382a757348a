"""Give a stage that did no dummy run its first batch."""

import sys
from types import SimpleNamespace

NAMES = ("hidden_states", "residual")
MAX_TOKENS = 8
WIDTH = 4


def probe() -> tuple[int, str]:
    import torch
    from vllm.sequence import IntermediateTensors
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner

    def empty(batch_size, dtype, device):
        return IntermediateTensors(
            {name: torch.zeros(batch_size, WIDTH, dtype=dtype, device=device) for name in NAMES}
        )

    def received(rows, value):
        return IntermediateTensors({name: torch.full((rows, WIDTH), value) for name in NAMES})

    parallel = SimpleNamespace(tensor_parallel_size=1)
    passes = SimpleNamespace(enable_sp=False)
    runner = SimpleNamespace(
        intermediate_tensors=None,
        max_num_tokens=MAX_TOKENS,
        device=torch.device("cpu"),
        model_config=SimpleNamespace(dtype=torch.float32),
        model=SimpleNamespace(make_empty_intermediate_tensors=empty),
        vllm_config=SimpleNamespace(
            parallel_config=parallel,
            compilation_config=SimpleNamespace(pass_config=passes),
        ),
    )
    # The second batch is the largest that can come: the buffers must have room for it.
    for rows, value in ((3, 1.0), (MAX_TOKENS, 2.0)):
        batch = received(rows, value)
        try:
            got = GPUModelRunner.sync_and_gather_intermediate_tensors(runner, rows, batch, True)
        except AssertionError:
            if runner.intermediate_tensors is not None:
                raise
            return 1, "a stage without a dummy run has no buffers for what it receives"
        for name in NAMES:
            if not torch.equal(got[name], batch[name]):
                return 1, f"the {name} of {rows} tokens did not reach the stage"
    return 0, "a stage without a dummy run makes its buffers at the first batch"


if __name__ == "__main__":
    code, reason = probe()
    print(reason)
    sys.exit(code)
