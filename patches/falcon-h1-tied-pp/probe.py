"""Build each of three stages of Falcon-H1 with tied embeddings.

The real classes are built, with real embeddings, but without layers.
"""

import contextlib
import sys
from types import SimpleNamespace
from unittest.mock import patch

STAGES = 3


def probe() -> tuple[int, str]:
    for tied in (True, False):
        for rank in range(STAGES):
            try:
                model = _build(rank, tied)
            except AttributeError as error:
                if "PPMissingLayer" not in str(error):
                    raise
                return 1, f"FalconH1ForCausalLM, stage {rank} of {STAGES}: {error}"
            _check(model, rank, tied)
    return 0, "the last stage has the embedding that its output layer is tied to"


def _build(rank, tied):
    from torch import nn
    from vllm.config import CompilationConfig, CompilationMode
    from vllm.config import vllm as current
    from vllm.distributed import parallel_state
    from vllm.model_executor.models import falcon_h1

    hf_config = SimpleNamespace(
        vocab_size=128,
        hidden_size=8,
        num_hidden_layers=0,
        rms_norm_eps=1e-5,
        embedding_multiplier=1.0,
        lm_head_multiplier=1.0,
        tie_word_embeddings=tied,
    )
    config = SimpleNamespace(
        model_config=SimpleNamespace(hf_config=hf_config, hf_text_config=hf_config),
        cache_config=None,
        quant_config=None,
        scheduler_config=None,
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
            (falcon_h1, "RMSNorm", lambda *_args, **_options: nn.Identity()),
            (falcon_h1, "LogitsProcessor", lambda *_args, **_options: nn.Identity()),
        ):
            stack.enter_context(patch.object(owner, name, value))
        return falcon_h1.FalconH1ForCausalLM(vllm_config=config)


def _check(model, rank, tied):
    """The embedding and the output layer are where they are needed, and nowhere else."""
    from vllm.model_executor.models.utils import PPMissingLayer

    embedding, head = model.model.embed_tokens, model.lm_head
    first, last = rank == 0, rank == STAGES - 1
    has = (not isinstance(embedding, PPMissingLayer), not isinstance(head, PPMissingLayer))
    if has != (first or (tied and last), last):
        raise RuntimeError(f"stage {rank}, tied {tied}: embedding and output layer are {has}")
    if last and has[0] and (head.weight is embedding.weight) != tied:
        raise RuntimeError(f"tied {tied}, but the weights are not so")


if __name__ == "__main__":
    code, reason = probe()
    print(reason)
    sys.exit(code)
