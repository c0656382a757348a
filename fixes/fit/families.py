"""Architectures: which tensors a config stands for, and what each layer keeps of a sequence.

Names and shapes are those of checkpoints on Hugging Face. Only what was compared with vLLM's own
layers is here; an architecture that is not is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from fixes.fit import parts
from fixes.fit.config import Config
from fixes.fit.model import Attention, Cache, Latent, State
from fixes.fit.parts import Part


class Family(NamedTuple):
    """``tensors`` gives the tensors of a layer, ``keeps`` what it keeps of a sequence.

    ``everywhere``, ``repeats``: as in Model. ``tied`` is what a config means that does not say
    whether the head is the embedding, ``final`` the name of the last norm; ``wide``: vLLM keeps
    the routers in 32 bit.
    """

    tensors: Callable[[Config, int], Iterator[Part]]
    keeps: Callable[[Config, int], tuple[Cache, ...]]
    everywhere: bool = False
    repeats: bool = True
    tied: bool = False
    final: str = "norm"
    wide: bool = False


def _full(config: Config, layer: int) -> tuple[Cache, ...]:
    window = config.number("sliding_window")
    sliding = config.kind(layer) == "sliding_attention"
    return (Attention(config.kv_heads, config.width, window if sliding else 0),)


def _mistral_keeps(config: Config, layer: int) -> tuple[Cache, ...]:
    return (Attention(config.kv_heads, config.width, config.number("sliding_window")),)


def _llama(config: Config, layer: int) -> Iterator[Part]:
    bias = config.flag("attention_bias")
    yield from parts.attend(config, bias=bias, out=bias)
    yield from parts.mlp(config, config["intermediate_size"], bias=config.flag("mlp_bias"))
    yield from parts.norms(config)


def _qwen2(config: Config, layer: int) -> Iterator[Part]:
    yield from parts.attend(config, bias=True)
    yield from parts.mlp(config, config["intermediate_size"])
    yield from parts.norms(config)


def _qwen3(config: Config, layer: int) -> Iterator[Part]:
    bias = config.flag("attention_bias")
    yield from parts.attend(config, bias=bias, out=bias, norm=True)
    yield from parts.mlp(config, config["intermediate_size"])
    yield from parts.norms(config)


def _gemma3(config: Config, layer: int) -> Iterator[Part]:
    yield from parts.attend(config, norm=True)
    yield from parts.mlp(config, config["intermediate_size"])
    four = ("input_layernorm", "post_attention_layernorm")
    yield from parts.norms(config, *four, "pre_feedforward_layernorm", "post_feedforward_layernorm")


def _gemma3_keeps(config: Config, layer: int) -> tuple[Cache, ...]:
    if config.items("layer_types"):
        return _full(config, layer)
    every = config.number("sliding_window_pattern") or 6
    window = 0 if (layer + 1) % every == 0 else config["sliding_window"]
    return (Attention(config.kv_heads, config.width, window),)


def _mixtral(config: Config, layer: int) -> Iterator[Part]:
    hidden, inside, experts = (
        config[key] for key in ("hidden_size", "intermediate_size", "num_local_experts")
    )
    yield from parts.attend(config)
    yield from parts.router(config, experts, "block_sparse_moe.gate")
    for name, shape in (
        ("w1", (inside, hidden)),
        ("w2", (hidden, inside)),
        ("w3", (inside, hidden)),
    ):
        yield f"block_sparse_moe.experts.*.{name}.weight", shape, experts
    yield from parts.norms(config)


def _minimax(config: Config, layer: int) -> Iterator[Part]:
    yield from _mixtral(config, layer)
    yield "block_sparse_moe.e_score_correction_bias", (config["num_local_experts"],), 1
    width = config.width
    yield "self_attn.q_norm.weight", (config["num_attention_heads"] * width,), 1
    yield "self_attn.k_norm.weight", (config.kv_heads * width,), 1


def _qwen3_moe(config: Config, layer: int) -> Iterator[Part]:
    bias = config.flag("attention_bias")
    yield from parts.attend(config, bias=bias, out=bias, norm=True)
    yield from _sparse(config, layer)
    yield from parts.norms(config)


def _sparse(config: Config, layer: int) -> Iterator[Part]:
    """Experts as Qwen's models have them, in some layers or in all."""
    experts = config.number("num_experts") or config.number("num_local_experts")
    step = config.number("decoder_sparse_step") or 1
    if not experts or layer in config.items("mlp_only_layers") or (layer + 1) % step:
        yield from parts.mlp(config, config["intermediate_size"])
        return
    yield from parts.router(config, experts)
    yield from parts.mlp(config, config["moe_intermediate_size"], "mlp.experts.*", experts)
    if shared := config.number("shared_expert_intermediate_size"):
        yield from parts.mlp(config, shared, "mlp.shared_expert")
        yield "mlp.shared_expert_gate.weight", (1, config["hidden_size"]), 1


def _grouped(config: Config, layer: int) -> Iterator[Part]:
    """Experts as DeepSeek's and GLM's models have them, behind some dense layers."""
    experts = config.number("n_routed_experts")
    if not experts or layer < config.number("first_k_dense_replace"):
        yield from parts.mlp(config, config["intermediate_size"])
        return
    inside = config["moe_intermediate_size"]
    yield from parts.router(config, experts)
    if config.values.get("topk_method", "noaux_tc") == "noaux_tc":
        yield "mlp.gate.e_score_correction_bias", (experts,), 1
    yield from parts.mlp(config, inside, "mlp.experts.*", experts)
    if shared := config.number("n_shared_experts"):
        yield from parts.mlp(config, inside * shared, "mlp.shared_experts")


def _deepseek(config: Config, layer: int) -> Iterator[Part]:
    yield from parts.latent(config)
    yield from _grouped(config, layer)
    yield from parts.norms(config)


def _deepseek_keeps(config: Config, layer: int) -> tuple[Cache, ...]:
    return (Latent(config["kv_lora_rank"] + config["qk_rope_head_dim"]),)


def _glm4(config: Config, layer: int) -> Iterator[Part]:
    bias, norm = config.flag("attention_bias"), config.flag("use_qk_norm")
    yield from parts.attend(config, bias=bias, norm=norm)
    yield from _grouped(config, layer)
    yield from parts.norms(config)


def _gpt_oss(config: Config, layer: int) -> Iterator[Part]:
    hidden, inside, experts = (
        config[key] for key in ("hidden_size", "intermediate_size", "num_local_experts")
    )
    yield from parts.attend(config, bias=True, out=True)
    yield "self_attn.sinks", (config["num_attention_heads"],), 1
    yield from parts.router(config, experts, "mlp.router")
    yield "mlp.router.bias", (experts,), 1
    yield "mlp.experts.gate_up_proj", (experts, hidden, 2 * inside), 1
    yield "mlp.experts.gate_up_proj_bias", (experts, 2 * inside), 1
    yield "mlp.experts.down_proj", (experts, inside, hidden), 1
    yield "mlp.experts.down_proj_bias", (experts, hidden), 1
    yield from parts.norms(config)


def _ernie(config: Config, layer: int) -> Iterator[Part]:
    yield from parts.attend(config, bias=config.flag("use_bias"), out=config.flag("use_bias"))
    experts, first = config["moe_num_experts"], config["moe_layer_start_index"]
    last = config["num_hidden_layers"] - 1
    if config.values.get("moe_layer_end_index") != -1:
        last = config.number("moe_layer_end_index", last)
    if first <= layer <= last and (layer + 1) % (config.number("moe_layer_interval") or 1) == 0:
        inside = config["moe_intermediate_size"]
        yield from parts.router(config, experts)
        yield "mlp.moe_statics.e_score_correction_bias", (1, experts), 1
        yield from parts.mlp(config, inside, "mlp.experts.*", experts)
        if shared := config.number("moe_num_shared_experts"):
            yield from parts.mlp(config, inside * shared, "mlp.shared_experts")
    else:
        yield from parts.mlp(config, config["intermediate_size"])
    yield from parts.norms(config)


def _mamba_state(config: Config, inside: int) -> State:
    groups, state = config["mamba_n_groups"], config["mamba_d_state"]
    recurrent = config["mamba_n_heads"] * config["mamba_d_head"] * state
    convolved = inside + 2 * groups * state
    return State(convolved, config["mamba_d_conv"], recurrent, groups, 2 * state)


def _granite(config: Config, layer: int) -> Iterator[Part]:
    hidden, inside = config["hidden_size"], config["intermediate_size"]
    if _recurs(config, layer):
        expanded = config["mamba_expand"] * hidden
        yield from parts.mamba(config, expanded)
        yield "mamba.norm.weight", (expanded,), 1
    else:
        yield from parts.attend(config, bias=config.flag("attention_bias"))
    if experts := config.number("num_local_experts"):
        yield "block_sparse_moe.input_linear.weight", (experts, 2 * inside, hidden), 1
        yield "block_sparse_moe.output_linear.weight", (experts, hidden, inside), 1
        yield from parts.router(config, experts, "block_sparse_moe.router.layer")
    shared = config["shared_intermediate_size"]
    yield "shared_mlp.input_linear.weight", (2 * shared, hidden), 1
    yield "shared_mlp.output_linear.weight", (hidden, shared), 1
    yield from parts.norms(config)


def _recurs(config: Config, layer: int) -> bool:
    return config.kind(layer) in ("mamba", "linear_attention")


def _granite_keeps(config: Config, layer: int) -> tuple[Cache, ...]:
    if _recurs(config, layer):
        return (_mamba_state(config, config["mamba_expand"] * config["hidden_size"]),)
    return (Attention(config.kv_heads, config.width),)


def _falcon(config: Config, layer: int) -> Iterator[Part]:
    inside = config.number("mamba_d_ssm") or config["mamba_expand"] * config["hidden_size"]
    yield from parts.attend(config, bias=config.flag("attention_bias"))
    yield from parts.mamba(config, inside)
    if config.flag("mamba_rms_norm"):
        yield "mamba.norm.weight", (inside,), 1
    yield from parts.mlp(config, config["intermediate_size"], "feed_forward")
    yield from parts.norms(config, "input_layernorm", "pre_ff_layernorm")


def _falcon_keeps(config: Config, layer: int) -> tuple[Cache, ...]:
    inside = config.number("mamba_d_ssm") or config["mamba_expand"] * config["hidden_size"]
    return (Attention(config.kv_heads, config.width), _mamba_state(config, inside))


def _delta(config: Config) -> tuple[int, int, int, int]:
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    heads, width = config["linear_num_value_heads"], config["linear_value_head_dim"]
    return keys, heads, width, config["linear_conv_kernel_dim"]


def _qwen3_next(config: Config, layer: int) -> Iterator[Part]:
    hidden = config["hidden_size"]
    if _recurs(config, layer):
        keys, heads, width, kernel = _delta(config)
        values = heads * width
        yield "linear_attn.A_log", (heads,), 1
        yield "linear_attn.dt_bias", (heads,), 1
        yield "linear_attn.conv1d.weight", (2 * keys + values, 1, kernel), 1
        yield "linear_attn.in_proj_qkvz.weight", (2 * keys + 2 * values, hidden), 1
        yield "linear_attn.in_proj_ba.weight", (2 * heads, hidden), 1
        yield "linear_attn.norm.weight", (width,), 1
        yield "linear_attn.out_proj.weight", (hidden, values), 1
    else:
        yield from parts.attend(config, norm=True, gate=2)  # queries, and a gate for each
    yield from _sparse(config, layer)
    yield from parts.norms(config)


def _qwen3_next_keeps(config: Config, layer: int) -> tuple[Cache, ...]:
    if not _recurs(config, layer):
        return (Attention(config.kv_heads, config.width),)
    keys, heads, width, kernel = _delta(config)
    recurrent = heads * width * config["linear_key_head_dim"]
    return (State(2 * keys + heads * width, kernel, recurrent),)


#: By ``model_type``.
FAMILIES = {
    "llama": Family(_llama, _full),
    "mistral": Family(_llama, _mistral_keeps),
    "qwen2": Family(_qwen2, _full),
    "qwen3": Family(_qwen3, _full),
    "gemma3_text": Family(_gemma3, _gemma3_keeps, everywhere=True, tied=True),
    "mixtral": Family(_mixtral, _mistral_keeps, everywhere=True),
    "minimax_m2": Family(_minimax, _full, wide=True),
    "qwen3_moe": Family(_qwen3_moe, _full, everywhere=True),
    "deepseek_v2": Family(_deepseek, _deepseek_keeps),
    "deepseek_v3": Family(_deepseek, _deepseek_keeps),
    "kimi_k2": Family(_deepseek, _deepseek_keeps),
    "glm4_moe": Family(_glm4, _full, wide=True),
    "gpt_oss": Family(_gpt_oss, _full, everywhere=True, repeats=False),
    "ernie4_5_moe": Family(_ernie, _full, tied=True, wide=True),
    "granitemoehybrid": Family(_granite, _granite_keeps, everywhere=True),
    "falcon_h1": Family(_falcon, _falcon_keeps, final="final_layernorm"),
    "qwen3_next": Family(_qwen3_next, _qwen3_next_keeps, everywhere=True),
}
