"""The KV cache as vLLM lays it out: pages of one size, layers in groups, blocks from one pool.

After ``get_kv_cache_groups`` and ``_max_memory_usage_bytes_from_groups`` of
``vllm/v1/core/kv_cache_utils.py``: a block is a page in every layer of a group; a sequence takes
blocks for each group; and a stage pays for a block what its largest group takes there.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

from fixes.fit.model import Attention, Cache, Model, State

#: Where a model with states has multi-head latent attention, blocks are multiples of this.
_LATENT_BLOCK = 128
#: States of a sequence: one that is written and one that is kept for the prefix cache.
STATES = 2


class _Kind(NamedTuple):
    """Layers that are cached alike: how long a block is, and the window (0: all tokens)."""

    state: bool
    window: int
    block: int
    page: int


class Group(NamedTuple):
    """Layers that share a table of blocks; a layer may be in several."""

    kind: _Kind
    layers: tuple[int, ...]


@dataclass(frozen=True)
class Layout:
    """The cache of a model on cards of a tensor-parallel group.

    ``size`` is that of a cached number, ``base`` the block that the platform begins with,
    ``states`` how many states a sequence holds.
    """

    model: Model
    tensor: int
    size: int
    base: int = 16
    states: int = STATES

    @cached_property
    def _token(self) -> int:
        """Bytes of a token in the widest layer that keeps tokens; 0 where none does."""
        return max((self._of_token(cache) for cache in self.model.caches), default=0)

    def _of_token(self, cache: Cache) -> int:
        return 0 if isinstance(cache, State) else cache.token(self.tensor, self.size)

    @cached_property
    def block(self) -> int:
        """Tokens of a block: a page of attention must hold a state where there are any."""
        held = [cache.bytes(self.tensor) for cache in self.model.caches if isinstance(cache, State)]
        if not self._token or not held:
            return self.base
        step = max(self.base, _LATENT_BLOCK) if self.model.latent else self.base
        return max(self.base, step * -(-max(held) // (step * self._token)))

    def _kind(self, cache: Cache) -> _Kind:
        page = self._token * self.block
        if isinstance(cache, State):
            return _Kind(True, 0, 0, max(page, cache.bytes(self.tensor)))
        window = cache.window if isinstance(cache, Attention) else 0
        # Where pages differ, smaller ones take more tokens; the rest of a page is lost.
        own = self._of_token(cache) * self.block
        return _Kind(False, window, self.block * (page // own), page)

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """Layers by kind, and each kind cut into groups of one length, as vLLM does."""
        kinds: dict[_Kind, list[int]] = {}
        for layer, caches in enumerate(self.model.layers):
            for cache in caches:
                kinds.setdefault(self._kind(cache), []).append(layer)
        numbers = [len(layers) for layers in kinds.values()]
        length = min(numbers)
        if max(numbers) < 1.5 * length:
            length = max(numbers)
        found = []
        for kind, layers in kinds.items():
            parts = -(-len(layers) // length)
            found += [Group(kind, tuple(layers[part::parts])) for part in range(parts)]
        return tuple(found)

    def blocks(self, context: int, in_flight: int) -> int:
        """Blocks of a sequence of so many tokens; ``in_flight`` are scheduled and not yet done."""
        return sum(self._blocks(group.kind, context, in_flight) for group in self.groups)

    def _blocks(self, kind: _Kind, context: int, in_flight: int) -> int:
        if kind.state:
            return self.states
        if kind.window:
            return -(-min(kind.window - 1 + in_flight, context) // kind.block) + 1
        return -(-context // kind.block)

    def per_block(self, start: int, end: int) -> int:
        """Bytes of a block on a card of the stage that holds these layers."""
        return max(
            (bisect_left(group.layers, end) - bisect_left(group.layers, start)) * group.kind.page
            for group in self.groups
        )
