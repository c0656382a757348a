"""``fit``: say whether a model fits the cards, on one node or over several."""

from __future__ import annotations

import argparse
import json
import os
from dataclasses import replace

from fixes import report
from fixes.errors import ExitCode, FixesError, Problem
from fixes.fit import cards, planning
from fixes.fit.model import GIB, SIZES, Model
from fixes.fit.planning import Demand, Place, Plan

_CACHES = ("auto", "float16", "bfloat16", "fp8", "fp8_e4m3", "fp8_e5m2", "fp8_inc")
_FLOATS = ("auto", "float32", "float16", "half", "bfloat16")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of this verb; those that vLLM has too are called as they are there."""
    from fixes.cli import filled

    add = parser.add_argument
    add("model", type=filled, metavar="MODEL", help="a folder with config.json, or a cached one")
    add("--context", type=_count, metavar="N", help="tokens of a sequence (the model's longest)")
    add("--concurrency", type=_count, metavar="N", default=1, help="sequences of them at once (1)")
    add("--cards", type=_count, metavar="N", help="cards of a node (those of this machine)")
    add("--nodes", type=_count, metavar="N", default=1, help="nodes that are there (1)")
    kind = parser.add_mutually_exclusive_group()
    kind.add_argument("--card", choices=cards.NAMES, help="what they are (those of this machine)")
    kind.add_argument("--card-memory", type=_gib, metavar="GIB", help="what each of them holds")
    for words, what in (
        (("-tp", "--tensor-parallel-size"), "cards of a stage: check it, propose nothing"),
        (("-pp", "--pipeline-parallel-size"), "stages: check it, propose nothing"),
    ):
        add(*words, type=_count, metavar="N", help=what)
    add("--dtype", choices=_FLOATS, default="auto", help="of weights that are not quantised")
    add("--kv-cache-dtype", choices=_CACHES, default="auto", help="of the KV cache")
    add("--mamba-ssm-cache-dtype", choices=_FLOATS, default="auto", help="of recurrent states")
    add("--enable-expert-parallel", action="store_true", help="split experts by their number")
    about = f"share of a card that vLLM takes ({cards.UTILIZATION})"
    add("--gpu-memory-utilization", type=_share, metavar="F", default=cards.UTILIZATION, help=about)
    about = f"tokens of a batch ({planning.BATCHED}); counts with sliding windows only"
    add("--max-num-batched-tokens", type=_count, metavar="N", default=planning.BATCHED, help=about)
    about = f"of a card, beside weights and cache ({planning.OVERHEAD // GIB})"
    add("--overhead", type=_gib_or_none, metavar="GIB", default=planning.OVERHEAD / GIB, help=about)
    add("--json", action="store_true", help="print one JSON document")


def run(options: argparse.Namespace) -> int:
    """OK where the model fits as asked or as proposed; MISMATCH where nothing that is there
    holds it. Raises FixesError (USAGE) for what cannot be known.
    """
    from fixes.fit import page, reading

    model = reading.read(reading.find(options.model), options.dtype, options.mamba_ssm_cache_dtype)
    kv_cache = options.kv_cache_dtype
    if kv_cache == "auto":
        kv_cache = model.kv_cache or model.dtype
    context = options.context or model.longest
    demand = Demand(context, options.concurrency, SIZES[kv_cache], options.max_num_batched_tokens)
    if context > model.longest:
        what = f"max_position_embeddings is {model.longest:,}: vLLM takes more by rope scaling only"
        model = replace(model, notes=(*model.notes, what), longest=context)
    place = _place(options)
    failed: list[Plan] = []
    fewest = 0
    if options.tensor_parallel_size or options.pipeline_parallel_size:
        plan = _given(options, model, place, demand)
    else:
        plan, failed = planning.propose(model, place, demand)
        fewest = planning.fewest(plan) if plan.nodes == 1 else 0
    answer = page.Answer(options.model, plan, tuple(failed), fewest, kv_cache, _engine(options))
    if options.json:
        report.emit(json.dumps(answer.document(), indent=2) + "\n")
    else:
        report.emit(answer.text())
    return ExitCode.OK if plan.fits else ExitCode.MISMATCH


def _engine(options: argparse.Namespace) -> tuple[str, ...]:
    """Options that vLLM needs as well, or it would have other sizes than these."""
    found: list[str] = []
    for name, default in (
        ("dtype", "auto"),
        ("mamba_ssm_cache_dtype", "auto"),
        ("gpu_memory_utilization", cards.UTILIZATION),
        ("max_num_batched_tokens", planning.BATCHED),
    ):
        if (value := getattr(options, name)) != default:
            found += [f"--{name.replace('_', '-')}", f"{value}"]
    return tuple(found)


def _place(options: argparse.Namespace) -> Place:
    """The cards that are named, else those of this machine."""
    card, number = None, options.cards
    if options.card:
        card = cards.named(options.card)
    elif options.card_memory:
        card = cards.of(options.card_memory)
    if card is None or number is None:
        found, counted = cards.here(os.environ)
        card, number = card or found, number or counted
    if card is None or not number:
        missing = "--card or --card-memory" if card is None else "--cards"
        what = f"what this machine has is not known: give {missing}"
        raise FixesError(Problem(ExitCode.USAGE, "usage", what, "fit"))
    return Place(
        card,
        number,
        options.nodes,
        options.gpu_memory_utilization,
        int(options.overhead * GIB),
        options.enable_expert_parallel,
    )


def _given(options: argparse.Namespace, model: Model, place: Place, demand: Demand) -> Plan:
    """The plan of a split that was given. Raises FixesError where there is none."""
    tensor = options.tensor_parallel_size or 1
    pipeline = options.pipeline_parallel_size or 1
    wrong = planning.allowed(model, tensor, place.by_expert)
    if not wrong and pipeline > len(model.layers):
        wrong = f"{len(model.layers)} layers cannot be spread over {pipeline} stages"
    if wrong:
        raise FixesError(
            Problem(ExitCode.USAGE, "bad-split", wrong, f"PP {pipeline} x TP {tensor}")
        )
    plan = planning.given(model, place, demand, tensor, pipeline)
    if plan.nodes > place.nodes:
        what = f"needs {tensor * pipeline} cards, and there are {place.cards * place.nodes}"
        where = f"PP {pipeline} x TP {tensor}"
        raise FixesError(
            Problem(ExitCode.MISMATCH, "does-not-fit", what, where, "--nodes, --cards")
        )
    return plan


def _count(text: str) -> int:
    """An option's value that is a number of things, 1 at least."""
    if not text.isdecimal() or not text.isascii() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is no whole number from 1 on")
    return int(text)


def _gib(text: str) -> float:
    """An option's value in GiB, above 0."""
    value = _gib_or_none(text)
    if not value:
        raise argparse.ArgumentTypeError(f"{text!r} is no size")
    return value


def _gib_or_none(text: str) -> float:
    """An option's value in GiB, 0 included."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 2**20:
        raise argparse.ArgumentTypeError(f"{text!r} is no number of GiB")
    return value


def _share(text: str) -> float:
    """An option's value between 0 and 1."""
    value = _gib_or_none(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not between 0 and 1")
    return value
