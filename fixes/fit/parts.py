"""Parts of a layer that several architectures have: names and shapes of their tensors."""

from __future__ import annotations

from collections.abc import Iterator

from fixes.fit.config import Config

Shape = tuple[int, ...]
#: A tensor's name behind ``model.layers.N.``, its shape, and how many there are.
Part = tuple[str, Shape, int]


def norms(config: Config, *names: str) -> Iterator[Part]:
    """Norms of the hidden size, the usual two unless others are named."""
    for name in names or ("input_layernorm", "post_attention_layernorm"):
        yield f"{name}.weight", (config["hidden_size"],), 1


def attend(
    config: Config, *, bias: bool = False, out: bool = False, norm: bool = False, gate: int = 1
) -> Iterator[Part]:
    """Attention with grouped heads; ``gate`` is how many queries each head has."""
    hidden, heads, groups = config["hidden_size"], config["num_attention_heads"], config.kv_heads
    width = config.width
    for name, count in (("q", heads * gate), ("k", groups), ("v", groups)):
        yield f"self_attn.{name}_proj.weight", (count * width, hidden), 1
        if bias:
            yield f"self_attn.{name}_proj.bias", (count * width,), 1
    yield "self_attn.o_proj.weight", (hidden, heads * width), 1
    if out:
        yield "self_attn.o_proj.bias", (hidden,), 1
    for name in ("q", "k") if norm else ():
        yield f"self_attn.{name}_norm.weight", (width,), 1


def latent(config: Config) -> Iterator[Part]:
    """Multi-head latent attention, with or without a low rank for queries."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    kv_rank, rank = config["kv_lora_rank"], config.number("q_lora_rank")
    plain, rope, value = (
        config[key] for key in ("qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim")
    )
    if rank:
        yield "self_attn.q_a_proj.weight", (rank, hidden), 1
        yield "self_attn.q_a_layernorm.weight", (rank,), 1
        yield "self_attn.q_b_proj.weight", (heads * (plain + rope), rank), 1
    else:
        yield "self_attn.q_proj.weight", (heads * (plain + rope), hidden), 1
    yield "self_attn.kv_a_proj_with_mqa.weight", (kv_rank + rope, hidden), 1
    yield "self_attn.kv_a_layernorm.weight", (kv_rank,), 1
    yield "self_attn.kv_b_proj.weight", (heads * (plain + value), kv_rank), 1
    yield "self_attn.o_proj.weight", (hidden, heads * value), 1


def mlp(
    config: Config, inside: int, name: str = "mlp", count: int = 1, *, bias: bool = False
) -> Iterator[Part]:
    """A gated network, or ``count`` of them."""
    hidden = config["hidden_size"]
    for part, rows, columns in (
        ("gate_proj", inside, hidden),
        ("up_proj", inside, hidden),
        ("down_proj", hidden, inside),
    ):
        yield f"{name}.{part}.weight", (rows, columns), count
        if bias:
            yield f"{name}.{part}.bias", (rows,), count


def router(config: Config, experts: int, name: str = "mlp.gate") -> Iterator[Part]:
    """What chooses experts."""
    yield f"{name}.weight", (experts, config["hidden_size"]), 1


def mamba(config: Config, inside: int) -> Iterator[Part]:
    """A Mamba 2 mixer of this inner width."""
    hidden, heads = config["hidden_size"], config["mamba_n_heads"]
    shared = 2 * config["mamba_n_groups"] * config["mamba_d_state"]
    yield "mamba.A_log", (heads,), 1
    yield "mamba.D", (heads,), 1
    yield "mamba.dt_bias", (heads,), 1
    yield "mamba.conv1d.weight", (inside + shared, 1, config["mamba_d_conv"]), 1
    if config.flag("mamba_conv_bias", True):
        yield "mamba.conv1d.bias", (inside + shared,), 1
    yield "mamba.in_proj.weight", (2 * inside + shared + heads, hidden), 1
    yield "mamba.out_proj.weight", (hidden, inside), 1
