"""What the loop does, pinned: limits and which wins, tool errors, cancelling, turn ends, order of results."""

import asyncio
import time
from typing import Any

import pytest

from treadle import (
    Agent,
    ConfigError,
    Fault,
    InDoubt,
    Message,
    Policy,
    Role,
    Run,
    RunExistsError,
    RunNotFoundError,
    ScriptedModel,
    StopReason,
    ToolCall,
    ToolContext,
    ToolError,
    Usage,
    open_journal,
    tool,
)
from treadle.core.errors import (
    AuthenticationError,
    ContextOverflowError,
    RateLimitError,
    RefusedError,
    ServerError,
)
from treadle.core.events import Ephemeral, InferenceStarted, MessageInjected
from treadle.core.types import Completion, FinishReason, Request
from treadle.models import RetryModel, call
from treadle.models.scripted import Answer
from treadle.trajectory.transcript import check_transcript


@tool(effect="pure")
async def echo(text: str, wait: float = 0.0) -> str:
    """Says it back, after a while."""
    await asyncio.sleep(wait)
    return text


@tool(effect="pure")
async def fail(text: str) -> str:
    """Fails."""
    raise ToolError(text) if text != "odd" else KeyError(text)


@tool(effect="pure", timeout_seconds=0.05)
async def hang() -> str:
    """Never ends."""
    await asyncio.Event().wait()
    return ""


@tool(effect="pure", max_result_chars=100)
async def long() -> str:
    """Says much."""
    return "a" * 500 + "z"


@tool(effect="once")
async def charge(wait: float = 0.0) -> str:
    """Takes money."""
    await asyncio.sleep(wait)
    return "charged"


TOOLS = [echo, fail, hang, long, charge]


def say(text: str, wait: float = 0.0, call_id: str = "") -> ToolCall:
    return call("echo", {"text": text, "wait": wait}, call_id=call_id)


def make(
    *answers: Answer, tools: Any = TOOLS, model: Any = None, **options: Any
) -> tuple[Agent, ScriptedModel]:
    scripted = ScriptedModel(answers)
    options.setdefault("journal", open_journal("memory:"))
    return Agent(model or scripted, tools=tools, **options), scripted


async def check(agent: Agent, run: Run) -> Run:
    """Every run's transcript is whole, and its replay exact."""
    if run.stop_reason is not None:
        assert check_transcript(run.messages) == []
    replay = await agent.replay(run.run_id)
    assert replay.is_exact, replay.divergence
    return run


async def run(*answers: Answer, **options: Any) -> Run:
    agent, _ = make(*answers, **options)
    return await check(agent, await agent.run("go"))


def results(run: Run) -> list[str]:
    return [message.content for message in run.messages if message.role is Role.TOOL]


# Turn ends


async def test_an_answer_ends_the_run() -> None:
    found = await run("the answer")
    assert (found.stop_reason, found.output, found.steps) == ("completed", "the answer", 1)
    assert [event.type for event in found.events] == [
        "run_started",
        "turn_started",
        "inference_started",
        "inference_completed",
        "turn_completed",
        "run_finished",
    ]
    assert [event.seq for event in found.events] == list(range(1, 7))


async def test_a_step_that_calls_tools_and_says_it_is_done_runs_the_calls() -> None:
    both = Completion(Message(Role.ASSISTANT, "Done!", (say("a"),)), FinishReason.STOP)
    found = await run(both, "really")
    assert (results(found), found.output, found.steps) == (["a"], "really", 2)


@pytest.mark.parametrize(
    ("reason", "stop"), [(FinishReason.LENGTH, "max_tokens"), (FinishReason.CONTENT_FILTER, "refused")]
)
async def test_an_answer_that_was_cut_off_or_refused_is_not_completed(
    reason: FinishReason, stop: str
) -> None:
    found = await run(Completion(Message(Role.ASSISTANT, "I"), reason))
    assert (found.stop_reason, found.fault, found.output) == (stop, Fault.MODEL, "I")


@pytest.mark.parametrize(
    ("error", "stop", "fault"),
    [
        (ServerError("down", status=500), "error", "infrastructure"),
        (RateLimitError("slow", status=429), "error", "infrastructure"),
        (AuthenticationError("no key", status=401), "error", "user"),
        (ContextOverflowError("long", status=400), "context_overflow", "model"),
        (RefusedError("no", status=400), "refused", "model"),
        (RuntimeError("a bug"), "error", "infrastructure"),
    ],
)
async def test_a_failing_model_ends_the_run_and_says_whose_fault(
    error: Exception, stop: str, fault: str
) -> None:
    found = await run([say("a")], error)
    assert (found.stop_reason, found.fault, found.steps) == (stop, fault, 1)
    assert str(error) in (found.error or "")


async def test_failed_attempts_are_events_and_cost_no_step() -> None:
    flaky = ScriptedModel(
        [RateLimitError("wait", status=429, retry_after_seconds=0.01), ServerError("x"), "ok"]
    )
    agent, _ = make(model=RetryModel(flaky, min_delay_seconds=0, max_delay_seconds=0.01))
    found = await check(agent, await agent.run("go"))
    assert (found.stop_reason, found.steps) == ("completed", 1)
    failed = [event.body for event in found.events if event.type == "inference_failed"]
    assert [(item.attempt, item.error_type) for item in failed] == [(1, "RateLimitError"), (2, "ServerError")]  # type: ignore[union-attr]


# Limits


async def test_at_max_steps_the_model_answers_once_more_without_tools() -> None:
    agent, model = make([say("a")], [say("b")], "what I have", policy=Policy(max_steps=2))
    found = await check(agent, await agent.run("go"))
    assert (found.stop_reason, found.output, found.steps) == ("max_steps", "what I have", 3)
    assert [bool(request.tools) for request in model.requests] == [True, True, False]
    assert "max_steps" in model.requests[-1].messages[-1].content
    injected = [event.body for event in found.events if isinstance(event.body, MessageInjected)]
    assert [item.limit for item in injected] == [StopReason.MAX_STEPS]


async def test_calls_in_the_wrap_up_are_answered_and_not_run() -> None:
    found = await run([say("a")], Message(Role.ASSISTANT, "so far", (say("b"),)), policy=Policy(max_steps=1))
    assert (found.stop_reason, found.output) == ("max_steps", "so far")
    assert results(found)[0] == "a"
    assert "Not run" in results(found)[1]


async def test_calls_over_max_tool_calls_are_told_and_the_rest_runs() -> None:
    found = await run([say("a"), say("b"), say("c")], "so far", policy=Policy(max_tool_calls=2))
    assert (found.stop_reason, found.output) == ("max_tool_calls", "so far")
    assert results(found)[:2] == ["a", "b"]
    assert "max_tool_calls" in results(found)[2]


async def test_using_all_tool_calls_is_no_limit_reached() -> None:
    assert (
        await run([say("a"), say("b")], "fine", policy=Policy(max_tool_calls=2))
    ).stop_reason == "completed"


def priced(answer: Message, tokens: int, cost_usd: float | None) -> Completion:
    reason = FinishReason.TOOL_CALLS if answer.tool_calls else FinishReason.STOP
    return Completion(answer, reason, Usage(tokens, 0), cost_usd)


def step(tokens: int = 100, cost_usd: float | None = 0.1) -> Completion:
    return priced(Message(Role.ASSISTANT, "", (say("a"),)), tokens, cost_usd)


async def test_tokens_are_reserved_before_they_are_spent() -> None:
    """Steps of 100, 100, 100: a fourth and a wrap-up would not fit into 450."""
    last = priced(Message(Role.ASSISTANT, "short"), 100, 0.1)
    found = await run(step(), step(), step(), last, policy=Policy(max_tokens=450))
    assert (found.stop_reason, found.output, found.steps) == ("max_tokens", "short", 4)
    assert found.usage.total_tokens <= 450


async def test_cost_is_reserved_and_unknown_cost_is_an_error_not_zero() -> None:
    last = priced(Message(Role.ASSISTANT, "short"), 100, 0.1)
    found = await run(step(), step(), last, policy=Policy(max_cost_usd=0.35))
    assert (found.stop_reason, found.steps) == ("max_cost", 3)
    assert found.cost_usd == pytest.approx(0.3)
    unknown = await run(step(cost_usd=None), policy=Policy(max_cost_usd=1))
    assert (unknown.stop_reason, unknown.fault, unknown.cost_usd) == ("error", "user", None)
    assert "price" in (unknown.error or "")


async def test_a_budget_too_small_for_anything_ends_before_the_model_is_asked() -> None:
    agent, model = make("never", policy=Policy(max_tokens=1))
    found = await check(agent, await agent.run("a question of several words"))
    assert (found.stop_reason, model.requests) == ("max_tokens", [])


async def test_which_limit_wins() -> None:
    """All reached at once: deadline, cost, tokens, tool calls, steps, in this order."""
    limits: dict[str, Any] = {
        "deadline_seconds": 0.0, "max_cost_usd": 0.1, "max_tokens": 100, "max_tool_calls": 0, "max_steps": 1,
    }  # fmt: skip
    for reason in ("deadline", "max_cost", "max_tokens", "max_tool_calls", "max_steps"):
        if reason == "deadline":
            assert (await run(step(), "x", policy=Policy(**limits))).stop_reason == reason
        else:
            assert (await run(step(), "x", policy=Policy(**limits))).stop_reason == reason, reason
        limits.pop(
            f"{reason}_seconds"
            if reason == "deadline"
            else "max_cost_usd"
            if reason == "max_cost"
            else reason
        )


async def test_the_deadline_stops_the_model_and_the_tools() -> None:
    agent, _ = make(model=ScriptedModel(["late"], delay_seconds=60), policy=Policy(deadline_seconds=0.1))
    found = await asyncio.wait_for(agent.run("go"), 20)
    assert (found.stop_reason, found.steps) == ("deadline", 0)
    found = await asyncio.wait_for(run([say("a", 60), say("b")], policy=Policy(deadline_seconds=0.1)), 20)
    assert found.stop_reason == "deadline"
    assert "deadline" in results(found)[0]
    assert results(found)[1] == "b"


# Tool errors


@pytest.mark.parametrize(
    ("made", "kind", "words"),
    [
        (call("ecko", {}), "unknown_tool", "Did you mean 'echo'"),
        (call("echo", '{"text": '), "invalid_json", "not valid JSON"),
        (call("echo", {"test": "a"}), "invalid_arguments", "text"),
        (call("echo", "[1]"), "invalid_arguments", "object"),
        (call("fail", {"text": "no such city"}), "failed", "no such city"),
        (call("fail", {"text": "odd"}), "failed", "KeyError"),
        (call("hang"), "timeout", "0.05 s"),
        (call("long"), "too_long", "501 characters"),
    ],
)
async def test_each_tool_error_is_a_result_and_the_run_goes_on(made: ToolCall, kind: str, words: str) -> None:
    found = await run([made], "mended")
    assert (found.stop_reason, found.output) == ("completed", "mended")
    (result,) = [event.body.result for event in found.events if event.type == "tool_completed"]  # type: ignore[union-attr]
    assert (result.is_error, result.error_kind) == (True, kind)
    assert words in result.content
    assert found.messages[2].is_error


async def test_a_call_that_was_cut_off_is_told_apart_from_a_malformed_one() -> None:
    cut = Completion(Message(Role.ASSISTANT, "", (call("echo", '{"text": "abc'),)), FinishReason.LENGTH)
    found = await run(cut, "again")
    (result,) = [event.body.result for event in found.events if event.type == "tool_completed"]  # type: ignore[union-attr]
    assert result.error_kind == "truncated"
    assert found.stop_reason == "completed"


# Order, concurrency, ids


async def test_results_go_back_in_call_order_whatever_ends_first() -> None:
    found = await run([say("slow", 0.1), say("quick"), call("nope"), say("middle", 0.05)], "done")
    assert [text[:6] for text in results(found)] == ["slow", "quick", "There ", "middle"]
    ended = [event.body.result.content for event in found.events if event.type == "tool_completed"]  # type: ignore[union-attr]
    assert ended.index("quick") < ended.index("middle") < ended.index("slow")


@pytest.mark.parametrize(("limit", "most"), [(1, 1), (2, 2), (8, 5)])
async def test_calls_of_a_step_run_together_up_to_the_limit(limit: int, most: int) -> None:
    running, seen = 0, []

    @tool(effect="pure")
    async def work(name: int) -> str:
        nonlocal running
        running += 1
        seen.append(running)
        await asyncio.sleep(0.02)
        running -= 1
        return str(name)

    calls = [call("work", {"name": index}) for index in range(5)]
    found = await run(calls, "done", tools=[work], policy=Policy(parallel_tool_calls=limit))
    assert max(seen) == most
    assert results(found) == list("01234")


async def test_a_tool_that_runs_alone_does_so_in_its_place() -> None:
    log: list[str] = []

    @tool(effect="pure")
    async def read() -> str:
        log.append("read")
        await asyncio.sleep(0.02)
        log.append("/read")
        return ""

    @tool(effect="idempotent", concurrent=False)
    async def write() -> str:
        log.append("write")
        await asyncio.sleep(0)
        log.append("/write")
        return ""

    await run([call("read"), call("read"), call("write"), call("read")], "done", tools=[read, write])
    assert log == ["read", "read", "/read", "/read", "write", "/write", "read", "/read"]


async def test_ids_are_unique_in_the_run_whatever_the_model_sends() -> None:
    found = await run(
        [say("a", call_id="x"), say("b", call_id="x"), say("c")], [say("d", call_id="x")], "done"
    )
    ids = [item.call_id for message in found.messages for item in message.tool_calls]
    assert len(set(ids)) == 4
    assert ids[0] == "x"
    assert results(found) == ["a", "b", "c", "d"]


async def test_the_same_call_again_is_run_again() -> None:
    read, write = (
        call("read_file", {"file_path": "a"}),
        call("write_file", {"file_path": "a", "content": "2"}),
    )
    found = await run([read], [write], [read], "done", tools=["files"], files={"a": "1"})
    assert results(found)[0::2] == ["1", "2"]
    assert found.files == {"a": b"2"}


async def test_a_tool_is_given_its_run_and_tells_its_progress() -> None:
    seen: list[ToolContext] = []

    @tool(effect="pure")
    def thread(context: ToolContext) -> str:
        seen.append(context)
        context.progress("half way")
        return context.idempotency_key

    agent, _ = make([call("thread", call_id="c1")], "done", tools=[thread])
    events: list[Any] = []
    found = await agent.run("go", on_event=events.append)
    assert results(found) == [f"{found.run_id}/c1"]
    assert [event.body.text for event in events if event.type == "tool_progress"] == ["half way"]


# Streaming


async def test_events_are_heard_in_order_once_they_are_kept() -> None:
    journal = open_journal("memory:")
    agent, _ = make([say("a"), say("b")], "the answer", journal=journal)
    seqs, text = [], ""
    stream = agent.stream("go")
    async for event in stream:
        if isinstance(event, Ephemeral):
            text += getattr(event.body, "text", "")
        else:
            seqs.append(event.seq)
            assert len(journal.read(event.run_id)) >= event.seq
    assert seqs == list(range(1, len(seqs) + 1))
    assert text == "the answer"
    assert stream.run is not None
    assert stream.run.output == "the answer"
    assert len(stream.run.events) == len(seqs)


async def test_leaving_a_stream_cancels_a_run_that_can_be_resumed() -> None:
    journal = open_journal("memory:")
    agent, _ = make([say("a", 30)], journal=journal)
    stream = agent.stream("go", run_id="r")
    async for event in stream:
        if event.type == "tool_started":
            break
    await asyncio.wait_for(stream.aclose(), 10)
    assert journal.read("r")[-1].type == "run_paused"
    again, _ = make(
        "the end", journal=journal, tools=[tool(effect="pure", name="echo")(lambda text, wait: text)]
    )
    assert (await check(again, await again.resume("r"))).output == "the end"


# Cancelling, doubt, resuming


async def cancel(agent: Agent, at: str) -> str:
    """Cancel the run when it is at an event of this type; its id."""
    reached = asyncio.Event()
    task = asyncio.ensure_future(
        agent.run("go", run_id="r", on_event=lambda event: reached.set() if event.type == at else None)
    )
    await asyncio.wait_for(reached.wait(), 10)
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 10)
    return "r"


async def test_cancelling_the_model_leaves_a_run_that_goes_on() -> None:
    journal = open_journal("memory:")
    agent, _ = make(model=ScriptedModel(["late"], delay_seconds=60), journal=journal)
    await cancel(agent, "inference_started")
    assert [event.type for event in journal.read("r")][-2:] == ["inference_failed", "run_paused"]
    again, _ = make("in time", journal=journal)
    found = await check(again, await again.resume("r"))
    assert (found.stop_reason, found.output) == ("completed", "in time")


async def test_a_once_call_that_was_cancelled_is_in_doubt_and_told() -> None:
    journal = open_journal("memory:")
    agent, _ = make([call("charge", {"wait": 60.0}), say("a", 60)], journal=journal)
    await cancel(agent, "tool_started")
    again, _ = make(
        "I see", journal=journal, tools=[charge, tool(effect="pure", name="echo")(lambda text, wait: "again")]
    )
    found = await check(again, await again.resume("r"))
    assert "outcome of this call is unknown" in results(found)[0]
    assert results(found)[1] == "again"


async def test_the_user_is_asked_if_the_policy_says_so() -> None:
    journal = open_journal("memory:")
    options: dict[str, Any] = {"journal": journal, "policy": Policy(in_doubt=InDoubt.ASK)}
    agent, _ = make([call("charge", {"wait": 60.0})], **options)
    await cancel(agent, "tool_started")
    waiting, _ = make(**options)
    found = await waiting.resume("r")
    assert (found.status, found.stop_reason) == ("paused", None)
    ((question, text),) = found.questions.items()
    assert "charge" in text
    with pytest.raises(ConfigError, match="open are"):
        await waiting.resume("r", answers={"other": "x"})
    again, _ = make("thanks", **options)
    found = await check(again, await again.resume("r", answers={question: "it was charged"}))
    assert (results(found), found.output) == (["it was charged"], "thanks")


async def test_resuming_what_is_not_there_or_over() -> None:
    agent, model = make("once")
    with pytest.raises(RunNotFoundError, match="not found"):
        await agent.resume("nobody")
    found = await agent.run("go", run_id="r")
    again = await agent.resume("r")
    assert (again.output, again.steps, len(model.requests)) == (found.output, 1, 1)
    with pytest.raises(RunExistsError, match="exists already"):
        await agent.run("go", run_id="r")


async def test_a_run_that_ended_with_an_error_can_be_resumed() -> None:
    journal = open_journal("memory:")
    agent, _ = make([say("a")], ServerError("down"), journal=journal)
    assert (await agent.run("go", run_id="r")).stop_reason == "error"
    again, _ = make("up again", journal=journal)
    found = await check(again, await again.resume("r"))
    assert (found.stop_reason, found.output, results(found)) == ("completed", "up again", ["a"])


# Forks, replay, sessions


FILE_STEPS: list[Answer] = [
    [call("write_file", {"file_path": "a", "content": "1"})],
    [call("write_file", {"file_path": "a", "content": "2"}), call("list_files")],
    "done",
]


async def test_a_fork_at_every_event_has_the_files_of_that_moment() -> None:
    journal = open_journal("memory:")
    agent, _ = make(*FILE_STEPS, tools=["files"], files={"seed": "s"}, journal=journal)
    whole = await agent.run("go")
    for seq in range(3, len(whole.events) - 1):
        prefix = whole.events[:seq]
        steps = sum(event.type == "inference_completed" for event in prefix)
        forker, _ = make(*FILE_STEPS[steps:], tools=["files"], journal=journal)
        fork = await check(forker, await forker.fork(whole.run_id, seq))
        assert (fork.stop_reason, fork.files) == ("completed", {"a": b"2", "seed": b"s"}), seq
        assert fork.messages == whole.messages
        assert [event.body for event in fork.events[1:seq]] == [event.body for event in prefix[1:]]


async def test_a_fork_with_another_text_after_the_end() -> None:
    agent, _ = make(*FILE_STEPS, "and more", tools=["files"])
    whole = await agent.run("go")
    done = next(event.seq for event in whole.events if event.type == "turn_completed")
    fork = await check(agent, await agent.fork(whole.run_id, done, text="more?"))
    assert (fork.output, fork.files["a"]) == ("and more", b"2")
    with pytest.raises(ConfigError, match="give a text"):
        await agent.fork(whole.run_id, done)
    with pytest.raises(ConfigError, match="cannot be forked at 99"):
        await agent.fork(whole.run_id, 99)


async def test_a_changed_policy_diverges_where_it_would_have_decided_otherwise() -> None:
    agent, _ = make([say("a")], [say("b")], "done")
    found = await agent.run("go")
    replay = await agent.replay(found.run_id, policy=Policy(max_steps=1))
    second = [event.seq for event in found.events if isinstance(event.body, InferenceStarted)][1]
    assert replay.divergence is not None
    assert replay.divergence.seq == second
    assert "message_injected" in str(replay.divergence)


async def test_a_session_is_closed_and_opened_again() -> None:
    journal = open_journal("memory:")
    agent, _ = make("one", [say("a")], "two", journal=journal)
    async with agent.session() as session:
        assert (await session.send("first")).output == "one"
        second = await session.send("second")
        assert (second.output, second.steps) == ("two", 3)
    again, model = make("three", journal=journal)
    async with again.session(session.run_id) as session:
        third = await check(again, await session.send("third"))
    assert (third.output, third.state.turn) == ("three", 3)
    assert [message.content for message in model.requests[0].messages if message.role is Role.USER] == [
        "first", "second", "third",
    ]  # fmt: skip


async def test_a_session_survives_a_cancelled_and_a_failed_turn() -> None:
    agent, _ = make([call("charge", {"wait": 60.0}), say("x", 60)], ServerError("down"), "fine",
                    policy=Policy(max_steps=2))  # fmt: skip
    async with agent.session() as session:
        started = asyncio.Event()
        task = asyncio.ensure_future(
            session.send(
                "first", on_event=lambda event: started.set() if event.type == "tool_started" else None
            )
        )
        await asyncio.wait_for(started.wait(), 10)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert (await session.send("second")).stop_reason == "error"
        third = await check(agent, await session.send("third"))
    assert (third.stop_reason, third.output) == ("completed", "fine")


async def test_limits_count_for_each_turn_of_a_session() -> None:
    agent, _ = make([say("a")], "one", [say("b")], "two", policy=Policy(max_steps=2))
    async with agent.session() as session:
        assert (await session.send("first")).stop_reason == "completed"
        assert (await session.send("second")).stop_reason == "completed"


# Sums, many at once, sync


async def test_usage_and_cost_are_sums() -> None:
    found = await run(step(100, 0.1), priced(Message(Role.ASSISTANT, "x"), 50, 0.2))
    assert found.usage == Usage(150, 0)
    assert found.cost_usd == pytest.approx(0.3)


async def test_runs_of_one_agent_do_not_mix() -> None:
    def answer(request: Request) -> Answer:
        asked = next(item.content for item in request.messages if item.role is Role.USER)
        if request.messages[-1].role is Role.TOOL:
            return f"{asked} {request.messages[-1].content}"
        return [say(asked, 0.01)]

    agent = Agent(ScriptedModel(answer), tools=TOOLS, journal=open_journal("memory:"))
    runs = await asyncio.gather(*[agent.run(f"n{index}") for index in range(50)])
    assert [item.output for item in runs] == [f"n{index} n{index}" for index in range(50)]


async def test_the_sync_api_works_beside_a_running_loop() -> None:
    agent, _ = make([say("a")], "one", "two", "three")
    found = agent.run_sync("go", run_id="r")
    assert (found.output, agent.resume_sync("r").output) == ("one", "one")
    assert [event.type for event in agent.stream_sync("go")][-1] == "run_finished"
    with agent.session() as session:
        assert session.send_sync("go").output == "three"
    assert agent.replay_sync("r").is_exact


async def test_time_that_nobody_worked_is_not_counted() -> None:
    journal = open_journal("memory:")
    agent, _ = make(
        model=ScriptedModel(["x"], delay_seconds=60), journal=journal, policy=Policy(deadline_seconds=5)
    )
    await cancel(agent, "inference_started")
    later = journal.read("r")[-1].at + 3600
    from treadle.core.events import RunResumed
    from treadle.core.state import fold

    state = fold([*[event.body for event in journal.read("r")], RunResumed(at=later)])
    assert state.work_seconds < 5 < time.time() - later + 3700
