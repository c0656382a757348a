"""The answer: one page for a person, one document for a program."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

from fixes.fit.model import GIB
from fixes.fit.planning import Plan, Stage, environment
from fixes.fit.sharing import unknown


@dataclass(frozen=True)
class Answer:
    """What was found: a plan, those that failed on fewer nodes, and the fewest cards that do.

    ``given``: options of vLLM that it holds for, and that vLLM would not choose by itself.
    """

    name: str
    plan: Plan
    failed: tuple[Plan, ...]
    fewest: int
    kv_cache: str
    given: tuple[str, ...] = ()

    def assumptions(self) -> list[str]:
        """What the figures rest on that was not read from the model."""
        plan = self.plan
        place, model = plan.place, plan.model
        kept = f"{place.utilization:g} of "
        kept += (
            "what the weights leave, and of that 0.9 (graphs)" if place.card.left else "the card"
        )
        found = [
            f"{place.overhead / GIB:g} GiB a card for activations, graphs, runtime (--overhead)",
            f"vLLM uses {kept} (--gpu-memory-utilization)",
        ]
        if any(group.kind.window for group in plan.layout.groups):
            found.append(f"batches of {plan.demand.batched} tokens (--max-num-batched-tokens)")
        if model.hybrid:
            found.append(f"{plan.layout.states} states a sequence, as with prefix caching")
            if place.card.left:
                found.append("states lie beside the cache on Gaudi: not as is counted here")
        if not model.exact and model.quantization:
            found.append(f"{model.quantization} packs each matrix but embedding, head and routers")
        if odd := unknown(model.tensors):
            found.append(f"whole on every card, for want of a rule: {', '.join(odd)}")
        return [*found, *model.notes]

    def document(self) -> dict[str, Any]:
        """The answer with stable keys; sizes are in bytes, and of one card unless said."""
        plan, model = self.plan, self.plan.model
        better = plan.better
        return {
            "verb": "fit",
            "model": {
                "name": self.name,
                "type": model.kind,
                "layers": len(model.layers),
                "parameters": None if model.exact and model.quantization else model.parameters,
                "weights": model.weights,
                "exact": model.exact,
                "dtype": model.dtype,
                "quantization": model.quantization,
                "longest_context": model.longest,
            },
            "context": plan.demand.context,
            "concurrency": plan.demand.concurrency,
            "kv_cache_dtype": self.kv_cache,
            "card": plan.place.card.name,
            "card_memory": plan.place.card.memory,
            "cards": plan.place.cards,
            "nodes": plan.place.nodes,
            "fits": plan.fits,
            "plan": _document(plan),
            "failed": [_document(one) for one in self.failed],
            "better": _document(better) if better else None,
            "fewest_cards": self.fewest,
            "assumptions": self.assumptions(),
            "exit": 0 if plan.fits else 1,
        }

    def text(self) -> str:
        """The answer on one screen."""
        plan, model = self.plan, self.plan.model
        place, demand = plan.place, plan.demand
        source = "read from the files' headers" if model.exact else "estimated from config.json"
        packed = f", {model.quantization}" if model.quantization else ""
        asked = _sequences(demand.concurrency, demand.context)
        lines = [
            f"{self.name}: {model.kind}, {len(model.layers)} layers, {_number(self)}",
            f"weights  {model.weights / GIB:.2f} GiB in {model.dtype}{packed}, {source}",
            f"asked    {asked}, KV cache in {self.kv_cache}",
            f"cards    {_nodes(place.nodes)} of {place.cards} x {place.card.name}, "
            f"{place.card.memory / GIB:.1f} GiB each",
            "",
        ]
        lines += [_verdict(one) for one in (*self.failed, plan)]
        lines += ["", *_table(plan), ""]
        lines.append(f"holds    {_holds(plan)}")
        if plan.fits and 0 < self.fewest < plan.tensor * plan.pipeline:
            lines.append(f"fewest   {self.fewest} of these cards are enough for what was asked")
        if better := plan.better:
            more = 100 * (better.pool / plan.pool - 1)
            lines.append(f"uneven   {environment(better.partition)} holds {more:.0f} % more")
        if plan.fits:
            lines.append(f"start    {self.command()}")
        return "\n".join([*lines, *_listed("assumed", self.assumptions())]) + "\n"

    def command(self) -> str:
        """What starts it, with all that the plan holds for."""
        plan, model = self.plan, shlex.quote(self.name)
        words = [environment(plan.partition)] if plan.uneven else []
        if plan.nodes > 1:
            words += ["vllm-fixes launch", f"--rank N --nnodes {plan.nodes} --head-ip HEAD"]
            words += [f"-tp {plan.tensor} -pp {plan.pipeline} -- {model}"]
        else:
            words += [f"vllm serve {model} -tp {plan.tensor} -pp {plan.pipeline}"]
        words += [f"--max-model-len {plan.demand.context} --max-num-seqs {plan.demand.concurrency}"]
        if self.kv_cache != plan.model.dtype:
            words.append(f"--kv-cache-dtype {self.kv_cache}")
        if plan.place.by_expert:
            words.append("--enable-expert-parallel")
        return " ".join([*words, *self.given])


def _document(plan: Plan) -> dict[str, Any]:
    return {
        "nodes": plan.nodes,
        "tensor_parallel_size": plan.tensor,
        "pipeline_parallel_size": plan.pipeline,
        "partition": list(plan.partition),
        "environment": environment(plan.partition) if plan.uneven else "",
        "fits": plan.fits,
        "spare": plan.spare,
        "longest_context": plan.longest,
        "most_sequences": plan.most,
        "block_size": plan.layout.block,
        "stages": [
            {
                "first_layer": stage.first,
                "layers": stage.layers,
                "weights": stage.weights,
                "overhead": plan.place.overhead,
                "kept_back": _kept(plan, stage.weights, stage.room),
                "kv_cache": stage.needed,
                "kv_cache_room": stage.room,
                "spare": stage.spare,
            }
            for stage in plan.stages
        ],
    }


def _kept(plan: Plan, weights: int, room: int) -> int:
    """What the utilization leaves unused, of the whole card."""
    return plan.place.card.memory - weights - plan.place.overhead - room


def _table(plan: Plan) -> list[str]:
    """A row for each stage; stages in a row that read alike have one together."""
    lines = [
        "stage  layers              weights  overhead  kept back  KV cache     spare  GiB of a card"
    ]

    def sizes(numbered: tuple[int, Stage]) -> tuple[int, str]:
        stage = numbered[1]
        kept = _kept(plan, stage.weights, stage.room)
        cells = (stage.weights, plan.place.overhead, kept, stage.needed, stage.spare)
        pairs = zip(cells, (9, 10, 11, 10, 10), strict=True)
        return stage.layers, "".join(f"{f'{size / GIB:.2f}':>{width}}" for size, width in pairs)

    for (number, row), alike in groupby(enumerate(plan.stages), sizes):
        (first, start), *more = alike
        last, end = more[-1] if more else (first, start)
        stages = f"{first}-{last}" if more else f"{first}"
        layers = f"{number} each" if more else f"{number}"
        layers += f" ({start.first}-{end.first + end.layers - 1})"
        lines.append(f"{stages:<5}  {layers:<18}{row}")
    return lines


def _verdict(plan: Plan) -> str:
    size = abs(plan.spare) / GIB
    nodes, split = _nodes(plan.nodes), f"PP {plan.pipeline} x TP {plan.tensor}"
    if plan.fits:
        by = f" with {environment(plan.partition)}" if plan.uneven else ""
        return f"{nodes}: fits, {split}{by}, {size:.2f} GiB of each card to spare"
    return f"{nodes}: does not fit; nearest is {split}, {size:.2f} GiB too much for a card"


def _holds(plan: Plan) -> str:
    if not plan.longest:
        return "nothing: with these weights there is no room for a cache"
    most = f"at most {_sequences(plan.most, plan.demand.context)}"
    own = ", the model's longest" if plan.longest == plan.model.longest else ""
    if plan.longest == plan.demand.context:
        return most + own
    return f"{most}; with {plan.demand.concurrency}, up to {plan.longest:,} tokens each{own}"


def _number(answer: Answer) -> str:
    model = answer.plan.model
    heads = f"{model.heads} heads"
    heads += ", latent attention" if model.latent else f", {model.kv_heads} KV heads"
    if model.experts:
        heads += f", {model.experts} experts"
    if model.exact and model.quantization:
        return heads
    return f"{heads}, {model.parameters / 1e9:.2f} billion parameters"


def _sequences(number: int, context: int) -> str:
    return f"{number:,} sequence{'' if number == 1 else 's'} of {context:,} tokens"


def _nodes(number: int) -> str:
    return f"{number} node{'' if number == 1 else 's'}"


def _listed(head: str, what: Sequence[str]) -> list[str]:
    return [f"{head if at == 0 else '':<8} {one}" for at, one in enumerate(what)]
