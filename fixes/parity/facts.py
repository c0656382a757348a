"""Asking an endpoint what it is and what it can."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from fixes.errors import ExitCode, FixesError, Problem
from fixes.parity import answers, forced, greedy
from fixes.parity.client import Endpoint
from fixes.parity.faults import LOG, Fault, FaultError, Kind, well_formed
from fixes.parity.preflight import Facts
from fixes.parity.words import short
from fixes.parity.workload import STRINGS

COMPLETIONS = "/v1/completions"
_TRIES = 3
_SHORTEST = 32  # tokens of a context in which there is room for a prompt and an answer
#: What does not change while a server runs.
_STABLE = ("context", "version", "fingerprint")
_PAUSE = 2.0  # seconds: an engine that has failed for good takes its server with it by then
_DIGEST = re.compile(r"sha256:([0-9a-f]{64})")
#: What ends the preflight; another fault only means that one thing is not told.
_LOST = (Kind.UNREACHABLE, Kind.GONE)
#: A server with one of these at its first question is no server, whatever its health check says.
_NO_SERVER = (*_LOST, Kind.STALLED, Kind.CUT_SHORT)


async def gather(endpoint: Endpoint, model: str | None) -> Facts:
    """Everything about an endpoint. Raises FixesError if it cannot be reached or measured."""
    try:
        seen = await _seen(endpoint, model)
        speculation, caching = await _metrics(endpoint)
        return replace(
            seen,
            tokens=await _strings(endpoint, seen.model),
            defaults=await _defaults(endpoint, seen.model),
            forced=await _forcing(endpoint, seen.model),
            speculation=speculation,
            caching=caching,
        )
    except FaultError as error:
        raise FixesError(_no_facts(endpoint.told(error.fault), endpoint)) from None


async def changed(endpoint: Endpoint, before: Facts) -> list[str]:
    """What an endpoint tells otherwise than before: another server answers at its URL now."""
    try:
        now = await _seen(endpoint, before.model)
    except FaultError as error:
        return [f"cannot be asked at the end ({error.fault.kind.value})"]
    except FixesError as error:
        return [problem.what for problem in error.problems]
    pairs = [(name, getattr(before, name), getattr(now, name)) for name in _STABLE]
    return [
        f"{name} was {short(str(was)) or 'not told'} at the start and is"
        f" {short(str(told)) or 'not told'} at the end"
        for name, was, told in pairs
        if was != told
    ]


async def _seen(endpoint: Endpoint, model: str | None) -> Facts:
    """What an endpoint is, without what it can."""
    name, context = _chosen(await _ready(lambda: endpoint.get("/v1/models")), model, endpoint)
    fingerprint, salted, ids = await _first_answer(endpoint, name)
    return Facts(
        url=endpoint.shown,
        model=name,
        context=context,
        version=str((await _quietly(endpoint, "/version")).get("version", "")),
        fingerprint=fingerprint,
        digest=(_DIGEST.search(fingerprint) or ("", ""))[1],
        ids=ids,
        salted=salted,
    )


def _no_facts(fault: Fault, endpoint: Endpoint) -> Problem:
    """What keeps an endpoint from being measured at all."""
    if fault.kind in (Kind.UNREACHABLE, Kind.GONE):
        hint = LOG if fault.kind is Kind.GONE else ""
        return Problem(ExitCode.NOT_FOUND, "unreachable", fault.what, endpoint.shown, hint)
    said = f"{fault.kind.value}: {fault.what}"
    if fault.kind in _NO_SERVER:
        what = f"takes connections and does not answer; {said}"
        return Problem(ExitCode.NOT_FOUND, "unreachable", what, endpoint.shown, LOG)
    what = f"gives no answer to measure: {said}"
    return Problem(ExitCode.VERIFICATION_FAILED, "preflight", what, endpoint.shown)


async def tokenize(endpoint: Endpoint, model: str, text: str, begins: bool = True) -> list[int]:
    """The token ids of a text, by ``/tokenize`` or else by ``return_token_ids``.

    ``begins`` adds the special tokens that a model's input begins with.

    Raises FaultError: lacks-token-ids, and whatever a request can.
    """
    asked = {"model": model, "prompt": text, "add_special_tokens": begins}
    try:
        return answers.ids((await endpoint.post("/tokenize", asked))["tokens"])
    except (LookupError, TypeError):
        pass
    except FaultError as error:
        if error.fault.kind not in (Kind.REFUSED, Kind.MALFORMED):
            raise
    body = {**asked, "max_tokens": 1, "return_token_ids": True}
    return answers.tokens_of_prompt(await endpoint.post(COMPLETIONS, body))


@well_formed()
def _chosen(document: Any, wanted: str | None, endpoint: Endpoint) -> tuple[str, int]:
    """The model to ask, and its context; 0 where that is not told. Adapters are passed over."""
    cards = {str(card["id"]): card for card in document["data"] if not card.get("parent")}
    every = {str(card["id"]): card for card in document["data"]}
    if wanted is None and len(cards) == 1:
        (wanted,) = cards
    if wanted not in every:
        what = f"it has no model {wanted}" if wanted else f"it serves {len(cards)} models"
        names = ", ".join(map(short, every))
        hint = f"choose by --model or --candidate-model: {names}" if every else ""
        raise FixesError(Problem(ExitCode.USAGE, "usage", what, endpoint.shown, hint))
    context = every[wanted].get("max_model_len") or 0
    if type(context) is not int or 0 < context < _SHORTEST or context < 0:
        raise FaultError(Kind.MALFORMED, f"nothing can be measured in a context of {context!r}")
    return wanted, context


async def _first_answer(endpoint: Endpoint, model: str) -> tuple[str, bool, str]:
    """Whether tokens flow, which a health check does not tell; fingerprint, salt, kind of ids."""
    body = greedy.body([], 4) | {"model": model, "prompt": STRINGS[0]}
    for salted in (True, False):
        try:
            asked = body | ({"cache_salt": "preflight"} if salted else {})
            document = await _ready(partial(endpoint.post, COMPLETIONS, asked))
            break
        except FaultError as error:
            if error.fault.kind is not Kind.REFUSED or not salted:
                raise
    with well_formed():
        choice = document["choices"][0] if document.get("choices") else {}
        fingerprint = str(document.get("system_fingerprint") or "")
        if choice.get("token_ids") is not None:
            return fingerprint, salted, "return_token_ids"
        prompt = [0] * int((document.get("usage") or {}).get("prompt_tokens") or 0)
    try:
        answers.generated(document, prompt, 1)
    except FaultError:
        return fingerprint, salted, ""
    return fingerprint, salted, "logprobs"


async def _ready(ask: Callable[[], Awaitable[Any]]) -> Any:
    """An answer; an error of the server at the very first requests is tried again.

    Raises FaultError: ``gone`` where the server has ended after such an error.
    """
    failed: Fault | None = None
    for attempt in range(_TRIES):
        try:
            return await ask()
        except FaultError as error:
            fault = error.fault
            if failed and fault.kind in _NO_SERVER:
                what = f"ended after its first question ({failed.kind.value}: {failed.what})"
                raise FaultError(Kind.GONE, what) from None
            if fault.kind is not Kind.SERVER_ERROR or attempt == _TRIES - 1:
                raise
            failed = fault
            await asyncio.sleep(_PAUSE)
    raise AssertionError  # pragma: no cover


async def _strings(endpoint: Endpoint, model: str) -> tuple[tuple[int, ...], ...]:
    try:
        return tuple([tuple(await tokenize(endpoint, model, text)) for text in STRINGS])
    except FaultError as error:
        if error.fault.kind in _LOST:
            raise
        return ()


async def _defaults(endpoint: Endpoint, model: str) -> tuple[int, ...]:
    body = {"model": model, "prompt": STRINGS[0], "max_tokens": 16, "seed": 7}
    body |= {"ignore_eos": True, "return_token_ids": True}
    told: list[Sequence[int]] = []
    try:
        for _ in range(2):
            document = await endpoint.post(COMPLETIONS, body)
            with well_formed():
                told.append(answers.ids(document["choices"][0].get("token_ids") or []))
    except FaultError as error:
        if error.fault.kind in _LOST:
            raise
        return ()
    return tuple(told[0]) if told[0] == told[1] else ()


async def _forcing(endpoint: Endpoint, model: str) -> str:
    """How the endpoint tells the log-probabilities of a prompt, if it does."""
    for name, make in (("prompt_logprobs", forced.body), ("echo", forced.echoing)):
        try:
            tokens = await tokenize(endpoint, model, STRINGS[0])
            document = await endpoint.post(COMPLETIONS, {**make(tokens), "model": model})
            answers.prompted(document, tokens)
        except FaultError as error:
            if error.fault.kind in _LOST:
                raise
        else:
            return name
    return ""


async def _metrics(endpoint: Endpoint) -> tuple[str, str]:
    """Speculative decoding and prefix caching, where the metrics of vLLM are there to tell."""
    try:
        text = await endpoint.text("/metrics")
    except FaultError:
        return "", ""
    if "vllm:" not in text:
        return "", ""
    caching = re.search(r'vllm:cache_config_info\{[^}]*enable_prefix_caching="(\w+)"', text)
    speculation = "on" if "vllm:spec_decode_num_draft" in text else "off"
    on = {"True": "on", "False": "off"}
    return speculation, on.get(caching[1], "") if caching else ""


async def _quietly(endpoint: Endpoint, path: str) -> dict[str, Any]:
    """A document that not every server has."""
    try:
        document = await endpoint.get(path)
    except FaultError:
        return {}
    return document if isinstance(document, dict) else {}
