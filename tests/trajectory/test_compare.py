"""Comparing results, except for the parts that tools declare may differ."""

import pytest

from treadle import tool
from treadle.core.errors import ConfigError
from treadle.core.types import ToolResult
from treadle.trajectory.rerun import is_same, shows_clock


def same(recorded: str, found: str, *rules: str) -> bool:
    return is_same(ToolResult("c", "t", recorded), ToolResult("c", "t", found), rules)


@pytest.mark.parametrize(
    ("recorded", "found"),
    [
        ("at 2026-01-02T03:04:05Z", "at 2027-11-12T13:14:15.678Z"),
        ("2026-01-02 03:04:05 +01:00 x", "2026-01-03 03:04:06 UTC x"),
        ("Mon Jan  2 03:04:05", "Mon Jan  2 03:04:09"),
        ("took until 03:04:05", "took until 13:24:35,123"),
        ('{"t": 1767323045}', '{"t": 1767323099.25}'),
        ("1767323045123", "1767323099123"),
    ],
)
def test_timestamps_may_differ_where_that_is_declared(recorded: str, found: str) -> None:
    assert same(recorded, found, "timestamps")
    assert not same(recorded, found)


@pytest.mark.parametrize("text", ["5 items", "id 12345", "v1.2.3", "12:30", "99999999999999999999"])
def test_other_numbers_are_no_timestamps(text: str) -> None:
    assert not same(text, text.replace("2", "7").replace("5", "6").replace("9", "8"), "timestamps")


def test_order_is_of_lines_or_of_json() -> None:
    assert same("b\na\n", "a\nb", "order")
    assert same('[{"a": [1, 2]}, 3]', '[3, {"a": [2, 1]}]', "order")
    assert not same("b\na", "a\nc", "order")
    assert not same("b\na", "a\nb")
    assert not same("[1, 1]", "[1]", "order")


def test_a_pattern_says_what_else_may_differ() -> None:
    assert same("id 4f2a at 2026-01-02", "id 99 at 2027-01-02", r"id \w+", "timestamps")
    assert not same("id 4f2a ok", "id 99 no", r"id \w+")


def test_an_error_is_never_the_same_as_a_success() -> None:
    recorded, found = ToolResult("c", "t", "x"), ToolResult("c", "t", "x", is_error=True)
    assert not is_same(recorded, found, ("order",))


def test_a_tool_declares_its_rules() -> None:
    @tool(effect="pure", may_differ=("timestamps", r"id \w+"))
    async def now() -> str:
        return ""

    assert now.spec.may_differ == ("timestamps", r"id \w+")
    with pytest.raises(ConfigError, match="not a regular expression"):
        tool(now, may_differ=["("])


NOW = 1_763_807_767.4  # 2025-11-22 10:36:07 UTC


@pytest.mark.parametrize(
    "text",
    [
        '{"datetime": "2025-11-22T21:36:07+11:00"}',
        "it is 2025-11-22 16:06:07 here",
        "Sat Nov 22 10:36:07 UTC 2025",
        "Sat, 22 Nov 2025 11:36:07 +0100",
        "at 1763807767",
        "at 1763807767123",
        "at 1763807767.25",
    ],
)
def test_the_time_of_a_call_is_found(text: str) -> None:
    assert shows_clock(text, NOW, NOW + 0.1)
    assert not shows_clock(text, NOW + 10, NOW + 10.1)


@pytest.mark.parametrize(
    "text", ["2025-11-22", "10:36:07", "2025-11-21T10:36:07Z", "2023-11-22 10:36:07", "2025-13-45T10:36:07"]
)
def test_other_times_are_no_sign_of_a_clock(text: str) -> None:
    assert not shows_clock(text, NOW, NOW + 0.1)


@pytest.mark.parametrize("levels", [700, 100_000])
def test_results_that_are_nested_deeply_are_compared_as_texts(levels: int) -> None:
    text = f"{'[' * levels}{']' * levels}"
    assert same(f"{text}\na", f"a\n{text}", "order")
    assert same(text, f"{text}\n", "order")
