"""Spans and metrics, as the OpenTelemetry SDK gets them."""

import asyncio
import json
from typing import Any

import pytest
from msgspec.structs import replace
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from tests.context.contexts import Counting, look_up

from treadle import Agent, Policy, ScriptedModel, ToolContext, open_journal, tool
from treadle.core import events as e
from treadle.core.errors import RateLimitError, ServerError
from treadle.core.lineage import Caller
from treadle.core.spec import PartSpec
from treadle.core.types import (
    Completion,
    Effect,
    Fault,
    FinishReason,
    Message,
    Role,
    Settings,
    StopReason,
    Usage,
)
from treadle.models import RetryModel, call
from treadle.telemetry import OpenTelemetry, TurnLog, TurnRecord
from treadle.telemetry.conventions import server_of


class Lab:
    """A hook with the SDK's exporters in memory."""

    def __init__(self, **options: Any) -> None:
        self.exporter, self.reader = InMemorySpanExporter(), InMemoryMetricReader()
        tracers = TracerProvider()
        tracers.add_span_processor(SimpleSpanProcessor(self.exporter))
        self.tracer = tracers.get_tracer("test")
        self.hook = OpenTelemetry(tracers, MeterProvider([self.reader]), **options)

    @property
    def spans(self) -> list[ReadableSpan]:
        return sorted(self.exporter.get_finished_spans(), key=lambda span: span.start_time or 0)

    def named(self, stem: str) -> list[ReadableSpan]:
        return [span for span in self.spans if span.name.startswith(stem)]

    def points(self, name: str) -> list[Any]:
        data: Any = self.reader.get_metrics_data()
        return [
            point
            for resource in data.resource_metrics
            for scope in resource.scope_metrics
            for metric in scope.metrics
            if metric.name == name
            for point in metric.data.data_points
        ]


@pytest.fixture
def lab() -> Lab:
    return Lab()


@tool(effect="pure")
async def look(context: ToolContext) -> str:
    """Look."""
    return "seen"


@tool(effect="pure")
async def relay(context: ToolContext) -> str:
    """Call another tool."""
    return (await context.call_tool("look", {})).content


def answer(text: str = "", *calls: Any, cost: float | None = 0.25) -> Completion:
    return Completion(
        Message(Role.ASSISTANT, text, calls),
        FinishReason.TOOL_CALLS if calls else FinishReason.STOP,
        Usage(100, 20, 40, 5),
        cost,
        model="gpt-5-2026",
        response_id="resp_1",
        settings=Settings(temperature=0.5, max_output_tokens=99),
    )


def agent(lab: Lab, *answers: Any, journal: Any = "memory:", **options: Any) -> Agent:
    given = answers[0] if len(answers) == 1 and hasattr(answers[0], "infer") else None
    model = given or ScriptedModel(answers, name="openai:gpt-5")
    return Agent(model, tools=[look, relay], journal=journal, hooks=[lab.hook], **options)


def has(span: ReadableSpan, **wanted: Any) -> bool:
    attributes = span.attributes or {}
    return all(attributes.get(name.replace("__", ".")) == value for name, value in wanted.items())


async def test_a_turn_is_a_tree_of_spans_that_leads_to_the_journal(lab: Lab) -> None:
    """There were no trace ids, spans or OpenTelemetry, so that a log could not be joined to anything."""
    runner = agent(lab, answer("", call("relay")), answer("done"))
    run = await runner.run("go")
    turn, *rest = lab.spans
    assert [span.name for span in lab.spans] == [
        "invoke_agent",
        "chat gpt-5",
        "execute_tool relay",
        "execute_tool look",
        "chat gpt-5",
    ]
    assert turn.parent is None
    relayed, inner = rest[1], rest[2]
    assert inner.parent is not None
    assert inner.parent.span_id == relayed.context.span_id
    assert all(
        span.parent and span.parent.span_id == turn.context.span_id for span in rest if span is not inner
    )
    assert has(turn, gen_ai__operation__name="invoke_agent", gen_ai__conversation__id=run.run_id)
    assert has(turn, gen_ai__usage__input_tokens=200, treadle__stop_reason="completed", treadle__turn=1)
    chat = rest[0]
    assert has(
        chat,
        gen_ai__operation__name="chat",
        gen_ai__provider__name="openai",
        gen_ai__request__model="gpt-5",
        gen_ai__response__model="gpt-5-2026",
        gen_ai__response__id="resp_1",
        gen_ai__usage__output_tokens=20,
        gen_ai__usage__cache_read__input_tokens=40,
        gen_ai__request__temperature=0.5,
        gen_ai__request__max_tokens=99,
        gen_ai__response__finish_reasons=("tool_calls",),
        treadle__cost_usd=0.25,
        treadle__step=1,
    )
    assert chat.kind.name == "CLIENT"
    (made,) = run.state.messages[1].tool_calls
    assert has(relayed, gen_ai__tool__name="relay", gen_ai__tool__call__id=made.call_id)
    events = runner.journal.read(run.run_id)
    for span in lab.spans:
        assert has(span, treadle__run__id=run.run_id)
        begun = events[int(span.attributes["treadle.seq"]) - 1]  # type: ignore[index, arg-type]
        assert span.start_time == int(begun.at * 1e9)
        assert (span.end_time or 0) >= span.start_time
    assert not any(
        "content" in name or "messages" in name for span in lab.spans for name in span.attributes or ()
    )


async def test_the_metrics_are_those_of_the_conventions(lab: Lab) -> None:
    await agent(lab, answer("", call("look")), answer("done", cost=None)).run("go")
    (duration,) = lab.points("gen_ai.client.operation.duration")
    assert duration.count == 2
    assert (duration.explicit_bounds[0], duration.explicit_bounds[-1]) == (0.01, 81.92)
    assert lab.points("gen_ai.client.token.usage")[0].explicit_bounds[:4] == (1, 4, 16, 64)
    assert duration.attributes["gen_ai.response.model"] == "gpt-5-2026"
    tokens = {
        point.attributes["gen_ai.token.type"]: point.sum for point in lab.points("gen_ai.client.token.usage")
    }
    assert tokens == {"input": 200, "output": 40}
    assert [point.count for point in lab.points("gen_ai.execute_tool.duration")] == [1]
    assert [point.value for point in lab.points("treadle.cost")] == [0.25]


async def test_failures_are_marked_with_their_type(lab: Lab) -> None:
    flaky = ScriptedModel(
        [
            RateLimitError("busy", status=429, retry_after_seconds=0.0),
            answer("", call("nope")),
            ServerError("down"),
        ],
        name="openai:gpt-5",
    )
    await agent(lab, RetryModel(flaky, max_attempts=2)).run("go")
    chats = lab.named("chat")
    types = [(span.attributes or {}).get("error.type") for span in chats]
    assert types[:3] == ["RateLimitError", None, "ServerError"]
    # What a provider says may be content.
    assert [chats[0].status.description, chats[2].status.description] == ["RateLimitError", "ServerError"]
    (turn,) = lab.named("invoke_agent")
    assert has(turn, error__type=types[-1], treadle__stop_reason="error")
    assert not turn.status.is_ok
    found = {point.attributes.get("error.type") for point in lab.points("gen_ai.client.operation.duration")}
    assert {"RateLimitError", None, "ServerError"} <= found


async def test_contents_are_recorded_only_when_asked() -> None:
    lab = Lab(records_content=True)
    await agent(lab, answer("", call("look")), answer("done"), instructions="Be brief.").run("find it")
    turn, first, tool_span, second = lab.spans
    read = [
        json.loads(str((span.attributes or {})[name]))
        for span, name in (
            (turn, "gen_ai.input.messages"),
            (turn, "gen_ai.system_instructions"),
            (second, "gen_ai.input.messages"),
            (second, "gen_ai.output.messages"),
        )
    ]
    assert read[0] == [{"role": "user", "parts": [{"type": "text", "content": "find it"}]}]
    assert read[1] == [{"type": "text", "content": "Be brief."}]
    assert [item["role"] for item in read[2]] == ["system", "user", "assistant", "tool"]
    assert read[2][3]["parts"][0]["response"] == "seen"
    assert read[3][0]["parts"] == [{"type": "text", "content": "done"}]
    assert has(tool_span, gen_ai__tool__call__arguments="{}", gen_ai__tool__call__result="seen")
    assert "gen_ai.output.messages" in (first.attributes or {})


async def test_a_resumed_turn_is_linked_to_its_first_part(lab: Lab) -> None:
    journal = open_journal("memory:")
    policy = Policy(approve={"pure": "ask"})
    run = await agent(lab, answer("", call("look")), journal=journal, policy=policy).run("go", run_id="r")
    await agent(lab, answer("done"), journal=journal, policy=policy).resume(
        "r", approvals=dict.fromkeys(run.approvals, True)
    )
    before, after = lab.named("invoke_agent")
    assert has(before, treadle__stop_reason="approval", treadle__turn__is_resumed=False)
    assert has(after, treadle__stop_reason="completed", treadle__turn__is_resumed=True, treadle__turn=1)
    assert [link.context.span_id for link in after.links] == [before.context.span_id]
    assert [event.name for event in before.events] == ["treadle.approval_requested"]
    # Another process reads the context of the first part from the journal.
    other = Lab()
    lab.exporter.clear()
    await agent(lab, answer("", call("look")), journal=journal, policy=policy).run("go", run_id="s")
    state = journal.read("s")
    waiting = {event.call_id: True for event in state if isinstance(event, e.ApprovalRequested)}
    await agent(other, answer("done"), journal=journal, policy=policy).resume("s", approvals=waiting)
    (turn,) = other.named("invoke_agent")
    assert has(turn, treadle__run__id="s", treadle__turn__is_resumed=True)
    (first,) = lab.named("invoke_agent")
    assert [link.context.span_id for link in turn.links] == [first.context.span_id]
    assert [link.context.trace_id for link in turn.links] == [first.context.trace_id]
    assert len(other.spans) == 3


async def test_a_compaction_is_part_of_its_turn_or_of_the_next_one(lab: Lab) -> None:
    answers = [answer(str(number)) for number in range(8)]
    asking = agent(lab, *answers, policy=Policy(context_tokens=100_000))
    async with asking.session() as session:
        for _ in range(6):
            await session.send("Hello. " * 50)
        assert await session.compact() is not None
        run = await session.send("More.")
    turns = lab.named("invoke_agent")
    assert has(turns[-1], treadle__cost_usd=0.5, gen_ai__usage__input_tokens=200)
    assert sum([dict(span.attributes or {})["treadle.cost_usd"] for span in turns]) == run.cost_usd


async def test_a_turn_that_compacts_its_context_says_so(lab: Lab) -> None:
    asking = Agent(
        Counting(window=4000),
        tools=[look_up],
        policy=Policy(context_tokens=4000),
        journal="memory:",
        hooks=[lab.hook],
    )
    async with asking.session() as session:
        for number in range(8):
            run = await session.send(f"What about rivers, number {number}?")
    turns = [dict(span.attributes or {}) for span in lab.named("invoke_agent")]
    found, *_ = [event for span in lab.named("invoke_agent") for event in span.events]
    said = dict(found.attributes or {})
    assert (found.name, said["treadle.reason"]) == ("treadle.context_compacted", "budget")
    assert said["treadle.tokens_after"] < said["treadle.tokens_before"]
    assert sum([turn["gen_ai.usage.input_tokens"] for turn in turns]) == run.usage.input_tokens


async def test_a_fork_is_linked_and_gets_no_spans_of_what_it_copied(lab: Lab) -> None:
    journal = open_journal("memory:")
    await agent(lab, answer("", call("look")), answer("one"), journal=journal).run("go", run_id="origin")
    lab.exporter.clear()
    origin = journal.read("origin")
    await agent(lab, answer("two"), journal=journal).fork("origin", 7, new_run_id="fork")
    assert [span.name for span in lab.spans] == ["invoke_agent", "chat gpt-5"]
    turn = lab.spans[0]
    assert len(turn.links) == 1
    assert has(turn, treadle__parent__run__id="origin", treadle__parent__seq=7)
    assert origin[6].type == "tool_completed" or turn.links


async def test_a_sub_agent_is_a_child_of_its_call(lab: Lab) -> None:
    """A run that a call drives belongs to the trace of the run that made the call."""
    begin = e.RunStarted(version=e.VERSION)
    turn = e.TurnStarted(turn=1, message=Message(Role.USER, "go"))
    called = e.ToolStarted(step=1, call_id="c", name="helper", effect=Effect.ONCE)
    lab.hook.take("a", 1, (begin, turn, called))
    child = e.RunStarted(version=e.VERSION, caller=Caller("a", "c"))
    over = e.TurnCompleted(turn=1, stop_reason=StopReason.COMPLETED)
    lab.hook.take("b", 1, (child, turn, over))
    lab.hook.leave("b")
    lab.hook.take("a", 4, (over,))
    lab.hook.leave("a")
    tool_span = lab.named("execute_tool")[0]
    inner = next(span for span in lab.named("invoke_agent") if has(span, treadle__run__id="b"))
    assert inner.parent is not None
    assert inner.parent.span_id == tool_span.context.span_id
    assert inner.context.trace_id == tool_span.context.trace_id
    assert has(inner, treadle__caller__run__id="a", treadle__caller__call__id="c")


async def test_runs_belong_to_the_span_of_their_caller(lab: Lab) -> None:
    with lab.tracer.start_as_current_span("request") as request:
        await agent(lab, answer("done")).run("go")
    (turn,) = lab.named("invoke_agent")
    assert turn.parent is not None
    assert turn.parent.span_id == request.get_span_context().span_id


async def test_every_span_ends_when_a_run_is_cancelled(lab: Lab) -> None:
    runner = agent(lab, ScriptedModel(["late"], delay_seconds=60, name="m"))
    task = asyncio.ensure_future(runner.run("go", run_id="r"))
    while not runner.journal.runs() or len(runner.journal.read("r")) < 3:
        await asyncio.sleep(0.001)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert [span.name for span in lab.spans] == ["invoke_agent", "chat m"]
    assert has(lab.spans[1], error__type="Cancelled")
    assert has(lab.spans[0], treadle__stop_reason="cancelled")


async def test_a_call_that_waits_for_a_person_has_not_failed(lab: Lab) -> None:
    journal = open_journal("memory:")
    asking = Agent(
        ScriptedModel([[call("ask_user", {"question": "Which?"})], "ok"]),
        tools=["ask"],
        hooks=[lab.hook],
        journal=journal,
    )
    run = await asking.run("go", run_id="r")
    assert run.questions
    assert [span.status.is_unset for span in lab.spans] == [True, True, True]
    assert not any("error.type" in (span.attributes or {}) for span in lab.spans)
    assert not any("error.type" in point.attributes for point in lab.points("gen_ai.execute_tool.duration"))


async def test_sub_agents_have_spans_records_and_cost(lab: Lab) -> None:
    """A sub-agent without hooks has those of its caller, also below another sub-agent."""
    records: list[TurnRecord] = []
    priced = ScriptedModel([answer("", call("look")), answer("deep")], name="openai:gpt-5")
    inner = Agent(priced, tools=[look]).as_tool("inner", "i")
    outer = Agent(ScriptedModel([[call("inner", {"task": "t"})], "mid"]), tools=[inner]).as_tool("outer", "o")
    top = ScriptedModel([[call("outer", {"task": "t"})], "top"])
    hooks = [lab.hook, TurnLog(records.append)]
    await Agent(top, tools=[outer], hooks=hooks, journal="memory:").run("go", run_id="r")
    turns = lab.named("invoke_agent")
    parents = {span.context.span_id: span.name for span in lab.spans}
    assert [parents[span.parent.span_id] for span in turns if span.parent] == [
        "execute_tool outer",
        "execute_tool inner",
    ]
    assert [(span.attributes or {})["treadle.cost_usd"] for span in turns] == [0.0, 0.0, 0.5]
    assert [point.value for point in lab.points("treadle.cost")] == [0.5]
    assert [record.run_id == "r" for record in records] == [False, False, True]


async def test_a_run_that_a_crash_ended_is_linked_in_the_next_process(lab: Lab) -> None:
    journal = open_journal("memory:")
    begin = e.RunStarted(version=e.VERSION, at=1.0)
    turn = e.TurnStarted(turn=1, message=Message(Role.USER, "go"), at=1.0)
    context = lab.hook.trace_parent("r", begin, turn)
    assert context is not None
    writer = journal.create("r")
    writer.append((begin, replace(turn, trace_parent=context)))
    await writer.sync()
    await writer.release()
    other = Lab()
    await agent(other, answer("done"), journal=journal).resume("r")
    (after,) = other.named("invoke_agent")
    # A journal from elsewhere may have anything there.
    other.hook.catch_up("x", [e.Event("x", 1, begin), e.Event("x", 2, replace(turn, trace_parent="-" * 9))])
    other.hook.take("x", 3, (e.RunResumed(at=2.0),))
    other.hook.leave("x")
    assert len(other.named("invoke_agent")) == 2
    assert [f"{link.context.span_id:016x}" for link in after.links] == [context.split("-")[2]]


@pytest.mark.parametrize(
    ("model", "settings", "server"),
    [
        ("openai:gpt-5", None, ("api.openai.com", 443)),
        ("groq:x", None, ("api.groq.com", 443)),
        ("vllm:q", {"base_url": "http://[::1]:8123/v1"}, ("::1", 8123)),
        ("mine", {"base_url": "http://box/v1"}, ("box", 80)),
        ("mine", None, None),
        ("vllm:q", {"base_url": "http://box:port"}, None),
    ],
)
def test_the_server_of_a_model(
    model: str, settings: dict[str, Any] | None, server: tuple[str, int] | None
) -> None:
    found = server_of(model, PartSpec(name=model, settings=settings))
    assert found == ({} if server is None else {"server.address": server[0], "server.port": server[1]})


async def test_a_stream_has_the_time_to_its_first_chunk(lab: Lab) -> None:
    body = e.InferenceCompleted(step=1, completion=answer("hi"), first_token_seconds=0.25)
    begin = e.RunStarted(version=e.VERSION)
    turn = e.TurnStarted(turn=1, message=Message(Role.USER, "go"))
    asked = e.InferenceStarted(step=1, messages=1, model="openai:gpt-5")
    failed = e.InferenceFailed(
        step=1, error="down", error_type="ServerError", fault=Fault.INFRASTRUCTURE, model="openai:gpt-4"
    )
    over = e.TurnCompleted(turn=1, stop_reason=StopReason.COMPLETED)
    lab.hook.take("r", 1, (begin, turn, failed, asked, body, over))
    lab.hook.leave("r")
    (chat,) = lab.named("chat")
    assert has(chat, gen_ai__request__stream=True, gen_ai__response__time_to_first_chunk=0.25)
    assert has(chat, server__address="api.openai.com", server__port=443)
    (first,) = lab.points("gen_ai.client.operation.time_to_first_chunk")
    assert (first.sum, first.attributes["server.address"]) == (0.25, "api.openai.com")
    (ended,) = lab.points("treadle.turns")
    assert ended.attributes == {"treadle.stop_reason": "completed", "treadle.fell_back": True}


async def test_messages_have_the_finish_reasons_of_the_conventions() -> None:
    lab = Lab(records_content=True)
    await agent(lab, answer("", call("look")), answer("done")).run("find it")
    said = [json.loads(str((span.attributes or {})["gen_ai.output.messages"])) for span in lab.named("chat")]
    assert [message[0]["finish_reason"] for message in said] == ["tool_call", "stop"]
    (turn,) = lab.named("invoke_agent")
    found = json.loads(str((turn.attributes or {})["gen_ai.output.messages"]))
    assert found[0]["finish_reason"] == "stop"
