"""Dependencies of tools, instructions from functions, and tools that ask for another call."""

from pathlib import Path
from typing import Any

import pytest

from treadle import (
    Agent,
    Policy,
    RetryWithMessage,
    Run,
    RunContext,
    ScriptedModel,
    ToolContext,
    open_journal,
    tool,
)
from treadle.core.errors import ConfigError
from treadle.core.types import Request
from treadle.journal.memory import MemoryJournal
from treadle.models import call


class Database:
    def __init__(self, name: str) -> None:
        self.name = name


@tool(effect="pure")
async def query(context: ToolContext[Database]) -> str:
    return context.deps.name


@tool(effect="pure")
def peek(context: ToolContext) -> str:
    return str(context.deps)


def model(*answers: Any) -> ScriptedModel:
    return ScriptedModel(list(answers))


async def test_a_run_gets_its_own_deps_or_those_of_the_agent() -> None:
    steps = [[call("query")], "ok"]
    agent = Agent(model(*steps * 2), tools=[query], deps=Database("agent's"), journal=MemoryJournal())
    assert (await agent.run("go")).results[0].content == "agent's"
    assert (await agent.run("go", deps=Database("run's"))).results[0].content == "run's"


async def test_deps_are_given_again_on_resume_and_are_in_no_journal(tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    secret = Database("secret-42")
    with open_journal(path) as journal:
        agent = Agent(model(RuntimeError("down")), tools=[query], journal=journal)
        await agent.run("go", run_id="r", deps=secret)
    with open_journal(path) as journal:
        agent = Agent(model([call("query")], "ok", "more"), tools=[query], journal=journal)
        with pytest.raises(ConfigError, match=r"the tool 'query' needs deps \(Database\)"):
            await agent.resume("r")
        run = await agent.resume("r", deps=Database("other"))
        assert run.results[0].content == "other"
        with pytest.raises(ConfigError, match="needs deps"):
            await agent.fork("r", text="again")
        assert (await agent.fork("r", text="again", deps=secret)).output == "more"
        events = b"".join(event.to_json() for info in journal.runs() for event in journal.read(info.run_id))
    assert b"secret-42" not in events


async def test_a_session_has_deps_and_shows_its_messages() -> None:
    agent = Agent(model([call("query")], "ok"), tools=[query], journal=MemoryJournal())
    with pytest.raises(ConfigError, match="needs deps"):
        await agent.session().open()
    async with agent.session(deps=Database("session's")) as session:
        assert session.messages == []
        run = await session.send("go")
        assert run.results[0].content == "session's"
        assert [item.role for item in session.messages] == ["user", "assistant", "tool", "assistant"]


async def test_a_tool_that_does_not_declare_its_deps_tells_the_model() -> None:
    agent = Agent(model([call("peek")], "ok"), tools=[peek], journal=MemoryJournal())
    run = await agent.run("go")
    assert "context.deps was not given: pass deps=" in run.results[0].content


@pytest.mark.parametrize("is_async", [False, True])
async def test_what_an_instructions_function_says_is_kept(is_async: bool) -> None:
    asked: list[RunContext[Database]] = []

    def say(context: RunContext[Database]) -> str:
        asked.append(context)
        return f"You serve {context.deps.name}; call {len(asked)}."

    async def say_later(context: RunContext[Database]) -> str:
        return say(context)

    scripted = model(RuntimeError("down"), "ok", "again")
    agent = Agent(
        scripted,
        instructions=say_later if is_async else say,
        deps=Database("x"),
        journal=MemoryJournal(),
    )
    assert agent.spec.instructions is None
    run = await agent.run("go", run_id="r", metadata={"a": 1})
    assert run.spec.instructions == "You serve x; call 1."
    resumed = await agent.resume("r")
    assert resumed.messages[0].content == scripted.requests[1].messages[0].content == "You serve x; call 1."
    fork = await agent.fork("r", text="more")
    assert fork.messages[0].content == "You serve x; call 1."
    assert [(item.run_id, item.input, item.metadata) for item in asked] == [("r", "go", {"a": 1})]
    assert (await agent.replay("r")).is_exact
    assert (
        Agent.from_spec(Run.load("r", agent.journal).spec, model=scripted).instructions
        == "You serve x; call 1."
    )


async def test_a_function_without_parameters_gives_the_instructions_of_a_session() -> None:
    agent = Agent(model("ok"), instructions=lambda: "Be brief.", journal=MemoryJournal())
    async with agent.session() as session:
        await session.send("go")
        assert session.messages[0].content == "Be brief."


async def test_an_exception_in_the_instructions_begins_no_run() -> None:
    def fail() -> str:
        raise LookupError("no template")

    agent = Agent(model("ok"), instructions=fail, journal=MemoryJournal())
    with pytest.raises(LookupError, match="no template"):
        await agent.run("go")
    assert agent.journal.runs() == []


@pytest.mark.parametrize("retries", [0, 2])
async def test_a_tool_that_asks_again_is_bounded_in_a_row(retries: int) -> None:
    asked: list[str] = []

    @tool(effect="pure", max_retries=retries)
    def find(city: str) -> str:
        asked.append(city)
        if city != "OSL":
            raise RetryWithMessage("Give the IATA code.")
        return "found"

    def answer(request: Request) -> Any:
        steps = sum(item.role == "assistant" for item in request.messages)
        return "done" if steps == 5 else [call("find", {"city": "Oslo"})]

    agent = Agent(ScriptedModel(answer), tools=[find], journal=MemoryJournal(), policy=Policy(max_steps=9))
    run = await agent.run("go")
    assert len(asked) == retries + 1
    kinds = [result.error_kind for result in run.results]
    assert kinds == ["retry"] * (retries + 1) + ["over_limit"] * (4 - retries)
    assert run.results[0].content == "Give the IATA code.\nCall find again."
    assert f"find has failed {retries + 1} times in a row" in run.results[-1].content
    assert (await agent.replay(run.run_id)).is_exact


async def test_a_success_and_a_new_turn_begin_to_count_again() -> None:
    is_wrong = iter([True, False, True, True, True])

    @tool(effect="pure", max_retries=1)
    def find() -> str:
        if next(is_wrong):
            raise RetryWithMessage("Again.")
        return "found"

    step = [call("find")]
    agent = Agent(model(step, step, step, step, "one", step, "two"), tools=[find], journal=MemoryJournal())
    async with agent.session() as session:
        await session.send("go")
        run = await session.send("more")
    assert [result.error_kind for result in run.results] == ["retry", None, "retry", "retry", "retry"]
