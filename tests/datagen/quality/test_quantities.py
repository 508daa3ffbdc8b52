"""Values in texts: each word of the data is found, and texts without a value have none."""

import re
import tomllib
from pathlib import Path

import pytest

from treadle.datagen.quality.figures.figure_reader import find_quantities, read_number
from treadle.datagen.quality.figures.quantities import Quantity, QuantityKind, lexicon, unit_of
from treadle.datagen.quality.statements.doubts import shape
from treadle.datagen.quality.statements.statements import gate, words_in


def only(text: str) -> Quantity:
    (found,) = find_quantities(text)
    return found


FORMS = [
    # text, kind, value, unit
    ("1 234,50 €", "number", 1234.5, "€"),
    ("1\u202f234.50", "number", 1234.5, ""),
    ("1'234", "number", 1234, ""),
    ("1.2k", "number", 1200, ""),
    ("EUR 1,190.00", "number", 1190, "EUR"),
    ("kr51.68", "number", 51.68, "kr"),
    ("9 dollars and 57 cents", "number", 9.57, "dollars"),
    ("42·9 cm", "number", 42.9, "cm"),
    ("18 point 25 kg", "number", 18.25, "kg"),
    ("6 and a half m", "number", 6.5, "m"),
    ("2,600 ± 100 NOK", "number", 2600, "NOK"),
    ("1,400, plus or minus 100 kroner", "number", 1400, "kroner"),
    ("80 Mbit", "number", 80, "Mbit"),
    ("3 foot-candles", "number", 3, "foot-candles"),
    ("forty%", "number", 40, "%"),
    ("6.6 hectares", "number", 6.6, "hectares"),
    ("14.5 knots", "number", 14.5, "knots"),
    ("26 miles per hour", "number", 26, "miles per hour"),
    ("1805 hrs", "time", 18 * 60 + 5, ""),
    ("24 euros 50", "number", 24.5, "euros"),
    ("3½ kg", "number", 3.5, "kg"),
    ("2 1/2", "number", 2.5, ""),
    ("two and a half", "number", 2.5, ""),
    ("two thousand three hundred and forty-five", "number", 2345, ""),
    ("twelve hundred", "number", 1200, ""),
    ("half a million", "number", 500_000, ""),
    ("half a dozen", "number", 6, ""),
    ("two dozen", "number", 24, ""),
    ("four point five", "number", 4.5, ""),
    ("minus nine", "number", -9, ""),
    ("1.5e6", "number", 1_500_000, ""),
    ("three quarters of an hour", "number", 0.75, "hour"),
    ("an hour and a half", "number", 1.5, "hour"),
    ("2 hrs 5 min", "number", 2 + 5 / 60, "hrs"),
    ("7 KiB", "number", 7, "KiB"),
    ("5 percentage points", "number", 5, "%"),
    ("tjueto", "number", 22, ""),
    ("zwölfeinhalb Stunden", "number", 12.5, "Stunden"),
    ("¾", "share", 0.75, ""),
    ("3/4", "share", 0.75, ""),
    ("two thirds", "share", 2 / 3, ""),
    ("one in 400", "share", 1 / 400, ""),
    ("3:1", "share", 3, ""),
    ("tre fjerdedeler", "share", 0.75, ""),
    ("5pm", "time", 17 * 60, ""),
    ("17:05:00Z", "time", 17 * 60 + 5, ""),
    ("17 minutes to two in the afternoon", "time", 13 * 60 + 43, ""),
    ("2h 43m", "number", 2 + 43 / 60, "h"),
    ("2 h 32", "number", 2 + 32 / 60, "h"),
    ("A$10", "number", 10, "A$"),
    ("5.80 Australian dollars", "number", 5.8, "Australian dollars"),
    ("₹8,068.50", "number", 8068.5, "₹"),
    ("12 zł", "number", 12, "zł"),
    ("quarter to three", "time", 2 * 60 + 45, ""),
    ("half past two", "time", 2 * 60 + 30, ""),
    ("kl. 13.30", "time", 13 * 60 + 30, ""),
    ("halv to", "time", 60 + 30, ""),
    ("9 Uhr", "time", 9 * 60, ""),
    ("Mar 3rd", "date", 303, ""),
    ("03/03/2026", "date", 303, ""),
    ("15.03.2026", "date", 315, ""),
    ("4. August 2026", "date", 804, ""),
    ("12. oktober", "date", 1012, ""),
    ("8.91 lakh", "number", 891_000, ""),
    ("$2.5m", "number", 2_500_000, "$"),
    ("2.5 MUSD", "number", 2_500_000, "USD"),
    ("two and a half million", "number", 2_500_000, ""),
    ("1.24 × 10⁴", "number", 12_400, ""),
    (".75", "number", 0.75, ""),
    ("27,000円", "number", 27_000, "円"),
    ("75 pounds 20", "number", 75.2, "pounds"),
    ("1249 euros and 50 cents", "number", 1249.5, "euros"),
    ("4,184 r/min", "number", 4184, "r/min"),
    ("12 litres per second", "number", 12, "litres per second"),
    ("480 millivolts", "number", 480, "millivolts"),
    ("140.8 ampere-hours", "number", 140.8, "ampere-hours"),
    ("125 ‰", "number", 125, "‰"),
    ("12m 34s", "number", 12 + 34 / 60, "min"),
    ("an hour and 35 minutes", "number", 1 + 35 / 60, "hour"),
    ("PT1H20M", "number", 80, "min"),
    ("PT45S", "number", 0.75, "min"),
    ("1 m 85", "number", 1.85, "m"),
    ("09h34", "time", 9 * 60 + 34, "h"),
    ("12:34 min", "time", 12 * 60 + 34, "min"),
    ("nine thirty-four", "time", 9 * 60 + 34, ""),
    ("26 to 10", "time", 9 * 60 + 34, ""),
    ("2026-W50-2", "date", 50, "week"),
    ("8 Dec '26", "date", 1208, ""),
    ("17 (%)", "number", 17, "%"),
    ("290 [min]", "number", 290, "min"),
    ("zł40.50", "number", 40.5, "zł"),
]


@pytest.mark.parametrize(("text", "kind", "value", "unit"), FORMS)
def test_each_written_form_is_one_figure(text, kind, value, unit):
    for sentence in (f"It is {text}.", f"({text})", f"- It says: {text}, as asked."):
        found = only(sentence)
        assert (found.kind, found.unit) == (kind, unit), sentence
        assert found.value == pytest.approx(value, abs=1e-4), sentence
        assert found.low <= abs(found.value) <= found.high


@pytest.mark.parametrize(
    ("text", "inside", "outside"),
    [
        ("about 40", (38.5, 41.5), (35, 45)),
        ("just over 3,000", (3000, 3400), (2900, 3700)),
        ("nearly 120", (112, 120), (100, 123)),
        ("twenty-odd", (19.5, 20.5), (15, 25)),
        ("1.2k", (1160, 1240), (1100, 1300)),
        ("nearly two thirds", (0.6, 0.667), (0.5, 0.7)),
        ("more than half", (0.5, 0.58), (0.45, 0.7)),
        ("30+", (30, 34), (29, 50)),
        ("12.40", (12.4, 12.404), (12.3, 12.5)),
        ("in the ballpark of 890,000", (885_000, 891_000), (800_000, 980_000)),
        ("north of 40", (40, 43), (38, 60)),
        ("a shade under 900", (890, 899), (700, 910)),
        ("eggs=roughly 1,100", (1_050, 1_140), (900, 1_300)),
    ],
)
def test_how_exact_a_figure_is_follows_from_how_it_is_written(text, inside, outside):
    found = only(f"It is {text} here.")
    assert all(found.low <= value <= found.high for value in inside)
    assert not any(found.low <= value <= found.high for value in outside)


def test_figures_beside_each_other_say_something_about_each_other():
    assert [item.whole for item in find_quantities("3 of the 8 rows")] == [8, 8]
    for text in ("between 5 and 7 items", "betw 5 & 7 items", "5..7 items", "min 5 max 7 items"):
        assert {item.spread for item in find_quantities(text)} == {(5, 7)}
    assert [item.unit for item in find_quantities("10–12 kg")] == ["kg", "kg"]
    assert [item.value for item in find_quantities("2–3 pm")] == [840, 900]
    assert [item.value for item in find_quantities("3–5 March")] == [303, 305]
    assert {item.spread for item in find_quantities("raised from 45 to 60")} == {None}
    assert len(find_quantities("two and three, and a list of 4, 5")) == 4
    assert only("1.249").other == 1249
    assert only("6.40").clock == 400


@pytest.mark.parametrize(
    "text", ["v2.3.0", "10.0.0.1", "A-1042", "src/a2.py", "x_3", "3D", "p99", "me2@a.org", "+47 415 03 226"]
)
def test_names_versions_and_identifiers_are_no_figures(text):
    assert find_quantities(f"It is {text} here.") == ()


def test_a_date_that_is_said_by_its_distance_from_another_has_both_readings():
    for text, day in (
        ("the day after November 20", 1121), ("one day before 9 February", 208), ("3 days after 2026-02-27", 302),
        ("20 November", 1120),
    ):  # fmt: skip
        found = [item for item in find_quantities(text) if item.kind is QuantityKind.DATE]
        assert [item.other for item in found] == [day], text


def test_a_number_may_be_read_as_a_day_and_a_part_as_a_share():
    assert only("on 20260307 it").days == (307,)
    assert only("on 7.3. it").days == (307,)
    assert [item.portion for item in find_quantities("3 in 4 rows")] == [0.75, 0.75]


def test_a_compound_unit_has_the_dimensions_of_its_parts():
    for name, dimension, size in (
        ("l/min", "volume/time", 1 / 60), ("revolutions per minute", "turns/time", 1 / 60),
        ("rpm", "turns/time", 1 / 60), ("kilometres an hour", "length/time", 1 / 3.6),
        ("milliwatts", "power", 0.001),
    ):  # fmt: skip
        assert unit_of(name) == (dimension, pytest.approx(size))
    assert unit_of("rows/min") is None


def test_a_digit_of_another_script_is_no_figure():
    assert find_quantities("x² and m⁻¹") == ()


def test_a_text_that_is_a_number_has_its_value():
    assert read_number("1,234.5") == 1234.5
    assert read_number("$1,200") == 1200
    assert read_number("a 5") is None


@pytest.mark.parametrize("change", [str.lower, str.capitalize, str.upper])
def test_each_number_and_fraction_in_words_is_found(change):
    for language, lead in (("en", "It has"), ("no", "Det er på"), ("de", "Es sind die")):
        for word, value in lexicon("numbers")[language].items():
            found = find_quantities(f"{lead} {change(word)} kg")
            assert [item.value for item in found] == [value], word
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
    assert (found.kind, found.value, found.low, found.unit) == (
        inside.kind, inside.value, inside.low, inside.unit,
    )  # fmt: skip
    assert (found.start, found.end) == (0, len(text))


def test_texts_without_values():
    for text in ("rush", "a/b", "v", "march on", "no-one", ""):
        assert find_quantities(text) == ()


def test_the_words_that_are_looked_for_first_lose_nothing():
    """A pattern of these kinds finds nothing in a text without one of the words of its gate, apart
    from questions."""
    data = Path(__file__).parents[2] / "data/grounding"
    texts = [text for path in data.glob("*.toml") for scene in tomllib.loads(path.read_text())["scene"]
             for text in (*scene["honest"], *[lie for _, lie in scene["lies"]])]  # fmt: skip
    extra = [word for text in lexicon("causes").values() for word in re.findall(r"[^\W\d_]+", text)]
    texts += [f"It is {word} of the last kind" for word in extra]
    patterns = {
        "advice": [shape("answers", "advice")],
        "causes": [shape("causes", name) for name in ("after", "marker", "trend")],
        "shares": [shape("shares", name) for name in lexicon("shares")],
        "order": [shape("order", name) for name in lexicon("order")],
    }
    for name, shapes in patterns.items():
        for text in texts:
            for line in text.splitlines():
                if gate(name).isdisjoint(words_in(line)) and "?" not in line:
                    assert not any(one.search(line) for one in shapes), (name, line)
