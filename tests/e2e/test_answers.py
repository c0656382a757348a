"""The comparison that the engine tests rest on: it sees a difference, and says where."""

from __future__ import annotations

from typing import Any

import pytest

from .answers import answer, differences, summary
from .cases import CASES
from .scenarios import Question
from .server import Reply

QUESTION = Question("one", {})
DOCUMENT = b'{"id": "cmpl-%s", "choices": [{"token_ids": [4, 5], "logprobs": [-0.25, -1.5]}]}'


def test_what_passes_is_not_compared() -> None:
    one, other = (answer(QUESTION, Reply(200, DOCUMENT % name)) for name in (b"a", b"b"))
    assert one == {"choices": [{"token_ids": [4, 5], "logprobs": [-0.25, -1.5]}]}
    assert not list(differences(one, other))


def test_an_error_is_no_answer() -> None:
    with pytest.raises(AssertionError, match="500"):
        answer(QUESTION, Reply(500, DOCUMENT % b"a"))


@pytest.mark.parametrize(
    ("found", "said"),
    [
        ({"tokens": [1, 3], "logprobs": [-1.0]}, "/tokens[1]: 3 for 2"),
        ({"tokens": [1], "logprobs": [-1.0]}, "/tokens: 1 items for 2"),
        ({"tokens": [1, 2], "logprobs": [-1.002]}, "/logprobs[0]: -1.00200 for -1.00000"),
        ({"tokens": [1, 2]}, "/logprobs: only in the wanted one"),
        ({"tokens": [1, 2], "logprobs": [-1.0], "text": ""}, "/text: only in the found one"),
        ({"tokens": [1, 2], "logprobs": [None]}, "/logprobs[0]: None for -1.0"),
    ],
)
def test_a_difference_is_named_by_its_place(found: Any, said: str) -> None:
    assert list(differences(found, {"tokens": [1, 2], "logprobs": [-1.0]})) == [said]


def test_a_rounding_is_no_difference() -> None:
    assert not list(differences([-1.0004], [-1.0]))


def test_a_summary_counts_what_it_leaves_out() -> None:
    assert summary(["a", "b", "c"], 2) == "a\nb\n... and 1 more"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_names_of_a_case_are_different(case: Any) -> None:
    names = [scenario.name for scenario in case.scenarios]
    assert len(set(names)) == len(names)
