"""What two endpoints say of themselves, compared before anything is measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fixes.errors import ExitCode, Problem
from fixes.parity.words import short


@dataclass(frozen=True)
class Facts:
    """One endpoint. An empty value, or None, is what it does not tell.

    ``tokens`` are the ids of `workload.STRINGS`; ``defaults`` the tokens of a seeded answer to a
    request that leaves every sampling parameter open, if it was the same twice. ``ids`` says how
    token ids are told (``return_token_ids``, ``logprobs`` or nothing), ``forced`` how the
    log-probabilities of a prompt are (``prompt_logprobs``, ``echo`` or nothing). With ``salted``
    a ``cache_salt`` is accepted.
    """

    url: str
    model: str
    context: int
    version: str = ""
    fingerprint: str = ""
    digest: str = ""
    tokens: tuple[tuple[int, ...], ...] = ()
    defaults: tuple[int, ...] = ()
    speculation: str = ""
    caching: str = ""
    ids: str = ""
    forced: str = ""
    salted: bool = False


@dataclass(frozen=True)
class Line:
    """One thing as both endpoints tell it. ``equal`` is None where one does not."""

    name: str
    baseline: str
    candidate: str
    equal: bool | None


def lines(baseline: Facts, candidate: Facts) -> list[Line]:
    """Everything that is compared; what differs comes first."""
    found = [
        _line("model", baseline.model, candidate.model),
        _line("context", str(baseline.context or ""), str(candidate.context or "")),
        _line("version", baseline.version, candidate.version),
        _tokens("tokenizer", baseline.tokens, candidate.tokens),
        _tokens("defaults", (baseline.defaults,), (candidate.defaults,)),
        _line("digest", baseline.digest, candidate.digest),
        _line("speculation", baseline.speculation, candidate.speculation),
        _line("caching", baseline.caching, candidate.caching),
        _line("fingerprint", baseline.fingerprint, candidate.fingerprint),
    ]
    return sorted(found, key=lambda line: line.equal is not False)


def refusals(found: Sequence[Line], must_equal: Sequence[str]) -> list[Problem]:
    """What makes a comparison meaningless, by the thresholds."""
    what = "differs, and by the thresholds it must not"
    return [
        Problem(
            ExitCode.VERIFICATION_FAILED, "preflight", what, line.name, _HINTS.get(line.name, "")
        )
        for line in found
        if line.name in must_equal and line.equal is False
    ]


def unknown(found: Sequence[Line], must_equal: Sequence[str]) -> list[str]:
    """What the thresholds want to be equal, and not both endpoints tell."""
    return [
        f"{line.name} must be equal by the thresholds, and cannot be compared"
        f" (baseline: {line.baseline}, candidate: {line.candidate})"
        for line in found
        if line.name in must_equal and line.equal is None
    ]


_HINTS = {
    "tokenizer": "token ids of two tokenizers cannot be compared",
    "defaults": "start both with the same --generation-config",
}


def _line(name: str, baseline: str, candidate: str) -> Line:
    equal = baseline == candidate if baseline and candidate else None
    return Line(name, short(baseline) or "not told", short(candidate) or "not told", equal)


def _tokens(
    name: str, baseline: Sequence[Sequence[int]], candidate: Sequence[Sequence[int]]
) -> Line:
    """Token ids are too many to be shown: how many there are, and where the first differs."""
    if not any(baseline) or not any(candidate):
        told = ["told" if any(one) else "not told" for one in (baseline, candidate)]
        return Line(name, told[0], told[1], None)
    counts = [f"{sum(map(len, one))} tokens" for one in (baseline, candidate)]
    if baseline == candidate:
        return Line(name, counts[0], counts[1], True)
    number = next(
        place for place, (a, b) in enumerate(zip(baseline, candidate, strict=True)) if a != b
    )
    shown = [
        f"{count}; {list(one[number])[:6]}"
        for count, one in zip(counts, (baseline, candidate), strict=True)
    ]
    return Line(name, shown[0], shown[1], False)
