"""What is known of a model: its tensors, and what each layer keeps of a sequence."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

GIB = 2**30
#: What a width is of, where it is that of an expert.
EXPERTS = "an expert's"
#: Bytes of a number, by vLLM's names of --dtype and --kv-cache-dtype.
SIZES = {
    "float32": 4,
    "float16": 2,
    "half": 2,
    "bfloat16": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "fp8_inc": 1,
}


@dataclass(frozen=True)
class Tensor:
    """A tensor of a checkpoint, by its name there, or ``count`` of them that are alike.

    ``size`` is what it takes when it is loaded, of each. A name's ``*`` stands for the number of
    an expert.
    """

    name: str
    shape: tuple[int, ...]
    size: int
    count: int = 1

    @property
    def elements(self) -> int:
        """How many numbers it holds."""
        found = self.count
        for each in self.shape:
            found *= each
        return found

    @property
    def layer(self) -> int | None:
        """The layer that it belongs to; None for what is outside of all layers."""
        words = self.name.split(".")
        at = words.index("layers") + 1 if "layers" in words else len(words)
        return int(words[at]) if at < len(words) and words[at].isdigit() else None


@dataclass(frozen=True)
class Attention:
    """Keys and values of each token, of the last ``window`` ones only where that is not 0."""

    heads: int
    width: int
    window: int = 0

    def token(self, tensor: int, size: int) -> int:
        """Bytes of a token on a card: heads are split, and repeated where they are fewer."""
        return 2 * max(1, self.heads // tensor) * self.width * size


@dataclass(frozen=True)
class Latent:
    """One vector for each token, whole on every card (multi-head latent attention)."""

    width: int

    def token(self, tensor: int, size: int) -> int:
        """Bytes of a token on a card: tensor parallelism does not split it."""
        return self.width * size


@dataclass(frozen=True)
class State:
    """A state that does not grow with the sequence (Mamba 2, gated delta net).

    ``convolved`` is the width that the convolution remembers ``kernel`` - 1 steps of; with
    ``groups`` fewer than cards, each of ``group`` elements is repeated.
    """

    convolved: int
    kernel: int
    recurrent: int
    groups: int = 0
    group: int = 0
    size: int = 2
    recurrent_size: int = 2

    def extra(self, tensor: int) -> int:
        """Elements that repeated groups add to the width of the convolution."""
        return self.group * (tensor - self.groups) if self.groups and self.groups % tensor else 0

    def bytes(self, tensor: int) -> int:
        """Bytes of a sequence on a card."""
        convolved = (self.convolved + self.extra(tensor)) // tensor * (self.kernel - 1)
        return convolved * self.size + self.recurrent // tensor * self.recurrent_size


Cache = Attention | Latent | State


@dataclass(frozen=True)
class Model:
    """A model. ``layers`` says of each layer what it keeps; ``exact`` whether the tensors are
    those of the files, and not derived from the config.

    ``everywhere``: vLLM gives every stage the embedding, the last norm and the head.
    ``widths`` are those that tensor parallelism has to divide, ``block`` a part that it must not.
    ``repeats``: KV heads may be fewer than the cards that share them. ``kv_cache``: the dtype
    that the checkpoint asks for. ``absorbed``: bytes that vLLM adds to each layer on loading.
    """

    name: str
    kind: str
    dtype: str
    heads: int
    kv_heads: int
    longest: int
    layers: tuple[tuple[Cache, ...], ...]
    tensors: tuple[Tensor, ...]
    exact: bool
    tied: bool = False
    everywhere: bool = False
    repeats: bool = True
    experts: int = 0
    widths: tuple[tuple[str, int], ...] = ()
    quantization: str = ""
    kv_cache: str = ""
    block: int = 0
    absorbed: int = 0
    notes: tuple[str, ...] = field(default=(), compare=False)

    @cached_property
    def parameters(self) -> int:
        """How many numbers the model is made of; meaningless where they are packed."""
        return sum(tensor.elements for tensor in self.tensors)

    @cached_property
    def weights(self) -> int:
        """Bytes of all tensors, each once."""
        return sum(tensor.size * tensor.count for tensor in self.tensors)

    @property
    def caches(self) -> list[Cache]:
        """What all layers keep."""
        return [cache for caches in self.layers for cache in caches]

    @property
    def latent(self) -> bool:
        """Whether it has multi-head latent attention."""
        return any(isinstance(cache, Latent) for cache in self.caches)

    @property
    def hybrid(self) -> bool:
        """Whether some layers keep a state."""
        return any(isinstance(cache, State) for cache in self.caches)
