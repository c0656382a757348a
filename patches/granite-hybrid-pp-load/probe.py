"""Load and run both stages of a GraniteMoeHybrid of two layers.

The real load_weights() and forward() run on a model of small layers, with real placeholders
for those of the other stage.
"""

import sys
from types import SimpleNamespace
from unittest.mock import patch

SIZE = 4


class _FaultError(Exception):
    pass


def probe() -> tuple[int, str]:
    import torch
    from vllm.model_executor.models import utils

    # Which layers a model lacks is kept by its id, which a dead one may have had.
    with patch.dict(utils._model_to_pp_missing_layer_names, clear=True):
        stages = _model(0), _model(1)
        try:
            for rank, model in enumerate(stages):
                _load(model, rank)
            sent = _forward(stages[0], 0, None)
            received = _forward(stages[1], 1, sent)
        except _FaultError as error:
            return 1, str(error)
    if not torch.equal(received, torch.full((3, SIZE), 3.0)):  # 1, and one of each layer
        raise RuntimeError(f"two stages of one layer give {received}")
    return 0, "each stage loads its own layers and runs them"


def _model(rank):
    """A stage with one of two layers, made of small modules."""
    from torch import nn
    from vllm.model_executor.models.granitemoehybrid import GraniteMoeHybridModel
    from vllm.model_executor.models.utils import PPMissingLayer

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.input_layernorm = nn.LayerNorm(SIZE, bias=False)
            self.block_sparse_moe = nn.Module()
            self.block_sparse_moe.gate = nn.Linear(SIZE, 2, bias=False)

        def forward(self, positions, hidden_states, residual):
            return hidden_states + 1, hidden_states

    model = GraniteMoeHybridModel.__new__(GraniteMoeHybridModel)
    nn.Module.__init__(model)
    model.config = SimpleNamespace(num_local_experts=2)
    model.layers = nn.ModuleList(Layer() if rank == i else PPMissingLayer() for i in (0, 1))
    model.start_layer, model.end_layer = rank, rank + 1
    model.embed_tokens, model.norm = nn.Embedding(8, SIZE), nn.Identity()
    model.embedding_multiplier = 1.0
    return model


def _load(model, rank):
    import torch
    from vllm.model_executor.models.granitemoehybrid import GraniteMoeHybridModel

    ours = {f"layers.{rank}.input_layernorm.weight", f"layers.{rank}.block_sparse_moe.gate.weight"}
    ours.add("embed_tokens.weight")
    weights = [("embed_tokens.weight", torch.ones(8, SIZE))]
    for layer in (0, 1):
        # The checkpoint's names.
        weights += [
            (f"layers.{layer}.block_sparse_moe.router.layer.weight", torch.ones(2, SIZE)),
            (f"layers.{layer}.input_layernorm.weight", torch.full((SIZE,), 2.0)),
        ]
    try:
        loaded = GraniteMoeHybridModel.load_weights(model, weights)
    except KeyError as error:
        raise _FaultError(f"stage {rank} of 2 cannot load: KeyError: {error}") from error
    if loaded != ours:
        raise RuntimeError(f"stage {rank} loaded {loaded}")
    layer = model.layers[rank]
    norm, gate = layer.input_layernorm.weight, layer.block_sparse_moe.gate.weight
    if not (norm.eq(2).all() and gate.eq(1).all()):
        raise RuntimeError(f"stage {rank} has not loaded its layer")
    try:
        GraniteMoeHybridModel.load_weights(model, [("layers.9.input_layernorm.weight", None)])
    except KeyError:
        return
    raise RuntimeError("a weight of no stage is passed over")


def _forward(model, rank, received):
    import torch
    from vllm.model_executor.models import granitemoehybrid

    group = SimpleNamespace(is_first_rank=rank == 0, is_last_rank=rank == 1)
    embeds = torch.ones(3, SIZE) if rank == 0 else None
    with patch.object(granitemoehybrid, "get_pp_group", lambda: group), torch.no_grad():
        try:
            return granitemoehybrid.GraniteMoeHybridModel.forward(
                model, None, torch.arange(3), received, embeds
            )
        except ValueError as error:
            raise _FaultError(f"stage {rank} of 2 cannot run: ValueError: {error}") from error


if __name__ == "__main__":
    code, reason = probe()
    print(reason)
    sys.exit(code)
