"""Verify draft tokens under two stages, and compare what the first stage knows with the truth.

A real Scheduler plans the steps of two real requests, and the real _update_states() of
GPUModelRunner, on a stand-in for a first stage's runner with a real InputBatch, follows them. One
request has drafts accepted, goes on, has drafts accepted again, sits out a step and comes back.
"""

import contextlib
import sys
from types import SimpleNamespace
from unittest.mock import MagicMock, patch

PROMPT, DRAFTS = [1, 2, 3, 4], [6, 7, 8]
BLOCK_SIZE = 4
MAX_LEN = 64
# For each step: what it schedules (a request: its tokens), what it samples, the next drafts.
STEPS = (
    ({"b": 4, "a": 4}, {"b": [20], "a": [10]}, {"a": DRAFTS}),
    ({"b": 1, "a": 4}, {"b": [21], "a": [6, 7, 11]}, {"a": DRAFTS}),
    ({"b": 1, "a": 4}, {"b": [22], "a": [*DRAFTS, 12]}, {}),
    ({"b": 1}, {"b": [23]}, {}),  # a sits out
    ({"b": 1, "a": 1}, {"b": [24], "a": [13]}, {}),
)


def probe() -> tuple[int, str]:
    from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput

    engine, stage = scheduler(), first_stage()
    for name in ("b", "a"):
        engine.add_request(request(name))
    for planned, sampled, drafts in STEPS:
        engine.max_num_scheduled_tokens = sum(planned.values())  # no room for who sits out
        output = engine.schedule()
        if output.num_scheduled_tokens != planned:
            raise RuntimeError(f"scheduled {output.num_scheduled_tokens}, not {planned}")
        if answer := follow(stage, output, engine.requests):
            return answer
        names = list(planned)
        engine.update_from_output(
            output,
            ModelRunnerOutput(
                names,
                {name: index for index, name in enumerate(names)},
                sampled_token_ids=[sampled[name] for name in names],
            ),
        )
        tokens = [list(drafts.get(name, [])) for name in names]
        engine.update_draft_token_ids(DraftTokenIds(names, tokens))
    return 0, "the first stage knows all accepted draft tokens"


def follow(stage, output, requests):
    """Have the stage follow one step; what it knows of a scheduled request that is not so."""
    from vllm.v1.worker import gpu_model_runner

    not_last = SimpleNamespace(is_first_rank=True, is_last_rank=False)
    with patch.object(gpu_model_runner, "get_pp_group", return_value=not_last):
        try:
            gpu_model_runner.GPUModelRunner._update_states(stage, output)
        except ValueError as error:
            if "broadcast" not in str(error):
                raise
            return 1, f"the first stage cannot place the tokens that it is sent: {error}"
    for name in output.num_scheduled_tokens:
        right = list(requests[name].all_token_ids)
        row = stage.input_batch.req_id_to_index[name]
        end = int(stage.input_batch.num_tokens_no_spec[row])
        state = stage.requests[name]
        for kept, where in (
            (stage.input_batch.token_ids_cpu[row, :end].tolist(), "batch"),
            (list(state.prompt_token_ids) + list(state.output_token_ids), "state"),
        ):
            if kept != right:
                return 1, f"the first stage's {where} has {kept} for the tokens {right}"
    return None


def first_stage():
    """A runner with what _update_states() looks at; its batch is a real one."""
    import torch
    from vllm.v1.worker.gpu_input_batch import InputBatch

    sizes = {"block_sizes": [BLOCK_SIZE], "max_num_blocks_per_req": [MAX_LEN // BLOCK_SIZE]}
    options = {
        "max_num_reqs": 4,
        "max_model_len": MAX_LEN,
        "max_num_batched_tokens": MAX_LEN,
        "device": torch.device("cpu"),
        "vocab_size": 100,
        "num_spec_tokens": len(DRAFTS),
    }
    with contextlib.ExitStack() as stack:
        for module in list(sys.modules.values()):  # there may be no accelerator to pin for
            if vars(module).get("PIN_MEMORY") is True:
                stack.enter_context(patch.object(module, "PIN_MEMORY", False))
        try:
            batch = InputBatch(**options, **sizes, kernel_block_sizes=[BLOCK_SIZE])
        except TypeError:  # from 0.32
            batch = InputBatch(**options, **sizes)
    stage = MagicMock(requests={}, num_prompt_logprobs={}, encoder_cache={}, input_batch=batch)
    stage.device = options["device"]
    stage.speculative_config.use_ngram_gpu.return_value = False
    stage.use_async_scheduling = stage.use_async_spec_decode = stage.is_pooling_model = False
    stage.uses_mrope = False
    stage.uses_xdrope_dim = 0
    return stage


def request(name):
    from vllm.sampling_params import SamplingParams
    from vllm.v1.request import Request

    params = SamplingParams(max_tokens=MAX_LEN, ignore_eos=True)
    return Request(name, list(PROMPT), params, None)


def scheduler():
    """A Scheduler for two stages and speculative decoding, without a model."""
    import torch
    from vllm.config import CacheConfig, ObservabilityConfig, SchedulerConfig, SpeculativeConfig
    from vllm.v1.core.sched.scheduler import Scheduler
    from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec

    config = MagicMock(
        scheduler_config=SchedulerConfig(
            max_num_batched_tokens=MAX_LEN,
            max_num_seqs=4,
            max_model_len=MAX_LEN,
            is_encoder_decoder=False,
            async_scheduling=False,
        ),
        cache_config=CacheConfig(block_size=BLOCK_SIZE, enable_prefix_caching=False),
        observability_config=ObservabilityConfig(),
        num_speculative_tokens=len(DRAFTS),
        num_lookahead_tokens=0,
        num_hash_lookahead_tokens=0,
        num_prefill_lookahead_tokens=0,
        max_in_flight_tokens=MAX_LEN,
        max_concurrent_batches=2,
        is_mm_encoder_only=False,
        use_v2_model_runner=False,
    )
    for absent in ("lora", "kv_transfer", "kv_events", "ec_transfer"):
        setattr(config, f"{absent}_config", None)
    config.aux_output_config.enabled = False
    config.ec_manager_config.get_encoder_cache_manager_obj.return_value = None
    config.cache_config.num_gpu_blocks = MAX_LEN
    config.parallel_config.pipeline_parallel_size = 2
    config.parallel_config.decode_context_parallel_size = 1
    config.parallel_config.prefill_context_parallel_size = 1
    config.model_config = MagicMock(max_model_len=MAX_LEN)
    for absent in (
        "uses_mrope",
        "is_encoder_decoder",
        "is_diffusion",
        "is_multimodal_model",
        "supports_multimodal_inputs",
        "enable_return_routed_experts",
        "return_sampling_mask",
    ):
        setattr(config.model_config, absent, False)
    # Without its checks, which want a model.
    ngram = SpeculativeConfig.__new__(SpeculativeConfig)
    ngram.method, ngram.num_speculative_tokens = "ngram", len(DRAFTS)
    config.speculative_config = ngram
    spec = FullAttentionSpec(
        block_size=BLOCK_SIZE, num_kv_heads=1, head_size=1, dtype=torch.float32
    )
    grammars = MagicMock()
    grammars.should_advance.return_value = False
    grammars.validate_tokens.side_effect = lambda _request, tokens: tokens
    return Scheduler(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(MAX_LEN, [], [KVCacheGroupSpec(["layer"], spec)]),
        structured_output_manager=grammars,
        block_size=BLOCK_SIZE,
        mm_registry=MagicMock(supports_multimodal_inputs=lambda _config: False),
    )


if __name__ == "__main__":
    code, reason = probe()
    print(reason)
    sys.exit(code)
