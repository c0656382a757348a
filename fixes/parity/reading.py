"""Where to look for what differs, as far as the parts tell when they are held together."""

from __future__ import annotations

from collections.abc import Sequence

from fixes.parity import greedy
from fixes.parity.comparing import Likeness
from fixes.parity.legs import CANDIDATE
from fixes.parity.preflight import Line
from fixes.parity.verdict import Part, Status, Verdict

_SAME = (Status.IDENTICAL, Status.WITHIN_NOISE)


def hints(verdict: Verdict, preflight: Sequence[Line]) -> list[str]:
    """Answers that differ where forced texts do not are no matter of the weights.

    A forced text is read in one go: no draft, no warm cache and no other request takes part in it.
    """
    parts = {part.name: part for part in verdict.parts}
    differing = _differing(parts["greedy"]) | _differing(parts["batching"])
    if not differing or parts["forced"].status not in _SAME:
        return []
    if differing == {"warm"}:
        where = "the prefix cache: only warm answers differ"
    elif differing == {"at once"}:
        where = "what requests of a batch share: only answers at once differ"
    elif any(line.name == "speculation" and line.candidate == "on" for line in preflight):
        where = "its drafts (speculation is on)"
    else:
        where = "how it samples, and the KV cache"
    return [f"the forced texts agree, which speaks for the same weights: look at {where}"]


def _differing(part: Part) -> set[str]:
    """The states (cold, warm, at once) in which the candidate answers otherwise."""
    found = part.rows.get(CANDIDATE, [])
    assert isinstance(found, list)
    rows: list[greedy.Row] = found
    return {row.state for row in rows if row.count(Likeness.DIFFERENT)}
