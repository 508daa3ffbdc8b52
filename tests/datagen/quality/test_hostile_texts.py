"""Texts that models write and that must neither stop the filters nor keep them busy for long."""

import sys

import pytest
from msgspec.structs import replace
from tests.datagen.quality.candidates import changed, config, play, verdict, with_answer

from treadle.core.errors import ProviderError, UserCodeError
from treadle.core.types import Message, Role, ToolCall
from treadle.datagen.config.generation_config import Generation
from treadle.datagen.quality import signatures
from treadle.datagen.quality.figures import figure_dates, figure_reader
from treadle.datagen.quality.filters import form, wording
from treadle.datagen.quality.pipeline import Pipeline
from treadle.datagen.quality.protocol import BuiltinFilter, Candidate, FilterSettings, FilterVerdict
from treadle.datagen.quality.statements import (
    count_rules,
    doubts,
    evidence,
    quantity_rules,
    result_records,
    statements,
    support,
)
from treadle.datagen.scenarios import kinds
from treadle.models.scripted import call

READ = [call("read_file", {"file_path": "notes.txt"})]
NUMBERS = ("9" * 400, "1" + ",000" * 200, f"12345.{'0' * 400}1", f"{'1' * 300}.{'5' * 30}", "-" + "8" * 310)


async def check(notes: str, answer: str) -> dict[str, FilterVerdict]:
    found = await play("What is in notes.txt?", READ, answer, files={"notes.txt": notes})
    return {item.filter: item for item in await Pipeline(config()).check(found)}


@pytest.mark.parametrize("number", NUMBERS)
async def test_numbers_beyond_the_range_of_floats(number: str) -> None:
    """Such a number in an answer ended the whole generation, and again each time it was continued."""
    invented = await check("milk 12", f"It says {number}.")
    assert not invented["grounding"].is_passed
    assert "failed" not in invented["grounding"].reason
    assert (await check(f"milk {number}", f"It says {number}."))["grounding"].is_passed


async def test_a_table_with_a_very_long_cell() -> None:
    verdicts = await check(f"name,count\n{'x' * 200_000},12\nb,30\n", "The sum is 42.")
    assert verdicts["grounding"].is_passed


class _Broken(BuiltinFilter[FilterSettings]):
    """A filter with a mistake."""

    name = "broken"

    def __init__(self, error: Exception) -> None:
        self.error = error

    async def check(self, candidate: Candidate) -> FilterVerdict:
        """See `Filter.check`."""
        raise self.error


class _Ours(_Broken):
    """A filter that Treadle brings."""

    __module__ = "treadle.datagen.quality.filters.broken"


async def test_a_filter_of_the_user_with_a_mistake_stops_the_work_and_a_built_in_one_rejects_the_sample() -> (
    None
):
    found = await play("What is in notes.txt?", READ, "It says milk.", files={"notes.txt": "milk"})
    pipeline = Pipeline(config())
    pipeline.filters = (_Broken(KeyError("x")),)
    said = r"the filter 'broken' failed: KeyError: 'x' \(.*test_hostile_texts.py, line"
    with pytest.raises(UserCodeError, match=said):
        await pipeline.check(found)
    pipeline.filters = (_Ours(KeyError("x" * 1000)),)
    (verdict,) = await pipeline.check(found)
    assert not verdict.is_passed
    assert verdict.reason.startswith("the filter failed with KeyError: 'xxx")
    assert len(verdict.reason) <= 300
    pipeline.filters = (_Broken(ProviderError("down")),)
    with pytest.raises(ProviderError, match="down"):
        await pipeline.check(found)


PATTERNS = {
    "path": statements._PATH,
    "symbol": statements._SYMBOL,
    "answer": statements._ANSWER,
    "phone": statements._PHONE,
    "number": figure_reader._DIGITS,
    "date": figure_dates.DATE_FORM,
    "day of a year": figure_dates.DAY_NUMBER,
    "nested": statements._NESTED,
    "absent": doubts.shape("answers", "absent"),
    "code": doubts.shape("answers", "signs_of_code"),
    "time": figure_reader._TIME,
    "name": figure_reader._NAME,
    "field": result_records._FIELD,
    "entity": doubts._ENTITY,
    "clause": doubts.shape("answers", "clause"),
    "claim": statements._action_shape(),
    "speech": statements._SPEECH,
    "quoted": statements._QUOTED,
    "quoting": doubts.shape("answers", "quoting"),
    "trend": doubts.shape("causes", "trend"),
    "share": doubts.shape("shares", "most"),
    "mark": wording._MARK,
    "token": form._TOKEN,
    "sentence": kinds._SENTENCE,
    "file": evidence.FILE,
    "object": support._OBJECT,
    "counted": count_rules._COUNTED,
    "number of": doubts.shape("answers", "number_of"),
    "order of moments": doubts.shape("answers", "order_of_moments"),
    "printed": evidence._PRINTED,
    "paired": statements._PAIRED,
    "pair in two lines": statements._SPLIT_PAIR,
    "data": statements._DATA_LINES,
    "separator": quantity_rules._SEPARATOR,
    "items": quantity_rules._ITEMS,
    "advice": doubts.shape("answers", "advice"),
    "advice at the beginning": doubts.shape("answers", "advice_first"),
    "presented": doubts.shape("claims", "presented"),
    "cause": doubts.shape("causes", "after"),
    "request": signatures._TOKEN,
}
TEXTS = {
    "dots": "." * 8,
    "words": "a" * 8,
    "minus": "-" * 8,
    "lines": "\n" * 8,
    "dotted": "a." * 4,
    "dashes": "a-" * 4,
    "spaces": " " * 8,
    "questions": "? " * 4,
    "brackets": "lines(" * 2,
    "quotes": '"a" ' * 2,
}


@pytest.mark.parametrize("name", PATTERNS)
def test_patterns_take_time_in_proportion_to_the_text(name: str) -> None:
    """One long answer of dots or line breaks kept the whole generation busy for minutes.

    A pattern that is quadratic takes longer than the whole test run at this length.
    """
    for text in TEXTS.values():
        for _ in PATTERNS[name].finditer(f"{text * 25_000}a\0"):
            pass


@pytest.mark.parametrize(
    "text", ["twenty ", "lines(", "half an hour and a ", "5 to ", "a.", "no_", "3 of 8 "]
)
async def test_the_statements_of_a_long_answer_take_time_in_proportion_to_it(text: str) -> None:
    """Each rule looks around in its sentence, so that a sentence without end would take quadratic time."""
    steps: list[int] = []
    for size in (200, 800):
        statements.find_statements.cache_clear()
        figure_reader.find_quantities.cache_clear()
        calls = 0

        def count(frame: object, event: str, argument: object) -> None:
            nonlocal calls
            calls += event == "call"

        sys.setprofile(count)
        try:
            found = statements.find_statements(text * size)
        finally:
            sys.setprofile(None)
        steps.append(calls)
        assert max([len(item.sentence) for item in found], default=0) <= 2000
    assert steps[1] <= 6 * steps[0] + 1000


@pytest.mark.parametrize("levels", [400, 100_000])
async def test_arguments_and_answers_that_are_nested_deeply(levels: int) -> None:
    """No filter fails because of them, and those of a call that failed reject nothing."""
    deep = f"{'[' * levels}{']' * levels}"
    bad = [ToolCall("", "read_file", f'{{"file_path": {deep}}}')]
    found = await play(
        "What is in notes.txt?", Message(Role.ASSISTANT, "", tuple(bad)), READ, "It says milk."
    )
    checks = with_answer(found, deep), found
    for item in checks:
        for told in await Pipeline(config()).check(item):
            assert "the filter failed" not in told.reason
    made = changed(found, lambda messages: [replace(item, is_error=False) for item in messages])
    assert "read_file" in (await verdict(made, "schema")).reason
    section = {"conversation": {"output_schema": {"type": "object"}}}
    settings = config().model_copy(update={"generation": Generation.model_validate(section)})
    told = {item.filter: item.reason for item in await Pipeline(settings).check(checks[0])}["schema"]
    assert "nested too deeply" in told or "is not JSON" in told
