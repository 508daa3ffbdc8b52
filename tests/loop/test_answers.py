"""Answers that must match a schema: each way to ask for them, what is invalid, and the number of attempts."""

import json

import msgspec
import pytest
from pydantic import BaseModel

from treadle import Agent, Policy, Run, tool
from treadle.core import events as e
from treadle.core.errors import AuthenticationError, ConfigError, RateLimitError
from treadle.core.prompts.transcript import check_transcript
from treadle.core.types import Completion, FinishReason, Message, OutputMode, Role, StopReason, Usage
from treadle.journal.memory import MemoryJournal
from treadle.models import RetryModel, ScriptedModel, call


class City(BaseModel):
    name: str
    people: int


GOOD = '{"name":"Oslo","people":700000}'
BAD = '{"name":"Oslo","people":"many"}'


@tool(effect="pure")
def look_up(name: str) -> str:
    """Look a city up."""
    return f"{name} has 700000 people"


def make(answers, mode="native", *, tools=(), **policy):
    model = ScriptedModel(answers)
    model.output_mode = OutputMode(mode)
    agent = Agent(model, tools=tools, schema=City, journal=MemoryJournal(), policy=Policy(**policy))
    return agent, model


async def replays(agent, run):
    replay = await agent.replay(run.run_id)
    assert replay.is_exact, replay.divergence
    assert replay.events == len(run.events)


@pytest.mark.parametrize("mode", ["native", "text"])
@pytest.mark.parametrize("text", [GOOD, f"\n```json\n{GOOD}\n```\n"])
async def test_an_answer_in_the_schema(mode, text):
    agent, model = make([text], mode)
    run = await agent.run("Tell of Oslo.")
    assert (run.stop_reason, run.output, run.error) == (StopReason.COMPLETED, GOOD, None)
    assert run.value == City(name="Oslo", people=700000)
    request = model.requests[0]
    assert (request.output_schema is not None) is (mode == "native")
    said = request.messages[0]
    assert (said.role is Role.SYSTEM and '"people"' in said.content) is (mode == "text")
    assert run.events[0].body.output.schema["additionalProperties"] is False
    await replays(agent, run)


async def test_a_fence_around_an_answer_that_holds_fences():
    said = json.dumps({"name": "```py\n1\n```", "people": 1})
    agent, _ = make([f"```json\n{said}\n```"], "text")
    run = await agent.run("Tell of code.")
    assert (run.stop_reason, run.output, run.steps) == (StopReason.COMPLETED, said, 1)


async def test_without_other_tools_the_answer_tool_is_forced():
    agent, model = make([[call("final_answer", GOOD)]], "tool")
    run = await agent.run("Tell of Oslo.")
    assert (run.stop_reason, run.output) == (StopReason.COMPLETED, GOOD)
    assert (model.requests[0].required_tool, model.requests[0].output_schema) == ("final_answer", None)
    assert [spec.name for spec in model.requests[0].tools] == ["final_answer"]
    # The transcript is valid: the call has its result.
    assert [m.role for m in run.state.messages] == ["user", "assistant", "tool"]
    await replays(agent, run)


async def test_beside_other_tools_the_model_chooses_and_all_calls_are_run():
    both = [call("look_up", {"name": "Oslo"}), call("final_answer", GOOD)]
    agent, model = make([[call("look_up", {"name": "Oslo"})], both], "tool", tools=[look_up])
    run = await agent.run("Tell of Oslo.")
    assert run.value.people == 700000
    assert model.requests[0].required_tool is None
    assert [m.name for m in run.state.messages if m.role is Role.TOOL] == [
        "look_up",
        "look_up",
        "final_answer",
    ]
    await replays(agent, run)


async def test_a_taken_name_is_left_to_its_tool():
    @tool(name="final_answer")
    def own() -> str:
        """Another thing altogether."""
        return "x"

    agent, _ = make([[call("final_answer_", GOOD)]], "tool", tools=[own])
    assert (await agent.run("x")).output == GOOD


@pytest.mark.parametrize(
    ("answers", "mode", "fault"),
    [
        ([BAD, GOOD], "native", '/people: "many" is not of type "integer"'),
        (["Oslo!", GOOD], "text", "it is not JSON"),
        (["[" * 100_000, GOOD], "text", "it is not JSON"),
        (["Oslo!", [call("final_answer", GOOD)]], "tool", "it is not JSON"),
    ],
)
async def test_a_fault_is_told_to_the_model(answers, mode, fault):
    agent, model = make(answers, mode)
    run = await agent.run("Tell of Oslo.")
    assert run.output == GOOD, run.error
    told = [event.body for event in run.events if isinstance(event.body, e.MessageInjected)]
    assert fault in told[0].output_fault
    assert fault in model.requests[1].messages[-1].content
    assert run.state.turn.spent.rejected_answers == 1
    await replays(agent, run)


async def test_bad_arguments_of_the_answer_tool_count_as_answers():
    agent, _ = make([[call("final_answer", BAD)]] * 2 + [[call("final_answer", "{")]], "tool")
    run = await agent.run("Tell of Oslo.")
    assert (run.stop_reason, run.fault) == (StopReason.ERROR, "model")
    assert "no answer that fits the schema after 3 attempts" in run.error
    with pytest.raises(ValueError, match="no answer that fits"):
        run.value  # noqa: B018
    await replays(agent, run)


@pytest.mark.parametrize("attempts", [1, 2])
async def test_attempts_are_bounded(attempts):
    agent, model = make([BAD] * attempts, max_output_attempts=attempts)
    run = await agent.run("Tell of Oslo.")
    assert (run.stop_reason, len(model.requests)) == (StopReason.ERROR, attempts)
    assert '"many" is not of type "integer"' in run.error
    await replays(agent, run)
    # A replay with one more attempt tells the model what is wrong with the answer, and nothing of the end.
    found = await agent.replay(run.run_id, policy=Policy(max_output_attempts=attempts + 1))
    assert str(found.divergence).count("no answer that fits the schema") == 1


async def test_kinds_of_failure_keep_their_own_budgets():
    slow = RateLimitError("slow down", status=429, retry_after_seconds=0.001)
    scripted = ScriptedModel([slow, slow, BAD, slow, slow, GOOD])
    model = RetryModel(scripted, max_attempts=3)
    agent = Agent(model, schema=City, journal=MemoryJournal(), policy=Policy(max_output_attempts=2))
    run = await agent.run("Tell of Oslo.")
    assert run.output == GOOD, run.error
    assert run.state.turn.spent.rejected_answers == 1
    assert sum(isinstance(event.body, e.InferenceFailed) for event in run.events) == 4


@pytest.mark.parametrize(("mode", "answer"), [("native", GOOD), ("tool", [call("final_answer", GOOD)])])
async def test_a_wrap_up_answers_in_the_schema_too(mode, answer):
    steps = [[call("look_up", {"name": "Oslo"})], answer]
    agent, model = make(steps, mode, tools=[look_up], max_steps=1)
    run = await agent.run("Tell of Oslo.")
    assert (run.stop_reason, run.output, run.value.name) == (StopReason.MAX_STEPS, GOOD, "Oslo")
    assert [spec.name for spec in model.requests[1].tools] == (["final_answer"] if mode == "tool" else [])
    await replays(agent, run)


async def test_a_wrap_up_is_not_tried_again():
    agent, model = make([[call("look_up", {"name": "Oslo"})], BAD], tools=[look_up], max_steps=1)
    run = await agent.run("Tell of Oslo.")
    assert (run.stop_reason, len(model.requests)) == (StopReason.MAX_STEPS, 2)
    assert "after a wrap-up" in run.error
    await replays(agent, run)


async def test_an_answer_that_was_cut_off_is_not_judged():
    cut = Completion(Message(Role.ASSISTANT, '{"name":'), FinishReason.LENGTH, Usage(1, 1))
    agent, _ = make([cut])
    run = await agent.run("Tell of Oslo.")
    assert run.stop_reason is StopReason.MAX_TOKENS
    with pytest.raises(ValueError, match="cut off"):
        run.value  # noqa: B018


async def test_a_run_has_a_schema_of_its_own_and_a_fork_keeps_it():
    model = ScriptedModel(["[1, 2]", "[3]"])
    agent = Agent(model, journal=MemoryJournal())
    run = await agent.run("Count.", schema=list[int])
    assert run.value == [1, 2]
    fork = await agent.fork(run.run_id, at=2, schema=list[int])
    assert fork.value == [3]
    assert Run.load(fork.run_id, agent.journal).value == [3]


async def test_the_value_of_a_run_without_a_schema_is_its_text():
    agent = Agent(ScriptedModel(["x", RuntimeError("down")]), journal=MemoryJournal())
    run = await agent.run("go")
    assert (run.value, Run.load(run.run_id, agent.journal).value) == ("x", "x")
    failed = await agent.run("go")
    with pytest.raises(ValueError, match="has no answer: RuntimeError: down"):
        failed.value  # noqa: B018


async def test_what_is_no_object_is_asked_for_in_the_text():
    model = ScriptedModel(["[1]"])
    model.output_mode = OutputMode.TOOL
    run = await Agent(model, journal=MemoryJournal(), schema={"type": "array"}).run("Count.")
    assert (run.value, model.requests[0].tools) == ([1], ())


async def test_a_session_answers_in_the_schema_every_turn():
    agent, _ = make(["no", GOOD, [call("final_answer", GOOD)]], "tool")
    async with agent.session() as session:
        # The first text does not match the schema, the second does.
        assert (await session.send("one")).output == GOOD
        assert (await session.send("two")).output == GOOD
    replay = await agent.replay(session.run_id)
    assert replay.is_exact, replay.divergence


async def test_a_resumed_run_still_knows_its_schema(tmp_path):
    failing = ScriptedModel([RuntimeError("the network is down")])
    failing.output_mode = OutputMode.TOOL
    run = await Agent(failing, schema=City, journal=tmp_path / "runs.db").run("Tell of Oslo.")
    assert run.stop_reason is StopReason.ERROR
    scripted = ScriptedModel([[call("final_answer", GOOD)]])
    scripted.output_mode = OutputMode.TOOL
    agent = Agent(scripted, journal=tmp_path / "runs.db")
    resumed = await agent.resume(run.run_id, schema=City)
    assert resumed.value.name == "Oslo"
    assert scripted.requests[0].required_tool == "final_answer"


@pytest.mark.parametrize("schema", [{"type": "strange"}, 7, {"$ref": "https://example.org/x"}])
def test_what_is_no_schema_is_refused(schema):
    with pytest.raises(ConfigError, match="JSON Schema"):
        Agent(ScriptedModel([]), schema=schema)


def test_the_policy_refuses_no_attempts():
    with pytest.raises(ConfigError, match="max_output_attempts"):
        Policy(max_output_attempts=0)


def test_an_old_journal_reads_as_without_a_schema():
    body = e.decode_body(msgspec.json.encode(e.RunStarted(at=1.0, policy=Policy(), version="1.0")))
    assert body.output is None


def takes_over(journal, answers, mode):
    model = ScriptedModel(answers)
    model.output_mode = OutputMode(mode)
    return Agent(model, schema=City, journal=journal), model


@pytest.mark.parametrize(("before", "after"), [("native", "text"), ("text", "native"), ("text", "text")])
async def test_a_fork_tells_its_model_the_schema_once(before, after):
    agent, _ = make([GOOD], before)
    run = await agent.run("Tell of Oslo.")
    second, model = takes_over(agent.journal, [GOOD], after)
    fork = await second.fork(run.run_id, text="Again.")
    assert fork.value == run.value
    texts = [message.content for message in model.requests[0].messages]
    assert sum("JSON Schema" in text for text in texts) == (1 if after == "text" else 0)
    assert (model.requests[0].output_schema is not None) is (after == "native")
    await replays(second, fork)


@pytest.mark.parametrize(("before", "after"), [("native", "text"), ("text", "native"), ("text", "text")])
async def test_a_model_that_resumes_a_run_is_told_the_schema_once(before, after):
    agent, _ = make(
        [[call("look_up", {"name": "Oslo"})], AuthenticationError("no key")], before, tools=[look_up]
    )
    run = await agent.run("Tell of Oslo.")
    assert run.stop_reason is StopReason.ERROR
    second, model = takes_over(agent.journal, [GOOD], after)
    run = await second.resume(run.run_id)
    assert run.value == City(name="Oslo", people=700000)
    texts = [message.content for message in model.requests[0].messages]
    assert sum("JSON Schema" in text for text in texts) == 1
    assert check_transcript(run.messages) == []
    await replays(second, run)
