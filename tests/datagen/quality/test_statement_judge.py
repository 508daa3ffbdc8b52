"""The judge of statements: what it is asked, what its verdicts do, and when it is asked at all."""

from typing import Any

import pytest
from tests.datagen.quality.candidates import config, play, solve

from treadle import ScriptedModel
from treadle.datagen.config.generation_config import GenerationConfig
from treadle.datagen.config.roles import asks_about_statements, used_roles
from treadle.datagen.quality.pipeline import Pipeline, find_repairs, mark_row
from treadle.datagen.quality.protocol import Candidate, FilterVerdict
from treadle.models import call
from treadle.models.scripted import Answer
from treadle.testbed.request_facts import read_facts
from treadle.testbed.teacher import TeacherModel

READ = call("read_file", {"file_path": "log.txt"})
LOG = {"log.txt": "09:12 timeout on db-2\n09:30 disk full on web-1\n"}
DOUBTED = "The shop stopped at 09:12 because a supplier of db-2 lost power."


async def ask(answer: str, *verdicts: Answer) -> tuple[tuple[FilterVerdict, ...], ScriptedModel, Candidate]:
    found = await play("Why did the shop stop?", [READ], answer, files=LOG)
    judge = ScriptedModel(list(verdicts))
    pipeline = Pipeline(config(filters={"statements": True}), judge=judge)
    return await pipeline.check(found), judge, found


async def test_a_judge_sees_each_sentence_beside_the_results_and_clears_what_it_confirms_twice() -> None:
    answer = f"{DOUBTED} There was a timeout on db-2 at 09:12."
    said = '{"verdicts": ["yes", "yes"]}', '{"verdicts": ["yes"]}'
    verdicts, judge, found = await ask(answer, *said)
    assert all(item.is_passed for item in verdicts), "the rules alone reject this cause"
    facts: Any = read_facts(judge.requests[0].messages[-1].content)
    assert [item["statement"] for item in facts["statements"]] == [DOUBTED, answer[len(DOUBTED) + 1 :]]
    assert facts["calls"][0]["result"] == LOG["log.txt"]
    again: Any = read_facts(judge.requests[1].messages[-1].content)
    assert [item["statement"] for item in again["statements"]] == [DOUBTED]
    assert again["statements"][0]["sentence"] == f"Why did the shop stop? {DOUBTED}", "in another light"
    sample = mark_row(found.row, verdicts).lineage.sample
    assert sample is not None
    assert (sample.controls, sample.agreed) == (1, 1), "the rules are sure of the second sentence"
    assert sample.grounded == sample.statements > 1


@pytest.mark.parametrize("last", ["no", "not_said"])
async def test_what_the_rules_doubt_is_rejected_unless_the_judge_confirms_it_twice(last: str) -> None:
    verdicts, judge, _ = await ask(DOUBTED, '{"verdicts": ["yes"]}', f'{{"verdicts": ["{last}"]}}')
    assert (verdicts[-1].is_passed, len(judge.requests)) == (False, 2)


async def test_a_sentence_for_which_there_is_no_rule_is_asked_about() -> None:
    """Rules out that a judge cannot deny what the rules never saw."""
    verdicts, judge, _ = await ask("Everybody calls it a quiet morning.", *['{"verdicts": ["no"]}'] * 2)
    assert (verdicts[-1].is_passed, len(judge.requests)) == (False, 2)


@pytest.mark.parametrize("verdict", ["no", "not_said"])
async def test_what_the_judge_denies_is_rejected_and_can_be_repaired(verdict: str) -> None:
    wrong = "The shop stopped at 09:12 because a network cable of db-2 was cut."
    verdicts, judge, _ = await ask(wrong, f'{{"verdicts": ["{verdict}"]}}')
    assert not verdicts[-1].is_passed
    (reason,) = find_repairs(verdicts)
    assert "network cable" in reason
    assert len(judge.requests) == 1


async def test_what_the_rules_would_accept_is_rejected_only_if_the_judge_denies_it_twice() -> None:
    likely = "There was a timeout on db-2 at 09:12."
    verdicts, judge, _ = await ask(likely, '{"verdicts": ["no"]}', '{"verdicts": ["yes"]}')
    assert (verdicts[-1].is_passed, len(judge.requests)) == (True, 2)
    verdicts, judge, _ = await ask(likely, *['{"verdicts": ["no"]}'] * 2)
    assert (verdicts[-1].is_passed, len(judge.requests)) == (False, 2)


async def test_the_judge_is_asked_until_its_verdicts_decide() -> None:
    """Rules out that two errors of a judge reject an answer if there was more to show it."""
    likely = "There was a timeout on db-2 at 09:12."
    answer = f"I have read the log. {likely}"
    first, no, yes = '{"verdicts": ["yes", "no"]}', '{"verdicts": ["no"]}', '{"verdicts": ["yes"]}'
    for last, is_passed in (([yes, yes], True), ([no, no], False)):
        verdicts, judge, _ = await ask(answer, first, no, *last)
        assert (verdicts[-1].is_passed, len(judge.requests)) == (is_passed, 2 + len(last))
    asked: Any = [read_facts(item.messages[-1].content) for item in judge.requests[1:]]
    sentences = [item["statements"][0]["sentence"] for item in asked]
    assert len(set(sentences)) == len(sentences), "in another light each time"


@pytest.mark.parametrize(
    "said", ['{"verdicts": ["yes", "no"]}', '{"verdicts": ["maybe"]}', "I would say yes."]
)
async def test_the_rules_decide_if_the_judge_cannot_judge(said: str) -> None:
    """Rules out that a generation ends because a weak model cannot count the statements."""
    verdicts, _, _ = await ask(DOUBTED, *[said] * 5)
    assert not verdicts[-1].is_passed
    assert "because a supplier" in find_repairs(verdicts)[0]
    verdicts, _, _ = await ask("The log has a timeout on db-2 at 09:12.", *[said] * 5)
    assert verdicts[-1].is_passed
    assert "no verdict for each sentence" in verdicts[-1].reason


async def test_the_teacher_gives_no_verdict_so_that_the_rules_decide() -> None:
    """Rules out that the model of the demonstration, which cannot judge, rejects what is true by guessing."""
    found = await play("Why did the shop stop?", [READ], "The log has a timeout on db-2 at 09:12.", files=LOG)
    verdicts = await Pipeline(config(filters={"statements": True}), judge=TeacherModel()).check(found)
    assert verdicts[-1].is_passed
    assert "no verdict for each sentence" in verdicts[-1].reason


async def test_certain_lies_are_rejected_without_asking() -> None:
    verdicts, judge, _ = await ask("I have deleted the file `log.txt`.", '{"verdicts": ["yes"]}')
    assert judge.requests == []
    assert [item.filter for item in verdicts if not item.is_passed] == ["grounding"]


@pytest.mark.parametrize(
    ("model", "filters", "is_asked"),
    [
        ("openai:gpt-5-mini", {}, True),
        ("mock:teacher", {}, False),
        ("mock:teacher", {"statements": True}, True),
        ("openai:gpt-5-mini", {"statements": False}, False),
        ("openai:gpt-5-mini", {"grounding": False}, False),
    ],
)
def test_the_judge_is_on_by_default_for_models_that_are_not_built_in(
    model: str, filters: dict[str, Any], is_asked: bool
) -> None:
    made = GenerationConfig.model_validate(
        {"topics": {"prompt": "x"}, "models": {"default": model}, "quality": {"filters": filters}}
    )
    assert asks_about_statements(made) is is_asked
    assert ("judge" in used_roles(made)) is is_asked


async def test_without_a_judge_the_rules_decide() -> None:
    found = await play("Why did the shop stop?", [READ], DOUBTED, files=LOG)
    assert not all(item.is_passed for item in await Pipeline(config()).check(found))
    assert all(item.is_passed for item in await Pipeline(config()).check(await solve("csv_sum-0000")))
