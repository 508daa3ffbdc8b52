"""Tools whose calls are made by the program that uses a run: the run pauses until their results are posted."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from treadle import Agent, Policy, ScriptedModel, open_journal
from treadle.core import events as e
from treadle.core.errors import ConfigError
from treadle.core.inbox import GiveResult
from treadle.core.state import Status
from treadle.core.types import Message, Role, StopReason, ToolCall
from treadle.journal.memory import MemoryJournal
from treadle.journal.run_info import RunFilter
from treadle.models import call
from treadle.runs.recording import send
from treadle.tools.client_tools import ClientTools

ADD = {
    "type": "function",
    "name": "add",
    "description": "Add two numbers.",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
    },
}


def make_agent(*answers: Any, journal: Any = None, tools: Any = (), **limits: Any) -> Agent[str]:
    model = ScriptedModel(list(answers))
    policy, tools = Policy(**limits), [ClientTools([ADD]), *tools]
    return Agent(model, tools=tools, policy=policy, journal=journal or MemoryJournal())


def add(a: object, b: object) -> Any:
    return call("add", {"a": a, "b": b})


async def test_a_run_waits_for_the_results_of_its_client() -> None:
    agent = make_agent([add(1, 2), add(3, 4)], "3 and 7")
    run = await agent.run("go", run_id="r")
    assert run.status is Status.PAUSED
    assert [item.arguments for item in run.external_calls.values()] == ['{"a":1,"b":2}', '{"a":3,"b":4}']
    first, second = run.external_calls
    (info,) = agent.journal.runs(RunFilter(is_waiting=True))
    assert info.run_id == "r"

    # One result alone does not let the run go on.
    await send(agent.journal, "r", GiveResult(second, "7"))
    run = await agent.resume("r")
    assert run.status is Status.PAUSED
    assert list(run.external_calls) == [first]
    await send(agent.journal, "r", GiveResult(first, "no numbers", is_error=True))
    assert agent.journal.runs(RunFilter(is_waiting=True)) == []
    run = await agent.resume("r")
    assert run.stop_reason is StopReason.COMPLETED
    assert run.output == "3 and 7"
    results = [item for item in run.messages if item.role is Role.TOOL]
    assert [(item.content, item.is_error) for item in results] == [("no numbers", True), ("7", False)]
    assert (await agent.replay("r")).is_exact


async def test_other_calls_of_the_step_run_meanwhile() -> None:
    def here() -> str:
        """Say where."""
        return "here"

    agent = make_agent([add(1, 2), call("here", {})], "done", tools=[here])
    run = await agent.run("go", run_id="r")
    assert [item.name for item in run.external_calls.values()] == ["add"]
    done = [event.body.result.name for event in run.events if isinstance(event.body, e.ToolCompleted)]
    assert done == ["here"]
    await send(agent.journal, "r", GiveResult(next(iter(run.external_calls)), "3"))
    run = await agent.resume("r")
    assert [item.name for item in run.messages if item.role is Role.TOOL] == ["add", "here"]
    assert (await agent.replay("r")).is_exact


async def test_arguments_that_do_not_fit_never_reach_the_client() -> None:
    agent = make_agent([add("x", 2)], "sorry")
    run = await agent.run("go")
    assert run.output == "sorry"
    assert "not valid" in run.messages[-2].content


async def test_results_that_nobody_waits_for_are_refused() -> None:
    agent = make_agent([add(1, 2)], "3")
    run = await agent.run("go", run_id="r")
    (call_id,) = run.external_calls
    sent = await send(agent.journal, "r", GiveResult("other", "7"))
    assert sent.refused is not None
    assert "does not wait for a result" in sent.refused
    await send(agent.journal, "r", GiveResult(call_id, "3"))
    assert (await send(agent.journal, "r", GiveResult(call_id, "4"))).refused is not None
    assert (await agent.resume("r")).messages[-2].content == "3"


async def test_an_open_session_goes_on_when_the_result_arrives(tmp_path: Path) -> None:
    with open_journal(tmp_path / "runs.db") as journal, open_journal(tmp_path / "runs.db") as other:
        agent = make_agent([add(1, 2)], "3", journal=journal)
        async with agent.session("s") as session:
            run = await session.send("go")
            (call_id,) = run.external_calls
            with pytest.raises(ConfigError, match="waits for"):
                await session.send("next")
            await asyncio.to_thread(other.post, "s", GiveResult(call_id, "3"))
            async with asyncio.timeout(20):
                while session.is_turn_open:
                    await asyncio.sleep(0.01)
            assert session.run.output == "3"


async def test_a_turn_that_is_ended_gives_its_external_calls_results() -> None:
    agent = make_agent([add(1, 2)], "hello")
    async with agent.session("s") as session:
        await session.send("go")
        run = await session.send("never mind", delivery="interrupt")
        assert run.output == "hello"
        assert "Not answered" in run.messages[-3].content


async def test_the_agent_is_built_again_from_its_spec(tmp_path: Path) -> None:
    agent = make_agent([add(1, 2)], "3")
    run = await agent.run("go")
    again = Agent.from_spec(run.spec, model=ScriptedModel([]))
    assert again.tools["add"].spec == agent.tools["add"].spec


async def test_a_session_can_begin_with_a_history() -> None:
    history = [
        Message(Role.USER, "What is 1 + 2?"),
        Message(Role.ASSISTANT, "", (ToolCall("c1", "add", '{"a":1,"b":2}'),)),
        Message(Role.TOOL, "3", call_id="c1", name="add"),
        Message(Role.ASSISTANT, "It is 3."),
    ]
    agent = make_agent("Six.")
    agent.instructions = "Be brief."
    async with agent.session("s", history=history) as session:
        run = await session.send("Twice that?")
    assert list(run.messages)[1:5] == history
    assert list(agent.model.requests[0].messages)[1:5] == history  # type: ignore[attr-defined]
    with pytest.raises(ConfigError, match="no tool output found for the call 'c1'"):
        async with agent.session("t", history=history[:2]):
            pass
    assert (await agent.replay("s")).is_exact


async def test_a_session_can_be_given_new_instructions() -> None:
    journal = MemoryJournal()
    agent = make_agent("one", "two", "three", "four", journal=journal)
    agent.instructions = "Be brief."
    async with agent.session("s") as session:
        await session.send("a")
    agent.instructions = "Be kind."
    async with agent.session("s") as session:
        await session.send("b")
    async with agent.session("s", renews_instructions=True) as session:
        await session.send("c")
    requests = agent.model.requests  # type: ignore[attr-defined]
    assert [request.messages[0].content for request in requests] == ["Be brief.", "Be brief.", "Be kind."]
    assert [item.content for item in list(requests[2].messages)[1:]] == ["a", "one", "b", "two", "c"]
    agent.instructions = None
    async with agent.session("s", renews_instructions=True) as session:
        await session.send("d")
    assert [item.content for item in requests[3].messages] == ["a", "one", "b", "two", "c", "three", "d"]
    assert (await agent.replay("s")).is_exact


async def test_a_persona_keeps_its_instructions() -> None:
    agent = Agent(
        ScriptedModel(["one", "two"]), persona={"name": "Ada", "role": "a clerk"}, journal=MemoryJournal()
    )
    for text in ("a", "b"):
        async with agent.session("s", renews_instructions=True) as session:
            await session.send(text)
    first, second = agent.model.requests  # type: ignore[attr-defined]
    assert first.messages[0] == second.messages[0]
    assert "Ada" in first.messages[0].content


def count(number: int) -> int:
    return number


async def test_a_model_that_keeps_calling_above_the_limit_must_answer() -> None:
    again = [[call("count", {"number": number})] for number in range(9)]
    agent = make_agent(*again[:3], "done", *again[3:], tools=[count], max_tool_calls=1)
    run = await agent.run("go")
    assert (run.output, run.stop_reason, run.state.step) == ("done", StopReason.MAX_TOOL_CALLS, 4)
    assert (await agent.replay(run.run_id)).is_exact


async def test_calls_of_the_client_let_a_model_go_on_above_the_limit() -> None:
    asked = [answer for n in range(4) for answer in ([call("count", {"number": n})], [add(n, 2)])]
    agent = make_agent(*asked, "3", tools=[count], max_tool_calls=1)
    run = await agent.run("go", run_id="r")
    for _ in range(4):
        await send(agent.journal, "r", GiveResult(next(iter(run.external_calls)), "3"))
        run = await agent.resume("r")
    assert (run.output, run.stop_reason) == ("3", StopReason.COMPLETED)
