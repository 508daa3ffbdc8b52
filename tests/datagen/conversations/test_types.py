"""Questions and answers, chains of thought, and answers in the user's own schema."""

import json

import pytest
from tests.datagen.conversations.cast import NOTES, SCENARIO, Cast, facts_of, make_studio, spec, texts, think

from treadle import ScriptedModel
from treadle.core.types import Fault, OutputMode, Request, Role
from treadle.datagen.conversations.make import make_sample, repair_sample
from treadle.datagen.quality.exchanges import find_missing_thought
from treadle.datagen.quality.pipeline import Pipeline
from treadle.datagen.quality.protocol import Candidate
from treadle.models import FormatModel
from treadle.models.scripted import call

WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "degrees": {"type": "integer"}},
    "required": ["city", "degrees"],
}


def conversation(**settings) -> dict:
    return {"generation": {"conversation": settings}}


async def test_questions_and_answers_have_no_tools():
    cast = Cast(lambda request: "An answer.")
    made = await make_sample(make_studio({**NOTES, **conversation(type="basic")}, cast), spec(kind=None))
    assert made.row is not None
    assert made.row.tools == ()
    assert texts(made.row.messages) == [SCENARIO["message"], "An answer."]
    assert not cast.asked["agent"][0].tools
    facts = facts_of(cast.asked["scenario"][0])
    assert facts is not None
    assert (facts["conversation"], facts["tools"], facts["kind"]) == ("basic", [], None)
    assert facts["files"] == []
    assert made.dialogue is not None
    assert not made.dialogue.environment.files


async def test_questions_and_answers_over_several_turns():
    users = [{"message": "And then?", "is_done": False}, {"message": "", "is_done": True}]
    cast = Cast(lambda request: f"{len(request.messages)}", users=users)
    made = await make_sample(make_studio(conversation(type="basic"), cast), spec(kind=None, turns=4))
    assert made.row is not None
    assert texts(made.row.messages)[2:] == ["And then?", "4"]


@pytest.mark.parametrize(
    ("reasoning", "given", "shown"),
    [
        ("freetext", "First this, then that.", "First this, then that."),
        ("agent", ["this", "that"], "this\nthat"),
    ],
)
async def test_a_chain_of_thought_is_in_the_row(reasoning, given, shown):
    cast = Cast(lambda request: json.dumps({"reasoning": given, "answer": "42"}))
    studio = make_studio(conversation(type="cot", reasoning=reasoning), cast)
    made = await make_sample(studio, spec(kind=None))
    assert made.row is not None
    last = made.row.messages[-1]
    assert (last.content, last.reasoning) == ("42", shown)
    assert made.row.lineage.sample is not None
    assert made.row.lineage.sample.reasoning == reasoning


@pytest.mark.parametrize("bad", ["just 42", '{"answer": "42"}', '{"reasoning": "", "answer": "42"}'])
async def test_an_answer_without_its_reasoning_is_asked_for_again(bad):
    """Rules out that a row of the type `cot` has no reasoning. The attempts that failed are not in the row."""
    good = json.dumps({"reasoning": "because", "answer": "42"})
    cast = Cast(lambda request: good if len(request.messages) > 3 else bad)
    made = await make_sample(
        make_studio(conversation(type="cot", reasoning="freetext"), cast), spec(kind=None)
    )
    assert made.row is not None
    assert texts(made.row.messages) == [SCENARIO["message"], "42"]
    assert made.row.messages[-1].reasoning == "because"


async def test_reasoning_that_never_comes_is_a_fault_of_the_sample():
    cast = Cast(lambda request: "42")
    made = await make_sample(
        make_studio(conversation(type="cot", reasoning="freetext"), cast), spec(kind=None)
    )
    assert (made.row, made.fault) == (None, Fault.MODEL)
    assert made.error is not None


async def test_each_step_of_an_agent_keeps_its_thought():
    cast = Cast()
    studio = make_studio({**NOTES, **conversation(type="agent", reasoning="agent")}, cast)
    made = await make_sample(studio, spec())
    assert made.row is not None
    assert "Before each tool call" in cast.asked["agent"][0].messages[0].content
    assert made.row.messages[2].content == "I read the file."
    assert made.row.messages[2].tool_calls


async def test_the_calls_of_an_agent_that_does_not_think_are_kept_or_rejected():
    """Rules out that a model which calls tools without a text never gives a row, or a conversation to look at."""

    def agent(request: Request):
        return "done" if request.messages[-1].role is Role.TOOL else [call("list_files")]

    studio = make_studio({**NOTES, **conversation(type="agent", reasoning="agent")}, Cast(agent))
    made = await make_sample(studio, spec())
    assert made.row is not None
    assert made.scenario is not None
    assert made.dialogue is not None
    assert made.row.lineage.sample is not None
    assert made.row.lineage.sample.reasoning is None
    candidate = Candidate(
        row=made.row,
        run_id=made.run_id,
        spec=spec(),
        scenario=made.scenario,
        environment=made.dialogue.environment,
        events=made.events,
        journal=studio.journal,
    )
    (verdict,) = [
        item for item in await Pipeline(studio.config).check(candidate) if item.filter == "reasoning"
    ]
    assert verdict.reason == "step 1 calls list_files without the reasoning that was asked for"
    filters = studio.config.quality.model_copy(update={"filters": {"reasoning": False}})
    verdicts = await Pipeline(studio.config.model_copy(update={"quality": filters})).check(candidate)
    assert "reasoning" not in [item.filter for item in verdicts]
    assert find_missing_thought([think(" ", call("a"))]) is not None
    assert find_missing_thought([think("text", call("a")), think("")]) is None


async def test_a_repaired_answer_in_the_users_own_schema_is_shown():
    """Rules out that the row has the answer that was rejected."""

    def agent(request: Request):
        return json.dumps({"city": "Oslo", "degrees": 7 if request.messages[-1].is_own else 70})

    config = conversation(type="basic", output_schema=WEATHER)
    studio = make_studio(config, models={"agent": ScriptedModel(agent)})
    made = await make_sample(studio, spec(kind=None))
    made = await repair_sample(studio, made, ["it is not that hot"])
    assert made.row is not None, made.error
    assert [message.role for message in made.row.messages] == ["system", "user", "assistant"]
    assert json.loads(made.row.messages[-1].content) == {"city": "Oslo", "degrees": 7}


@pytest.mark.parametrize("mode", list(OutputMode))
async def test_rows_in_the_users_own_schema(mode: OutputMode):
    """However the model is made to give JSON, the row has it as the text of the last message."""
    answer = {"city": "Oslo", "degrees": 7}

    def agent(request: Request):
        is_second = sum(item.role is Role.ASSISTANT for item in request.messages) > 0
        value = answer if is_second else {"city": "Oslo"}
        if mode is OutputMode.TOOL:
            return [call(request.required_tool or request.tools[-1].name, value)]
        return json.dumps(value)

    model = ScriptedModel(agent)
    model.output_mode = mode  # type: ignore[attr-defined]
    config = conversation(type="basic", output_schema=WEATHER)
    made = await make_sample(make_studio(config, models={"agent": model}), spec(kind=None))
    assert made.row is not None, made.error
    assert [message.role for message in made.row.messages] == ["system", "user", "assistant"]
    assert json.loads(made.row.messages[-1].content) == answer
    assert made.row.tools == ()


async def test_an_agent_with_tools_answers_in_the_users_own_schema():
    def agent(request: Request):
        if request.messages[-1].role is Role.TOOL:
            return json.dumps({"city": request.messages[-1].content, "degrees": 3})
        return think("I look.", call("read_file", {"file_path": "notes.txt"}))

    config = {**NOTES, **conversation(type="agent", output_schema=WEATHER)}
    made = await make_sample(make_studio(config, Cast(agent)), spec())
    assert made.row is not None
    assert texts(made.row.messages) == [
        SCENARIO["message"],
        "I look.",
        "milk",
        '{"city": "milk", "degrees": 3}',
    ]
    assert len(made.row.tools) > 3


async def test_a_model_that_writes_its_calls_as_text_gives_the_same_rows():
    """The format is a setting of the model. The row has real calls, and the thought beside them."""
    text = 'I read it.\n<tool_call>\n{"name": "read_file", "arguments": {"file_path": "notes.txt"}}\n</tool_call>'
    inner = ScriptedModel([text, "It says milk."])
    studio = make_studio(NOTES, models={"agent": FormatModel(inner, "hermes")})
    made = await make_sample(studio, spec())
    assert made.row is not None
    assert inner.requests[0].tools == ()
    step = made.row.messages[2]
    assert (step.content.strip(), step.tool_calls[0].name) == ("I read it.", "read_file")
    assert texts(made.row.messages)[2:] == ["milk", "It says milk."]
