"""The stream of turns and steps."""

import asyncio
import random
from collections.abc import AsyncIterator, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.conftest import IS_FULL
from tests.core.histories import History, histories

import treadle
from treadle import Agent, Policy, ScriptedModel, ToolContext, open_journal, tool
from treadle.core import events as e
from treadle.core.errors import RateLimitError, ServerError
from treadle.core.lineage import Caller, Child
from treadle.core.types import (
    Completion,
    Fault,
    FinishReason,
    Message,
    Role,
    ServerCall,
    StopReason,
    ToolCall,
    ToolResult,
    Usage,
)
from treadle.journal.jsonl import import_lines
from treadle.models import RetryModel, call
from treadle.trajectory import turns as t
from treadle.trajectory.turns import TurnEvent, turns

DATA = Path(__file__).parents[1] / "data"


@tool(effect="pure")
async def web_search(query: str) -> str:
    """Search."""
    return f"found {query}"


@tool(effect="pure")
async def fails() -> str:
    """Fail."""
    raise ValueError("broken")


def agent(*answers: Any, journal: Any = "memory:", **options: Any) -> Agent:
    model = answers[0] if len(answers) == 1 and hasattr(answers[0], "infer") else ScriptedModel(answers)
    return Agent(model, tools=[web_search, fails], journal=journal, **options)


def names(found: Iterable[TurnEvent]) -> list[str]:
    """Return the events as short texts: the type, and what tells it from others of its type."""
    said = []
    for event in found:
        if isinstance(event, t.StepStarted):
            said.append(f"start {event.step_type}")
        elif isinstance(event, t.StepProgress):
            said.append(event.delta.delta_type)
        elif isinstance(event, t.StepCompleted):
            said.append(getattr(event.result, "stop_reason", "tools done"))
        else:
            said.append(event.event_type)
    return said


def check(found: Sequence[TurnEvent]) -> None:
    """Check what holds for every stream, whatever its events are."""
    open_turns: dict[str, int] = {}
    open_steps: dict[str, str] = {}
    last_steps: dict[str, int] = {}
    step_types: dict[str, str] = {}
    newest: dict[str, str] = {}
    for event in found:
        turn_id = event.turn_id
        if isinstance(event, t.TurnStarted):
            assert turn_id not in open_turns
            open_turns[turn_id] = 1
            if newest.get(event.session_id) != turn_id:
                last_steps[turn_id] = -1
            newest[event.session_id] = turn_id
            continue
        assert turn_id in open_turns, f"{event} outside of a turn"
        if isinstance(event, t.StepStarted):
            assert turn_id not in open_steps
            stem, number = event.step_id.rsplit("_", 1)
            assert stem == f"{turn_id}_step"
            assert int(number) == last_steps.get(turn_id, -1) + 1
            last_steps[turn_id], open_steps[turn_id] = int(number), event.step_id
            step_types[turn_id] = event.step_type
        elif isinstance(event, t.StepProgress | t.StepCompleted | t.StepFailed):
            assert open_steps[turn_id] == event.step_id
            assert step_types[turn_id] == event.step_type
            if not isinstance(event, t.StepProgress):
                del open_steps[turn_id]
        elif isinstance(event, t.TurnCompleted | t.TurnFailed):
            assert turn_id not in open_steps, "a step is open when its turn ends"
            del open_turns[turn_id]
            if isinstance(event, t.TurnCompleted):
                assert event.num_steps == last_steps.get(turn_id, -1) + 1
    assert not open_turns
    assert not found or isinstance(found[-1], t.TurnCompleted | t.TurnFailed)


def read(run_id: str, bodies: Iterable[Any]) -> list[TurnEvent]:
    """Return the stream of a run with these events and deltas."""
    items: list[Any] = []
    for body in bodies:
        is_delta = isinstance(body, e.Delta.__args__)  # type: ignore[attr-defined]
        items.append(e.Ephemeral(run_id, body) if is_delta else e.Event(run_id, len(items) + 1, body))
    found = list(turns(items))
    check(found)
    return found


def without_deltas(found: Iterable[TurnEvent]) -> list[TurnEvent]:
    """Return the events without those that only a live stream has in this form."""
    pieces = (t.TextDelta, t.ReasoningDelta, t.ToolCallDelta, t.ToolProgressDelta)
    return [
        item for item in found if not (isinstance(item, t.StepProgress) and isinstance(item.delta, pieces))
    ]


def text_of(found: Iterable[TurnEvent]) -> str:
    return "".join(
        [
            item.delta.text
            for item in found
            if isinstance(item, t.StepProgress) and isinstance(item.delta, t.TextDelta)
        ]
    )


async def live(runner: Agent, text: str = "go") -> tuple[list[TurnEvent], list[TurnEvent]]:
    """Return the stream of a run while it is driven, and that of its journal afterwards."""
    stream = runner.stream(text)
    found = [event async for event in turns(stream)]
    check(found)
    assert stream.run is not None
    later = list(turns(runner.journal.read(stream.run.run_id)))
    check(later)
    assert without_deltas(found) == without_deltas(later)
    assert text_of(found) == text_of(later)
    return found, later


def test_the_names_fields_and_tags_are_those_of_the_reference() -> None:
    """The reference's names, the order of its fields and its tags; what it does not have comes after them."""
    wanted = {
        "TurnStarted": (["turn_id", "session_id"], "event_type", "turn_started"),
        "TurnCompleted": (
            ["turn_id", "session_id", "final_text", "response_ids", "num_steps"],
            "event_type",
            "turn_completed",
        ),
        "TurnFailed": (["turn_id", "session_id", "error_message"], "event_type", "turn_failed"),
        "StepStarted": (["step_id", "step_type", "turn_id"], "event_type", "step_started"),
        "StepProgress": (["step_id", "step_type", "turn_id", "delta"], "event_type", "step_progress"),
        "StepCompleted": (["step_id", "step_type", "turn_id", "result"], "event_type", "step_completed"),
        "TextDelta": (["text"], "delta_type", "text"),
        "ToolCallIssuedDelta": (
            ["call_id", "tool_type", "tool_name", "arguments"],
            "delta_type",
            "tool_call_issued",
        ),
        "ToolCallDelta": (["call_id", "arguments_delta"], "delta_type", "tool_call"),
        "ToolCallCompletedDelta": (
            ["call_id", "tool_type", "tool_name", "result"],
            "delta_type",
            "tool_call_completed",
        ),
    }
    for name, (fields, tag_field, tag) in wanted.items():
        shape = getattr(t, name)
        assert list(shape.__struct_fields__[: len(fields) + 1]) == [*fields, tag_field], name
        assert shape.__struct_defaults__[len(fields) - len(shape.__struct_fields__)] == tag
    assert t.StepStarted.__struct_fields__[-1] == "metadata"
    assert t.InferenceStepResult.__struct_fields__ == (
        "step_id",
        "response_id",
        "text_content",
        "function_calls",
        "server_tool_executions",
        "stop_reason",
    )
    assert t.ToolExecutionStepResult.__struct_fields__ == ("step_id", "tool_calls", "tool_responses")
    assert t.ToolCall.__struct_fields__ == ("call_id", "tool_name", "arguments")
    assert treadle.turns is turns
    assert t.AgentEventLogger is treadle.EventLogger


async def test_a_turn_without_tools() -> None:
    found, later = await live(agent("the whole answer"))
    assert names(later) == ["turn_started", "start inference", "text", "end_of_turn", "turn_completed"]
    assert [name for name in names(found) if name != "text"] == [
        name for name in names(later) if name != "text"
    ]
    start, end = later[0], later[-1]
    assert isinstance(start, t.TurnStarted)
    assert isinstance(end, t.TurnCompleted)
    assert len(start.turn_id) == 17
    assert (end.session_id, end.final_text, end.num_steps) == (start.session_id, "the whole answer", 1)
    assert (end.usage, end.cost_usd) == (Usage(10, 10), 0.0)


async def test_tools_of_the_client_are_one_step_with_every_result() -> None:
    """The arguments are streamed, the issued calls have them whole, and each result is reported as it comes."""
    found, later = await live(agent([call("web_search", {"query": "owls"}), call("fails")], "done"))
    assert names(later) == [
        "turn_started",
        "start inference",
        "tool_call_issued",
        "tool_call_issued",
        "tool_calls",
        "start tool_execution",
        "tool_call_completed",
        "tool_call_completed",
        "tools done",
        "start inference",
        "text",
        "end_of_turn",
        "turn_completed",
    ]
    deltas = [item.delta for item in found if isinstance(item, t.StepProgress)]
    pieces = [delta for delta in deltas if isinstance(delta, t.ToolCallDelta)]
    assert [(delta.tool_name, delta.index, delta.arguments_delta) for delta in pieces] == [
        ("web_search", 0, '{"query":"owls"}'),
        ("fails", 1, "{}"),
    ]
    issued = [delta for delta in deltas if isinstance(delta, t.ToolCallIssuedDelta)]
    assert [(delta.tool_type, delta.arguments) for delta in issued] == [
        ("function", '{"query":"owls"}'),
        ("function", "{}"),
    ]
    step = next(item for item in later if isinstance(item, t.StepStarted) and item.step_type != "inference")
    assert step.metadata == {"server_side": False}
    done = next(
        item.result
        for item in later
        if isinstance(item, t.StepCompleted) and isinstance(item.result, t.ToolExecutionStepResult)
    )
    assert [item["content"] for item in done.tool_responses] == ["found owls", "ValueError: broken"]
    assert [item["metadata"]["is_error"] for item in done.tool_responses] == [False, True]
    assert [item.call_id for item in done.tool_calls] == [item["call_id"] for item in done.tool_responses]


async def test_a_tool_of_the_client_may_have_the_name_of_one_of_the_server() -> None:
    """A call of a function named `web_search` was taken for one of the server, never run, and ended the turn."""
    _, later = await live(agent([call("web_search", {"query": "x"})], "done"))
    kinds = [item.metadata for item in later if isinstance(item, t.StepStarted)]
    assert kinds == [None, {"server_side": False}, None]
    assert isinstance(later[-1], t.TurnCompleted)


def searched(*calls: ServerCall, text: str = "", made: tuple[ToolCall, ...] = ()) -> e.InferenceCompleted:
    message = Message(Role.ASSISTANT, text, made, server_calls=calls)
    reason = FinishReason.TOOL_CALLS if made else FinishReason.STOP
    return e.InferenceCompleted(step=1, completion=Completion(message, reason, response_id="r1"))


BEGIN = (
    e.RunStarted(version=e.VERSION),
    e.TurnStarted(turn=1, message=Message(Role.USER, "go")),
    e.InferenceStarted(step=1, messages=1),
)


def end(text: str = "") -> e.TurnCompleted:
    return e.TurnCompleted(turn=1, stop_reason=StopReason.COMPLETED, output=text)


def test_results_of_the_servers_tools_are_reported() -> None:
    """The results of tools that the server ran were thrown away, and their arguments were shown as empty."""
    made = ServerCall("s1", "file_search", '{"queries":["a"]}', "the snippet", offset=0)
    found = read("r", [*BEGIN, searched(made, text="tool finished"), end("tool finished")])
    assert names(found) == [
        "turn_started",
        "start inference",
        "server_tool_call",
        "start tool_execution",
        "tool_call_issued",
        "tool_call_completed",
        "tools done",
        "start inference",
        "text",
        "end_of_turn",
        "turn_completed",
    ]
    assert isinstance(found[3], t.StepStarted)
    assert found[3].metadata == {"server_side": True, "tool_type": "file_search", "tool_name": "file_search"}
    assert isinstance(found[6], t.StepCompleted)
    assert isinstance(found[6].result, t.ToolExecutionStepResult)
    assert found[6].result.tool_calls == [t.ToolCall("s1", "file_search", '{"queries":["a"]}')]
    assert [item["content"] for item in found[6].result.tool_responses] == ["the snippet"]
    assert isinstance(found[2], t.StepCompleted)
    assert isinstance(found[2].result, t.InferenceStepResult)
    assert found[2].result.server_tool_executions[0]["result"] == "the snippet"
    assert isinstance(found[-1], t.TurnCompleted)
    assert (found[-1].num_steps, found[-1].response_ids) == (3, ["r1"])


def test_server_tools_at_once_and_in_turn_keep_the_order() -> None:
    """Interleaved tools of the server left steps open, mixed up their calls and inflated the number of steps."""
    beside = [
        ServerCall("a", "web_search", "", "A", offset=2),
        ServerCall("b", "file_search", "", "B", offset=2),
    ]
    after = ServerCall("c", "web_search", "", "C", is_error=True, offset=4)
    found = read("r", [*BEGIN, searched(*beside, after, text="one two"), end("one two")])
    types = [item.step_type for item in found if isinstance(item, t.StepStarted)]
    assert types == ["inference", "tool_execution", "inference", "tool_execution", "inference"]
    results = [item.result for item in found if isinstance(item, t.StepCompleted)]
    texts = [item.text_content for item in results if isinstance(item, t.InferenceStepResult)]
    assert texts == ["on", "e ", "two"]
    done = [item for item in results if isinstance(item, t.ToolExecutionStepResult)]
    assert [[call.call_id for call in item.tool_calls] for item in done] == [["a", "b"], ["c"]]
    assert [item["metadata"]["is_error"] for item in done[1].tool_responses] == [True]
    metadata = [item.metadata for item in found if isinstance(item, t.StepStarted) and item.metadata]
    assert metadata[0]["tool_name"] == "web_search, file_search"


def test_a_server_tool_at_the_end_leaves_no_empty_step() -> None:
    """A tool of the server at the end of an answer left an empty inference step open."""
    found = read("r", [*BEGIN, searched(ServerCall("", "web_search")), end()])
    assert [item.step_type for item in found if isinstance(item, t.StepStarted)] == [
        "inference",
        "tool_execution",
    ]
    assert isinstance(found[-1], t.TurnCompleted)
    assert found[-1].num_steps == 2


def test_calls_of_both_sides_in_one_answer() -> None:
    mine = ToolCall("m", "web_search", "{}")
    result = e.ToolCompleted(step=1, result=ToolResult("m", "web_search", "mine"))
    found = read("r", [*BEGIN, searched(ServerCall("s", "web_search"), made=(mine,)), result, end()])
    metadata = [item.metadata for item in found if isinstance(item, t.StepStarted)]
    assert [item and item["server_side"] for item in metadata] == [None, True, None, False]


async def test_an_attempt_that_failed_takes_its_text_back() -> None:
    """What an attempt streamed before it failed must be told to no longer count."""

    class Flaky:
        name = "flaky"
        asked = 0

        async def infer(self, request: Any, watch: Any) -> Completion:
            self.asked += 1
            if watch.on_delta is not None:
                watch.on_delta(e.TextDelta("wrong " if self.asked == 1 else "right"))
            if self.asked == 1:
                raise RateLimitError("slow down", status=429, retry_after_seconds=0.0)
            return Completion(Message(Role.ASSISTANT, "right"), FinishReason.STOP, Usage(5, 5), 0.25)

    runner = agent(RetryModel(Flaky()))
    found = [event async for event in turns(runner.stream("go"))]
    check(found)
    assert names(found)[2:6] == ["text", "retry", "text", "end_of_turn"]
    retry = next(
        item.delta
        for item in found
        if isinstance(item, t.StepProgress) and isinstance(item.delta, t.RetryDelta)
    )
    assert (retry.code, retry.attempt) == ("RateLimitError", 1)
    done = next(item for item in found if isinstance(item, t.StepCompleted))
    assert (done.usage, done.cost_usd) == (Usage(5, 5), 0.25)
    assert isinstance(found[-1], t.TurnCompleted)
    assert (found[-1].usage, found[-1].cost_usd) == (Usage(5, 5), 0.25)


async def test_a_failure_closes_its_step_and_says_what_it_was() -> None:
    """A failure left its step open, the text of the error was lost, and errors of the transport were raised."""
    runner = agent([call("fails")], ServerError("down"))
    found, _ = await live(runner)
    failed, last = found[-2:]
    assert isinstance(failed, t.StepFailed)
    assert (failed.step_type, failed.error_message, failed.code) == ("inference", "down", "ServerError")
    assert isinstance(last, t.TurnFailed)
    assert (last.error_message, last.code, last.is_retryable) == ("down", "ServerError", True)
    assert last.usage == Usage(10, 10)


async def test_an_answer_that_was_cut_off_or_refused_is_told_as_such() -> None:
    """An incomplete response raised an error without a step's end, or gave the previous response as the answer."""
    for reason, step, code in (
        (FinishReason.LENGTH, "length", "max_tokens"),
        (FinishReason.CONTENT_FILTER, "content_filter", "refused"),
    ):
        cut = Completion(Message(Role.ASSISTANT, "half"), reason, Usage(1, 1), 0.0)
        found, _ = await live(agent([call("fails")], cut))
        assert step in names(found)
        assert isinstance(found[-1], t.TurnFailed)
        assert found[-1].code == code


async def test_a_limit_ends_the_turn_with_its_reason() -> None:
    """Nothing limited a turn, and nothing said that a limit had ended it."""
    found, _ = await live(agent([call("fails")], [call("fails")], "so far", policy=Policy(max_steps=2)))
    assert isinstance(found[-1], t.TurnCompleted)
    assert (found[-1].stop_reason, found[-1].final_text) == ("max_steps", "so far")


async def test_a_cancelled_turn_ends_and_a_resumed_one_goes_on() -> None:
    started = asyncio.Event()

    @tool(effect="pure")
    async def wait(context: ToolContext) -> str:
        context.progress("working")
        started.set()
        if len(heard) < 50 and not is_resumed:
            await asyncio.sleep(60)
        return "waited"

    heard: list[TurnEvent] = []
    is_resumed = False
    journal = open_journal("memory:")
    runner = Agent(ScriptedModel([[call("wait")], "done"]), tools=[wait], journal=journal)
    stream = runner.stream("go", run_id="r")

    async def listen() -> None:
        async for event in turns(stream):
            heard.append(event)

    task = asyncio.ensure_future(listen())
    await started.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    before = journal.read("r")
    failed = list(turns(before))
    check(failed)
    assert names(failed)[-3:] == ["turn_paused", "step_failed", "turn_failed"]
    assert isinstance(failed[-1], t.TurnFailed)
    assert (failed[-1].code, failed[-1].is_retryable) == ("cancelled", True)

    is_resumed = True
    more: list[Any] = []
    await runner.resume("r", on_event=more.append)
    whole = list(turns(journal.read("r")))
    check(whole)
    assert isinstance(whole[-1], t.TurnCompleted)
    assert [item.step_type for item in whole if isinstance(item, t.StepStarted)] == [
        "inference",
        "tool_execution",
        "inference",
    ]
    # A stream that begins within a turn has the same ids if it is told the events before.
    rest = list(turns(more, history=before))
    assert without_deltas(rest) == without_deltas(whole)[-len(without_deltas(rest)) :]
    # Without them, it is still well formed.
    check(list(turns(more)))


async def test_a_turn_that_failed_is_tried_again() -> None:
    journal = open_journal("memory:")
    await agent([call("fails")], ServerError("down"), journal=journal).run("go", run_id="r")
    await agent("up again", journal=journal).resume("r")
    found = list(turns(journal.read("r")))
    check(found)
    starts = [item for item in found if isinstance(item, t.TurnStarted)]
    assert [item.is_resumed for item in starts] == [False, True]
    assert starts[0].turn_id == starts[1].turn_id
    assert isinstance(found[-1], t.TurnCompleted)
    assert found[-1].num_steps == 4
    assert found[-1].usage == Usage(10 + 30, 20)


async def test_a_session_of_many_turns() -> None:
    runner = agent("one", [call("fails")], "two", "three")
    async with runner.session("s") as session:
        parts = [[event async for event in turns(session.stream(text))] for text in ("a", "b", "c")]
    for part in parts:
        check(part)
    whole = list(turns(runner.journal.read("s")))
    check(whole)
    assert without_deltas([event for part in parts for event in part]) == without_deltas(whole)
    starts = [item for item in whole if isinstance(item, t.TurnStarted)]
    assert [item.turn for item in starts] == [1, 2, 3]
    assert len({item.turn_id for item in starts}) == 3


async def test_approvals_are_requested_and_the_pause_is_told() -> None:
    runner = agent([call("web_search", {"query": "x"})], "done", policy=Policy(approve={"pure": "ask"}))
    run = await runner.run("go", run_id="r")
    found = list(turns(runner.journal.read("r")))
    check(found)
    asked = next(item for item in found if isinstance(item, t.InputRequested))
    assert (asked.kind, asked.tool_name, asked.text) == ("approval", "web_search", '{"query":"x"}')
    assert asked.request_id in run.approvals
    assert "turn_paused" in names(found)
    await runner.resume("r", approvals=dict.fromkeys(run.approvals, True))
    found = list(turns(runner.journal.read("r")))
    check(found)
    received = next(item for item in found if isinstance(item, t.InputReceived))
    assert (received.request_id, received.text) == (asked.request_id, "approved")
    assert isinstance(found[-1], t.TurnCompleted)


def test_questions_are_told_with_their_answers() -> None:
    found = read(
        "r",
        [
            *BEGIN[:2],
            e.QuestionAsked(question_id="q", text="Which?"),
            e.RunPaused(reason="question"),
            e.RunResumed(),
            e.QuestionAnswered(question_id="q", text="That."),
            BEGIN[2],
            searched(text="ok"),
            end("ok"),
        ],
    )
    assert names(found)[1:5] == ["input_requested", "turn_paused", "turn_resumed", "input_received"]


def test_the_calls_of_a_server_are_told_while_they_run() -> None:
    """The steps are those that the answer has afterwards."""
    running = ServerCall("a", "web_search", "{}", offset=5)
    done = ServerCall("a", "web_search", "{}", "A", offset=5)
    unseen = ServerCall("b", "fetch", "", "B", offset=16)
    live = [
        e.TextDelta("Owls."),
        e.ServerCallDelta(0, running, is_done=False),
        e.ServerCallDelta(0, done, is_done=True),
        e.TextDelta(" They fly. "),
    ]
    whole = searched(done, unseen, text="Owls. They fly. All.")
    found = read("r", [*BEGIN, *live, e.TextDelta("All."), whole, end()])
    assert names(found) == [
        *("turn_started", "start inference", "text", "server_tool_call"),
        *("start tool_execution", "tool_call_issued", "tool_call_completed", "tools done"),
        *("start inference", "text", "text", "server_tool_call"),
        *("start tool_execution", "tool_call_issued", "tool_call_completed", "tools done"),
        *("start inference", "end_of_turn", "turn_completed"),
    ]
    results = [item.result for item in found if isinstance(item, t.StepCompleted)]
    texts = [result.text_content for result in results if isinstance(result, t.InferenceStepResult)]
    assert texts == ["Owls.", " They fly. ", "All."]
    assert text_of(found) == "Owls. They fly. All."
    later = read("r", [*BEGIN, whole, end()])
    assert names(without_deltas(found)) == names(without_deltas(later))
    failed = e.InferenceFailed(1.0, 1, "boom", "ServerError", Fault.INFRASTRUCTURE, retry_in_seconds=1.0)
    # The result did not come, and the attempt failed: what it streamed does not count.
    retried = [*BEGIN, *live[:2], failed, *live, whole, end()]
    assert names(read("r", retried)).count("server_tool_call") == 3


def test_sub_agents_of_one_stream_are_told_apart() -> None:
    """The events of a run and of the run that one of its calls drives may come in one stream."""
    made = ToolCall("c", "helper", "{}")
    child = [
        e.RunStarted(version=e.VERSION, caller=Caller("a", "c")),
        *BEGIN[1:],
        searched(text="inner"),
        end("inner"),
        e.RunFinished(stop_reason=StopReason.COMPLETED),
    ]
    drove = Child("b", Usage(7, 3), 0.5)
    done = e.ToolCompleted(step=1, result=ToolResult("c", "helper", "inner"), child=drove)
    items = [e.Event("a", number, body) for number, body in enumerate([*BEGIN, searched(made=(made,))], 1)]
    items += [e.Event("b", number, body) for number, body in enumerate(child, 1)]
    items += [e.Event("a", number, body) for number, body in enumerate([done, end("ok")], 5)]
    found = list(turns(items))
    check(found)
    assert {item.session_id for item in found if isinstance(item, t.TurnStarted)} == {"a", "b"}
    step = next(
        item for item in found if isinstance(item, t.StepCompleted) and item.step_type == "tool_execution"
    )
    assert (step.usage, step.cost_usd) == (Usage(7, 3), 0.5)
    assert isinstance(step.result, t.ToolExecutionStepResult)
    assert step.result.tool_responses[0]["metadata"]["child_run_id"] == "b"
    last = found[-1]
    assert isinstance(last, t.TurnCompleted)
    # The use and the cost of the first inference are not known.
    assert (last.usage, last.cost_usd) == (Usage(7, 3, is_reported=False), None)


def test_an_exception_of_the_source_fails_the_turn_and_is_raised() -> None:
    """Exceptions of the transport ended the stream without an event."""

    def broken() -> Iterable[Any]:
        yield from [e.Event("r", number, body) for number, body in enumerate(BEGIN, start=1)]
        raise OSError("gone")

    async def broken_later() -> AsyncIterator[Any]:
        for item in broken():
            yield item

    def collect(found: list[TurnEvent]) -> None:
        for event in turns(broken()):
            found.append(event)

    async def collect_later(found: list[TurnEvent]) -> None:
        async for event in turns(broken_later()):
            found.append(event)

    for gather in (collect, lambda found: asyncio.run(collect_later(found))):
        found: list[TurnEvent] = []
        with pytest.raises(OSError, match="gone"):
            gather(found)
        check(found)
        assert names(found)[-2:] == ["step_failed", "turn_failed"]
        assert isinstance(found[-1], t.TurnFailed)
        assert (found[-1].code, found[-1].error_message) == ("OSError", "gone")


async def test_a_stream_that_is_left_cancels_its_run() -> None:
    runner = agent(ScriptedModel(["late"], delay_seconds=60))
    stream = turns(runner.stream("go", run_id="r"))
    await anext(stream)
    await stream.aclose()  # type: ignore[attr-defined]
    assert runner.journal.read("r")[-1].type == "run_paused"


many = settings(
    deadline=None,
    max_examples=500 if IS_FULL else 20,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)


@many
@given(histories())
def test_every_history_is_read_as_whole_turns(history: History) -> None:
    found = read("r", history.bodies)
    assert sum(isinstance(item, t.TurnCompleted | t.TurnFailed) for item in found) == sum(
        isinstance(item, t.TurnStarted) for item in found
    )


@pytest.mark.sets(0)
@many
@given(histories(), st.data())
def test_every_part_of_a_history_is_read_as_whole_turns(history: History, data: st.DataObject) -> None:
    """Nothing is assumed about where a stream begins and ends, and the beginning is read as before."""
    start, stop = sorted([data.draw(st.integers(0, len(history.bodies))) for _ in range(2)])
    read("r", history.bodies[start:stop])
    whole, part = read("r", history.bodies), read("r", history.bodies[:stop])
    closers = 2 if part and isinstance(part[-1], t.TurnFailed) else 0
    assert part[: len(part) - closers] == whole[: len(part) - closers]


@many
@given(histories(), st.randoms(use_true_random=False))
def test_no_order_of_events_breaks_the_stream(history: History, source: random.Random) -> None:
    deltas: list[Any] = [
        e.TextDelta("x"),
        e.ReasoningDelta("y"),
        e.ToolCallDelta(0, None, None, "z"),
        e.ServerCallDelta(0, ServerCall("s", "web_search", "{}"), is_done=False),
        e.ServerCallDelta(0, ServerCall("s", "web_search", "{}", "A"), is_done=True),
        e.ToolProgress("c", "p"),
    ]
    ends = [body for body in history.bodies if isinstance(body, e.RunFinished)]
    bodies = [*[body for body in history.bodies if body not in ends], *deltas * 3]
    source.shuffle(bodies)
    read("r", [*bodies, *ends])


JOURNALS = sorted(path for path in DATA.glob("*.jsonl") if path.read_bytes().startswith(b'{"run_id"'))


@pytest.mark.parametrize("path", JOURNALS, ids=lambda path: path.stem)
async def test_recorded_journals_are_read_as_whole_turns(path: Path) -> None:
    journal = open_journal("memory:")
    await import_lines(journal, path.read_bytes().splitlines())
    for info in journal.runs():
        found = list(turns(journal.read(info.run_id)))
        check(found)
        assert found
        started = {item.step_id for item in found if isinstance(item, t.StepStarted)}
        ended = {item.step_id for item in found if isinstance(item, t.StepCompleted | t.StepFailed)}
        assert started == ended
