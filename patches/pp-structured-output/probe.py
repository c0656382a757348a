"""Step a pipeline with async scheduling and see what the grammar knows when its bitmask is made."""

import sys
from collections import deque
from contextlib import nullcontext
from types import SimpleNamespace

BLOCK, BUDGET = 16, 64


def probe() -> tuple[int, str]:
    if refused():
        return 0, "this release refuses async scheduling with several stages on the V1 runner"
    for stages in (1, 2, 3, 4):
        stale, steps = decode(stages)
        if stale:
            return 1, (
                f"with {stages} stages the bitmask of {len(stale)} tokens is made while an earlier "
                "token of the same request is on its way"
            )
        # Who needs no grammar is scheduled in every step, as before.
        if steps["plain"] != steps["all"] or len(steps["structured"]) < 4:
            raise RuntimeError(f"with {stages} stages the steps are {steps}")
    return 0, "the bitmask of a token is made when the grammar has seen all tokens before it"


def refused() -> bool:
    """True from 0.31.0: vLLM's own check of what the V1 runner cannot do."""
    from vllm.config import VllmConfig

    check = getattr(VllmConfig, "_get_v1_model_runner_unsupported_features", None)
    if check is None:
        return False

    class Config(Settings):
        """Its other methods, which the check asks about drafters, all say no."""

        def __getattr__(self, name):
            return lambda: False

    config = Config(
        parallel_config=Settings(pipeline_parallel_size=3, prefill_context_parallel_size=1),
        scheduler_config=Settings(async_scheduling=True),
        model_config=None,
        speculative_config=None,
    )
    return "pipeline parallelism with async scheduling" in check(config)


def decode(stages):
    """Generate with two requests, the second of which has a grammar and comes one step later."""
    from vllm.v1.engine.core import EngineCore

    stale, steps = [], {"plain": [], "structured": [], "all": []}

    def grammar_bitmask(requests, names, drafts):
        # The step in question has its own placeholder; a second one is an unknown token.
        stale.extend(name for name in names if requests[name].num_output_placeholders > 1)

    scheduler = new_scheduler(stages, grammar_bitmask)

    class Executor:
        """A pipeline whose results lie ready whenever the engine asks."""

        def execute_model(self, scheduler_output, non_block=False):
            names = list(scheduler_output.num_scheduled_tokens)
            for name in names:
                steps[name].append(scheduler.current_step)
            steps["all"].append(scheduler.current_step)
            self.output = output(names)
            return done(self.output)

        def sample_tokens(self, grammar_output, non_block=False):
            return done(self.output)

    class Core(EngineCore):
        """Without what an engine does around the steps."""

        log_error_detail = capture_iteration_details = lambda self, *args: nullcontext()
        _process_aborts_queue = _should_throttle_prefills = lambda self: None
        _attach_iteration_details = _attach_weight_version = lambda self, *args: None

        def __init__(self):
            self.model_executor, self.scheduler = Executor(), scheduler
            # One stage overlaps two steps; several stages as many as there are.
            self.batch_queue_size = max(stages, 2)
            self.batch_queue = deque(maxlen=self.batch_queue_size)
            self.async_scheduling = self.is_ec_consumer = True
            self.use_spec_decode = self.check_for_draft_tokens = False
            self.is_pooling_model = self.is_mm_encoder_only = False

    core = Core()
    scheduler.add_request(request("plain"))
    core.step_with_batch_queue()
    scheduler.add_request(request("structured"))
    for _ in range(20):
        core.step_with_batch_queue()
    return stale, steps


def output(names):
    from vllm.v1.outputs import ModelRunnerOutput

    return ModelRunnerOutput(
        req_ids=names,
        req_id_to_index={name: index for index, name in enumerate(names)},
        sampled_token_ids=[[7] for _ in names],
    )


def done(result):
    from concurrent.futures import Future

    future: Future = Future()
    future.set_result(result)
    return future


def request(name):
    from vllm.sampling_params import SamplingParams, StructuredOutputsParams
    from vllm.v1.request import Request

    structured = StructuredOutputsParams(regex="a+") if name == "structured" else None
    one = Request(
        request_id=name,
        prompt_token_ids=[1, 2, 3, 4],
        sampling_params=SamplingParams(
            max_tokens=100, ignore_eos=True, structured_outputs=structured
        ),
        pooling_params=None,
    )
    if structured is not None:
        # Compiled, as far as the scheduler asks.
        one.structured_output_request.grammar = SimpleNamespace()
    return one


class Settings(SimpleNamespace):
    """A configuration in which everything that is not named is off."""

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)


def new_scheduler(stages, grammar_bitmask):
    """The scheduler of --async-scheduling for the V1 runner, with one layer's KV cache."""
    import torch
    from vllm.v1.core.sched.async_scheduler import AsyncScheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    layer = FullAttentionSpec(BLOCK, num_kv_heads=1, head_size=1, dtype=torch.float32)
    config = Settings(
        model_config=Settings(max_model_len=256, is_diffusion=False),
        scheduler_config=Settings(
            policy="fcfs",
            async_scheduling=True,
            max_num_seqs=4,
            max_num_batched_tokens=BUDGET,
            long_prefill_token_threshold=0,
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
        ec_manager_config=Settings(get_encoder_cache_manager_obj=lambda: None),
        num_speculative_tokens=0,
        num_lookahead_tokens=0,
        max_concurrent_batches=max(stages, 2),
        max_in_flight_tokens=max(stages, 2) * BUDGET,
        use_v2_model_runner=False,
    )
    return AsyncScheduler(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(64, [], [KVCacheGroupSpec(["layer"], layer)]),
        structured_output_manager=Settings(
            grammar_bitmask=grammar_bitmask,
            should_advance=lambda *args, **options: False,
            accept_tokens=lambda *args: True,
        ),
        block_size=BLOCK,
        mm_registry=Settings(supports_multimodal_inputs=lambda config: False),
    )


if __name__ == "__main__":
    code, reason = probe()
    print(reason)
    sys.exit(code)
