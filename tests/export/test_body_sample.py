"""The rows of a page in one file: which have their bodies, and by which words the others are found."""

from functools import partial

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.export.body_sample import BodySample


@given(st.lists(st.text(), max_size=30), st.integers(1, 12), st.booleans())
def test_the_same_rows_are_drawn_in_any_order(keys: list[str], most: int, is_wanted: bool) -> None:
    drawn = []
    for order in (keys, list(reversed(keys))):
        sample = BodySample(most, 1_000_000)
        for number, key in enumerate(order):
            sample.add(key, lambda key=key: {"body": key}, is_wanted=is_wanted and number == 0)
        found = {place: msgspec.json.decode(raw)["body"] for place, raw in sample.take()[0].items()}
        assert len(found) == min(most, len(keys))
        assert all(order[place] == body for place, body in found.items())
        if is_wanted and order:
            assert 0 in found
        drawn.append(sorted(found.values()))
    if not is_wanted:
        assert drawn[0] == drawn[1]


def test_bodies_end_where_there_is_no_more_room() -> None:
    sample = BodySample(10, 250)
    for number in range(10):
        sample.add(str(number), lambda: {"body": "x" * 100})
    assert len(sample.take()[0]) == 2


@pytest.mark.parametrize(("most", "room"), [(3, 1_000_000), (10, 250)])
def test_each_row_is_found_by_the_words_of_its_texts(most: int, room: int) -> None:
    """Rules out that a search misses a row because it was not drawn, or has no room."""
    sample = BodySample(most, room)
    for number in range(10):
        text = f"Word{number} word{number} and\nmore"
        sample.add(str(number), partial(dict, body=text * 5), texts=lambda text=text: [text])
    bodies, words = sample.take()
    assert sorted([*bodies, *words]) == list(range(10))
    assert all(text == f"word{place} and more" for place, text in words.items())
