"""Schedule a request that has draft tokens while its last step is still in the pipeline."""

import sys
from types import SimpleNamespace

BLOCK, BUDGET, DRAFTS = 16, 64, 3


def probe() -> tuple[int, str]:
    for stages in (2, 3, 4):
        scheduler = new_scheduler(stages, v2=True)
        steps = decode_steps(scheduler, stages)
        if steps != [1, 1 + stages]:
            return 1, f"with {stages} stages a request is decoded in steps {steps}"
        chunks = prefill_steps(new_scheduler(stages, v2=True))
        if chunks != [1, 2, 3]:
            return 1, f"with {stages} stages a prompt is computed in steps {chunks}"
    # The V1 runner keeps no such cadence: its scheduler stays as it is.
    steps = decode_steps(new_scheduler(2, v2=False), 2)
    if steps != [1, 2]:
        return 1, f"with the V1 runner a request is decoded in steps {steps}"
    return 0, "a request with draft tokens is decoded once per pass through the stages"


def decode_steps(scheduler, stages) -> list[int]:
    """The steps in which a request is scheduled that has draft tokens whenever it is asked for."""
    from vllm.v1.outputs import ModelRunnerOutput

    request = add_request(scheduler, prompt=4)
    seen, in_flight = [], []
    for step in range(1, 3 * stages):
        request.spec_token_ids = list(range(DRAFTS))
        output = scheduler.schedule()
        if output.num_scheduled_tokens:
            seen.append(step)
        if len(seen) == 2:
            return seen
        # The batch queue is full: the oldest step's sampled token comes back.
        in_flight.append(output)
        if len(in_flight) == stages:
            oldest = in_flight.pop(0)
            names = list(oldest.num_scheduled_tokens)
            scheduler.update_from_output(
                oldest,
                ModelRunnerOutput(
                    req_ids=names,
                    req_id_to_index={name: index for index, name in enumerate(names)},
                    sampled_token_ids=[[7] for _ in names],
                ),
            )
    raise RuntimeError(f"a request is scheduled only in steps {seen}")


def prefill_steps(scheduler) -> list[int]:
    """The steps of a prompt that takes three chunks; they need no sampled token."""
    add_request(scheduler, prompt=2 * BUDGET + 9)
    return [step for step in range(1, 5) if scheduler.schedule().num_scheduled_tokens]


def add_request(scheduler, prompt):
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request

    request = Request(
        request_id="request",
        prompt_token_ids=[1] * prompt,
        sampling_params=SamplingParams(max_tokens=50, ignore_eos=True),
        pooling_params=None,
    )
    scheduler.add_request(request)
    return request


class Settings(SimpleNamespace):
    """A configuration in which everything that is not named is off."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)


def new_scheduler(stages, v2):
    """The scheduler of --no-async-scheduling, with one layer's KV cache."""
    import torch
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    def no(*args, **options):
        return False

    layer = FullAttentionSpec(BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    drafter = Settings(
        num_speculative_tokens=DRAFTS,
        max_num_new_slots_for_drafting=0,
        use_eagle=no,
        use_eagle_block_drop=no,
        needs_eagle_block_drop=no,
        use_multi_module_mtp=no,
        use_dflash=no,
        use_dspark=no,
        uses_draft_model=no,
    )
    config = Settings(
        model_config=Settings(max_model_len=256, is_diffusion=False),
        scheduler_config=Settings(
            policy="fcfs",
            max_num_seqs=4,
            max_num_batched_tokens=BUDGET,
            long_prefill_token_threshold=0,
            prefill_schedule_interval=0,
            enable_chunked_prefill=True,
            watermark=0.0,
        ),
        cache_config=Settings(num_gpu_blocks=64, block_size=BLOCK),
        parallel_config=Settings(
            pipeline_parallel_size=stages,
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
            data_parallel_size=1,
            data_parallel_index=0,
        ),
        observability_config=Settings(),
        aux_output_config=Settings(),
        ec_manager_config=Settings(get_encoder_cache_manager_obj=lambda: None),
        speculative_config=drafter,
        num_speculative_tokens=DRAFTS,
        num_lookahead_tokens=0,
        num_prefill_lookahead_tokens=0,
        num_hash_lookahead_tokens=0,
        max_concurrent_batches=stages,
        max_in_flight_tokens=stages * BUDGET,
        use_v2_model_runner=v2,
    )
    return Scheduler(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(64, [], [KVCacheGroupSpec(["layer"], layer)]),
        structured_output_manager=Settings(should_advance=no, accept_tokens=lambda *args: True),
        block_size=BLOCK,
        mm_registry=Settings(supports_multimodal_inputs=no),
    )


if __name__ == "__main__":
    code, reason = probe()
    print(reason)
    sys.exit(code)
