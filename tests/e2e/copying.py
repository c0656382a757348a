"""Makes a model that copies: where the last four tokens stood before, it says what came next.

Its weights are set by hand, so that it finds a needle at any depth, which small trained models do
not. A Llama of two layers: four heads of the first carry to each position the tokens one to four
places before it, and one head of the second looks for the position whose four are the last four.

Run by the interpreter of an environment that serves: `copying.py FOLDER`.
"""

from __future__ import annotations

import math
import sys

import torch
from transformers import LlamaConfig, LlamaForCausalLM

CONTEXT = 4  # tokens
CODE = 40  # signs that stand for a token: those of another token are half the same
VOCABULARY = 49152
HEAD = 192
PAIRS = HEAD // 2  # a rotary embedding turns dimension i with dimension i + PAIRS
TURNING = 16  # pairs that turn with the position; the others stand still up to a million tokens
THETA = 1e36
SHARPNESS = 50.0  # by how much one place beside the right one, or one token less, falls behind
CONSTANT = (CONTEXT + 2) * CODE  # a dimension that is 1 for every token
HIDDEN = 256


def slot(number: int) -> slice:
    """Where the residual stream holds a code: of the token itself, of those before, of the next."""
    return slice(number * CODE, (number + 1) * CODE)


FOUND = slot(CONTEXT + 1)


def gain(known: int) -> float:
    """What a norm multiplies with where so many signs and the constant are there."""
    return math.sqrt(HIDDEN / (known * CODE + 1))


def still(number: int) -> list[int]:
    """The dimensions of a head, none of which turns, for a code."""
    pairs = range(TURNING + number * CODE // 2, TURNING + (number + 1) * CODE // 2)
    return [*pairs, *(pair + PAIRS for pair in pairs)]


def carry(attention: torch.nn.Module) -> None:
    """Head n: the code of the token n + 1 places before, into slot n + 1."""
    speeds = THETA ** (-2 * torch.arange(TURNING) / HEAD)
    scale = math.sqrt(SHARPNESS * math.sqrt(HEAD)) / gain(1)
    for head in range(CONTEXT):
        first = head * HEAD
        turned = speeds * -(head + 1)
        query, key = attention.q_proj.weight, attention.k_proj.weight
        query[first : first + TURNING, CONSTANT] = scale * torch.cos(turned)
        query[first + PAIRS : first + PAIRS + TURNING, CONSTANT] = scale * torch.sin(turned)
        key[first : first + TURNING, CONSTANT] = scale
        codes = range(first, first + CODE)
        attention.v_proj.weight[codes, range(CODE)] = 1 / gain(1)
        attention.o_proj.weight[range(*slot(head + 1).indices(HIDDEN)), codes] = 1.0


def look(attention: torch.nn.Module) -> None:
    """Head 0: from the last four tokens to the position that has them before it."""
    norm = gain(CONTEXT + 1)
    scale = math.sqrt(SHARPNESS * math.sqrt(HEAD) / CODE) / norm
    for number in range(CONTEXT):
        for weight, place in (
            (attention.q_proj.weight, number),
            (attention.k_proj.weight, number + 1),
        ):
            weight[still(number), range(*slot(place).indices(HIDDEN))] = scale
    attention.v_proj.weight[range(CODE), range(CODE)] = 1 / norm
    attention.o_proj.weight[range(*FOUND.indices(HIDDEN)), range(CODE)] = 1.0


def make(folder: str) -> None:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY,
        hidden_size=HIDDEN,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=CONTEXT,
        num_key_value_heads=CONTEXT,
        head_dim=HEAD,
        max_position_embeddings=16384,
        rope_parameters={"rope_type": "default", "rope_theta": THETA},
        rms_norm_eps=1e-6,
        bos_token_id=1,
        eos_token_id=2,
        pad_token_id=2,
        tie_word_embeddings=False,
    )
    model = LlamaForCausalLM._from_config(config, dtype=torch.float32)
    codes = torch.randint(0, 2, (VOCABULARY, CODE)) * 2.0 - 1.0
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.fill_(1.0 if "norm" in name else 0.0)
        model.model.embed_tokens.weight[:, slot(0)] = codes
        model.model.embed_tokens.weight[:, CONSTANT] = 1.0
        carry(model.model.layers[0].self_attn)
        look(model.model.layers[1].self_attn)
        model.lm_head.weight[:, FOUND] = codes
    model.save_pretrained(folder)


if __name__ == "__main__":
    make(sys.argv[1])
