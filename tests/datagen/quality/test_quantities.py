"""Values in texts: each word of the data is found, and texts without a value have none."""

import pytest

from treadle.datagen.quality.quantities import Quantity, QuantityKind, find_quantities, lexicon


def only(text: str) -> Quantity:
    (found,) = find_quantities(text)
    return found


@pytest.mark.parametrize("change", [str.lower, str.capitalize, str.upper])
def test_each_number_and_fraction_in_words_is_found(change):
    for word, value in lexicon("numbers").items():
        assert only(f"It has {change(word)} of them.").value == value
    for word, value in lexicon("fractions").items():
        assert only(f"It was a {change(word)} of it.").value == value


def test_each_month_is_found_before_and_after_its_day():
    months = ("January", "mars", "APRIL", "Juni", "juli", "August", "sept.", "Oktober", "november", "des")
    for month in (*months, "feb", "May"):
        for text in (f"on {month} 7", f"on 7 {month}", f"on the 7th of {month}", f"den 7. {month}"):
            assert [item.kind for item in find_quantities(text)] == [QuantityKind.DATE], text


@pytest.mark.parametrize("text", ["7", "-33", "+3", "2024", "007"])
def test_a_text_that_is_a_number_is_read_as_within_a_sentence(text):
    inside = only(f"x {text} x")
    found = only(text)
    assert (found.kind, found.value, found.slack, found.unit) == (
        inside.kind, inside.value, inside.slack, inside.unit,
    )  # fmt: skip
    assert (found.start, found.end) == (0, len(text))


def test_texts_without_values():
    for text in ("rush", "a/b", "v", "march on", "no-one", ""):
        assert find_quantities(text) == []
