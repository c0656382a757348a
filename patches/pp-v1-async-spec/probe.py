"""Ask for drafts in a pipeline of the V1 runner, with a real VllmConfig."""

import sys
from unittest.mock import PropertyMock, patch


def probe() -> tuple[int, str]:
    for stages, v2 in ((1, False), (2, True)):
        if not _async_scheduling(stages, v2, None):
            raise RuntimeError(f"{stages} stages, V2 runner {v2}: switched off there too")
    if _async_scheduling(2, False, None):
        return 1, "a V1 pipeline with drafts is scheduled asynchronously"
    if _async_scheduling(2, False, False):
        raise RuntimeError("--no-async-scheduling does not count")
    try:
        _async_scheduling(2, False, True)
    except ValueError as error:
        if "pipeline parallelism" not in str(error):
            raise
    else:
        return 1, "a V1 pipeline with drafts takes --async-scheduling"
    return 0, "a V1 pipeline with drafts is scheduled step by step"


def _async_scheduling(stages, v2, wanted):
    """Whether scheduling is asynchronous. Raises ValueError where that is refused."""
    from vllm.config import (
        DeviceConfig,
        ParallelConfig,
        SchedulerConfig,
        SpeculativeConfig,
        VllmConfig,
    )
    from vllm.platforms import current_platform

    parallel = ParallelConfig(pipeline_parallel_size=stages, distributed_executor_backend="mp")
    draft = SpeculativeConfig(
        method="ngram_gpu",
        num_speculative_tokens=2,
        prompt_lookup_min=1,
        prompt_lookup_max=3,
        target_parallel_config=parallel,
    )
    with (
        patch.object(VllmConfig, "use_v2_model_runner", PropertyMock(return_value=v2)),
        patch.object(VllmConfig, "_validate_v2_model_runner", lambda _: None),
        # The CPU platform schedules step by step whatever was decided before.
        patch.object(type(current_platform), "check_and_update_config", lambda *_: None),
    ):
        config = VllmConfig(
            device_config=DeviceConfig(device="cpu"),
            parallel_config=parallel,
            scheduler_config=SchedulerConfig.default_factory(async_scheduling=wanted),
            speculative_config=draft,
        )
    return config.scheduler_config.async_scheduling


if __name__ == "__main__":
    code, reason = probe()
    print(reason)
    sys.exit(code)
