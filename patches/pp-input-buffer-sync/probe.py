"""Overlap two steps of a pipeline stage on a device that copies late.

The real ``GPUModelRunner.__init__`` runs up to its first buffer, the real
``synchronize_input_prep`` and the real ``CpuGpuBuffer.copy_to_gpu`` do the rest. The device is
a queue: what it is given happens when somebody waits for it, as with pinned memory.
"""

import contextlib
import sys
from unittest.mock import MagicMock, patch

STEPS = [1, 2, 3]


class _ReachedError(Exception):
    """The constructor has come to its buffers."""


class _Device:
    """A stream that does nothing before it must, and a tensor that is filled through it."""

    def __init__(self):
        self.queue, self.value, self.seen, self.events = [], None, [], 0

    def event(self, *_args, **_kwargs):
        self.events += 1
        return _Event(self)

    def catch_up(self, count):
        work, self.queue = self.queue[:count], self.queue[count:]
        for action in work:
            action()

    def __getitem__(self, _):
        return self

    def copy_(self, source, non_blocking):
        if not non_blocking:
            raise RuntimeError("the copy to the device waits by itself")

        def copy():
            self.value = int(source[0])

        self.queue.append(copy)
        return self

    def forward(self):
        self.queue.append(lambda: self.seen.append(self.value))


class _Event:
    def __init__(self, device):
        self.device, self.last = device, None

    def record(self, *_):
        self.last = self.device.queue[-1] if self.device.queue else None

    def synchronize(self):
        if self.last in self.device.queue:
            self.device.catch_up(self.device.queue.index(self.last) + 1)


def probe() -> tuple[int, str]:
    from vllm.v1.worker import gpu_model_runner

    for pp_size, asynchronous in ((1, True), (2, True), (2, False), (4, False)):
        seen, _ = _steps(gpu_model_runner, pp_size, asynchronous)
        if seen == STEPS:
            continue
        if asynchronous:
            raise RuntimeError(f"with async scheduling, steps {STEPS} computed with {seen}")
        return 1, f"steps {STEPS} of a pipeline of {pp_size} computed with the inputs of {seen}"
    _, events = _steps(gpu_model_runner, 1, False)
    if events:
        return 1, "one stage without async scheduling waits for its copies"
    try:
        # As on the CPU platform, where torch.cuda.Event is torch's own and cannot be made.
        _steps(gpu_model_runner, 2, False, pinned=False)
    except AssertionError:
        return 1, "without pinned memory there is something to wait for"
    return 0, "steps that overlap in a pipeline compute with their own inputs"


def _steps(gpu_model_runner, pp_size, asynchronous, pinned=True):
    """The inputs that each step computed with, and how many events were made."""
    import torch
    from vllm.v1 import utils

    device = _Device()
    event = device.event if pinned else MagicMock(side_effect=AssertionError)
    with (
        patch.object(torch.cuda, "Event", event),
        patch.object(torch.cuda, "Stream", MagicMock()),
        patch.object(gpu_model_runner, "PIN_MEMORY", pinned),
    ):
        runner = _runner(gpu_model_runner, pp_size, asynchronous)
    host = torch.device("cpu")
    buffer = utils.CpuGpuBuffer(1, dtype=torch.int32, device=host, pin_memory=False)
    buffer.gpu = device
    # Not to be pinned again for its copy, which is nothing where it is pinned.
    with patch.object(utils, "PIN_MEMORY", False):
        for step in STEPS:
            with runner.synchronize_input_prep():
                buffer.np[:] = step
                buffer.copy_to_gpu()
            device.forward()
    device.catch_up(len(device.queue))
    return device.seen, device.events


def _runner(gpu_model_runner, pp_size, asynchronous):
    import torch
    from vllm.config import VllmConfig

    class Config(MagicMock):
        max_concurrent_batches = VllmConfig.max_concurrent_batches

    config = Config(speculative_config=None, use_v2_model_runner=False)
    config.parallel_config.configure_mock(
        pipeline_parallel_size=pp_size,
        data_parallel_size=1,
        decode_context_parallel_size=1,
        distributed_executor_backend="mp",
    )
    config.scheduler_config.configure_mock(
        async_scheduling=asynchronous, max_num_batched_tokens=8, max_num_seqs=2
    )
    config.model_config.configure_mock(
        max_model_len=16, logits_processors=None, is_encoder_decoder=False, is_moe=False
    )
    config.cache_config.configure_mock(block_size=16)
    config.compilation_config.configure_mock(cudagraph_capture_sizes=[])
    left_out = (
        "InputBatch",
        "MULTIMODAL_REGISTRY",
        "Sampler",
        "build_logitsprocs",
        "kv_cache_dtype_str_to_dtype",
    )
    runner_class = gpu_model_runner.GPUModelRunner
    runner = runner_class.__new__(runner_class)
    with contextlib.ExitStack() as stack:
        for name in left_out:
            stack.enter_context(patch.object(gpu_model_runner, name, MagicMock(), create=True))
        stack.enter_context(
            patch.multiple(
                runner_class,
                create=True,
                _init_device_properties=lambda _: None,
                _make_buffer=MagicMock(side_effect=_ReachedError),
            )
        )
        with contextlib.suppress(_ReachedError):
            runner.__init__(config, torch.device("cuda"))
            raise RuntimeError("the runner has no buffers")
    return runner


if __name__ == "__main__":
    code, reason = probe()
    print(reason)
    sys.exit(code)
