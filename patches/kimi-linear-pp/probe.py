"""Ask KimiLinear for the tensors that a later stage receives, and for those that one sends."""

import sys
from types import SimpleNamespace
from unittest.mock import patch

TOKENS, SIZE = 3, 4


def probe() -> tuple[int, str]:
    import torch
    from torch import nn
    from vllm.model_executor.models import kimi_linear as module

    inner = module.KimiLinearModel.__new__(module.KimiLinearModel)
    nn.Module.__init__(inner)
    inner.config = SimpleNamespace(hidden_size=SIZE)
    inner.layers, inner.start_layer, inner.end_layer = nn.ModuleList([_layer()]), 0, 1
    model = module.KimiLinearForCausalLM.__new__(module.KimiLinearForCausalLM)
    nn.Module.__init__(model)
    model.model, model.config = inner, inner.config

    empty = module.KimiLinearForCausalLM.make_empty_intermediate_tensors(
        model, TOKENS, torch.float16, torch.device("cpu")
    )
    if empty is None:
        return 1, "KimiLinear makes no buffers for the tensors that a later stage receives"
    group = SimpleNamespace(is_first_rank=True, is_last_rank=False)
    embeds = torch.ones(TOKENS, SIZE, dtype=torch.float16)
    with patch.object(module, "get_pp_group", lambda: group):
        sent = module.KimiLinearModel.forward(inner, None, torch.arange(TOKENS), None, embeds)
    described = [
        {key: (tensor.shape, tensor.dtype) for key, tensor in tensors.items()}
        for tensors in (empty.tensors, sent.tensors)
    ]
    if described[0] != described[1]:
        raise RuntimeError(f"it receives {described[0]} and sends {described[1]}")
    return 0, "KimiLinear receives what it sends"


def _layer():
    from torch import nn

    class Layer(nn.Module):
        def forward(self, positions, hidden_states, residual):
            return hidden_states, hidden_states

    return Layer()


if __name__ == "__main__":
    code, reason = probe()
    print(reason)
    sys.exit(code)
