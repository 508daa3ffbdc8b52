"""The judges by name: the patterns, and a model with the patterns behind it."""

import json

import pytest
from benchmarks.judging import TOOLS

from treadle import ConfigError
from treadle.core.errors import ServerError, TransportError
from treadle.core.types import OutputMode
from treadle.models.scripted import Answer, ScriptedModel, call
from treadle.routing.judging import (
    AmbiguityClass,
    MessageFacts,
    ModelJudge,
    PatternJudge,
    TaskKind,
    judge_message,
    make_judge,
)

GOOD = {
    "language": "en",
    "open": "vague_scope",
    "missing": "criteria",
    "quote": "make it sing",
    "task": "write",
    "is_boilerplate": False,
    "is_identity_sensitive": False,
    "difficulty": 0.4,
}


async def test_a_model_judges_in_one_inference() -> None:
    model = ScriptedModel([json.dumps(GOOD)])
    text = "Rework the intro and make it sing."
    found = await ModelJudge(model).judge(text, MessageFacts(TOOLS, topics=("fish",)))
    assert (found.judge, found.error, found.difficulty, found.cost_usd) == ("scripted", None, 0.4, 0.0)
    assert found.usage is not None
    assert found.usage.total_tokens > 0
    assert found.ambiguity is not None
    assert found.ambiguity.kind is AmbiguityClass.VAGUE_SCOPE
    assert text[slice(*found.ambiguity.span)] == "make it sing"
    assert found.task is not None
    assert found.task.kind is TaskKind.WRITE
    assert found.task.tools == ("write_file",)
    request = model.requests[0]
    assert request.output_schema is not None
    assert "fish" in request.messages[0].content
    assert request.messages[1].content.startswith("<message-")


@pytest.mark.parametrize(
    "answer",
    [
        ServerError("the server fell over"),
        TransportError("lost"),
        "no JSON",
        "{}",
        json.dumps({**GOOD, "difficulty": 7}),
        "[" * 100_000,
    ],
    ids=["error", "lost", "text", "empty", "range", "nested"],
)
async def test_a_model_that_fails_leaves_the_judgement_to_the_patterns(answer: Answer) -> None:
    text = "delete everything"
    found = await ModelJudge(ScriptedModel([answer])).judge(text, MessageFacts(TOOLS))
    assert found.error is not None
    assert found.error.startswith("scripted: ")
    assert found.judge == "patterns"
    assert found.ambiguity == judge_message(text, MessageFacts(TOOLS)).ambiguity
    assert found.model == "scripted"
    assert found.usage is not None
    # What the server may charge counts, and so does an answer that was of no use.
    assert (found.usage.input_tokens > 0) == (not isinstance(answer, ServerError))
    assert found.cost_usd == (None if isinstance(answer, TransportError) else 0.0)


async def test_a_model_that_gives_answers_by_a_tool_is_asked_by_a_tool() -> None:
    model = ScriptedModel([[call("judge_message", GOOD)]])
    model.output_mode = OutputMode.TOOL  # type: ignore[attr-defined]
    found = await ModelJudge(model).judge("Rework it")
    assert found.error is None
    assert found.difficulty == 0.4
    assert model.requests[0].required_tool == "judge_message"


async def test_a_long_message_is_not_sent_whole() -> None:
    model = ScriptedModel([json.dumps(GOOD)])
    await ModelJudge(model).judge("word " * 100_000)
    assert len(model.requests[0].messages[1].content) < 10_000


async def test_judges_are_made_by_name() -> None:
    assert isinstance(make_judge(), PatternJudge)
    assert (await make_judge("patterns").judge("Thanks!")).is_boilerplate
    assert isinstance(make_judge("model:mock:echo"), ModelJudge)
    with pytest.raises(ConfigError, match="unknown judge of messages 'patern'; did you mean 'patterns'"):
        make_judge("patern")
    with pytest.raises(ConfigError, match="'model:' and a model's name"):
        make_judge("model")
