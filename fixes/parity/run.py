"""The run: everything that is asked, in order, and what came back."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from fixes.parity import answers, forced, greedy, needles, speed, workload
from fixes.parity.answers import Answer, Positions
from fixes.parity.facts import tokenize
from fixes.parity.faults import Fault, FaultError
from fixes.parity.legs import BASELINE, Legs, known, uncollected
from fixes.parity.needles import Needle
from fixes.parity.speed import Round
from fixes.parity.sse import Timeline
from fixes.parity.workload import Counts

COLD, WARM = "cold", "warm"
#: A prompt of this many tokens has room for the answer in any context.
_SHORTEST = 16
_SUFFIX = 16
_MODEST = 2048  # where an endpoint does not tell its context
Asked = dict[str, dict[str, Answer]]


@dataclass
class Measured:
    """What each leg answered, part by part. ``asked`` holds how many questions a part has."""

    greedy: dict[str, Asked] = field(default_factory=dict)
    batched: Asked = field(default_factory=dict)
    forced: dict[str, dict[str, Positions]] = field(default_factory=dict)
    needles: Sequence[Needle] = ()
    needled: Asked = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)
    faults: dict[str, tuple[Fault, ...]] = field(default_factory=dict)
    asked: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


async def measure(legs: Legs, counts: Counts, prompts: Sequence[str]) -> Measured:
    """Ask everything. A fault empties its own place and nothing else."""
    measured = Measured()
    context = min(facts.context or _MODEST for facts in legs.facts.values())
    if not all(facts.context for facts in legs.facts.values()):
        measured.notes.append(f"a context is not told: {_MODEST} tokens are taken for it")
    parts: dict[str, Callable[[Legs, Counts, Sequence[str], int, Measured], Awaitable[int]]] = {
        "greedy": _greedy,
        "batching": _batching,
        "forced": _forced,
        "needles": _needles,
        "speed": _speed,
    }
    for name, part in parts.items():
        before = len(legs.faults)
        try:
            measured.asked[name] = await part(legs, counts, prompts, context, measured)
        except FaultError as error:  # the baseline cannot turn the texts into tokens
            measured.asked[name] = 1
            await legs.note(BASELINE, name, error.fault)
        measured.faults[name] = legs.since(before)
    return measured


async def _prompts(
    legs: Legs, prompts: Sequence[str], most: int, measured: Measured
) -> dict[str, list[int]]:
    found = {}
    for number, prompt in enumerate(prompts, 1):
        tokens = await _tokens(legs, prompt)
        if len(tokens) > most:
            note = f"prompt {number} is cut from {len(tokens)} tokens to the {most} that fit"
            measured.notes.append(note)
        found[f"prompt {number}"] = tokens[:most]
    return found


async def _greedy(
    legs: Legs, counts: Counts, prompts: Sequence[str], context: int, measured: Measured
) -> int:
    """One question at a time, each cold and then warm: again with the salt it had."""
    if counts.greedy > len(prompts):
        measured.notes.append(f"greedy: there are {len(prompts)} prompts, not {counts.greedy}")
    answer = min(counts.answer_tokens, max(1, context - _SHORTEST))
    tokens = await _prompts(legs, prompts[: counts.greedy], context - answer, measured)

    async def question(name: str, leg: str) -> dict[str, Answer]:
        found = {}
        for state in (COLD, WARM):
            body = greedy.body(tokens[name], answer)
            read = partial(answers.generated, prompt=tokens[name], asked=answer)
            where = f"{name}, {state}"
            found[where] = await legs.ask(leg, where, body, read, f"{name}-{leg}")
        return known(found)

    asked = await legs.each("greedy", {name: partial(question, name) for name in tokens})
    lengths = [len(each.tokens) for each in asked[BASELINE].values()]
    if min(lengths, default=answer) < counts.answer_tokens:
        what = (
            f"greedy: answers of the baseline have {min(lengths, default=answer)} tokens at least"
        )
        measured.notes.append(f"{what}, not the {counts.answer_tokens} asked for")
    for state in (COLD, WARM):
        measured.greedy[state] = {
            leg: {
                name.removesuffix(f", {state}"): each
                for name, each in found.items()
                if name.endswith(state)
            }
            for leg, found in asked.items()
        }
    return len(tokens)


async def _batching(
    legs: Legs, counts: Counts, prompts: Sequence[str], context: int, measured: Measured
) -> int:
    """The first questions again, all at once."""
    if counts.batch < 2:
        return 0
    if len(prompts) < 2:
        measured.notes.append(
            "batching: there is but one prompt, and nothing to ask at once with it"
        )
        return 0
    answer = min(counts.answer_tokens, max(1, context - _SHORTEST))
    tokens = await _prompts(legs, prompts[: counts.batch], context - answer, Measured())

    async def question(leg: str) -> dict[str, Answer]:
        asked = {
            name: legs.ask(
                leg,
                f"{name}, at once",
                greedy.body(ids, answer),
                partial(answers.generated, prompt=ids, asked=answer),
                f"batch-{name}-{leg}",
            )
            for name, ids in tokens.items()
        }
        return known(dict(zip(asked, await asyncio.gather(*asked.values()), strict=True)))

    measured.batched = await legs.each("batching", {"": question})
    return len(tokens)


async def _forced(
    legs: Legs, counts: Counts, prompts: Sequence[str], context: int, measured: Measured
) -> int:
    if counts.positions < 1:
        return 0
    texts = {name: await _tokens(legs, text) for name, text in workload.texts().items()}
    parts = workload.sequences(texts, counts.positions, context)
    got = sum(len(tokens) - 1 for tokens in parts.values())
    if got < counts.positions:
        measured.notes.append(f"the texts have {got} positions of the {counts.positions} asked for")

    async def question(name: str, leg: str) -> dict[str, Positions]:
        make = forced.echoing if legs.facts[leg].forced == "echo" else forced.body
        read = partial(answers.prompted, prompt=parts[name])
        return known({name: await legs.ask(leg, name, make(parts[name]), read)})

    measured.forced = await legs.each("forced", {name: partial(question, name) for name in parts})
    return got


async def _needles(
    legs: Legs, counts: Counts, prompts: Sequence[str], context: int, measured: Measured
) -> int:
    planned = needles.plan(counts.lengths, counts.depths, context)
    if longer := [length for length in counts.lengths if length > context - needles.RESERVE]:
        told = ", ".join(map(str, longer))
        measured.notes.append(f"needles: {told} tokens do not fit into the context of {context}")
    if not planned:  # what was asked for and has no room is not measured
        return len(counts.lengths) * len(counts.depths)
    hay = await _hay(legs, max(needle.tokens for needle in planned))
    questions = {}
    small: list[int] = []

    async def question(name: str, tokens: list[int], leg: str) -> dict[str, Answer]:
        body = greedy.body(tokens, needles.ANSWER_TOKENS)
        read = partial(answers.generated, prompt=tokens, asked=needles.ANSWER_TOKENS)
        return known({name: await legs.ask(leg, name, body, read, f"{name}-{leg}")})

    for needle in planned:
        planted = await _tokens(legs, needle.sentence, begins=False)
        asked = await _tokens(legs, needle.question, begins=False)
        if len(planted) + len(asked) > needle.tokens:
            small.append(needle.tokens)
            continue
        tokens = needles.haystack(hay, needle, planted, asked)
        questions[needle.name] = partial(question, needle.name, tokens)
    measured.notes.extend(
        f"needles: {length} tokens do not hold one and its question"
        for length in dict.fromkeys(small)
    )
    measured.needles = [needle for needle in planned if needle.name in questions]
    measured.needled = await legs.each("needles", questions)
    return len(planned)


async def _speed(
    legs: Legs, counts: Counts, prompts: Sequence[str], context: int, measured: Measured
) -> int:
    """Streams at once, the legs by turns. The first round of each endpoint is thrown away."""
    if not counts.streams or counts.repeats < 1:
        return 0
    new = min(counts.new_tokens, context // 2)
    prefix = max(0, min(counts.prefix, context - new - _SUFFIX))
    if (prefix, new) != (counts.prefix, counts.new_tokens):
        measured.notes.append(f"speed: a prefix of {prefix} and {new} new tokens fit the context")
    requests = sum(counts.streams) * (counts.repeats + 1) * len(legs.names)
    hay = await _hay(legs, prefix + requests + _SUFFIX)
    number = 0

    async def at_once(leg: str, streams: int, name: str) -> list[Timeline | None]:
        nonlocal number
        prompts = []
        for _ in range(streams):
            # One token further each time: no two requests end alike, all begin alike.
            number += 1
            at = prefix + number
            prompts.append([*hay[:prefix], *hay[at : at + _SUFFIX]])
        asked = [legs.stream(leg, name, speed.body(one, new), "speed") for one in prompts]
        with uncollected():
            return list(await asyncio.gather(*asked))

    total = len(counts.streams) * (counts.repeats + 1)
    for place, streams in enumerate(counts.streams):
        for repeat in range(counts.repeats + 1):
            legs.progress("speed", place * (counts.repeats + 1) + repeat, total)
            for leg in legs.turn(repeat):
                name = f"{streams} streams, repeat {repeat}" if repeat else f"{streams}, warm-up"
                timelines = await at_once(leg, streams, name)
                whole = [one for one in timelines if one is not None]
                if repeat and len(whole) == streams:
                    measured.rounds.append(Round(leg, streams, repeat, tuple(whole)))
    legs.progress("speed", total, total)
    return len(counts.streams) * counts.repeats


async def _hay(legs: Legs, count: int) -> list[int]:
    """So many tokens of hay."""
    found: list[int] = []
    lines: list[str] = []
    for text in workload.hay():
        lines.append(text)
        if len(text) > 1000 or len(lines) == 200:
            found += await _tokens(legs, "".join(lines), begins=not found)
            lines = []
        if len(found) >= count:
            break
    return found[:count]


async def _tokens(legs: Legs, text: str, begins: bool = True) -> list[int]:
    """Tokens by the baseline, for all legs; ``begins`` adds what a model begins with.

    Raises FaultError.
    """
    return await tokenize(legs.endpoints[BASELINE], legs.facts[BASELINE].model, text, begins)
