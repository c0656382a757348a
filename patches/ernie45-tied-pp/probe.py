"""Build each of three stages of ERNIE-4.5 MoE and VL-MoE with tied embeddings.

The real classes are built, with real embeddings, but without layers.
"""

import contextlib
import sys
from types import SimpleNamespace
from unittest.mock import patch

STAGES = 3


def probe() -> tuple[int, str]:
    from vllm.model_executor.models import ernie45_moe, ernie45_vl_moe

    for module, name in (
        (ernie45_moe, "Ernie4_5_MoeForCausalLM"),
        (ernie45_vl_moe, "Ernie4_5_VLMoeForCausalLM"),
    ):
        for tied in (True, False):
            for rank in range(STAGES):
                try:
                    model = _build(getattr(module, name), module, rank, tied)
                except AttributeError as error:
                    if "PPMissingLayer" not in str(error):
                        raise
                    return 1, f"{name}, stage {rank} of {STAGES}: {error}"
                _check(model, name, rank, tied)
    return 0, "the last stage has the embedding that its output layer is tied to"


def _build(cls, module, rank, tied):
    from torch import nn
    from vllm.config import CompilationConfig, CompilationMode
    from vllm.config import vllm as current
    from vllm.distributed import parallel_state

    hf_config = SimpleNamespace(
        vocab_size=128,
        hidden_size=8,
        num_hidden_layers=0,
        rms_norm_eps=1e-5,
        tie_word_embeddings=tied,
        im_patch_id=1,
        moe_layer_start_index=0,
        moe_layer_end_index=0,
        moe_layer_interval=1,
    )
    config = SimpleNamespace(
        model_config=SimpleNamespace(hf_config=hf_config, hf_text_config=hf_config),
        cache_config=None,
        quant_config=None,
        parallel_config=SimpleNamespace(
            enable_eplb=False, eplb_config=SimpleNamespace(num_redundant_experts=0)
        ),
        compilation_config=CompilationConfig(mode=CompilationMode.NONE),
    )
    pipeline = SimpleNamespace(
        rank_in_group=rank,
        world_size=STAGES,
        is_first_rank=rank == 0,
        is_last_rank=rank == STAGES - 1,
    )
    tensor = SimpleNamespace(rank_in_group=0, world_size=1)
    with contextlib.ExitStack() as stack:
        for owner, name, value in (
            (parallel_state, "_PP", pipeline),
            (parallel_state, "_TP", tensor),
            (current, "_current_vllm_config", config),
            (module, "RMSNorm", lambda *_args, **_options: nn.Identity()),
            (module, "LogitsProcessor", lambda *_args, **_options: nn.Identity()),
        ):
            stack.enter_context(patch.object(owner, name, value))
        return cls(vllm_config=config)


def _check(model, name, rank, tied):
    """The embedding and the output layer are where they are needed, and nowhere else."""
    from vllm.model_executor.models.utils import PPMissingLayer

    embedding, head = model.model.embed_tokens, model.lm_head
    first, last = rank == 0, rank == STAGES - 1
    has = (not isinstance(embedding, PPMissingLayer), not isinstance(head, PPMissingLayer))
    if has != (first or (tied and last), last):
        raise RuntimeError(f"{name}, stage {rank}, tied {tied}: embedding and output are {has}")
    if last and has[0] and (head.weight is embedding.weight) != tied:
        raise RuntimeError(f"{name}: tied {tied}, but the weights are not so")


if __name__ == "__main__":
    code, reason = probe()
    print(reason)
    sys.exit(code)
