"""The public types, as type checkers see them and as they are at run time.

mypy checks this file together with the sources: `assert_type` is an expected type, and a `type: ignore` that no
error needs is an error. The tests also run, so that both agree.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypedDict, assert_type

import msgspec
import pytest
from pydantic import BaseModel

from treadle import (
    Agent,
    Answer,
    Batch,
    ConfigError,
    Ephemeral,
    Event,
    Message,
    Option,
    Persona,
    Question,
    Run,
    RunContext,
    RunFilter,
    RunInfo,
    RunStream,
    ScriptedModel,
    Session,
    ToolContext,
    events,
    open_journal,
    tool,
    turns,
)
from treadle.models import call


class City(BaseModel):
    name: str


@dataclass
class Point:
    x: int


class Place(TypedDict):
    name: str


class Part(msgspec.Struct):
    name: str


class Database:
    def find(self, name: str) -> str:
        return f"{name} is in Norway"


@tool(effect="pure")
async def look_up(context: ToolContext[Database], name: str) -> str:
    assert_type(context.deps, Database)
    return context.deps.find(name)


@tool(effect="pure")
def plain(context: ToolContext) -> str:
    assert_type(context.deps, Any)
    return context.run_id


OSLO = '{"name":"Oslo"}'
JOURNAL = open_journal("memory:")


def script(*answers: Any) -> ScriptedModel:
    return ScriptedModel(list(answers))


async def test_the_type_of_an_answer() -> None:
    agent = Agent(script(OSLO, OSLO, OSLO, "[1]", '"a"', OSLO, OSLO), schema=City, journal=JOURNAL)
    assert_type(agent, Agent[City])
    run = await agent.run("go", run_id="typed")
    assert_type(run, Run[City])
    assert_type(run.value, City)
    assert_type(run.value.name, str)
    with pytest.raises(AttributeError):
        run.value.nam  # type: ignore[attr-defined]  # noqa: B018
    assert_type((await agent.run("go", schema=Place)).value, Place)
    assert_type((await agent.run("go", schema=Part)).value, Part)
    assert_type((await agent.run("go", schema=list[int])).value, list[int])
    letter: Run[Literal["a", "b"]] = await agent.run("go", schema=Literal["a", "b"])
    assert letter.value == "a"
    assert_type(await agent.run("go", schema={"type": "object"}), Run[Any])
    assert_type((await agent.resume("typed")).value, City)
    assert_type((await agent.resume("typed", schema=Part)).value, Part)
    assert_type((await agent.fork("typed", text="again")).value, City)
    assert_type(Run.load("typed", JOURNAL), Run[Any])
    assert_type(Run.load("typed", JOURNAL, schema=City).value, City)


async def test_an_agent_without_a_schema_answers_with_text() -> None:
    agent = Agent(script("one", "two", "three"), journal=JOURNAL)
    assert_type(agent, Agent[str])
    assert_type((await agent.run("go")).value, str)
    async with agent.session() as session:
        assert_type(session, Session[str])
        assert_type((await session.send("go")).value, str)


def takes_any(agent: Agent, run: Run) -> object:
    """An `Agent` or a `Run` without a parameter is complete."""
    assert_type(run.value, Any)
    return agent


async def test_streams_and_batches_have_the_type_of_the_answer() -> None:
    agent = Agent(script(OSLO, OSLO, OSLO, '{"x":1}'), schema=City, journal=JOURNAL)
    stream = agent.stream("go")
    assert_type(stream, RunStream[City])
    async for _ in stream:
        pass
    assert stream.run is not None
    assert_type(stream.run.value, City)
    batch = agent.run_many(["a"], window=2)
    assert_type(batch, Batch[Run[City]])
    async for run in batch:
        assert_type(run.value, City)
    assert_type(agent.run_many([], schema=Point), Batch[Run[Point]])


def test_blocking_calls_have_the_types_of_the_others() -> None:
    agent = Agent(script(OSLO, '{"x":1}', OSLO), schema=City, journal=JOURNAL)
    assert_type(agent.run_sync("go").value, City)
    assert_type(agent.run_sync("go", schema=Point).value, Point)
    assert_type(agent.run_many_sync(["a"]), Iterator[Run[City]])


def test_a_misspelt_option_is_an_error_for_type_checkers_too() -> None:
    agent = Agent(script(), journal=JOURNAL)
    with pytest.raises(ConfigError, match="did you mean 'run_id'"):
        agent.run_sync("go", run_ide="x")  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="did you mean 'instructions'"):
        Agent(script(), instruction="x")  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="did you mean 'attach'"):
        agent.stream("go", attac=[])  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="did you mean 'answers'"):
        agent.resume_sync("r", answer={})  # type: ignore[call-arg]
    with pytest.raises(ConfigError, match="did you mean 'window'"):
        agent.run_many([], windw=3)  # type: ignore[call-overload]
    with pytest.raises(ConfigError, match="the run's id is 3"):
        agent.run_sync("go", run_id=3)  # type: ignore[call-overload]


async def test_a_missing_await_is_an_error_for_type_checkers() -> None:
    run = Agent(script("ok"), journal=JOURNAL).run("go")
    with pytest.raises(AttributeError):
        run.output  # type: ignore[attr-defined]  # noqa: B018
    assert_type((await run).output, str)


async def test_an_event_narrows_by_its_type() -> None:
    heard: list[str] = []

    def listen(event: Event | Ephemeral) -> None:
        if event.type == "tool_completed":
            assert_type(event.call_id, str)
            assert_type(event.seq, int)
            assert_type(event.body, events.ToolCompleted)
            heard.append(event.result.content)
        elif event.type == "text_delta":
            assert_type(event.text, str)
            heard.append(event.text)
        if event.type == "tool_complete":  # type: ignore[comparison-overlap]
            raise AssertionError

    agent = Agent(script([call("look_up", {"name": "Oslo"})], "ok"), tools=[look_up, plain], journal=JOURNAL)
    run = await agent.run("go", deps=Database(), on_event=listen)
    assert heard == ["Oslo is in Norway", "ok"]
    assert [event.call_id for event in run.events if event.type == "tool_started"] == ["call_1_0"]


async def test_an_event_narrows_by_its_class() -> None:
    names: list[str] = []
    stream = Agent(
        script([call("look_up", {"name": "Oslo"})], "ok"), tools=[look_up], journal=JOURNAL
    ).stream("go", deps=Database())
    async for event in stream:
        if isinstance(event, events.TurnStarted):
            assert_type(event.message.content, str)
        match event:
            case events.ToolStarted(name=name, effect=effect):
                names.append(f"{event.seq} {name} {effect}")
            case events.ToolCompleted():
                assert_type(event.result.content, str)
                names.append(str(event))
            case events.RunFinished(stop_reason=reason):
                names.append(reason)
    assert names == [
        "5 look_up pure",
        "<6 tool_completed(step=1, call_id='call_1_0', name='look_up', content='Oslo is in Norway', "
        "duration_seconds=0.0)>".replace("0.0", names[1].rpartition("=")[2][:-2]),
        "completed",
    ]


async def test_instructions_and_listings_are_typed() -> None:
    def greet(context: RunContext[Database]) -> str:
        assert_type(context.deps, Database)
        return context.deps.find(context.input or "")

    agent = Agent(script("ok"), instructions=greet, deps=Database(), journal=JOURNAL)
    await agent.run("Oslo", metadata={"kind": "typed"})
    found = JOURNAL.runs(RunFilter(labels={"kind": "typed"}), limit=1)
    assert_type(found, list[RunInfo])
    assert found[0].input == "Oslo"


async def test_what_sessions_ask_send_and_tell_is_typed(tmp_path: Path) -> None:
    def answer(question: Question) -> str | None:
        assert_type(question.options, tuple[Option, ...])
        return None if question.options else "both"

    def hook(event: Event) -> None:
        assert_type(event.seq, int)

    @tool
    async def choose(context: ToolContext) -> str:
        """Ask the user."""
        said = await context.ask("Which?")
        assert_type(said, Answer)
        return said.text

    persona = Persona.from_value({"name": "Ada"})
    helper = Agent(script("4"), persona=persona, hooks=[hook]).as_tool("helper")
    agent = Agent(
        script([call("choose", {}, call_id="c1")], OSLO, OSLO),
        schema=City,
        tools=[choose, helper],
        asker=answer,
        journal=tmp_path / "runs.db",
    )
    async with agent.session() as session:
        assert_type(await session.send("Which?", delivery="queue"), Run[City])
        assert_type(session.queued, list[Message])
        assert_type(session.run.error_status, int | None)
        summary = await session.summary()
        assert_type(summary.cost_usd, float | None)
        with pytest.raises(ConfigError, match="deliver"):
            await session.send("Which?", deliver="queue")  # type: ignore[call-arg]
        for found in turns(await session.read_events()):
            if found.event_type == "turn_completed":
                assert_type(found.final_text, str)
