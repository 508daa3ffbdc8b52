"""Agents as tools of other agents."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.loop.test_loop import Gate
from tests.models.answers import answer

from treadle import Agent, Policy, Run, ScriptedModel, ToolContext, open_journal, tool
from treadle.core import events as e
from treadle.core.asking import Question
from treadle.core.errors import ConfigError
from treadle.core.lineage import Caller
from treadle.core.types import Completion, FinishReason, Json, Message, Role, StopReason, Usage
from treadle.http.transport import HttpRequest
from treadle.journal.listing import facts_of
from treadle.journal.memory import MemoryJournal
from treadle.journal.protocol import Journal
from treadle.journal.run_info import CALLER, RunFilter
from treadle.models import HttpResponse, InProcessTransport, Model, call, model
from treadle.models.scripted import Answer
from treadle.runs.recording import child_run_id
from treadle.trajectory.run_verification import verify_run

ASK = [call("helper", {"task": "add"}, call_id="c1")]
CHILD = child_run_id("parent", "c1")


def paid(text: str, tokens: int = 100, cost_usd: float = 0.01) -> Completion:
    return Completion(Message(Role.ASSISTANT, text), FinishReason.STOP, Usage(tokens, 0), cost_usd)


def make(child: Agent, *script: Answer, journal: Journal | None = None, **options: object) -> Agent:
    return Agent(
        ScriptedModel(script),
        tools=[child.as_tool("helper")],
        journal=journal or MemoryJournal(),
        **options,  # type: ignore[arg-type]
    )


async def check_replay(agent: Agent, *run_ids: str) -> None:
    for run_id in run_ids:
        found = await agent.replay(run_id)
        assert found.is_exact, found.divergence


async def test_a_call_is_a_run_of_its_own_that_is_linked_both_ways() -> None:
    child = Agent(ScriptedModel([paid("4")]), instructions="Add numbers.")
    agent = make(child, ASK, "it is 4")
    assert "Add numbers." in agent.tools["helper"].spec.description
    run = await agent.run("go", run_id="parent")
    assert run.output == "it is 4"
    assert [result.content for result in run.results] == ["4"]
    started = agent.journal.read(CHILD)[0].body
    assert isinstance(started, e.RunStarted)
    assert started.caller is not None
    assert (started.caller.run_id, started.caller.call_id) == ("parent", "c1")
    done = next(event.body for event in run.events if isinstance(event.body, e.ToolCompleted))
    assert done.child is not None
    assert (done.child.run_id, done.child.usage.total_tokens, done.child.cost_usd) == (CHILD, 100, 0.01)
    assert run.cost_usd == pytest.approx(0.01)
    listed = agent.journal.runs(RunFilter(labels={CALLER: "parent"}))
    assert [info.run_id for info in listed] == [CHILD]
    await check_replay(agent, "parent", CHILD)
    found = await verify_run(agent.journal, "parent", [child.as_tool("helper")])
    assert (found.skips, found.differences, found.calls) == ((), (), found.matched)
    facts = facts_of([event.body for event in run.events])
    assert (facts.input_tokens, facts.cost_usd) == (run.usage.input_tokens, run.cost_usd)


async def test_a_sub_agent_has_what_is_left_of_the_budgets() -> None:
    """Two agents that work at the same time share what is left, so that the limit holds for all of them."""
    # Both are at work before one of them ends.
    child = Agent(
        ScriptedModel([paid("a"), paid("b")], delay_seconds=0.05), policy=Policy(max_tokens=100_000)
    )
    two = [call("helper", {"task": text}, call_id=text) for text in "ab"]
    agent = make(
        child,
        Completion(Message(Role.ASSISTANT, "", tuple(two)), FinishReason.TOOL_CALLS, Usage(1000, 0), 0.1),
        "done",
        policy=Policy(max_tokens=10_000, max_cost_usd=1.1, deadline_seconds=60),
    )
    run = await agent.run("go", run_id="parent")
    assert run.stop_reason is StopReason.COMPLETED
    room = 10_000 - 1000 - 1000  # what was used, and the estimate of the next inference
    for text in "ab":
        policy = Run.load(child_run_id("parent", text), agent.journal).state.policy
        assert policy.max_tokens == room // 2
        assert policy.max_cost_usd == pytest.approx((1.1 - 0.1 - 0.1) / 2, rel=0.01)
        assert policy.deadline_seconds is not None
        assert 0 < policy.deadline_seconds <= 60
    assert run.state.turn.spent.tokens == 1000 + 2 * 100 + run.state.size.last_usage.total_tokens


async def test_a_sub_agent_that_uses_up_the_budget_ends_the_turn() -> None:
    child = Agent(ScriptedModel([paid("4", tokens=950)]))
    agent = make(child, ASK, "wrapped up", policy=Policy(max_tokens=1000))
    run = await agent.run("go", run_id="parent")
    assert run.stop_reason is StopReason.MAX_TOKENS


async def test_cancelling_pauses_the_sub_agent_and_resuming_resumes_it() -> None:
    gate = Gate()

    @tool(effect="once")
    async def wait() -> str:
        await gate.pass_through()
        return "waited"

    @tool(effect="pure")
    async def look() -> str:
        if not gate.opened.is_set():
            await gate.pass_through()
        return "seen"

    child = Agent(ScriptedModel([[call("look")], "4"]), tools=[look, wait])
    agent = make(child, ASK, "it is 4")
    task = asyncio.ensure_future(agent.run("go", run_id="parent"))
    await gate.reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert Run.load(CHILD, agent.journal).status == "paused"
    gate.opened.set()
    run = await agent.resume("parent")
    assert run.output == "it is 4"
    assert len(child.model.requests) == 2  # type: ignore[attr-defined]
    assert Run.load(CHILD, agent.journal).output == "4"
    await check_replay(agent, "parent", CHILD)


async def test_an_ended_turn_counts_what_its_sub_agent_has_used() -> None:
    """The call of a turn that was ended by a cancellation has a result, which holds the cost so far."""
    gate = Gate()

    @tool
    async def wait() -> str:
        await gate.pass_through()
        return "waited"

    first = Completion(
        Message(Role.ASSISTANT, "", (call("wait"),)), FinishReason.TOOL_CALLS, Usage(70, 0), 0.5
    )
    agent = make(Agent(ScriptedModel([first]), tools=[wait]), ASK)
    async with agent.session("parent") as session:
        task = asyncio.ensure_future(session.send("go"))
        await gate.reached.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    run = Run.load("parent", agent.journal)
    assert run.stop_reason is StopReason.CANCELLED
    assert run.cost_usd == pytest.approx(0.5)
    await check_replay(agent, "parent")


async def test_a_once_tool_of_a_sub_agent_does_not_run_again() -> None:
    """An interrupted call is in doubt in the sub-agent, although the call of the agent is made again."""
    gate, acted = Gate(), []

    @tool
    async def send() -> str:
        acted.append(1)
        await gate.pass_through()
        return "sent"

    child = Agent(ScriptedModel([[call("send")], "4"]), tools=[send])
    agent = make(child, ASK, "it is 4")
    task = asyncio.ensure_future(agent.run("go", run_id="parent"))
    await gate.reached.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    run = await agent.resume("parent")
    assert run.output == "it is 4"
    assert acted == [1]
    assert Run.load(CHILD, agent.journal).results[0].error_kind == "in_doubt"


async def test_a_sub_agent_that_fails_is_an_error_result() -> None:
    child = Agent(ScriptedModel([RuntimeError("no server")]))
    agent = make(child, ASK, "it failed")
    run = await agent.run("go", run_id="parent")
    assert run.output == "it failed"
    assert run.results[0].is_error
    assert "no server" in run.results[0].content


async def test_agents_are_not_nested_without_end() -> None:
    """An agent that has itself as a tool stops at the limit."""
    tools: list[object] = []
    model = ScriptedModel(
        lambda request: ASK if request.messages[-1].role is Role.USER else request.messages[-1].content
    )
    agent = Agent(model, journal=MemoryJournal())
    tools.append(agent.as_tool("helper", "helps", max_depth=2))
    agent.kit = type(agent.kit)(tools, model)  # type: ignore[arg-type]
    run = await agent.run("go", run_id="parent")
    assert "nested 2 deep" in run.output
    assert len(agent.journal.runs()) == 2


async def test_files_are_own_or_shared() -> None:
    script = [
        [call("write_file", {"file_path": "a.txt", "content": "new"})],
        [call("delete_file", {"file_path": "b.txt"})],
        "ok",
    ]
    for shares in (False, True):
        child = Agent(ScriptedModel(list(script)), tools=["files"], files={"b.txt": "own"})
        agent = Agent(
            ScriptedModel([ASK, "done"]),
            tools=[child.as_tool("helper", shares_files=shares)],
            journal=MemoryJournal(),
            files={"a.txt": "old", "b.txt": "theirs"},
        )
        run = await agent.run("go", run_id="parent")
        expected = {"a.txt": b"new"} if shares else {"a.txt": b"old", "b.txt": b"theirs"}
        assert dict(run.files) == expected
        await check_replay(agent, "parent", CHILD)


async def test_answers_with_a_schema_are_structured() -> None:
    child = Agent(
        ScriptedModel(['{"sum": 4}']), schema={"type": "object", "properties": {"sum": {"type": "integer"}}}
    )
    run = await make(child, ASK, "done").run("go", run_id="parent")
    assert run.results[0].structured == {"sum": 4}


async def test_deps_and_approver_come_from_the_calling_run() -> None:
    from treadle import ToolContext

    @tool
    async def who(context: ToolContext[str]) -> str:
        return context.deps

    child = Agent(ScriptedModel([[call("who")], "ok"]), tools=[who], policy=Policy(approve={"who": "ask"}))
    asked = []
    agent = make(child, ASK, "done", deps="me", approver=lambda request: asked.append(request.run_id) or True)
    await agent.run("go", run_id="parent")
    assert asked == [CHILD]
    assert Run.load(CHILD, agent.journal).results[0].content == "me"


@pytest.mark.parametrize("answers_now", [True, False])
async def test_questions_of_a_sub_agent_go_to_the_user_of_the_calling_run(answers_now: bool) -> None:
    """Without an answer the calling run waits too, and holds nothing. The sub-agent's run pays nothing twice."""
    first = Completion(
        Message(Role.ASSISTANT, "", (call("ask_user", {"question": "Which?"}),)),
        FinishReason.TOOL_CALLS,
        Usage(50, 0),
        0.5,
    )
    child = Agent(ScriptedModel([first, paid("blue it is")]), tools=["ask"])
    heard: list[str] = []

    def answer(question: Question) -> str:
        heard.append(question.text)
        return "blue"

    agent = make(child, ASK, "done", asker=answer if answers_now else None)
    run = await agent.run("go", run_id="parent")
    if not answers_now:
        assert (run.status, Run.load(CHILD, agent.journal).status) == ("paused", "paused")
        assert not any(info.is_driven for info in agent.journal.runs())
        ((question_id, text),) = run.questions.items()
        assert text == "helper: Which?"
        run = await agent.resume("parent", answers={question_id: "blue"})
    assert run.output == "done"
    assert Run.load(CHILD, agent.journal).results[0].content == "blue"
    assert run.cost_usd == pytest.approx(0.51)
    assert heard == (["helper: Which?"] if answers_now else [])
    await check_replay(agent, "parent", CHILD)


@pytest.mark.parametrize(("said", "outcome"), [("yes", "sent"), ("no", "refused"), ("not now", "not now")])
async def test_approvals_of_a_sub_agent_are_asked_of_the_user_of_the_calling_run(
    said: str, outcome: str
) -> None:
    @tool
    async def send() -> str:
        return "sent"

    child = Agent(ScriptedModel([[call("send")], "4"]), tools=[send], policy=Policy(approve={"send": "ask"}))
    agent = make(child, ASK, "done")
    run = await agent.run("go", run_id="parent")
    assert run.status == "paused"
    ((question_id, text),) = run.questions.items()
    assert "wants to call send({})" in text
    run = await agent.resume("parent", answers={question_id: said})
    assert run.output == "done"
    assert outcome in Run.load(CHILD, agent.journal).results[0].content
    await check_replay(agent, "parent", CHILD)


def test_a_sub_agent_can_be_built_again_from_the_spec(tmp_path: Path) -> None:
    child = Agent("mock:echo", instructions="Help.", tools=["files"], policy=Policy(max_steps=3))
    agent = Agent("mock:echo", tools=[child.as_tool("helper", "helps", shares_files=True)])
    part = agent.spec.tools[0]
    assert (part.name, part.missing) == ("agent:helper", None)
    again = Agent.from_spec(agent.spec)
    assert again.spec == agent.spec
    assert again.tools["helper"].spec == agent.tools["helper"].spec


def test_a_sub_agent_that_cannot_be_built_again_says_why() -> None:
    child = Agent(ScriptedModel(["x"]), instructions=lambda: "made", files={"a": "b"})
    spec = Agent("mock:echo", tools=[child.as_tool()]).spec
    assert spec.tools[0].missing is not None
    for why in ("scripted", "instructions come from a function", "files were given"):
        assert why in spec.tools[0].missing
    with pytest.raises(ConfigError, match="cannot be built"):
        Agent.from_spec(spec)


def test_wrong_options() -> None:
    with pytest.raises(ConfigError, match="max_depth"):
        Agent("mock:echo").as_tool(max_depth=0)
    with pytest.raises(ConfigError):
        Agent("mock:echo").as_tool("no name")


def test_what_a_foreign_sub_agent_would_do_is_named() -> None:
    from treadle.runs.agent_parts import demands_of

    child = Agent("mock:echo", tools=["shell-unprotected"])
    found = demands_of(Agent("mock:echo", tools=[child.as_tool()]).spec)
    assert any("without protection" in text for text in found)


def test_a_file_journal_has_both_runs(tmp_path: Path) -> None:
    with open_journal(tmp_path / "j.db") as journal:
        agent = make(Agent(ScriptedModel(["4"])), ASK, "done", journal=journal)
        agent.run_sync("go", run_id="parent")
        assert {info.run_id for info in journal.runs()} == {"parent", CHILD}


@pytest.mark.parametrize("way", ["interrupt", "cancel", "deadline", "crash", "asked"])
async def test_the_runs_of_calls_that_were_stopped_for_good_are_over(way: str, tmp_path: Path) -> None:
    """Also those that sub-agents have called. Rules out runs that stay paused, although nobody resumes them."""
    gate = Gate()
    waiting: list[None] = []

    @tool(effect="pure")
    async def wait() -> str:
        waiting.append(None)
        if len(waiting) == 4:  # two of each of the two runs that are called last
            gate.reached.set()
        await gate.opened.wait()
        return ""

    policy = Policy(deadline_seconds=0.5) if way == "deadline" else None
    tools = ["ask"] if way == "asked" else [wait]
    first = [call("ask_user", {"question": "Which?"})] if way == "asked" else [call("wait")] * 2
    grandchild = Agent(ScriptedModel([first] * 8), tools=tools)
    child = make(grandchild, *[ASK] * 8)
    calls = [call("helper", {"task": text}) for text in ("a" if way == "asked" else "ab")]
    with open_journal(tmp_path / "runs.db") as journal:
        agent = make(child, calls, "stopped", journal=journal, policy=policy)
        async with agent.session("s", pauses_when_cancelled=way == "crash") as session:
            turn = asyncio.ensure_future(session.send("go"))
            if way == "asked":
                assert (await turn).questions
            elif way != "deadline":
                await gate.reached.wait()
            if way in ("cancel", "crash"):
                turn.cancel()
            if way == "interrupt":
                await session.send("stop", delivery="interrupt")
            await asyncio.wait([turn])
            if way == "asked":
                await session.send("stop", delivery="interrupt")
        if way == "crash":
            assert {info.status for info in journal.runs()} == {"paused"}
            async with agent.session("s") as session:
                await session.send("stop", delivery="interrupt")
        called = [info for info in journal.runs() if info.run_id != "s"]
        assert len(called) == (2 if way == "asked" else 4)
        assert {(info.status, info.stop_reason) for info in called} == {("finished", "cancelled")}
        await check_replay(agent, *[info.run_id for info in journal.runs()])


async def seeds_of(run_id: str, ids: Sequence[str], seed: int = 7) -> tuple[list[int], Agent]:
    """Drive a run whose two sub-agents and a summary get the same model; return the seeds in order of asking."""
    asked: list[dict[str, Any]] = []

    def respond(request: HttpRequest) -> HttpResponse:
        body = request.json()
        asked.append(body)
        if body["messages"][-1]["content"] != "go":
            return HttpResponse(answer("4"))
        function = {"name": "helper", "arguments": '{"task": "add"}'}
        calls = [{"id": key, "type": "function", "function": function} for key in ids]
        return HttpResponse(answer(None, finish="tool_calls", tool_calls=calls))

    def make_model() -> Model:
        return model("openai:m", api_key="k", seed=seed, transport=InProcessTransport(respond))

    child = Agent(make_model())
    agent = Agent(
        make_model(),
        tools=[child.as_tool("helper")],
        journal=MemoryJournal(),
        policy=Policy(context_tokens=4000),
    )
    async with agent.session(run_id) as session:
        await session.send("go")
        for _ in range(4):
            await session.send("more " * 200)
        assert await session.compact() is not None
    assert "Write the summary now." in asked[-1]["messages"][-1]["content"]
    return [body["seed"] for body in asked], agent


async def test_agents_with_equal_tasks_and_summaries_draw_numbers_of_their_own() -> None:
    """A server draws the same numbers for the same seed. A run that is made again sends the same seeds, although
    its id and the ids of its calls are others."""
    seeds, agent = await seeds_of("parent", ["c1", "c2"])
    assert seeds[0] == 7
    assert len(seeds) == len(set(seeds)) == 9
    await check_replay(agent, "parent", CHILD)
    started = agent.journal.read(child_run_id("parent", "c2"))[0].body
    assert isinstance(started, e.RunStarted)
    assert started.caller == Caller("parent", "c2", "1.1")
    assert (await seeds_of("another", ["x", "y"]))[0] == seeds
    assert not set((await seeds_of("another", ["x", "y"], seed=8))[0]) & set(seeds)


async def test_agents_that_one_call_of_a_tool_starts_have_places_of_their_own() -> None:
    @tool(effect="pure")
    async def both(context: ToolContext) -> str:
        """Ask two helpers."""
        given: dict[str, Json] = {"task": "add"}
        found = await asyncio.gather(*[context.call_tool("helper", given) for _ in range(2)])
        return " ".join([item.content for item in found])

    child = Agent(ScriptedModel([paid("4"), paid("5")]))
    script = [[call("both", call_id="c1")], "done"]
    agent = Agent(ScriptedModel(script), tools=[both, child.as_tool("helper")], journal=MemoryJournal())
    await agent.run("go", run_id="parent")
    starts = [agent.journal.read(child_run_id("parent", f"c1/{number}"))[0].body for number in (1, 2)]
    assert [item.caller and item.caller.place for item in starts if isinstance(item, e.RunStarted)] == [
        "1.0/1",
        "1.0/2",
    ]


@pytest.mark.parametrize(
    ("policy", "script", "told", "limit"),
    [
        (Policy(max_steps=1), [[call("look")], "so far 3"], "so far 3", "max_steps"),
        (Policy(max_steps=1), [[call("look")], ""], "The agent ended without an answer.", "max_steps"),
        (Policy(max_tool_calls=1), [[call("look"), call("look")], "3"], "3", "max_tool_calls"),
        (Policy(max_steps=2), [[call("look")], "it is 4"], "it is 4", None),
    ],
)
async def test_the_caller_is_told_which_limit_stopped_an_agent(
    policy: Policy, script: list[Any], told: str, limit: str | None
) -> None:
    @tool(effect="pure")
    async def look() -> str:
        """Look."""
        return "3"

    child = Agent(ScriptedModel(script), tools=[look], policy=policy)
    agent = make(child, ASK, "done")
    [result] = (await agent.run("go", run_id="parent")).results
    assert not result.is_error
    assert result.content == (f"{told}\n[The agent was stopped by its limit {limit}.]" if limit else told)
    await check_replay(agent, "parent", CHILD)
