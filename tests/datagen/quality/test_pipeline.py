"""The pipeline: its order, its settings, the marks on rows, the judge, and evaluation sets."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.datagen.quality.candidates import config, play, solve, verdict, with_answer

from treadle import ScriptedModel
from treadle.core.errors import ConfigError, ServerError
from treadle.datagen.config.conflicts import find_obstacles
from treadle.datagen.config.fingerprint import fingerprint
from treadle.datagen.config.generation_config import GenerationConfig
from treadle.datagen.config.loading import load_config
from treadle.datagen.quality.pipeline import Pipeline, find_repairs, is_good, mark_row
from treadle.datagen.quality.protocol import Candidate, Filter, FilterSettings, FilterVerdict
from treadle.datagen.quality.registry import FILTERS, find_faults
from treadle.models.scripted import Answer
from treadle.testbed.request_facts import read_facts

QUESTION = (
    "A farmer has seventeen sheep and sells all but nine of them at the market on a rainy Tuesday; "
    "how many are left?"
)
YAML = """
models: {default: mock:teacher}
topics: {prompt: x}
tools: {use: [files]}
quality:
  filters:
    lenght: false
"""
OWN = """
from treadle.datagen.quality.filters.form import LengthFilter
from treadle.datagen.quality.protocol import Candidate, Filter, FilterSettings, FilterVerdict

class ShoutSettings(FilterSettings):
    max_share: float = 0.5

class Shout(Filter[ShoutSettings]):
    name = "shout"
    settings_type = ShoutSettings

    async def check(self, candidate: Candidate) -> FilterVerdict:
        letters = [char for char in candidate.row.messages[-1].content if char.isalpha()]
        share = sum(char.isupper() for char in letters) / len(letters)
        return self.reject(f"{share:.0%} capital") if share > self.settings.max_share else self.accept()

class Length(LengthFilter):
    pass
"""
"""A file of the user."""


class ShoutFilter(Filter[FilterSettings]):
    """A filter of another package."""

    name = "shout"

    async def check(self, candidate: Candidate) -> FilterVerdict:
        text = candidate.row.messages[-1].content
        return self.reject("it shouts") if text.isupper() else self.accept()


async def test_all_cheap_filters_judge_and_costly_ones_only_what_is_left() -> None:
    pipeline = Pipeline(config())
    good = await solve("csv_sum-0000")
    names = [item.name for item in pipeline.filters]
    assert [item.filter for item in await pipeline.check(good)] == names
    assert names[-2:] == ["check", "verified"]
    bad = await pipeline.check(with_answer(good, "I cannot help with that. The total is 77777.77."))
    assert not is_good(bad)
    assert {item.filter for item in bad if not item.is_passed} == {"refusals", "grounding"}
    assert {"check", "verified"} & {item.filter for item in bad} == set()


async def test_a_row_says_what_it_passed() -> None:
    good = await solve("csv_sum-0000")
    verdicts = await Pipeline(config()).check(good)
    sample = mark_row(good.row, verdicts).lineage.sample
    assert sample is not None
    assert sample.is_verified
    assert set(sample.filters) == {item.filter for item in verdicts}
    unverified = await Pipeline(config(filters={"verified": False})).check(good)
    sample = mark_row(good.row, unverified).lineage.sample
    assert sample is not None
    assert not sample.is_verified


@pytest.mark.parametrize(
    ("filters", "texts"),
    [
        ({"lenght": True}, ["quality.filters.lenght", "did you mean 'length'"]),
        ({"length": {"max_word": 5}}, ["quality.filters.length.max_word", "did you mean 'max_words'"]),
        ({"length": {"max_words": -1}}, ["length.max_words", "greater than or equal to 0", "-1"]),
        ({"language": {"language": "english"}}, ["cannot be recognised", "Known: ar, bg"]),
        ({"duplicates": {"similar": 1}}, ["did you mean 'similarity'"]),
        ({"judge": True}, ["quality.judge", "rubric"]),
    ],
)
def test_unknown_settings_are_errors_with_suggestions(filters: dict[str, Any], texts: list[str]) -> None:
    """Rules out that a typing mistake in the configuration is ignored."""
    with pytest.raises(ConfigError) as raised:
        Pipeline(config(filters=filters))
    for text in texts:
        assert text in str(raised.value)


def test_a_mistake_has_its_line_when_the_configuration_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(YAML)
    with pytest.raises(ConfigError, match=r":7: quality.filters.lenght: .*did you mean 'length'"):
        load_config(path)


def test_filters_can_be_switched_off_and_come_from_other_packages(monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = Pipeline(config(filters={"length": False, "duplicates": False}))
    assert "length" not in [item.name for item in pipeline.filters]
    assert pipeline.duplicates is None
    monkeypatch.setitem(FILTERS.table, "shout", f"{__name__}:ShoutFilter")  # type: ignore[arg-type]
    assert find_faults({"shout": True}, imports=True) == []
    assert "shout" not in [item.name for item in Pipeline(config()).filters]
    assert "shout" in [item.name for item in Pipeline(config(filters={"shout": True})).filters]


def own_config(folder: Path, filters: str, lower: str = "") -> GenerationConfig:
    (folder / "own.py").write_text(OWN)
    path = folder / "c.yaml"
    quality = f"quality:\n  filters:\n    {filters}\n  lower: {{{lower}}}\n"
    path.write_text(
        f"models: {{default: 'mock:teacher'}}\ntopics: {{prompt: Tea}}\ntools: {{use: [files]}}\n{quality}"
    )
    return load_config(path).config


async def test_a_filter_of_the_user_is_named_by_its_file(tmp_path: Path) -> None:
    """The path is relative to the configuration's folder, and the content of the file belongs to the dataset."""
    good = await solve("csv_sum-0000")
    made = own_config(tmp_path, '"own.py:Shout": {max_share: 0.0}')
    verdicts = {item.filter: item for item in await Pipeline(made).check(good)}
    assert verdicts["shout"].reason.endswith("capital")
    lowered = Pipeline(own_config(tmp_path, '"own.py:Shout": {max_share: 0.0}', '"own.py:Shout": 0.5'))
    weights = {item.filter: item.weight for item in await lowered.check(good)}
    assert weights["shout"] == 0.5
    switched_off = Pipeline(own_config(tmp_path, '"own.py:Shout": false'))
    assert "shout" not in [item.name for item in switched_off.filters]
    before = fingerprint(made)
    (tmp_path / "own.py").write_text(OWN + "# another version\n")
    (change,) = [key for key in {*before, *fingerprint(made)} if before.get(key) is None]
    assert change.startswith("quality.filters.own.py sha256:")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("own.py:Shoot", "there is no 'Shoot' in it; did you mean 'Shout'"),
        ("own.py:ShoutSettings", "name a class that derives from"),
        ("own.py", "names no class; write"),
        ("owns.py:Shout", "there is no file"),
        ("own.py:Length", "two filters have the name 'length'"),
    ],
)
def test_mistakes_in_filters_of_the_user_are_errors(name: str, text: str, tmp_path: Path) -> None:
    made = own_config(tmp_path, f'"{name}": true')
    with pytest.raises(ConfigError, match=text):
        Pipeline(made)


def test_a_plan_imports_no_filter_of_the_user(tmp_path: Path) -> None:
    """Somebody else may have written the configuration."""
    made = own_config(tmp_path, '"own.py:Shout": {max_shar: 1}')
    (tmp_path / "own.py").write_text(
        f"from pathlib import Path\nPath({str(tmp_path / 'ran')!r}).touch()\n" + OWN
    )
    assert not [item for item in find_obstacles(made, imports=False) if "filters" in item.path]
    assert not (tmp_path / "ran").exists()
    (found,) = [item for item in find_obstacles(made) if "filters" in item.path]
    assert "did you mean 'max_share'" in found.text
    assert (tmp_path / "ran").exists()


def judged(answer: Answer) -> tuple[ScriptedModel, Pipeline]:
    model = ScriptedModel([answer])
    quality = {"judge": {"rubric": "Is it polite?", "min_score": 0.5}}
    return model, Pipeline(config(**quality), judge=model)


async def test_the_judge_grades_by_the_rubric_in_a_run_of_its_own() -> None:
    found = await solve("csv_sum-0000")
    model, pipeline = judged('{"score": 0.25, "reason": "It is rude."}')
    first = (await pipeline.check(found))[-1]
    assert (first.filter, first.is_passed, first.details["score"]) == ("judge", False, 0.25)
    assert "It is rude." in first.reason
    facts = read_facts(model.requests[0].messages[-1].content) or {}
    assert (facts["write"], facts["rubric"]) == ("judgement", "Is it polite?")
    assert facts["conversation"][-1]["content"] == found.row.messages[-1].content
    again = (await pipeline.check(found))[-1]
    assert (again, len(model.requests)) == (first, 1), "a judgement is not paid for twice"


async def test_an_error_of_the_judge_is_not_the_samples_fault() -> None:
    _, pipeline = judged(ServerError("no answer", status=500))
    with pytest.raises(ServerError, match="the judge gave no judgement"):
        await pipeline.check(await solve("csv_sum-0000"))


@pytest.mark.parametrize(
    "raw",
    [
        {"messages": [{"role": "system", "content": "x"}, {"role": "user", "content": QUESTION}]},
        {"conversations": [{"from": "human", "value": QUESTION}, {"from": "gpt", "value": "nine"}]},
        {"prompt": QUESTION, "answer": 9},
        {"prompt": [{"role": "user", "content": [{"type": "text", "text": QUESTION}]}]},
        {"question": QUESTION},
    ],
)
async def test_overlap_with_an_evaluation_set_is_rejected(raw: dict[str, Any], tmp_path: Path) -> None:
    """Rules out rows that an evaluation asks for."""
    path = tmp_path / "test.jsonl"
    path.write_text(json.dumps({"question": "Short one"}) + "\n" + json.dumps(raw) + "\n")
    sets = {"evaluation_sets": [path]}
    part = "Tell me: " + QUESTION.partition(";")[0].replace("sheep", "Sheep")
    other = "Once a farmer sold ten of his seventeen cows at the market; what did he earn?"
    moved = "How many are left? A farmer sells all but nine of 40 sheep on a rainy Monday at the market."
    assert "shares" in (await verdict(await play(QUESTION, "Nine."), "contamination", **sets)).reason
    assert "shares" in (await verdict(await play(part, "Nine."), "contamination", **sets)).reason
    assert "shares" in (await verdict(await play("Ask me a riddle.", part), "contamination", **sets)).reason
    assert (await verdict(await play(other, "Some."), "contamination", **sets)).is_passed
    near = await verdict(await play(moved, "Nine."), "contamination", **sets)
    assert "nearly the same as test.jsonl, line 2" in near.reason
    exact = {"ngram_words": 13, "is_near": False}
    assert (await verdict(await play(moved, "Nine."), "contamination", exact, **sets)).is_passed


def test_an_evaluation_set_without_questions_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "test.jsonl"
    path.write_text('{"score": 1}\n')
    with pytest.raises(ConfigError, match="has no questions"):
        Pipeline(config(evaluation_sets=[path]))


async def test_a_filter_may_lower_the_weight_instead() -> None:
    good = await solve("csv_sum-0000")
    bad = with_answer(good, "I cannot help with that. The total is 77777.77.")
    lower = {"refusals": 0.5, "grounding": 0.5}
    verdicts = await Pipeline(config(lower=lower, filters={"check": False})).check(bad)
    assert is_good(verdicts)
    assert verdicts[-1].filter == "verified", "costlier filters run too"
    row = mark_row(bad.row, verdicts)
    assert row.weight == 0.25
    sample = row.lineage.sample
    assert sample is not None
    assert set(sample.lowered) == set(lower)
    assert not set(lower) & set(sample.filters), "a row does not claim to have passed what it did not pass"
    assert not row.untrained
    one = await Pipeline(config(lower={"refusals": 0.5})).check(bad)
    assert not is_good(one), "another filter still rejects it"
    assert find_repairs(verdicts), "another answer is asked for first"


async def test_nothing_of_a_row_of_weight_0_is_trained_on() -> None:
    bad = with_answer(await solve("csv_sum-0000"), "The total is 77777.77.")
    row = mark_row(bad.row, await Pipeline(config(lower={"grounding": 0})).check(bad))
    assert row.weight == 0
    assert len(row.untrained) == sum(message.role == "assistant" for message in row.messages)


@pytest.mark.parametrize(
    ("lines", "texts"),
    [
        ("lower: {grouding: 0.5}", ["quality.lower.grouding", "did you mean 'grounding'"]),
        ("lower: {verified: 0.5}", ["quality.lower.verified", "can only reject"]),
        ("lower: {grounding: 1.5}", ["quality.lower.grounding", "less than 1", "1.5"]),
        ("filters: {leaks: false}\n  lower: {leaks: 0.5}", ["quality.lower.leaks", "switched off"]),
    ],
)
def test_a_wrong_weight_names_its_line(tmp_path: Path, lines: str, texts: list[str]) -> None:
    file = tmp_path / "dataset.yaml"
    head = YAML.split("  filters:")[0]
    file.write_text(f"{head}  {lines}\n")
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    for text in [*texts, f"dataset.yaml:{6 + lines.count(chr(10))}"]:
        assert text in str(caught.value)
