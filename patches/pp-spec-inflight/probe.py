"""Schedule again while the draft tokens of a request are in flight, as two stages do.

A real Scheduler gets a real request: its prompt, a sampled token with drafts, the step that
verifies them, and then, before the result of that step, one more call of schedule().
"""

import sys
from unittest.mock import MagicMock

PROMPT, SAMPLED, DRAFTS = [1, 2, 3, 4], 5, [6, 7, 8]
BLOCK_SIZE = 4
MAX_LEN = 64


def probe() -> tuple[int, str]:
    from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput

    for other in (False, True):  # alone, and with a request that can be scheduled
        engine = scheduler()
        engine.add_request(request("a"))
        step(engine, a=len(PROMPT))
        sampled = ModelRunnerOutput(["a"], {"a": 0}, sampled_token_ids=[[SAMPLED]])
        engine.update_from_output(engine.last, sampled)
        engine.update_draft_token_ids(DraftTokenIds(["a"], [list(DRAFTS)]))
        step(engine, a=1 + len(DRAFTS))
        if other:
            engine.add_request(request("b"))
        scheduled = dict(engine.schedule().num_scheduled_tokens)
        if scheduled.get("a", 0) < 0:
            return 1, f"a request with drafts in flight is scheduled again: {scheduled['a']} tokens"
        if scheduled != ({"b": len(PROMPT)} if other else {}):
            raise RuntimeError(f"with the drafts of a in flight: {scheduled}")
    return 0, "a request with drafts in flight is left alone until their result is there"


def step(engine, **expected):
    """One call of schedule(), whose result is known."""
    engine.last = engine.schedule()
    scheduled = engine.last.num_scheduled_tokens
    if scheduled != expected:
        raise RuntimeError(f"scheduled {scheduled}, not {expected}")


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
