"""The pure half of `parity`: events, answers, comparisons, thresholds, verdicts."""

from __future__ import annotations

import itertools
import json
import math
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fixes.errors import FixesError
from fixes.parity import (
    answers,
    comparing,
    forced,
    needles,
    reading,
    speed,
    sse,
    thresholds,
    workload,
)
from fixes.parity.answers import Answer, Positions
from fixes.parity.comparing import Likeness, Noise
from fixes.parity.faults import FaultError, Kind
from fixes.parity.legs import BASELINE, CANDIDATE, CONTROL
from fixes.parity.run import Measured
from fixes.parity.sse import Arrival, Reads, Timeline
from fixes.parity.verdict import Status, judge

QUIET = Noise(0.0)
LIMITS = thresholds.load(None)


def answer(*places: tuple[int, float, int, float]) -> Answer:
    tops = tuple(((one, value), (two, less)) for one, value, two, less in places)
    return Answer(tuple(top[0][0] for top in tops), tops, "")


PLAIN = answer((5, -0.1, 6, -2.0), (7, -0.2, 8, -0.3), (9, -0.1, 4, -4.0))


# Events and timelines


def event(tokens: list[int] | None, usage: int | None = None, text: str = "x") -> bytes:
    choice: dict[str, object] = {"text": text}
    document: dict[str, object] = {"choices": [choice]}
    if tokens is not None:
        choice["token_ids"] = tokens
    if usage is not None:
        document["usage"] = {"completion_tokens": usage}
    return b"data: " + json.dumps(document).encode() + b"\n\n"


DONE = b"data: [DONE]\n\n"


def reads(*several: bytes) -> Reads:
    return Reads(0.0, tuple((float(number), data) for number, data in enumerate(several, 1)))


@given(st.lists(st.integers(0, 200), max_size=12), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_events_do_not_depend_on_how_they_are_read(cuts: list[int], end: bytes) -> None:
    stream = (
        b'data: {"a":1}\n\n: a comment\n\ndata: {"b":\ndata: 2}\n\nid: 7\ndata:[DONE]\n\n'
    ).replace(b"\n", end) + b"data: last\n\n"
    places = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    parts = [stream[a:b] for a, b in itertools.pairwise(places)]
    found = [data for _, data in sse.events(reads(*parts))]
    assert found == [b'{"a":1}', b'{"b":\n2}', b"[DONE]", b"last"]


def test_a_long_line_is_read_in_the_time_that_it_takes() -> None:
    """In 1,000 reads of 64 KiB; put together anew with each, it would be 30 GiB."""
    long = [b"data: ", *[b"x" * 65536] * 1000, b"\n", b"\n"]
    began = time.process_time()
    ((at, data),) = sse.events(reads(*long))
    assert (at, len(data)) == (1003.0, 65536 * 1000)
    assert time.process_time() - began < 5


def test_an_event_is_as_late_as_its_last_part() -> None:
    first, second = event([1]), event([2, 3])
    found = sse.timeline(reads(first[:9], first[9:] + second, DONE), 3, 0)
    assert found.arrivals == (Arrival(2.0, 1), Arrival(2.0, 2))
    assert found.counted == "ids" and found.most == 2


def test_tokens_are_counted_and_not_chunks() -> None:
    by_usage = sse.timeline(reads(event(None, 3), event(None, 4), event(None, 8), DONE), 8, 0)
    assert [arrival.tokens for arrival in by_usage.arrivals] == [3, 1, 4]
    assert by_usage.counted == "usage"
    total = b'data: {"choices": [], "usage": {"completion_tokens": 6}}\n\n'
    spread = sse.timeline(reads(event(None), event(None), event(None), total, DONE), 6, 0)
    assert spread.counted == "total" and spread.tokens == 6
    with pytest.raises(FaultError) as caught:
        sse.timeline(reads(event(None), event(None), DONE), 2, 0)
    assert caught.value.fault.kind is Kind.NO_COUNTS


def test_an_event_without_a_token_is_no_arrival() -> None:
    found = sse.timeline(reads(event([]), event([1]), event([2]), DONE), 2, 0)
    assert [arrival.time for arrival in found.arrivals] == [2.0, 3.0]


def test_a_total_that_does_not_divide_evenly_is_whole() -> None:
    total = b'data: {"choices": [], "usage": {"completion_tokens": 128}}\n\n'
    for chunks in range(1, 129):
        found = sse.timeline(reads(*[event(None)] * chunks, total, DONE), 128, 0)
        assert found.tokens == 128


def test_an_error_that_is_null_is_none() -> None:
    chunk = b'data: {"error": null, "choices": [{"text": "a", "token_ids": [1]}]}\n\n'
    assert sse.timeline(reads(chunk, DONE), 1, 0).tokens == 1


@pytest.mark.parametrize(
    "stream, kind",
    [
        ((event([1, 2, 3]), DONE), Kind.MALFORMED),
        ((event([1, 2], 200), DONE), Kind.MALFORMED),
        ((event(None, 200), DONE), Kind.MALFORMED),
        ((event(None, 2), event(None, 1), DONE), Kind.MALFORMED),
        ((event("ab"), DONE), Kind.MALFORMED),  # type: ignore[arg-type]
        ((event(None, "2"), DONE), Kind.MALFORMED),  # type: ignore[arg-type]
        ((b'data: {"choices": "x"}\n\n', DONE), Kind.MALFORMED),
        ((b'data: {"choices": [], "usage": [2]}\n\n', DONE), Kind.MALFORMED),
        ((b"data: " + b"[" * 200_000 + b"\n\n", DONE), Kind.MALFORMED),
        ((b'data: {"usage": {"prompt_tokens": 2}}\n\n', DONE), Kind.OTHER_PROMPT),
        ((event([1, 2]),), Kind.CUT_SHORT),
        ((event([1]), DONE), Kind.ENDED_EARLY),
        ((event([1, 2]), b'data: {"error": {"message": "dead"}}\n\n', DONE), Kind.SERVER_ERROR),
        ((b"data: <html>\n\n", DONE), Kind.MALFORMED),
        ((b"data: 17\n\n", DONE), Kind.MALFORMED),
        ((), Kind.CUT_SHORT),
        ((DONE,), Kind.ENDED_EARLY),
    ],
)
def test_a_stream_that_is_not_whole_is_none(stream: tuple[bytes, ...], kind: Kind) -> None:
    with pytest.raises(FaultError) as caught:
        sse.timeline(reads(*stream), 2, 3)
    assert caught.value.fault.kind is kind


# Answers


def test_the_documents_of_vllm() -> None:
    """As 0.30.0 writes them: strings for ids in prompt_logprobs, token_id:N in logprobs."""
    document = {
        "choices": [
            {
                "text": " a",
                "token_ids": [7, 9],
                "prompt_token_ids": [1, 2, 3],
                "finish_reason": "length",
                "logprobs": {
                    "tokens": ["token_id:7", "token_id:9"],
                    "token_logprobs": [-0.5, -0.1],
                    "top_logprobs": [
                        {"token_id:7": -0.5, "token_id:8": -1.5},
                        {"token_id:4": -3.0, "token_id:9": -0.1},
                    ],
                },
                "prompt_logprobs": [
                    None,
                    {
                        "2": {"logprob": -4.0, "rank": 9},
                        "5": {"logprob": -1.0, "rank": 1},
                        "6": {"logprob": -1.25, "rank": 2},
                    },
                    {"3": {"logprob": -0.5, "rank": 1}, "8": {"logprob": -2.0, "rank": 2}},
                ],
            }
        ],
        "usage": {"prompt_tokens": 3},
    }
    found = answers.generated(document, [1, 2, 3], 2)
    assert found.tokens == (7, 9) and found.tops[1] == ((9, -0.1), (4, -3.0))
    assert found.gap(0) == 1.0
    positions = answers.prompted(document, [1, 2, 3])
    assert positions.nll.tolist() == [4.0, 0.5]
    assert positions.top.tolist() == [5, 3] and positions.gap.tolist() == [0.25, 1.5]
    with pytest.raises(FaultError) as caught:
        answers.generated(document, [1, 2, 4], 2)
    assert caught.value.fault.kind is Kind.OTHER_PROMPT


@pytest.mark.parametrize("document", [{}, {"choices": []}, {"choices": 3}, [], "text", None])
def test_what_is_no_completion(document: object) -> None:
    with pytest.raises(FaultError) as caught:
        answers.generated(document, [1], 1)
    assert caught.value.fault.kind is Kind.MALFORMED


Change = Callable[[Any], object]


def completion() -> Any:
    """Two tokens after a prompt of two, told in every way."""
    likely = [{"token_id:7": -0.5, "token_id:8": -1.5}, {"token_id:9": -0.1, "token_id:4": -3.0}]
    return {
        "choices": [
            {
                "token_ids": [7, 9],
                "prompt_logprobs": [None, {"2": {"logprob": -4.0}, "5": {"logprob": -1.0}}],
                "logprobs": {"tokens": ["token_id:7", "token_id:9"], "top_logprobs": likely},
            }
        ],
        "usage": {"prompt_tokens": 2},
    }


UNKNOWN: dict[str, tuple[Change, Kind]] = {
    "an id as text": (lambda c: c.update(token_ids=["7", "9"]), Kind.MALFORMED),
    "ids as one text": (lambda c: c.update(token_ids="79"), Kind.MALFORMED),
    "ids that are always 0": (lambda c: c.update(token_ids=[0, 0]), Kind.MALFORMED),
    "names that are numbers": (lambda c: c["logprobs"].update(tokens=[7, 9]), Kind.MALFORMED),
    "tops that are lists": (
        lambda c: c["logprobs"].update(top_logprobs=[[1], [2]]),
        Kind.MALFORMED,
    ),
    **{
        f"a log-probability {value!r}": (
            lambda c, value=value: c["logprobs"]["top_logprobs"][1].update({"token_id:4": value}),
            Kind.NO_LOGPROBS,
        )
        for value in (math.nan, -math.inf, None, "-3.0", True)
    },
    "a log-probability beyond any": (
        lambda c: c["logprobs"]["top_logprobs"][1].update({"token_id:4": -(10**400)}),
        Kind.MALFORMED,
    ),
}


@pytest.mark.parametrize("case", UNKNOWN)
def test_what_is_not_known_is_no_answer(case: str) -> None:
    change, kind = UNKNOWN[case]
    assert answers.generated(completion(), [1, 2], 2).tokens == (7, 9)
    document = completion()
    change(document["choices"][0])
    with pytest.raises(FaultError) as caught:
        answers.generated(document, [1, 2], 2)
    assert caught.value.fault.kind is kind


@pytest.mark.parametrize("value", [math.nan, -math.inf, None, "-1.0"])
def test_a_position_that_is_not_known_is_none(value: object) -> None:
    assert len(answers.prompted(completion(), [1, 2])) == 1
    document = completion()
    document["choices"][0]["prompt_logprobs"][1]["5"]["logprob"] = value
    with pytest.raises(FaultError) as caught:
        answers.prompted(document, [1, 2])
    assert caught.value.fault.kind is Kind.NO_PROMPT_LOGPROBS


def test_an_error_with_status_200_is_the_servers() -> None:
    with pytest.raises(FaultError, match=r'server-error: with status 200: "dead"'):
        answers.generated({"error": {"message": "dead"}}, [1], 1)


# Comparing


def test_the_same_answer_has_no_divergence() -> None:
    found = comparing.pair("q", PLAIN, PLAIN, QUIET)
    assert found.likeness is Likeness.SAME and found.tokens == 3 and found.largest == 0


def test_a_divergence_has_its_tokens_probabilities_and_gaps() -> None:
    other = answer((5, -0.1, 6, -2.0), (8, -0.22, 7, -0.27), (1, -0.1, 2, -4.0))
    found = comparing.pair("q", PLAIN, other, QUIET).divergence
    assert found and found.place == 1 and found.tokens == (7, 8)
    assert found.probabilities == (-0.2, -0.27, -0.3, -0.22)
    assert found.gaps == pytest.approx((0.1, 0.05))
    assert found.likeness is Likeness.DIFFERENT  # a control without noise allows none


def test_the_noise_decides_what_a_divergence_is() -> None:
    near = answer((5, -0.1, 6, -2.0), (8, -0.22, 7, -0.27), (1, -0.1, 2, -4.0))
    assert comparing.pair("q", PLAIN, near, Noise(0.05)).likeness is Likeness.WITHIN_NOISE
    assert comparing.pair("q", PLAIN, near, Noise(0.04)).likeness is Likeness.DIFFERENT
    sure = answer((5, -0.1, 6, -2.0), (8, -0.01, 7, -5.0))  # what it prefers, it prefers by far
    assert comparing.pair("q", PLAIN, sure, Noise(0.05)).likeness is Likeness.DIFFERENT
    third = answer((5, -0.1, 6, -2.0), (3, -0.22, 7, -0.27))
    assert comparing.pair("q", PLAIN, third, Noise(0.05)).likeness is Likeness.DIFFERENT


def test_an_answer_that_stops_is_another_one() -> None:
    shorter = Answer(PLAIN.tokens[:2], PLAIN.tops[:2], "")
    for one, other in ((PLAIN, shorter), (shorter, PLAIN)):
        found = comparing.pair("q", one, other, Noise(0.4))
        assert found.likeness is Likeness.DIFFERENT and found.tokens == 2


def test_noise_is_the_largest_change_before_answers_part() -> None:
    other = answer((5, -0.11, 6, -2.03), (8, -0.28, 7, -0.3), (1, -90.0, 2, -91.0))
    assert comparing.noise([(PLAIN, other)]).logprob == pytest.approx(0.1)
    assert comparing.noise([(PLAIN, PLAIN)]).gap == 0
    assert comparing.noise([], 0.2, floor=0.3).gap == pytest.approx(0.6)


def test_tokens_that_only_one_of_two_tells_are_noise() -> None:
    """Token 5 has -0.1 in one, and at most -2 in the other."""
    one, other = answer((5, -0.1, 6, -2.0)), answer((7, -0.1, 8, -2.0))
    assert comparing.noise([(one, other)]).logprob == pytest.approx(1.9)
    assert comparing.noise([(one, one)]).logprob == 0


def positions(nll: list[float], top: list[int], gap: float = 1.0) -> Positions:
    """At every position the tokens 1 to 9 are likely; all but the top one are behind by the gap."""
    likely = tuple({token: -0.1 - gap * (token != one) for token in range(1, 10)} for one in top)
    return Positions(np.array(nll), np.array(top), np.full(len(nll), gap), likely)


def test_agreement_over_texts_that_both_have() -> None:
    one = {"a": positions([1.0, 2.0], [4, 5]), "b": positions([3.0], [6]), "c": positions([9], [9])}
    other = {"a": positions([1.0, 2.5], [4, 7]), "b": positions([3.0], [6])}
    found = forced.agreement(one, other, QUIET)
    assert (found.positions, found.agreeing, found.different) == (3, 2, 1)
    assert found.nll == pytest.approx((2.0, 6.5 / 3))
    assert found.largest == 0.5 and found.largest_at == ("a", 2)
    assert found.differing[0].place == 2 and found.differing[0].tokens == (5, 7)
    assert forced.agreement(one, other, Noise(0.6)).different == 0
    assert forced.agreement(one, other, Noise(0.6)).close == 3
    assert forced.agreement(one, {"a": positions([1.0, 2.0], [4, 99])}, Noise(0.6)).different == 1
    assert math.isnan(forced.agreement({}, other, QUIET).nll[0])
    assert forced.profile(one, other).tolist() == [0.0, 0.5, 0.0]


# Speed


def timeline(*arrivals: tuple[float, float]) -> Timeline:
    tokens = sum(count for _, count in arrivals)
    return Timeline(0.0, tuple(Arrival(*one) for one in arrivals), int(tokens), "ids")


def test_rates_begin_after_the_first_chunk() -> None:
    """One second of prefill, then ten tokens a second, in chunks of one and of four."""
    single = timeline((1.0, 1), *((1 + n / 10, 1) for n in range(1, 11)))
    chunks = timeline((1.0, 3), (1.4, 4), (1.8, 4))
    for one in (single, chunks):
        assert speed.decode(one) == pytest.approx(10)
    assert speed.between([single, chunks]) == pytest.approx([0.1] * 18)
    measured = speed.Round("a", 2, 1, (single, chunks))
    assert measured.aggregate == pytest.approx(11)  # 22 tokens in 2 seconds, prefill too
    assert measured.first.tolist() == [1.0, 1.0]
    assert math.isnan(speed.decode(timeline((1.0, 5))))


def test_ratios_are_of_the_same_repeat() -> None:
    def measured(leg: str, repeat: int, rate: float) -> speed.Round:
        return speed.Round(leg, 1, repeat, (timeline((1.0, 1), (1 + 1 / rate, 1)),))

    rounds = [measured("a", 1, 10), measured("b", 1, 5), measured("a", 2, 40), measured("b", 2, 20)]
    (found,) = speed.ratios([*rounds, measured("b", 3, 77)], "a", "b")
    assert [found.decode.least, found.decode.most] == pytest.approx([0.5, 0.5])
    first, second = speed.figures(rounds)
    assert (first.decode.least, first.decode.most) == pytest.approx((10, 40))
    assert second.leg == "b" and second.repeats == 2


# Needles


def test_a_needle_is_found_exactly() -> None:
    needle = needles.Needle(1000, 0.5, "Arden", "amber-1234")
    for text, told in {
        " amber-1234.": True,
        "amber-1234": True,
        " amber-12345": False,
        " Amber-1234": False,
        " the code amber-1234": False,
        "": False,
    }.items():
        assert needle.found_in(Answer((), (), text)) is told, text


@given(st.integers(100, 20_000), st.lists(st.integers(1, 20_000), min_size=1, max_size=4))
def test_needles_fit_the_context(context: int, lengths: list[int]) -> None:
    plan = needles.plan(lengths, (0.0, 0.5, 1.0), context)
    assert all(needle.tokens <= context - needles.RESERVE for needle in plan)
    assert bool(plan) == (context > needles.RESERVE)
    for needle in plan:
        if needle.tokens >= 20:
            prompt = needles.haystack(range(10**6), needle, [-1] * 8, [-2] * 12)
            assert len(prompt) == needle.tokens and prompt[-12:] == [-2] * 12
            assert prompt.count(-1) == 8


# What is asked


def test_texts_and_prompts_come_with_the_tool() -> None:
    texts = workload.texts()
    assert len(texts) == 9 and sum(map(len, texts.values())) > 25_000
    assert len(workload.prompts(None)) == 12
    scripts = "".join(texts.values())
    for letter in "жλعש春の할कบßéñ":
        assert letter in scripts, letter


@given(st.integers(1, 3000), st.integers(2, 400))
def test_sequences_have_the_positions_asked_for(count: int, context: int) -> None:
    tokenized = {"a": range(900), "b": range(10), "c": range(1)}
    found = workload.sequences(tokenized, count, context)
    assert all(2 <= len(part) <= context - 1 or context == 2 for part in found.values())
    got = sum(len(part) - 1 for part in found.values())
    assert got <= count
    if context > 900:
        assert got == min(count, 908)


def test_hay_does_not_end_and_does_not_repeat() -> None:
    lines = [text for _, text in zip(range(3000), workload.hay(), strict=False)]
    assert len(set(lines)) == 3000


@pytest.mark.parametrize(
    "content, what",
    [
        ("", "holds no prompt"),
        ("\n\n", "holds no prompt"),
        ('{"prompt": "a"}\nprompt\n', ":2"),
        ('{"prompt": ""}', ":1"),
        ('{"text": "a"}', ":1"),
        ('["a"]', ":1"),
        ('{"prompt": "a"}\n{"prompt": "\\ud800"}', ":2"),
        ('{"prompt": 7}', ":1"),
        ("[" * 100_000, ":1"),
    ],
)
def test_prompts_that_are_none(tmp_path: Path, content: str, what: str) -> None:
    path = tmp_path / "prompts.jsonl"
    path.write_text(content)
    with pytest.raises(FixesError, match=r"bad-prompts") as caught:
        workload.prompts(path)
    assert what in str(caught.value)


@pytest.mark.parametrize(
    "content, what",
    [
        ("[greedy]\nmax_diferent = 1", "there is no greedy.max_diferent"),
        ("[gredy]\nmax_different = 1", "there is no gredy.max_different"),
        ("greedy = 3", "there is no greedy"),
        ("[greedy]\nmax_different = -1", "cannot be -1"),
        ("[greedy]\nmax_different = 0.5", "cannot be 0.5"),
        ("[noise]\nfloor = true", "cannot be True"),
        ("[noise]\nceiling = nan", "cannot be nan"),
        ("[noise]\nceiling = inf", "cannot be inf"),
        ("[noise]\nfloor = 0.6", "floor is above noise.ceiling"),
        ("[greedy]\nmax_different = '1'", "cannot be '1'"),
        ("[preflight]\nmust_equal = ['tokeniser']", "cannot be"),
        ("[preflight", "is not TOML"),
    ],
)
def test_thresholds_that_are_none(tmp_path: Path, content: str, what: str) -> None:
    path = tmp_path / "thresholds.toml"
    path.write_text(content)
    with pytest.raises(FixesError, match="bad-thresholds") as caught:
        thresholds.load(path)
    assert what in str(caught.value) and caught.value.exit_code == 2


def test_thresholds_are_laid_over_the_defaults(tmp_path: Path) -> None:
    path = tmp_path / "thresholds.toml"
    path.write_text("[noise]\nfloor = 0.25\n[preflight]\nmust_equal = []\n")
    found = thresholds.load(path)
    assert found.noise_floor == 0.25 and found.preflight_must_equal == []
    assert found.greedy_max_different == LIMITS.greedy_max_different
    assert set(found.document()) == {
        "preflight",
        "noise",
        "greedy",
        "batching",
        "forced",
        "needles",
        "speed",
    }


# Verdicts


def measured(**legs: Answer) -> Measured:
    """One greedy answer by leg, and nothing else."""
    return Measured(
        greedy={"cold": {leg: {"prompt 1": one} for leg, one in legs.items()}},
        asked={"greedy": 1},
    )


def test_identical_needs_a_control() -> None:
    whole = measured(baseline=PLAIN, candidate=PLAIN, control=PLAIN)
    assert judge(whole, LIMITS, True).status is Status.IDENTICAL
    without = measured(baseline=PLAIN, candidate=PLAIN)
    found = judge(without, LIMITS, True)
    assert found.status is Status.INCOMPLETE
    assert found.reasons == ["greedy: 0 of 1 could be compared"]


def test_a_difference_is_one_even_if_something_is_missing() -> None:
    other = answer((6, -0.1, 5, -2.0))
    found = judge(measured(baseline=PLAIN, candidate=other), LIMITS, True)
    assert found.status is Status.DIFFERENT
    assert "first at token 1: 6 for 5, where its first token leads by 1.9" in found.reasons[0]


def test_an_unsteady_baseline_proves_nothing() -> None:
    shaken = answer((5, -0.9, 6, -2.0), (7, -0.2, 8, -0.3), (9, -0.1, 4, -4.0))
    found = judge(measured(baseline=PLAIN, candidate=PLAIN, control=shaken), LIMITS, True)
    assert found.status is Status.INCOMPLETE and "ceiling" in found.reasons[0]


def test_a_baseline_that_parts_from_itself_is_not_identical() -> None:
    """The candidate agrees with the baseline; the control does not."""
    own = answer((5, -0.1, 6, -2.0), (8, -0.24, 7, -0.26), (9, -0.1, 4, -4.0))
    found = judge(measured(baseline=PLAIN, candidate=PLAIN, control=own), LIMITS, True)
    assert found.status is Status.WITHIN_NOISE
    assert found.reasons == ["greedy: cold: 1 of 1 of the baseline's answers part from its own"]
    alone = judge(measured(baseline=PLAIN, control=own), LIMITS, False)
    assert alone.status is Status.MEASURED and alone.reasons == found.reasons
    stopped = Answer(PLAIN.tokens[:2], PLAIN.tops[:2], "")
    found = judge(measured(baseline=PLAIN, candidate=PLAIN, control=stopped), LIMITS, True)
    assert found.status is Status.INCOMPLETE and "part beyond its noise" in found.reasons[0]


def forced_of(**legs: Positions) -> Measured:
    return Measured(forced={leg: {"a": one} for leg, one in legs.items()}, asked={"forced": 2})


def test_forced_is_identical_only_where_nothing_differs() -> None:
    plain = positions([1.0, 2.0], [4, 5])
    assert (
        judge(forced_of(baseline=plain, candidate=plain, control=plain), LIMITS, True).reasons == []
    )
    shifted = positions([1.00001, 2.0], [4, 5])
    found = judge(forced_of(baseline=plain, candidate=shifted, control=plain), LIMITS, True)
    assert found.status is Status.WITHIN_NOISE and "differs by 1e-05" in found.reasons[0]
    found = judge(forced_of(baseline=plain, candidate=plain, control=shifted), LIMITS, True)
    assert found.status is Status.WITHIN_NOISE and "from itself by 1e-05" in found.reasons[0]
    turned = positions([1.0, 2.0], [4, 6])
    found = judge(forced_of(baseline=plain, candidate=plain, control=turned), LIMITS, True)
    assert found.status is Status.INCOMPLETE and "own likeliest token" in found.reasons[0]


NEEDLE = needles.Needle(1000, 0.5, "Arden", "amber-1234")
TOLD, MISSED = Answer((), (), " amber-1234."), Answer((), (), " nothing")


@pytest.mark.parametrize(
    "baseline, control, candidate, status, reason",
    [
        (TOLD, TOLD, TOLD, Status.IDENTICAL, ""),
        (TOLD, TOLD, MISSED, Status.DIFFERENT, "lost what the baseline found"),
        (MISSED, MISSED, TOLD, Status.WITHIN_NOISE, "found what the baseline did not"),
        (TOLD, MISSED, MISSED, Status.WITHIN_NOISE, "only once of two times"),
        (TOLD, MISSED, TOLD, Status.WITHIN_NOISE, "only once of two times"),
        (MISSED, MISSED, MISSED, Status.MEASURED, "the baseline finds none"),
    ],
)
def test_needles_are_identical_only_where_there_is_one_to_lose(
    baseline: Answer, control: Answer, candidate: Answer, status: Status, reason: str
) -> None:
    legs = {BASELINE: baseline, CONTROL: control, CANDIDATE: candidate}
    found = Measured(
        needles=[NEEDLE],
        needled={leg: {NEEDLE.name: one} for leg, one in legs.items()},
        asked={"needles": 1},
    )
    (part,) = [one for one in judge(found, LIMITS, True).parts if one.name == "needles"]
    assert part.status is status and reason in "".join(part.reasons)


def test_a_rate_that_is_not_known_is_not_below_a_threshold() -> None:
    limits = replace(LIMITS, speed_min_decode_ratio=0.5)
    rounds = [
        speed.Round(leg, 1, 1, (timeline((1.0, 8)),)) for leg in (BASELINE, CANDIDATE, CONTROL)
    ]
    found = judge(Measured(rounds=rounds, asked={"speed": 1}), limits, True)
    assert found.status is Status.INCOMPLETE and "all tokens came at once" in found.reasons[0]


def test_within_the_noise_is_not_called_identical() -> None:
    near = answer((5, -0.1, 6, -2.0), (8, -0.22, 7, -0.27), (1, -0.1, 2, -4.0))
    own = answer((5, -0.1, 6, -2.1), (7, -0.2, 8, -0.3), (9, -0.1, 4, -4.0))
    found = judge(measured(baseline=PLAIN, candidate=near, control=own), LIMITS, True)
    assert found.status is Status.WITHIN_NOISE
    assert found.noise.logprob == pytest.approx(0.1)


def test_the_answers_at_once_have_a_noise_of_their_own() -> None:
    """What a batch changes of the baseline's own answer is no difference of the candidate."""
    batched = answer((5, -0.15, 6, -2.0), (7, -0.25, 8, -0.26), (9, -0.1, 4, -4.0))
    near = answer((5, -0.15, 6, -2.0), (8, -0.25, 7, -0.26), (9, -0.1, 4, -4.0))
    whole = measured(baseline=PLAIN, candidate=PLAIN, control=PLAIN)
    whole.batched = {
        leg: {"prompt 1": near if leg == CANDIDATE else batched}
        for leg in (BASELINE, CANDIDATE, CONTROL)
    }
    whole.asked["batching"] = 1
    found = judge(whole, LIMITS, True)
    assert [part.status.value for part in found.parts[:2]] == ["identical", "within-noise"]
    assert found.batch_noise.logprob == pytest.approx(0.05) and found.noise.logprob == 0


@pytest.mark.parametrize(
    ("states", "where"),
    [
        ({"cold", "warm"}, "how it samples"),
        ({"warm"}, "the prefix cache"),
        ({"at once"}, "a batch"),
    ],
)
def test_answers_that_differ_alone_tell_where_to_look(states: set[str], where: str) -> None:
    other = answer((6, -0.1, 5, -2.0))

    def asked(state: str) -> dict[str, dict[str, Answer]]:
        legs = {BASELINE: PLAIN, CANDIDATE: other if state in states else PLAIN, CONTROL: PLAIN}
        return {leg: {"prompt 1": one} for leg, one in legs.items()}

    whole = Measured(
        greedy={state: asked(state) for state in ("cold", "warm")},
        batched=asked("at once"),
        forced={
            leg: {"text": positions([1.0, 2.0], [4, 5])} for leg in (BASELINE, CANDIDATE, CONTROL)
        },
        asked={"greedy": 1, "batching": 1, "forced": 2},
    )
    (hint,) = reading.hints(judge(whole, LIMITS, True), ())
    assert where in hint
    whole.forced = {}  # where nothing was forced, nothing is known of the weights
    assert reading.hints(judge(whole, LIMITS, True), ()) == []
