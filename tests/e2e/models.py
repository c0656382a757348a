"""The models that are served: a real small one, one that copies, and tiny ones with random weights.

A random model tells nothing of what a model should say, but two engines that serve it must
say the same. Its weights are drawn wide enough that one token clearly leads.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import cache

LLAMA = "llama"
COPYING = "copying"
COPYING_MAKER = Path(__file__).with_name("copying.py")
MADE_WITH = "0.30.0"  # the release whose environment has the transformers that writes them

# Small sizes that the CPU build's kernels take: heads of 64, groups and states of 32.
COMMON: dict[str, Any] = {
    "vocab_size": 49152,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
    "initializer_range": 0.1,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "qwen3-moe": {
        "model_type": "qwen3_moe",
        "num_hidden_layers": 4,
        "head_dim": 64,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "norm_topk_prob": True,
    },
    "ernie45-moe-tied": {
        "model_type": "ernie4_5_moe",
        "num_hidden_layers": 4,
        "head_dim": 64,
        "moe_num_experts": 4,
        "moe_k": 2,
        "moe_intermediate_size": 64,
        "moe_num_shared_experts": 1,
        "moe_layer_start_index": 1,
        "tie_word_embeddings": True,
    },
    "granite-hybrid": {
        "model_type": "granitemoehybrid",
        "num_hidden_layers": 4,
        "layer_types": ["mamba", "attention", "mamba", "attention"],
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
        "shared_intermediate_size": 64,
        "mamba_n_heads": 4,
        "mamba_d_head": 64,
        "mamba_d_state": 32,
        "mamba_n_groups": 1,
        "mamba_expand": 2,
        "position_embedding_type": "rope",
    },
    "qwen3-next": {
        "model_type": "qwen3_next",
        "num_hidden_layers": 4,
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "head_dim": 64,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 64,
        "linear_value_head_dim": 64,
        "mlp_only_layers": [],
    },
    "falcon-h1-tied": {
        "model_type": "falcon_h1",
        "num_hidden_layers": 4,
        "head_dim": 64,
        "tie_word_embeddings": True,
        "mamba_d_ssm": 256,
        "mamba_n_heads": 4,
        "mamba_d_head": 64,
        "mamba_d_state": 32,
        "mamba_n_groups": 1,
    },
}

MAKE = """
import json, sys
import torch
from transformers import AutoConfig, AutoModelForCausalLM

torch.manual_seed(0)
values = json.loads(sys.argv[1])
config = AutoConfig.for_model(values.pop("model_type"), **values)
model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
model.save_pretrained(sys.argv[2])
"""


def folder(name: str) -> Path:
    """The folder of a model, made unless it is there."""
    if name == LLAMA:
        return cache.model()
    if name == COPYING:
        maker = json.dumps(COPYING_MAKER.read_text("utf-8"))
        return _made(name, "hand-made", maker, [str(COPYING_MAKER)])
    config = json.dumps(COMMON | CONFIGS[name], sort_keys=True)
    return _made(name, "random", config, ["-c", MAKE, config])


def _made(name: str, kind: str, source: str, program: list[str]) -> Path:
    """A model that a program writes into the folder it is given, anew when `source` changes."""
    made = cache.root() / "models" / f"{kind}-{name}"

    def check() -> bool:
        note = made / "made-from.json"
        return note.exists() and note.read_text("utf-8") == source

    def make(aside: Path) -> None:
        python = cache.venv(MADE_WITH) / "bin/python"
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        subprocess.run(
            [python, *program, aside], env=environment, stdin=subprocess.DEVNULL, check=True
        )
        for tokens in cache.model().glob("*token*"):
            shutil.copy(tokens, aside)
        (aside / "made-from.json").write_text(source, "utf-8")

    return cache.kept(f"model-{name}", made, [made], check, make)
