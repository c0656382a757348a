"""Does a stage of Falcon-H1 declare the tensors that the stage before sends?

The real model is built for each of two stages, without layers, and the first one runs.
"""

import contextlib
import sys
from types import SimpleNamespace
from unittest.mock import patch

TOKENS, SIZE = 3, 8


def probe() -> tuple[int, str]:
    import torch

    first, second = _build(0), _build(1)
    with _stage(0):
        embeds = torch.ones(TOKENS, SIZE)
        sent = type(first).forward(first, None, torch.arange(TOKENS), None, embeds)
    declared = second.make_empty_intermediate_tensors(TOKENS, embeds.dtype, embeds.device)
    # The V2 runner copies each declared tensor from those that it received.
    missing = sorted(set(declared.tensors) - set(sent.tensors))
    if missing:
        return 1, f"Falcon-H1 declares tensors that no stage sends: {', '.join(missing)}"
    for key, tensor in sent.tensors.items():
        if declared[key].shape != tensor.shape:
            raise RuntimeError(f"{key} is declared as {declared[key].shape}")
    with _stage(1):
        received = type(second).forward(second, None, torch.arange(TOKENS), sent)
    if received.shape != embeds.shape:
        raise RuntimeError(f"the second stage returns {received.shape}")
    return 0, "Falcon-H1 declares what it sends"


def _config():
    from vllm.config import CompilationConfig, CompilationMode

    hf_config = SimpleNamespace(
        vocab_size=128,
        hidden_size=SIZE,
        num_hidden_layers=0,
        rms_norm_eps=1e-5,
        embedding_multiplier=1.0,
        tie_word_embeddings=False,
    )
    return SimpleNamespace(
        model_config=SimpleNamespace(hf_config=hf_config, hf_text_config=hf_config),
        cache_config=None,
        quant_config=None,
        compilation_config=CompilationConfig(mode=CompilationMode.NONE),
    )


@contextlib.contextmanager
def _stage(rank, config=None):
    """A pretended rank of two stages, without tensor parallelism."""
    from torch import nn
    from vllm.config import vllm as current
    from vllm.distributed import parallel_state
    from vllm.model_executor.models import falcon_h1

    pipeline = SimpleNamespace(
        rank_in_group=rank, world_size=2, is_first_rank=rank == 0, is_last_rank=rank == 1
    )
    tensor = SimpleNamespace(rank_in_group=0, world_size=1)
    with (
        patch.object(parallel_state, "_PP", pipeline),
        patch.object(parallel_state, "_TP", tensor),
        patch.object(current, "_current_vllm_config", config),
        patch.object(falcon_h1, "RMSNorm", lambda *_args, **_options: nn.Identity()),
    ):
        yield


def _build(rank):
    from vllm.model_executor.models.falcon_h1 import FalconH1Model

    config = _config()
    with _stage(rank, config):
        return FalconH1Model(vllm_config=config)


if __name__ == "__main__":
    code, reason = probe()
    print(reason)
    sys.exit(code)
