"""Calls are compared by value. The labels of 500 pairs were written before the code that is tested here."""

import json
from pathlib import Path
from typing import Any

import pytest

from treadle.scoring.call_matching import (
    ExpectedCall,
    MatchRules,
    count_in_order,
    find_call_fault,
    is_same_value,
    pair_up,
)

LINES = [
    json.loads(line) for line in Path(__file__).with_name("call_pairs.jsonl").read_text("utf-8").splitlines()
]
TOOLS, PAIRS = LINES[0]["tools"], LINES[1:]


def find_fault(pair: dict[str, Any]) -> str | None:
    expected = ExpectedCall(pair["tool"], pair["expected"])
    return find_call_fault(expected, pair["name"], pair["made"], TOOLS[pair["tool"]])


def test_the_labels_of_500_pairs_agree() -> None:
    assert len(PAIRS) >= 500
    assert 150 <= sum(pair["is_match"] for pair in PAIRS) <= 350
    wrong = [pair for pair in PAIRS if (find_fault(pair) is None) is not pair["is_match"]]
    assert len(wrong) <= 0.02 * len(PAIRS), wrong


@pytest.mark.parametrize(
    ("made", "fault"),
    [
        ({"city": "Rome", "days": 2}, None),
        ({"city": "Rome", "days": 3}, None),
        ({"city": "Rome"}, "the argument 'days' of 'f' is missing"),
        ({"city": "Rome", "days": 4}, "the argument 'days' of 'f' is 4 in place of 2"),
        ({"city": "rome", "days": 2}, "the argument 'city' of 'f' is 'rome' in place of 'Rome'"),
        ({"city": "Rome", "days": 2, "x": 1}, "'f' has the argument 'x', which is 1"),
        ([], "the arguments of 'f' are not an object"),
    ],
)
def test_a_fault_says_what_differs(made: Any, fault: str | None) -> None:
    expected = ExpectedCall("f", {"city": "Rome", "days": 2}, accepted={"days": [3]})
    assert find_call_fault(expected, "f", made) == fault


def test_optional_arguments_and_rules() -> None:
    expected = ExpectedCall("f", {"city": "Rome", "days": 2}, optional=["days"])
    assert find_call_fault(expected, "f", {"city": "Rome"}) is None
    assert find_call_fault(expected, "f", {"city": "Rome", "days": 5}) is not None
    assert find_call_fault(expected, "f", {"city": "ROME"}, rules=MatchRules(ignores_case=True)) is None
    assert is_same_value([1, 2], [2, 1], rules=MatchRules(ignores_order=True))
    assert not is_same_value([1, 2], [2, 1])
    assert not is_same_value([1, 1, 2], [1, 2, 2], rules=MatchRules(ignores_order=True))


def test_pairs_and_order() -> None:
    def is_near(one: int, other: int) -> bool:
        return abs(one - other) <= 1

    # The first fitting partner of 1 is the only one of 2.
    assert pair_up([1, 3], [2, 1], is_near) == {0: 1, 1: 0}
    assert count_in_order("abc", "xaxbxc", str.__eq__) == 3
    assert count_in_order("abc", "cba", str.__eq__) == 1
    assert count_in_order("abc", "", str.__eq__) == 0
