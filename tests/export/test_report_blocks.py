"""The blocks of reports: samples of rows, and distributions."""

from collections import Counter
from functools import partial

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.export.report_blocks import RowSample, Spread, make_histogram


@given(st.lists(st.text(), max_size=30), st.integers(1, 12), st.booleans())
def test_all_rows_are_listed_and_the_same_ones_are_drawn_in_any_order(
    keys: list[str], most: int, is_wanted: bool
) -> None:
    drawn = []
    for order in (keys, list(reversed(keys))):
        sample = RowSample(most, 1_000_000)
        for number, key in enumerate(order):
            wanted = is_wanted and number == 0
            sample.add({"id": key}, lambda key=key: {"body": key}, key, is_wanted=wanted)
        raws, whole = sample.rows()
        rows = [msgspec.json.decode(raw) for raw in raws]
        assert [row["id"] for row in rows] == order
        found = [row["body"] for row in rows if "body" in row]
        assert len(found) == whole == min(most, len(keys))
        assert all(row["body"] == row["id"] for row in rows if "body" in row)
        if is_wanted and order:
            assert "body" in rows[0]
        drawn.append(Counter(found))
    if not is_wanted:
        assert drawn[0] == drawn[1]


def test_bodies_end_where_there_is_no_more_room() -> None:
    sample = RowSample(10, 250)
    for number in range(10):
        sample.add({"id": str(number)}, lambda: {"body": "x" * 100}, str(number))
    rows, whole = sample.rows()
    assert (len(rows), whole) == (10, 2)


@pytest.mark.parametrize(("most", "room"), [(3, 1_000_000), (10, 250)])
def test_each_row_is_found_by_the_words_of_its_texts(most: int, room: int) -> None:
    """Rules out that a search misses a row because it was not drawn, or has no room."""
    sample = RowSample(most, room)
    for number in range(10):
        text = f"Word{number} word{number} and\nmore"
        sample.add(
            {"id": str(number)},
            partial(dict, body=text * 5),
            str(number),
            texts=lambda text=text: [text],
        )
    rows, _ = sample.rows()
    for number, raw in enumerate(rows):
        row = msgspec.json.decode(raw)
        assert f"word{number}" in str(row).lower()
        assert row.get("words", f"word{number} and more") == f"word{number} and more"
        assert ("words" in row) is not ("body" in row)


@given(st.lists(st.integers(0, 100_000), min_size=1, max_size=200))
def test_the_bins_of_a_distribution_hold_all_values(values: list[int]) -> None:
    blocks = make_histogram("t", Spread(Counter(values)), "rows")
    if not any(values):
        assert blocks == ()
        return
    bins = blocks[0].bins
    assert sum(count for _, _, count in bins) == len(values)
    assert (bins[0][0], max(bins[-1][1], max(values))) == (min(values), bins[-1][1])
    for low, high, count in bins:
        assert sum(low <= value <= high for value in values) == count
