"""Plans: a split over cards, what it takes of each, and which one to propose. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from fixes.fit import partition as parts
from fixes.fit.cache import Layout
from fixes.fit.cards import UTILIZATION, Card
from fixes.fit.model import EXPERTS, GIB, Model, State
from fixes.fit.sharing import Sharing

#: Assumed of each card: activations, graphs, the runtime, collectives.
OVERHEAD = 4 * GIB
#: vLLM's default of --max-num-batched-tokens for a server, on cards of 70 GiB to 160 GiB.
BATCHED = 8192
#: An uneven partition is told where it holds this much more than the default one.
WORTH = 0.05


@dataclass(frozen=True)
class Demand:
    """What is asked of a model: so many sequences at once, each of so many tokens."""

    context: int
    concurrency: int
    size: int
    batched: int = BATCHED

    def in_flight(self, pipeline: int) -> int:
        """Tokens that are scheduled and not yet done: vLLM has a batch for each stage, or two."""
        return self.batched * max(2, pipeline)


@dataclass(frozen=True)
class Place:
    """The cards that are there, and how they are used."""

    card: Card
    cards: int
    nodes: int = 1
    utilization: float = UTILIZATION
    overhead: int = OVERHEAD
    by_expert: bool = False


class Stage(NamedTuple):
    """A stage, in bytes of each of its cards: ``room`` is for the cache, ``page`` one block of it,
    and ``needed`` what is asked for.
    """

    first: int
    layers: int
    weights: int
    room: int
    page: int
    needed: int

    @property
    def spare(self) -> int:
        """What is left over; negative: by how much it does not fit."""
        return self.room - self.needed


@dataclass(frozen=True)
class Plan:
    """A split: ``partition`` is the number of layers of each stage."""

    model: Model
    place: Place
    demand: Demand
    nodes: int
    tensor: int
    partition: tuple[int, ...]

    @property
    def pipeline(self) -> int:
        """The number of stages."""
        return len(self.partition)

    @cached_property
    def layout(self) -> Layout:
        """The cache on a card."""
        return Layout(self.model, self.tensor, self.demand.size, self.place.card.block)

    @cached_property
    def sharing(self) -> Sharing:
        """The weights on a card."""
        return Sharing(self.model, self.tensor, self.place.by_expert)

    def blocks(self, context: int, concurrency: int) -> int:
        """Blocks that so many sequences take; vLLM keeps one more for itself."""
        each = self.layout.blocks(context, self.demand.in_flight(self.pipeline))
        return each * concurrency + 1

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """Every stage."""
        needed = self.blocks(self.demand.context, self.demand.concurrency)
        found, first = [], 0
        for stage, layers in enumerate(self.partition):
            page, weights, room = self._stage(stage, first, first + layers)
            found.append(Stage(first, layers, weights, room, page, page * needed))
            first += layers
        return tuple(found)

    def _stage(self, stage: int, start: int, end: int) -> tuple[int, int, int]:
        """Bytes of a block, of the weights, and of the room for a cache."""
        weights = self.sharing.stage(stage, self.pipeline, start, end)
        room = self.place.card.room(weights, self.place.overhead, self.place.utilization)
        return self.layout.per_block(start, end), weights, room

    @property
    def fits(self) -> bool:
        """Whether every stage holds its weights and the cache that is asked for."""
        return all(stage.spare >= 0 for stage in self.stages)

    @property
    def spare(self) -> int:
        """What is left over on a card of the tightest stage; negative: what is missing there."""
        return min(stage.spare for stage in self.stages)

    @cached_property
    def pool(self) -> int:
        """Blocks that there is room for on every stage; 0 where the weights do not fit."""
        return max(0, min(stage.room // stage.page for stage in self.stages))

    @property
    def most(self) -> int:
        """The largest number of sequences of the context that is asked for."""
        each = self.blocks(self.demand.context, 1) - 1
        return max(0, (self.pool - 1) // each)

    @property
    def longest(self) -> int:
        """The longest context at the concurrency that is asked for, up to the model's own."""
        low, high = 0, self.model.longest
        while low < high:
            middle = (low + high + 1) // 2
            if self.blocks(middle, self.demand.concurrency) <= self.pool:
                low = middle
            else:
                high = middle - 1
        return low

    @property
    def uneven(self) -> bool:
        """Whether the partition is not vLLM's own, and has to be given to it."""
        return self.partition != parts.default(len(self.model.layers), self.pipeline)

    def holding(self, blocks: int) -> Plan | None:
        """The same split with the most even partition that holds so many blocks, if any does."""
        found = parts.closest(
            len(self.model.layers), self.pipeline, lambda *at: self._holds(blocks, *at)
        )
        return replace(self, partition=found) if found else None

    def _holds(self, blocks: int, stage: int, start: int, end: int) -> bool:
        """Whether a stage of these layers holds so many blocks."""
        page, _, room = self._stage(stage, start, end)
        return room >= page * blocks

    @cached_property
    def better(self) -> Plan | None:
        """The partition that holds most blocks, where that is worth to be told."""
        if self.pipeline == 1 or not self.fits:
            return None
        low, best = int(self.pool * (1 + WORTH)) + 1, None
        high = 2 * low
        while self.holding(high):
            high *= 2
        while low <= high:
            middle = (low + high) // 2
            if found := self.holding(middle):
                low, best = middle + 1, found
            else:
                high = middle - 1
        return best


def allowed(model: Model, tensor: int, by_expert: bool = False) -> str:
    """Why vLLM refuses this tensor-parallel size; empty where it does not."""
    if model.heads % tensor:
        return f"{model.heads} attention heads cannot be split over {tensor} cards"
    if not model.latent:
        if model.kv_heads % tensor and tensor % model.kv_heads:
            return (
                f"{model.kv_heads} KV heads can be neither split nor repeated over {tensor} cards"
            )
        if tensor > model.kv_heads and not model.repeats:
            return (
                f"{model.kind} has {model.kv_heads} KV heads, and vLLM repeats none of them there"
            )
    for groups in {cache.groups for cache in model.caches if isinstance(cache, State)}:
        if groups > 1 and groups % tensor:
            return f"{groups} groups of states cannot be split over {tensor} cards"
    for of, width in model.widths:
        if by_expert and of == EXPERTS:
            continue
        if width % tensor:
            return f"{of} width of {width} cannot be split over {tensor} cards"
        if model.block and width // tensor % model.block:
            hint = " (--enable-expert-parallel splits none)" if of == EXPERTS else ""
            return f"{of} width of {width} over {tensor} cards cuts blocks of {model.block}{hint}"
    return ""


def given(model: Model, place: Place, demand: Demand, tensor: int, pipeline: int) -> Plan:
    """The plan of a split that is given, uneven only where the default does not fit."""
    nodes = -(-tensor * pipeline // place.cards)
    layers = parts.default(len(model.layers), pipeline)
    return _fitted(Plan(model, place, demand, nodes, tensor, layers))


def candidates(model: Model, place: Place, demand: Demand, nodes: int) -> Iterator[Plan]:
    """Splits over exactly so many nodes, the best first: most cards, then most cards a stage."""
    splits = []
    for tensor in range(1, place.cards + 1):
        if allowed(model, tensor, place.by_expert):
            continue
        for each in range(1, place.cards // tensor + 1):
            if each * nodes <= len(model.layers):
                splits.append((tensor, each))
    for tensor, each in sorted(splits, key=lambda one: (-one[0] * one[1], -one[0])):
        layers = parts.default(len(model.layers), each * nodes)
        yield Plan(model, place, demand, nodes, tensor, layers)


def propose(model: Model, place: Place, demand: Demand) -> tuple[Plan, list[Plan]]:
    """The plan for the fewest nodes, and the best that fails on each smaller number of them.

    Where none fits, the plan is the one that lacks least on all nodes.
    """
    failed: list[Plan] = []
    for nodes in range(1, place.nodes + 1):
        tried = []
        for plan in map(_fitted, candidates(model, place, demand, nodes)):
            if plan.fits:
                return plan, failed
            tried.append(plan)
        if tried:  # there may be more nodes than layers
            failed.append(max(tried, key=lambda plan: plan.spare))
    return failed[-1], failed[:-1]


def fewest(plan: Plan) -> int:
    """The smallest number of cards of one node that hold what is asked for; 0 if none does."""
    for cards in range(1, plan.place.cards + 1):
        place = replace(plan.place, cards=cards)
        for one in candidates(plan.model, place, plan.demand, 1):
            if one.tensor * one.pipeline == cards and _fitted(one).fits:
                return cards
    return 0


def _fitted(plan: Plan) -> Plan:
    """The plan, with an uneven partition where only that makes it fit."""
    if plan.fits or plan.pipeline == 1:
        return plan
    needed = plan.blocks(plan.demand.context, plan.demand.concurrency)
    return plan.holding(needed) or plan


def environment(partition: Sequence[int]) -> str:
    """What tells vLLM a partition."""
    return "VLLM_PP_LAYER_PARTITION=" + ",".join(map(str, partition))
