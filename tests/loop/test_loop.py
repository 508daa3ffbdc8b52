"""The semantics of the loop, tested through agents with real tools.

After each test, every run is replayed and must come out the same, and every transcript must be valid. A
journal whose `sync` lets other tasks run first simulates a slow store.
"""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Iterable
from typing import Any

import pytest

from treadle import Agent, InDoubt, Policy, Run, ScriptedModel, ToolLimits, tool
from treadle.core import events as e
from treadle.core.errors import (
    AuthenticationError,
    ConfigError,
    ContextOverflowError,
    JournalError,
    LeaseHeldError,
    ProviderError,
    RateLimitError,
    RefusedError,
    RequestError,
    RunExistsError,
    RunNotFoundError,
    ServerError,
    ToolError,
)
from treadle.core.prompts.transcript import check_transcript
from treadle.core.state import Status, fold
from treadle.core.tally import count_lost
from treadle.core.tokens.packed import unpack_ids
from treadle.core.tokens.token_record import TokenRecord
from treadle.core.types import (
    Completion,
    Effect,
    Fault,
    FinishReason,
    Message,
    Request,
    Role,
    StopReason,
    ToolCall,
    ToolErrorKind,
    ToolSpec,
    Usage,
)
from treadle.journal.jsonl import export_run, import_lines
from treadle.journal.memory import MemoryJournal, MemoryWriter
from treadle.models import RetryModel, call
from treadle.models.protocol import Watch
from treadle.models.scripted import Answer
from treadle.testbed import oracle_for
from treadle.tools.context import ToolContext
from treadle.tools.protocol import Attachment, ToolOutput


class SlowJournal(MemoryJournal):
    """A journal whose `sync` lets other tasks run before it returns, and that knows what was kept by then."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, int] = {}

    def create(self, run_id: str) -> "SlowWriter":
        return SlowWriter(self, run_id, is_new=True)

    async def acquire(self, run_id: str) -> "SlowWriter":
        await super().acquire(run_id)
        return SlowWriter(self, run_id, is_new=False)


class SlowWriter(MemoryWriter):
    async def sync(self) -> None:
        assert isinstance(self._journal, SlowJournal)
        size = len(self._journal._runs.get(self.run_id, ()))
        for _ in range(3):
            await asyncio.sleep(0)
        self._journal.kept[self.run_id] = max(size, self._journal.kept.get(self.run_id, 0))


class Lab:
    """A factory for agents that share a journal. At the end it checks everything in the journal."""

    def __init__(self, journal: MemoryJournal) -> None:
        self.journal = journal

    def agent(self, *answers: Answer, tools: Iterable[Any] = (), **options: Any) -> Agent:
        model = options.pop("model", None) or ScriptedModel(answers)
        limits = {name: options.pop(name) for name in list(options) if name in Policy.__struct_fields__}
        return Agent(
            model, tools=tools, policy=Policy(**limits) if limits else None, journal=self.journal, **options
        )

    def types(self, run_id: str) -> list[str]:
        return [event.type for event in self.journal.read(run_id)]

    def kept(self, run_id: str) -> list[str]:
        """Return the types of the events that would survive a crash now."""
        types = self.types(run_id)
        return types[: self.journal.kept[run_id]] if isinstance(self.journal, SlowJournal) else types

    async def check(self) -> None:
        for info in self.journal.runs():
            assert not info.is_driven
            events = self.journal.read(info.run_id)
            replay = await Agent(ScriptedModel([]), journal=self.journal).replay(info.run_id)
            assert replay.divergence is None, replay.divergence
            assert replay.events == len(events)
            state = fold([event.body for event in events])
            assert replay.state == state
            if not state.turn.calls:
                assert check_transcript(list(state.messages)) == []


@pytest.fixture(params=[MemoryJournal, SlowJournal], ids=["memory", "slow"])
async def lab(request: pytest.FixtureRequest) -> AsyncIterator[Lab]:
    lab = Lab(request.param())
    yield lab
    await lab.check()


@pytest.fixture
async def slow_lab() -> AsyncIterator[Lab]:
    """A lab for behaviour that occurs only while a store is slow."""
    lab = Lab(SlowJournal())
    yield lab
    await lab.check()


class Gate:
    """A point at which a test makes a tool or a model wait."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.opened = asyncio.Event()

    async def pass_through(self) -> None:
        self.reached.set()
        await self.opened.wait()


class GatedModel:
    """A scripted model that waits at a gate before some of its answers."""

    name = "gated"

    def __init__(self, gate: Gate, *answers: Answer, at: int = 0) -> None:
        self.inner = ScriptedModel(answers)
        self._gate = gate
        self._at = at
        self._asked = -1

    async def infer(self, request: Request, watch: Watch) -> Completion:
        self._asked += 1
        if self._asked == self._at:
            await self._gate.pass_through()
        return await self.inner.infer(request, watch)


@tool(effect="pure")
async def look(at: str = "") -> str:
    """Looks."""
    return f"saw {at}"


@tool(effect="once")
async def send(text: str = "") -> str:
    """Sends."""
    return f"sent {text}"


@tool(effect="pure")
async def fail() -> str:
    """Fails."""
    raise ToolError("the disk is full")


def cut(*answers: str, reason: FinishReason, calls: tuple[ToolCall, ...] = ()) -> Completion:
    return Completion(Message(Role.ASSISTANT, "".join(answers), calls), reason, Usage(10, 10), 0.0)


def results(run: Run) -> list[tuple[str, str]]:
    """Return the name and the content of each tool message, in the order that the model sees."""
    return [(item.name or "", item.content) for item in run.messages if item.role is Role.TOOL]


def kinds(run: Run) -> list[ToolErrorKind | None]:
    """Return the error kind of each result, in the order of the events."""
    return [event.body.result.error_kind for event in run.events if isinstance(event.body, e.ToolCompleted)]


# A plain run


async def test_a_run_is_its_messages_events_and_sums(lab: Lab) -> None:
    agent = lab.agent([call("look", {"at": "a"})], "done", tools=[look], instructions="Be brief.")
    run = await agent.run("go", metadata={"who": "me"})
    assert (run.status, run.stop_reason, run.output, run.steps) == ("finished", "completed", "done", 2)
    assert (run.error, run.fault, run.reward, run.questions) == (None, None, None, {})
    assert [item.role for item in run.messages] == ["system", "user", "assistant", "tool", "assistant"]
    assert [event.type for event in run.events] == [
        "run_started",
        "turn_started",
        "inference_started",
        "inference_completed",
        "tool_started",
        "tool_completed",
        "inference_started",
        "inference_completed",
        "turn_completed",
        "run_finished",
    ]
    assert [event.seq for event in run.events] == list(range(1, 11))
    # The script counts 10 tokens for each message of the prompt, and 10 for an answer.
    assert run.usage == Usage(20 + 40, 20)
    assert run.cost_usd == 0.0
    started = run.events[0].body
    assert isinstance(started, e.RunStarted)
    assert (started.metadata, started.version, started.spec.model.name) == (
        {"who": "me"},
        e.VERSION,
        "scripted",
    )
    assert [spec.name for spec in started.tools] == ["look"]


async def test_a_run_begins_with_its_files_and_its_turn_or_not_at_all() -> None:
    appends: list[list[str]] = []

    class Writer(MemoryWriter):
        def append(self, bodies: Any, blobs: Any = None) -> None:
            super().append(bodies, blobs)
            appends.append([body.__struct_config__.tag for body in bodies])

    class Journal(MemoryJournal):
        def create(self, run_id: str) -> Writer:
            return Writer(self, run_id, is_new=True)

    await Agent(ScriptedModel(["done"]), journal=Journal(), files={"a": "1"}).run("go")
    assert appends[0] == ["run_started", "snapshot_taken", "turn_started"]


async def test_the_model_is_asked_with_the_transcript_and_the_tools(lab: Lab) -> None:
    model = ScriptedModel([[call("look", {"at": "a"})], "done"])
    await lab.agent(model=model, tools=[look]).run("go")
    assert [len(item.messages) for item in model.requests] == [1, 3]
    assert model.requests[1].messages[2].content == "saw a"
    assert [spec.name for spec in model.requests[1].tools] == ["look"]


async def test_an_unknown_cost_is_not_zero_and_unknown_tokens_are_guessed(lab: Lab) -> None:
    bare = Completion(Message(Role.ASSISTANT, "12345678"), FinishReason.STOP)
    run = await lab.agent(bare).run("1234")
    assert run.cost_usd is None
    assert run.usage == Usage(1, 2, is_reported=False)


async def test_a_guess_of_tokens_counts_what_was_said_since_the_inference_before(lab: Lab) -> None:
    def bare(content: str, *calls: ToolCall) -> Completion:
        return Completion(Message(Role.ASSISTANT, content, calls), FinishReason.STOP)

    first = bare("", call("look", {"at": "12345678"}))
    run = await lab.agent(first, bare("1234"), tools=[look]).run("1234")
    # With 4 characters per token: "1234"; then also 21 characters of the call and 12 of the result.
    assert run.usage == Usage(1 + (1 + 6) + 3, 6 + 1, is_reported=False)


async def test_costs_add_up(lab: Lab) -> None:
    def step(calls: tuple[ToolCall, ...], cost: float) -> Completion:
        reason = FinishReason.TOOL_CALLS if calls else FinishReason.STOP
        return Completion(Message(Role.ASSISTANT, "x", calls), reason, Usage(5, 3, 2, 1), cost)

    run = await lab.agent(step((call("look"),), 0.25), step((), 0.5), tools=[look]).run("go")
    assert run.cost_usd == 0.75
    assert run.usage == Usage(10, 6, 4, 2)


# The ends of runs


@pytest.mark.parametrize(
    ("answer", "stop_reason", "fault", "output"),
    [
        (cut("part", reason=FinishReason.LENGTH), "max_tokens", "model", "part"),
        (cut("no", reason=FinishReason.CONTENT_FILTER), "refused", "model", "no"),
        (cut("odd", reason=FinishReason.TOOL_CALLS), "completed", None, "odd"),
        (RefusedError("filtered"), "refused", "model", ""),
        (ContextOverflowError("too long"), "context_overflow", "user", ""),
        (ServerError("boom", status=500), "error", "infrastructure", ""),
        (AuthenticationError("no key", status=401), "error", "user", ""),
        (RequestError("bad", status=400), "error", "user", ""),
        (ValueError("a bug"), "error", "infrastructure", ""),
    ],
)
async def test_stop_reason_and_fault(
    lab: Lab, answer: Answer, stop_reason: str, fault: str | None, output: str
) -> None:
    run = await lab.agent(answer).run("go")
    assert (run.stop_reason, run.fault, run.output) == (stop_reason, fault, output)
    assert run.status is Status.FINISHED
    if isinstance(answer, Exception):
        assert str(answer) in (run.error or "")


async def test_an_error_of_foreign_code_is_told_with_its_type(lab: Lab) -> None:
    assert (await lab.agent(ValueError("a bug")).run("go")).error == "ValueError: a bug"


async def test_a_run_that_ended_with_an_error_is_resumed_where_it_failed(lab: Lab) -> None:
    failed = await lab.agent([call("look")], ServerError("down"), tools=[look]).run("go")
    run = await lab.agent("done", tools=[look]).resume(failed.run_id)
    assert (run.stop_reason, run.output, run.error, run.fault) == ("completed", "done", None, None)
    assert lab.types(run.run_id).count("tool_started") == 1


@pytest.mark.parametrize("answer", ["done", RefusedError("no"), cut("x", reason=FinishReason.LENGTH)])
async def test_resuming_a_finished_run_returns_it(lab: Lab, answer: Answer) -> None:
    first = await lab.agent(answer).run("go")
    again = await lab.agent().resume(first.run_id)
    assert again.state == first.state
    assert len(again.events) == len(first.events)


# Limits


async def test_max_steps_gives_one_wrap_up_without_tools(lab: Lab) -> None:
    model = ScriptedModel([[call("look")], [call("look")], "as far as I got"])
    run = await lab.agent(model=model, tools=[look], max_steps=2).run("go")
    assert (run.stop_reason, run.output, run.error) == ("max_steps", "as far as I got", None)
    assert [len(item.tools) for item in model.requests] == [1, 1, 0]
    injected = model.requests[2].messages[-1]
    assert injected.role is Role.USER
    assert "max_steps" in injected.content
    assert [event.body.limit for event in run.events if isinstance(event.body, e.MessageInjected)] == [
        "max_steps"
    ]


async def test_the_words_before_the_wrap_up_are_the_policy_s(lab: Lab) -> None:
    agent = lab.agent([call("look")], "x", tools=[look], max_steps=1, last_step_message="stop: {limit}!")
    run = await agent.run("go")
    assert run.messages[-2].content == "stop: max_steps!"


async def test_an_answer_within_the_last_step_is_completed(lab: Lab) -> None:
    run = await lab.agent([call("look")], "done", tools=[look], max_steps=2).run("go")
    assert run.stop_reason is StopReason.COMPLETED


async def test_calls_in_a_wrap_up_are_not_run(lab: Lab) -> None:
    last = Message(Role.ASSISTANT, "one more", (call("send"), call("look")))
    run = await lab.agent([call("look")], last, tools=[look, send], max_steps=1).run("go")
    assert (run.stop_reason, run.output) == ("max_steps", "one more")
    assert kinds(run) == [None, ToolErrorKind.NOT_RUN, ToolErrorKind.NOT_RUN]
    assert results(run)[1] == ("send", "Not run: the limit max_steps of this run was reached.")


async def test_no_steps_at_all_is_a_wrap_up_at_once(lab: Lab) -> None:
    model = ScriptedModel(["a guess"])
    run = await lab.agent(model=model, tools=[look], max_steps=0).run("go")
    assert (run.stop_reason, run.output, len(model.requests[0].tools)) == ("max_steps", "a guess", 0)


async def test_a_wrap_up_that_is_cut_off_or_refused_still_has_the_limit(lab: Lab) -> None:
    for reason in (FinishReason.LENGTH, FinishReason.CONTENT_FILTER):
        run = await lab.agent([call("look")], cut("x", reason=reason), tools=[look], max_steps=1).run("go")
        assert run.stop_reason is StopReason.MAX_STEPS


async def test_a_wrap_up_that_fails_is_an_error_and_can_be_resumed(lab: Lab) -> None:
    said = Message(Role.ASSISTANT, "I look", (call("look"),))
    failed = await lab.agent(said, ServerError("down"), tools=[look], max_steps=1).run("go")
    assert (failed.stop_reason, failed.fault, failed.output) == ("error", "infrastructure", "I look")
    model = ScriptedModel(["late"])
    run = await lab.agent(model=model, tools=[look]).resume(failed.run_id)
    assert (run.stop_reason, run.output, len(model.requests[0].tools)) == ("max_steps", "late", 0)


async def test_calls_past_max_tool_calls_are_not_run_and_the_model_is_told(lab: Lab) -> None:
    model = ScriptedModel([[call("look", {"at": at}) for at in "abc"], "enough"])
    run = await lab.agent(model=model, tools=[look], max_tool_calls=2).run("go")
    assert run.stop_reason is StopReason.MAX_TOOL_CALLS
    not_run = "Not run: the limit max_tool_calls of this run was reached."
    assert results(run) == [("look", "saw a"), ("look", "saw b"), ("look", not_run)]
    assert not model.requests[1].tools
    assert "max_tool_calls" in model.requests[1].messages[-1].content


async def test_exactly_max_tool_calls_is_no_limit_reached(lab: Lab) -> None:
    agent = lab.agent([call("look")], [call("look")], "done", tools=[look], max_tool_calls=2)
    assert (await agent.run("go")).stop_reason is StopReason.COMPLETED


async def test_calls_that_could_not_be_run_count_as_calls(lab: Lab) -> None:
    agent = lab.agent([call("nope"), call("look", "{"), call("look")], "x", tools=[look], max_tool_calls=2)
    run = await agent.run("go")
    assert set(kinds(run)) == {
        ToolErrorKind.UNKNOWN_TOOL,
        ToolErrorKind.INVALID_JSON,
        ToolErrorKind.NOT_RUN,
    }


def costing(tokens: int, cost: float | None, *calls: ToolCall) -> Completion:
    """Return an answer with this cost. The next inference is then expected to cost the same."""
    reason = FinishReason.TOOL_CALLS if calls else FinishReason.STOP
    message = Message(Role.ASSISTANT, "" if calls else "ok", calls)
    return Completion(message, reason, Usage(tokens, 0), cost)


@tool(effect="pure")
async def hush() -> str:
    """Says nothing, so that it adds nothing to the next prompt."""
    return ""


@pytest.mark.parametrize(
    ("limit", "value", "stop_reason"), [("max_tokens", 350, "max_tokens"), ("max_cost_usd", 3.5, "max_cost")]
)
async def test_a_budget_keeps_enough_for_the_wrap_up(
    lab: Lab, limit: str, value: float, stop_reason: str
) -> None:
    # 100 of 350 are spent: another 100 and a wrap-up fit. 200 are spent: two more do not.
    answers = [costing(100, 1.0, call("hush")), costing(100, 1.0, call("hush")), costing(100, 1.0)]
    model = ScriptedModel(answers)
    run = await lab.agent(model=model, tools=[hush], **{limit: value}).run("")
    assert run.stop_reason == stop_reason
    assert [len(item.tools) for item in model.requests] == [1, 1, 0]


@pytest.mark.parametrize(
    ("limit", "value", "stop_reason"), [("max_tokens", 150, "max_tokens"), ("max_cost_usd", 1.5, "max_cost")]
)
async def test_a_budget_that_has_no_room_for_a_wrap_up_ends_the_run(
    lab: Lab, limit: str, value: float, stop_reason: str
) -> None:
    model = ScriptedModel([costing(100, 1.0, call("hush"))])
    run = await lab.agent(model=model, tools=[hush], **{limit: value}).run("")
    assert (run.stop_reason, run.error) == (stop_reason, None)
    assert len(model.requests) == 1


async def test_a_prompt_over_the_budget_is_not_sent(lab: Lab) -> None:
    model = ScriptedModel([])
    run = await lab.agent(model=model, max_tokens=10).run("x" * 100)
    assert (run.stop_reason, run.steps, model.requests) == ("max_tokens", 0, [])
    assert run.error == "max_tokens is 10, and the first inference needs about 25 tokens"
    free = await lab.agent(model=model, max_cost_usd=0).run("go")
    assert (free.stop_reason, free.error) == ("max_cost", "max_cost is 0, which allows no inference")


async def test_a_budget_with_room_for_one_inference_spends_it_with_tools(lab: Lab) -> None:
    model = ScriptedModel(["enough"])
    run = await lab.agent(model=model, tools=[look], max_tokens=150).run("x" * 400)
    assert (run.stop_reason, len(model.requests[0].tools)) == ("completed", 1)


async def test_a_cost_limit_needs_a_known_cost(lab: Lab) -> None:
    agent = lab.agent(costing(1, None, call("hush")), tools=[hush], max_cost_usd=1.0)
    run = await agent.run("go")
    assert (run.stop_reason, run.fault) == ("error", "user")
    assert "price" in (run.error or "")
    resumed = await lab.agent(costing(1, 0.1), tools=[hush]).resume(run.run_id)
    assert (resumed.stop_reason, resumed.cost_usd) == ("completed", None)
    answer = await lab.agent(costing(1, None), max_cost_usd=1.0).run("go")
    assert answer.stop_reason is StopReason.COMPLETED


REACHED = [
    ("deadline", {"deadline_seconds": 0.0}),
    ("max_cost", {"max_cost_usd": 0.0}),
    ("max_tokens", {"max_tokens": 0}),
    ("max_tool_calls", {"max_tool_calls": 0}),
    ("max_steps", {"max_steps": 1}),
]


@pytest.mark.parametrize("first", range(len(REACHED)))
async def test_the_first_of_the_order_wins_where_several_are_reached(lab: Lab, first: int) -> None:
    """The journal ends after a step with calls. A fork with each policy then decides about it."""
    origin = await lab.agent(costing(0, 0.0, call("hush")), ServerError("down"), tools=[hush]).run("")
    after_inference = lab.types(origin.run_id).index("inference_completed") + 1
    limits: dict[str, Any] = {}
    for _, limit in REACHED[first:]:
        limits |= limit
    fork = await lab.agent("wrapped up", tools=[hush], **limits).fork(origin.run_id, after_inference)
    assert fork.stop_reason == REACHED[first][0]


async def test_past_its_deadline_a_run_starts_nothing_more(lab: Lab) -> None:
    """Past the deadline, not even a call that would take no time is started."""
    interrupted(lab, "r", *started(Policy(deadline_seconds=0.5), calls=(S1,)))
    run = await lab.agent(tools=[send]).resume("r")
    assert (run.stop_reason, kinds(run)) == ("deadline", [ToolErrorKind.NOT_RUN])


async def test_limits_count_for_each_turn_of_a_session(lab: Lab) -> None:
    once: list[Answer] = [[call("look")], "answer"]
    agent = lab.agent(*once, *once, [call("look")], *once, tools=[look], max_steps=2)
    async with agent.session() as session:
        assert (await session.send("a")).stop_reason is StopReason.COMPLETED
        assert (await session.send("b")).stop_reason is StopReason.COMPLETED
        assert (await session.send("c")).stop_reason is StopReason.MAX_STEPS


async def test_the_deadline_stops_the_model(lab: Lab) -> None:
    gate = Gate()
    run = await lab.agent(model=GatedModel(gate, "late"), deadline_seconds=0.01).run("go")
    assert (run.stop_reason, run.steps) == ("deadline", 0)
    failure = next(event.body for event in run.events if isinstance(event.body, e.InferenceFailed))
    assert failure.stop_reason is StopReason.DEADLINE


async def run_to_the_deadline(
    lab: Lab, calls: list[str], tools: list[Any], begun: list[str], count: int
) -> Run[Any]:
    """Run with longer and longer deadlines, until one lets `count` tools begin: the machine may be busy."""
    for seconds in (0.05, 0.5, 5.0, 50.0):
        begun.clear()
        agent = lab.agent([*map(call, calls)], tools=tools, deadline_seconds=seconds, parallel_tool_calls=2)
        run = await agent.run("go")
        assert run.stop_reason is StopReason.DEADLINE
        if len(begun) == count:
            break
    return run


async def test_the_deadline_stops_tools_and_every_call_has_a_result(lab: Lab) -> None:
    gate, begun = Gate(), list[str]()

    @tool(effect="once")
    async def wait() -> None:
        begun.append("wait")
        await gate.pass_through()

    run = await run_to_the_deadline(lab, ["wait", "look", "wait"], [wait, look], begun, 2)
    assert set(kinds(run)) == {ToolErrorKind.TIMEOUT, None}
    assert "what it did until then is unknown" in results(run)[0][1]


async def test_a_pure_tool_that_the_deadline_stopped_has_done_nothing(lab: Lab) -> None:
    gate, begun = Gate(), list[str]()

    @tool(effect="pure")
    async def wait() -> None:
        begun.append("wait")
        await gate.pass_through()

    run = await run_to_the_deadline(lab, ["wait"], [wait], begun, 1)
    assert results(run) == [("wait", "Stopped by the deadline of the run.")]
    assert (await lab.agent("x", tools=[wait]).replay(run.run_id)).is_exact


async def test_files_changed_by_a_tool_that_the_deadline_stopped_are_kept(lab: Lab) -> None:
    begun: list[str] = []

    @tool(effect="once")
    async def half(context: ToolContext) -> None:
        assert context.sandbox is not None
        context.sandbox.write("half.txt", b"half")
        begun.append("half")
        await asyncio.Event().wait()

    run = await run_to_the_deadline(lab, ["half"], [half], begun, 1)
    assert run.files == {"half.txt": b"half"}


# Faulty calls


async def test_an_unknown_tool_is_answered_with_the_nearest_names(lab: Lab) -> None:
    run = await lab.agent([call("lock")], "done", tools=[look, send]).run("go")
    (answer,) = results(run)
    assert answer == ("lock", "There is no tool 'lock'. Did you mean 'look'? The tools are: look, send.")
    assert kinds(run) == [ToolErrorKind.UNKNOWN_TOOL]
    bare = await lab.agent([call("lock")], "done").run("go")
    assert results(bare)[0][1] == "There is no tool 'lock'. The tools are: none."


async def test_a_model_that_repeats_a_name_without_a_tool_is_told_again(lab: Lab) -> None:
    """Rules out a model that goes on inventing names: the second time in a row, a message says which tools exist,
    also if the agent has no tools. A call that succeeds in between, or another wrong name, is no repetition."""
    steps = [[call("lock")], [call("lock")], [call("lock"), call("bolt")], [call("bolt"), call("look")]]
    model = ScriptedModel([*steps, [call("look")], [call("bolt")], "done"])
    agent = lab.agent(tools=[look, send], model=model)
    run = await agent.run("go")
    told = [message.content for message in run.messages if message.role is Role.USER]
    assert told[1:] == [
        f"You called {name!r} again, which does not exist. Call only these tools: look, send. If none fits, answer "
        "without a tool."
        for name in ("lock", "lock", "bolt")
    ]
    assert run.stop_reason == "completed"
    assert (await agent.replay(run.run_id)).is_exact
    bare = await lab.agent([call("lock")], [call("lock")], "done").run("go")
    assert "There are no tools at all." in bare.messages[-2].content


@pytest.mark.parametrize(
    ("text", "kind", "words"),
    [
        ('{"at": ', ToolErrorKind.INVALID_JSON, "not valid JSON"),
        ('{"at": "\\ud800"}', ToolErrorKind.INVALID_JSON, "not valid JSON"),
        ("[" * 100_000, ToolErrorKind.INVALID_JSON, "not valid JSON"),
        ('["a"]', ToolErrorKind.INVALID_ARGUMENTS, "one JSON object"),
        ("null", ToolErrorKind.INVALID_ARGUMENTS, "one JSON object"),
        ('{"at": 1}', ToolErrorKind.INVALID_ARGUMENTS, "/at"),
        ('{"att": "x"}', ToolErrorKind.INVALID_ARGUMENTS, "did you mean 'at'"),
    ],
)
async def test_arguments_that_cannot_be_taken(lab: Lab, text: str, kind: ToolErrorKind, words: str) -> None:
    run = await lab.agent([call("look", text)], "done", tools=[look]).run("go")
    assert kinds(run) == [kind]
    assert words in results(run)[0][1]
    assert "was not run" in results(run)[0][1]
    assert run.stop_reason is StopReason.COMPLETED
    assert "tool_started" not in lab.types(run.run_id)
    assert run.messages[1].tool_calls[0].arguments == text


@pytest.mark.parametrize("text", ["", "  ", "{}"])
async def test_no_arguments_are_an_empty_object(lab: Lab, text: str) -> None:
    run = await lab.agent([ToolCall("c", "look", text)], "done", tools=[look]).run("go")
    assert results(run) == [("look", "saw ")]


async def test_a_call_cut_off_by_the_output_limit_is_told_as_such(lab: Lab) -> None:
    answer = cut("", reason=FinishReason.LENGTH, calls=(call("look", '{"at": "lo'), call("look")))
    run = await lab.agent(answer, "done", tools=[look]).run("go")
    assert kinds(run) == [ToolErrorKind.TRUNCATED, None]
    assert "cut off by the output limit" in results(run)[0][1]
    assert run.stop_reason is StopReason.COMPLETED


async def test_what_a_tool_raises_is_its_result(lab: Lab) -> None:
    @tool(effect="pure")
    async def bug() -> str:
        raise KeyError("x")

    @tool(effect="pure")
    async def silent() -> str:
        raise ValueError

    @tool(effect="pure")
    async def late() -> str:
        raise TimeoutError("the socket")

    calls = [call(name) for name in ("fail", "bug", "silent", "late")]
    run = await lab.agent(calls, "done", tools=[fail, bug, silent, late]).run("go")
    assert results(run) == [
        ("fail", "the disk is full"),
        ("bug", "KeyError: 'x'"),
        ("silent", "ValueError"),
        ("late", "TimeoutError: the socket"),
    ]
    assert kinds(run) == [ToolErrorKind.FAILED] * 4
    assert all(item.is_error for item in run.messages if item.role is Role.TOOL)
    assert run.stop_reason is StopReason.COMPLETED


async def test_a_tool_that_is_cancelled_from_within_has_failed(lab: Lab) -> None:
    """This happens when a library that the tool uses cancels its own task. Nobody cancelled the run."""

    @tool(effect="pure")
    async def given_up() -> str:
        raise asyncio.CancelledError("gone")

    run = await lab.agent(
        [call("given_up"), call("look")], [call("given_up")], "done", tools=[given_up, look]
    ).run("go")
    assert (run.stop_reason, len(results(run))) == ("completed", 3)
    assert kinds(run).count(ToolErrorKind.FAILED) == 2


class Odd:
    """A tool from elsewhere that breaks the rules of the protocol."""

    spec = ToolSpec("odd", "Odd.", {"type": "object"})

    def __init__(self, content: Any = "", fault: Exception | None = None) -> None:
        self._content = content
        self._fault = fault

    def find_fault(self, arguments: Any) -> str | None:
        if self._fault is not None:
            raise self._fault
        return None

    async def call(self, arguments: dict[str, Any], context: ToolContext) -> str:
        return self._content  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("odd", "words"),
    [
        (Odd(None), "odd returned NoneType"),
        (Odd(b"x"), "odd returned bytes"),
        (Odd(fault=ValueError("bad schema")), "bad schema"),
    ],
    ids=["none", "bytes", "fault"],
)
async def test_a_tool_that_breaks_its_promises_has_failed(lab: Lab, odd: Odd, words: str) -> None:
    run = await lab.agent([call("odd")], "done", tools=[odd]).run("go")
    assert (run.stop_reason, kinds(run)) == ("completed", [ToolErrorKind.FAILED])
    assert words in results(run)[0][1]


async def test_a_result_that_is_not_unicode_is_kept_readable(lab: Lab) -> None:
    @tool(effect="pure")
    async def names() -> str:
        return "a\udcffb"

    @tool(effect="pure")
    async def missing() -> str:
        raise FileNotFoundError("a\udcffb")

    run = await lab.agent([call("names"), call("missing")], "done", tools=[names, missing]).run("go")
    assert results(run) == [("names", r"a\udcffb"), ("missing", r"FileNotFoundError: a\udcffb")]


async def test_a_tool_that_takes_too_long_is_stopped(lab: Lab) -> None:
    stopped = []

    @tool(effect="pure", timeout_seconds=0.01)
    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(True)

    run = await lab.agent([call("wait")], "done", tools=[wait]).run("go")
    assert (kinds(run), stopped) == ([ToolErrorKind.TIMEOUT], [True])
    assert results(run)[0][1] == "wait did not finish within 0.01 s and was stopped."


async def test_a_result_that_is_too_long_loses_its_middle_and_is_kept_whole(lab: Lab) -> None:
    @tool(effect="pure", max_result_chars=30)
    async def long(chars: int) -> str:
        return "a" * (chars - 5) + "zzzzz"

    run = await lab.agent([call("long", {"chars": 30}), call("long", {"chars": 31})], "ok", tools=[long]).run(
        "go"
    )
    assert kinds(run) == [None, None]
    text = results(run)[1][1]
    assert text.endswith("aaaaazzzzz")
    assert "[… 1 of 31 characters left out; ask for less at a time …]" in text
    whole, cut = [event.body.result for event in run.events if isinstance(event.body, e.ToolCompleted)]
    assert whole.artifacts == ()
    assert [(item.kind, item.size_bytes) for item in cut.artifacts] == [("text", 31)]
    assert lab.journal.read_blob(cut.artifacts[0].digest or "") == b"a" * 26 + b"zzzzz"


async def test_what_a_result_comes_with_is_kept_by_hash(lab: Lab) -> None:
    picture = Attachment("image", b"\x89PNG", "image/png")
    link = Attachment("link", uri="https://example.org/a", name="a")

    class Draw:
        spec = ToolSpec("draw", "", {"type": "object"}, Effect.PURE)

        def find_fault(self, arguments: Any) -> None:
            return None

        async def call(self, arguments: Any, context: ToolContext) -> ToolOutput:
            return ToolOutput(
                "[image]", structured={"size": 4}, attachments=(picture, link), is_simulated=True
            )

    run = await lab.agent([call("draw")], "ok", tools=[Draw()]).run("go")
    result = next(event.body.result for event in run.events if isinstance(event.body, e.ToolCompleted))
    assert (result.content, result.structured, result.is_simulated) == ("[image]", {"size": 4}, True)
    assert [(item.kind, item.uri) for item in result.artifacts] == [("image", None), ("link", link.uri)]
    assert lab.journal.read_blob(result.artifacts[0].digest or "") == b"\x89PNG"
    lines = list(export_run(lab.journal, run.run_id))
    other = MemoryJournal()
    await import_lines(other, lines)
    assert other.read_blob(result.artifacts[0].digest or "") == b"\x89PNG"
    assert list(export_run(other, run.run_id)) == lines


async def test_limits_of_a_tool_are_told_to_the_model_and_kept(lab: Lab) -> None:
    running, most = 0, 0

    @tool(effect="pure")
    async def work() -> str:
        nonlocal running, most
        running += 1
        most = max(most, running)
        await asyncio.sleep(0)
        running -= 1
        return "x" * 50

    model = ScriptedModel([[call("work")] * 3, [call("work")] * 2, "done"])
    limits = {"wor*": ToolLimits(max_calls=4, max_concurrent=2), "work": ToolLimits(max_result_chars=20)}
    run = await lab.agent(model=model, tools=[work], tool_limits=limits, max_result_chars=40).run("go")
    assert most == 2
    assert sorted(kinds(run), key=str) == [None, None, None, None, ToolErrorKind.OVER_LIMIT]
    assert "may be called 4 times in one turn" in results(run)[-1][1]
    assert run.stop_reason is StopReason.COMPLETED
    told = model.requests[0].tools[0].description
    assert "At most 4 calls in one turn." in told
    assert "more than 20 characters" in told
    assert "[… 31 of 50 characters" in results(run)[0][1]


# Several calls of one step


async def test_results_are_in_call_order_though_calls_end_in_another(lab: Lab) -> None:
    order: list[str] = []
    done = {name: asyncio.Event() for name in "abc"}

    @tool(effect="pure")
    async def after(name: str, waits_for: str = "") -> str:
        if waits_for:
            await done[waits_for].wait()
        order.append(name)
        done[name].set()
        return name

    calls = [("a", "b"), ("b", "c"), ("c", "")]
    step = [call("after", {"name": name, "waits_for": other}) for name, other in calls]
    run = await lab.agent(step, "done", tools=[after]).run("go")
    assert order == ["c", "b", "a"]
    assert [content for _, content in results(run)] == ["a", "b", "c"]


@pytest.mark.parametrize("limit", [1, 2, 8])
async def test_no_more_calls_run_at_a_time_than_the_policy_says(lab: Lab, limit: int) -> None:
    running = most = 0

    @tool(effect="pure")
    async def work() -> None:
        nonlocal running, most
        running += 1
        most = max(most, running)
        for _ in range(5):
            await asyncio.sleep(0)
        running -= 1

    await lab.agent([call("work")] * 5, "done", tools=[work], parallel_tool_calls=limit).run("go")
    assert most == min(limit, 5)


async def test_a_tool_that_is_not_concurrent_runs_alone_and_in_order(lab: Lab) -> None:
    running: list[str] = []
    seen: list[tuple[str, ...]] = []

    async def work(name: str) -> None:
        running.append(name)
        seen.append(tuple(running))
        for _ in range(3):
            await asyncio.sleep(0)
        running.remove(name)

    @tool(effect="pure")
    async def beside(name: str) -> None:
        await work(name)

    @tool(effect="pure", concurrent=False)
    async def alone(name: str) -> None:
        await work(name)

    names = [("beside", "1"), ("beside", "2"), ("alone", "3"), ("alone", "4"), ("beside", "5")]
    step = [call(kind, {"name": name}) for kind, name in names]
    await lab.agent(step, "done", tools=[beside, alone]).run("go")
    assert seen == [("1",), ("1", "2"), ("3",), ("4",), ("5",)]


async def test_calls_without_an_id_or_with_one_that_was_used_get_their_own(lab: Lab) -> None:
    first = [ToolCall("", "look", '{"at":"a"}'), ToolCall("x", "look", '{"at":"b"}')]
    second = [ToolCall("x", "look", '{"at":"c"}'), ToolCall("x", "look", '{"at":"d"}')]
    model = ScriptedModel([first, second, "done"])
    run = await lab.agent(model=model, tools=[look]).run("go")
    ids = [item.call_id for message in run.messages for item in message.tool_calls]
    assert ids[1] == "x"
    assert len(set(ids)) == 4
    assert all(ids)
    assert [content for _, content in results(run)] == ["saw a", "saw b", "saw c", "saw d"]
    assert [item.call_id for item in run.messages if item.role is Role.TOOL] == ids
    # The model sees the ids that join calls and results.
    assert [item.call_id for item in model.requests[2].messages[1].tool_calls] == ids[:2]


async def test_an_id_that_is_made_is_not_one_that_the_model_used(lab: Lab) -> None:
    step = [ToolCall("call_1_1", "look", ""), ToolCall("", "look", "")]
    run = await lab.agent(step, "done", tools=[look]).run("go")
    assert len({item.call_id for item in run.messages[1].tool_calls}) == 2


async def test_calls_of_a_message_that_says_it_is_done_are_run(lab: Lab) -> None:
    both = cut("All done!", reason=FinishReason.STOP, calls=(call("look", {"at": "a"}),))
    run = await lab.agent(both, "now done", tools=[look]).run("go")
    assert results(run) == [("look", "saw a")]
    assert run.output == "now done"


async def test_the_same_call_again_is_run_again(lab: Lab) -> None:
    count = 0

    @tool(effect="pure")
    async def tick() -> int:
        nonlocal count
        count += 1
        return count

    run = await lab.agent([call("tick"), call("tick")], [call("tick")], "done", tools=[tick]).run("go")
    assert [content for _, content in results(run)] == ["1", "2", "3"]


async def test_a_call_knows_its_run(lab: Lab) -> None:
    @tool(effect="once")
    async def who(context: ToolContext) -> str:
        return json.dumps([context.run_id, context.call_id, context.step, context.idempotency_key])

    run = await lab.agent([call("who", call_id="c7")], "done", tools=[who]).run("go", run_id="r1")
    assert json.loads(results(run)[0][1]) == ["r1", "c7", 1, "r1/c7"]


async def test_the_start_of_a_tool_with_an_effect_is_kept_before_it_runs(lab: Lab) -> None:
    seen: list[list[str]] = []

    @tool(effect="once")
    async def peek(context: ToolContext) -> None:
        seen.append(lab.kept(context.run_id))

    await lab.agent([call("peek")], "done", tools=[peek]).run("go")
    assert seen[0][-2:] == ["inference_completed", "tool_started"]


async def test_files_are_snapshotted_with_the_result_that_changed_them(lab: Lab) -> None:
    steps = [
        [call("write_file", {"file_path": "a.txt", "content": "1"})],
        [call("read_file", {"file_path": "a.txt"})],
        [call("delete_file", {"file_path": "seed.txt"})],
    ]
    run = await lab.agent(*steps, "done", tools=["files"], files={"seed.txt": "s"}).run("go")
    assert run.files == {"a.txt": b"1"}
    types = [item for item in lab.types(run.run_id) if item in ("snapshot_taken", "tool_completed")]
    changed = ["snapshot_taken", "tool_completed"]
    assert types == ["snapshot_taken", *changed, "tool_completed", *changed]


# Attempts repeated by a wrapper of the model


class Retrying:
    """A model whose first attempts fail, as with a wrapper that retries."""

    name = "retrying"

    def __init__(self, answer: Answer, heard: list[str]) -> None:
        self._inner = ScriptedModel([answer])
        self._heard = heard

    async def infer(self, request: Request, watch: Watch) -> Completion:
        for attempt in (1, 2):
            assert watch.on_failure is not None
            watch.on_failure(RateLimitError("slow down"), attempt, 0.5)
            for _ in range(9):
                await asyncio.sleep(0)
            assert self._heard.count("inference_failed") == attempt, "it is told while the next one waits"
        return await self._inner.infer(request, watch)


async def test_attempts_that_failed_are_events_and_no_more(lab: Lab) -> None:
    heard: list[str] = []
    model = Retrying("done", heard)
    run = await lab.agent(model=model).run("go", on_event=lambda event: heard.append(event.type))
    assert (run.stop_reason, run.steps) == ("completed", 1)
    failed = [event.body for event in run.events if isinstance(event.body, e.InferenceFailed)]
    assert [(item.attempt, item.retry_in_seconds, item.error_type) for item in failed] == [
        (1, 0.5, "RateLimitError"),
        (2, 0.5, "RateLimitError"),
    ]
    assert heard.count("inference_failed") == 2


# Token ids


async def test_prompt_ids_that_the_run_holds_are_not_kept_twice(lab: Lab) -> None:
    def step(prompt: tuple[int, ...], output: tuple[int, ...], *calls: ToolCall) -> Completion:
        reason = FinishReason.TOOL_CALLS if calls else FinishReason.STOP
        tokens = TokenRecord.of(prompt=prompt, output=output)
        return Completion(Message(Role.ASSISTANT, "x", calls), reason, Usage(1, 1), 0.0, tokens=tokens)

    answers = [
        step((1, 2), (3, 4), call("look")),
        step((1, 2, 3, 4, 5), (6,), call("look")),
        step((1, 9), (7,)),
    ]
    run = await lab.agent(*answers, tools=[look]).run("go")
    kept = [
        event.body.completion.tokens for event in run.events if isinstance(event.body, e.InferenceCompleted)
    ]
    assert [
        (unpack_ids(item.prompt_token_ids), item.prompt_shared_tokens) for item in kept if item is not None
    ] == [
        ((1, 2), 0),
        ((5,), 4),
        ((9,), 1),
    ]


# Cancelling


async def cancel_at(gate: Gate, running: asyncio.Future[Any]) -> None:
    await gate.reached.wait()
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert running.cancelled()


async def test_cancelling_in_the_model_leaves_a_run_that_is_resumed(lab: Lab) -> None:
    gate = Gate()
    agent = lab.agent(model=GatedModel(gate, [call("look")], "never", at=1), tools=[look])
    await cancel_at(gate, asyncio.ensure_future(agent.run("go", run_id="r")))
    assert lab.types("r")[-3:] == ["inference_started", "inference_failed", "run_paused"]
    (info,) = lab.journal.runs()
    assert (info.status, info.stop_reason, info.is_driven) == ("paused", "interrupted", False)
    run = await lab.agent("done", tools=[look]).resume("r")
    assert (run.stop_reason, run.output, run.steps) == ("completed", "done", 2)


@pytest.mark.parametrize(("effect", "runs"), [("pure", 2), ("idempotent", 2), ("once", 1)])
async def test_cancelling_in_a_tool_leaves_a_call_whose_effect_says_what_becomes_of_it(
    lab: Lab, effect: Any, runs: int
) -> None:
    gate = Gate()
    started: list[str] = []

    @tool(effect=effect)
    async def work(context: ToolContext) -> str:
        started.append(context.idempotency_key)
        await gate.pass_through()
        return "worked"

    agent = lab.agent([call("look"), call("work", call_id="w")], "done", tools=[work, look])
    await cancel_at(gate, asyncio.ensure_future(agent.run("go", run_id="r")))
    gate.opened.set()
    run = await agent.resume("r")
    assert run.stop_reason is StopReason.COMPLETED
    assert started == ["r/w"] * runs
    # Calls that were completed before are not run again.
    assert [event.body.result.name for event in run.events if isinstance(event.body, e.ToolCompleted)] == [
        "look",
        "work",
    ]
    assert results(run)[1][1] == "worked" if runs == 2 else "is unknown" in results(run)[1][1]
    attempts = [event.body.attempt for event in run.events if isinstance(event.body, e.ToolStarted)]
    assert attempts == [1, 1, 2][: 1 + runs]


async def test_cancelling_stops_all_tools_of_the_step(lab: Lab) -> None:
    stopped: list[str] = []
    gate = Gate()

    @tool(effect="idempotent")
    async def work(name: str) -> None:
        if name == "c":
            gate.reached.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.append(name)

    step = [call("work", {"name": name}) for name in "abc"]
    await cancel_at(gate, asyncio.ensure_future(lab.agent(step, tools=[work]).run("go")))
    assert sorted(stopped) == ["a", "b", "c"]


async def test_cancelling_when_all_is_decided_changes_nothing(lab: Lab) -> None:
    """A caller that cancels when it hears of the run's end finds a finished run."""
    running: asyncio.Future[Run]

    def on_event(event: e.Event | e.Ephemeral) -> None:
        if event.type in ("turn_completed", "run_finished"):
            running.cancel()

    running = asyncio.ensure_future(lab.agent("done").run("go", run_id="r", on_event=on_event))
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert lab.types("r")[-1] == "run_finished"
    (info,) = lab.journal.runs()
    assert (info.status, info.is_driven) == ("finished", False)
    assert (await lab.agent().resume("r")).stop_reason is StopReason.COMPLETED


@pytest.mark.parametrize("count", range(12))
async def test_cancelling_anywhere_leaves_a_run_that_completes(lab: Lab, count: int) -> None:
    """The run is cancelled when its `count`-th event is reported."""
    told = 0
    running: asyncio.Future[Run]

    def on_event(event: e.Event | e.Ephemeral) -> None:
        nonlocal told
        if isinstance(event, e.Event):
            if told == count:
                running.cancel()
            told += 1

    answers: list[Answer] = [[call("look", {"at": "a"}), call("send", {"text": "b"})], "done"]
    agent = lab.agent(
        model=ScriptedModel(lambda request: answers[len(request.messages) > 1]), tools=[look, send]
    )
    running = asyncio.ensure_future(agent.run("go", run_id="r", on_event=on_event))
    with contextlib.suppress(asyncio.CancelledError):
        await running
    run = await agent.resume("r")
    assert (run.stop_reason, run.output) == ("completed", "done")
    assert lab.types("r").count("run_finished") == 1
    assert lab.types("r").count("turn_completed") == 1


async def test_a_run_that_was_interrupted_before_its_grade_is_graded_when_resumed(lab: Lab) -> None:
    from treadle import load_task

    task = load_task("files:csv_sum-0003")
    oracle = oracle_for(task)
    assert oracle is not None
    graded = await lab.agent(model=oracle).run(task)
    bodies = [event.body for event in graded.events]
    interrupted(lab, "r", *bodies[:-1])
    for _ in range(2):
        assert (await lab.agent().resume("r")).reward == 1.0
    assert lab.types("r") == lab.types(graded.run_id)


async def test_a_resumed_run_that_is_cancelled_at_once_is_resumed_again(lab: Lab) -> None:
    interrupted(lab, "r", *started(Policy(), calls=())[:3])
    running: asyncio.Future[Run]

    def on_event(event: e.Event | e.Ephemeral) -> None:
        if event.type == "run_resumed":
            running.cancel()

    running = asyncio.ensure_future(lab.agent("done").resume("r", on_event=on_event))
    with contextlib.suppress(asyncio.CancelledError):
        await running
    assert (await lab.agent("done").resume("r")).output == "done"


async def test_time_that_nobody_worked_counts_for_no_deadline(lab: Lab) -> None:
    # The journal's times are in 1970, so the pause before the resume is longer than any deadline.
    interrupted(lab, "r", *started(Policy(deadline_seconds=30.0), calls=(S1,)))
    run = await lab.agent("done", tools=[send]).resume("r")
    assert run.stop_reason is StopReason.COMPLETED
    assert run.state.work_seconds < 30


async def test_runs_of_one_agent_do_not_mix(lab: Lab) -> None:
    def answer(request: Request) -> Answer:
        asked = request.messages[0].content
        if request.messages[-1].role is Role.TOOL:
            return f"{asked} {request.messages[-1].content}"
        return [call("look", {"at": asked})]

    agent = lab.agent(model=ScriptedModel(answer), tools=[look])
    runs = await asyncio.gather(*[agent.run(f"n{index}") for index in range(50)])
    assert [item.output for item in runs] == [f"n{index} saw n{index}" for index in range(50)]


# In doubt


def interrupted(lab: Lab, run_id: str, *bodies: e.DurableBody) -> None:
    """Write a journal in the state that a killed process leaves."""
    writer = lab.journal.create(run_id)
    writer.append(list(bodies))
    lab.journal._driven.discard(run_id)


def started(policy: Policy, *, calls: tuple[ToolCall, ...]) -> list[e.DurableBody]:
    """Return the events of a run up to an answer with calls."""
    answer = Message(Role.ASSISTANT, "", calls)
    completion = Completion(answer, FinishReason.TOOL_CALLS, Usage(1, 1), 0.0)
    return [
        e.RunStarted(at=1.0, policy=policy, version=e.VERSION, tools=(send.spec, look.spec)),
        e.TurnStarted(at=1.0, turn=1, message=Message(Role.USER, "go")),
        e.InferenceStarted(at=1.0, step=1, messages=1),
        e.InferenceCompleted(at=2.0, step=1, completion=completion),
    ]


def start_of(item: ToolCall, effect: Any) -> e.ToolStarted:
    return e.ToolStarted(at=2.0, step=1, call_id=item.call_id, name=item.name, effect=effect)


S1 = call("send", {"text": "a"}, call_id="s1")
S2 = call("send", {"text": "b"}, call_id="s2")
L1 = call("look", {"at": "c"}, call_id="l1")


async def test_a_once_call_in_doubt_is_told_and_the_rest_is_run(lab: Lab) -> None:
    prefix = started(Policy(), calls=(S1, L1, S2))
    interrupted(lab, "r", *prefix, start_of(S1, "once"), start_of(L1, "pure"))
    run = await lab.agent("done", tools=[send, look]).resume("r")
    assert [name for name, _ in results(run)] == ["send", "look", "send"]
    texts = [content for _, content in results(run)]
    assert "outcome of this call is unknown" in texts[0]
    assert texts[1:] == ["saw c", "sent b"]
    assert ToolErrorKind.IN_DOUBT in kinds(run)


async def test_a_once_call_in_doubt_is_asked_about_and_the_answer_is_its_result(lab: Lab) -> None:
    prefix = started(Policy(in_doubt=InDoubt.ASK), calls=(S1, S2, L1))
    interrupted(lab, "r", *prefix, start_of(S1, "once"), start_of(S2, "once"))
    agent = lab.agent("done", tools=[send, look])
    run = await agent.resume("r")
    assert (run.status, run.stop_reason) == ("paused", None)
    assert list(run.questions) == ["s1/1", "s2/1"]
    assert 'send({"text":"a"})' in run.questions["s1/1"]
    still = await agent.resume("r")
    assert list(still.questions) == ["s1/1", "s2/1"]
    half = await agent.resume("r", answers={"s2/1": "it was sent"})
    assert (half.status, list(half.questions)) == ("paused", ["s1/1"])
    run = await agent.resume("r", answers={"s1/1": "it was lost"})
    assert run.stop_reason is StopReason.COMPLETED
    assert [content for _, content in results(run)] == ["it was lost", "it was sent", "saw c"]
    assert kinds(run) == [None, None, None]
    assert lab.types("r").count("question_asked") == 2


async def test_an_answer_to_no_open_question_is_refused_and_changes_nothing(lab: Lab) -> None:
    prefix = started(Policy(in_doubt=InDoubt.ASK), calls=(S1,))
    interrupted(lab, "r", *prefix, start_of(S1, "once"))
    agent = lab.agent("done", tools=[send])
    await agent.resume("r")
    before = lab.types("r")
    with pytest.raises(ConfigError, match="the open questions are: s1/1"):
        await agent.resume("r", answers={"s9": "x"})
    assert lab.types("r") == before
    await agent.resume("r", answers={"s1/1": "sent"})
    with pytest.raises(ConfigError):
        await agent.resume("r", answers={"s1/1": "again"})


async def test_a_call_that_was_recorded_as_once_is_not_run_though_the_tool_says_pure_now(lab: Lab) -> None:
    interrupted(lab, "r", *started(Policy(), calls=(S1,)), start_of(S1, "once"))
    ran: list[str] = []

    @tool(name="send", effect="pure")
    async def send_now(text: str) -> None:
        ran.append(text)

    run = await lab.agent("done", tools=[send_now]).resume("r")
    assert (ran, kinds(run)) == ([], [ToolErrorKind.IN_DOUBT])


async def test_a_completed_inference_is_not_paid_for_twice(lab: Lab) -> None:
    interrupted(lab, "r", *started(Policy(), calls=(S1,)))
    model = ScriptedModel(["done"])
    await lab.agent(model=model, tools=[send]).resume("r")
    assert len(model.requests) == 1


async def test_an_inference_that_was_interrupted_is_made_again(lab: Lab) -> None:
    interrupted(lab, "r", *started(Policy(), calls=())[:3])
    run = await lab.agent("done").resume("r")
    assert (run.output, run.steps) == ("done", 1)


# Misuse and absent runs


async def test_a_run_id_is_used_once(lab: Lab) -> None:
    await lab.agent("done").run("go", run_id="r")
    with pytest.raises(RunExistsError, match="'r'"):
        await lab.agent("done").run("go", run_id="r")


async def test_an_unknown_run_is_not_found(lab: Lab) -> None:
    agent = lab.agent()
    for action in (agent.resume("nope"), agent.replay("nope"), agent.fork("nope")):
        with pytest.raises(RunNotFoundError, match="run 'nope' not found"):
            await action


async def test_a_run_that_is_driven_is_not_resumed(lab: Lab) -> None:
    gate = Gate()
    running = asyncio.ensure_future(lab.agent(model=GatedModel(gate, "done")).run("go", run_id="r"))
    await gate.reached.wait()
    with pytest.raises(LeaseHeldError):
        await lab.agent().resume("r")
    gate.opened.set()
    assert (await running).output == "done"


async def test_a_store_that_fails_raises_and_leaves_the_run_free(lab: Lab) -> None:
    class Full(MemoryWriter):
        async def sync(self) -> None:
            if len(lab.journal._runs[self.run_id]) > 4:
                raise JournalError("the disk is full")

    class FullJournal(MemoryJournal):
        def create(self, run_id: str) -> Full:
            return Full(lab.journal, run_id, is_new=True)

    agent = Agent(ScriptedModel([[call("send")], "never"]), tools=[send], journal=FullJournal())
    with pytest.raises(JournalError, match="disk is full"):
        await agent.run("go", run_id="r")
    run = await lab.agent("done", tools=[send]).resume("r")
    assert run.stop_reason is StopReason.COMPLETED


# Streaming


async def test_a_stream_gives_events_once_they_are_kept_and_deltas_between(lab: Lab) -> None:
    kept: list[bool] = []
    items: list[e.Event | e.Ephemeral] = []
    stream = lab.agent([call("look", {"at": "a"})], "a longer answer", tools=[look]).stream("go")
    async for item in stream:
        items.append(item)
        if isinstance(item, e.Event):
            kept.append(len(lab.kept(item.run_id)) >= item.seq)
    assert all(kept)
    events = [item for item in items if isinstance(item, e.Event)]
    assert [item.seq for item in events] == list(range(1, len(events) + 1))
    assert stream.run is not None
    assert [item.type for item in events] == lab.types(stream.run.run_id)
    types = [item.type for item in items]
    ask, answer = types.index("inference_started"), types.index("inference_completed")
    assert types[ask + 1 : answer] == ["tool_call_delta"]
    text = "".join(item.body.text for item in items if isinstance(item.body, e.TextDelta))
    assert text == stream.run.output == "a longer answer"


async def test_progress_of_a_tool_is_streamed_and_not_kept(lab: Lab) -> None:
    @tool(effect="pure")
    def work(context: ToolContext) -> str:
        context.progress("half")
        return "done"

    @tool(effect="pure")
    async def work_inline(context: ToolContext) -> str:
        context.progress("all")
        await asyncio.sleep(0)
        return "done"

    agent = lab.agent([call("work"), call("work_inline")], "ok", tools=[work, work_inline])
    items = [item async for item in agent.stream("go")]
    told = {item.body.text for item in items if isinstance(item.body, e.ToolProgress)}
    assert told == {"half", "all"}
    assert "tool_progress" not in lab.types(items[0].run_id)


async def test_several_calls_are_streamed_in_the_order_of_their_events(lab: Lab) -> None:
    @tool(effect="idempotent")
    async def work(rounds: int) -> None:
        for _ in range(rounds):
            await asyncio.sleep(0)

    step = [call("work", {"rounds": rounds}) for rounds in (3, 0, 2, 1)]
    seqs: list[int] = []
    async for item in lab.agent(step, "done", tools=[work]).stream("go", run_id="r"):
        if isinstance(item, e.Event):
            seqs.append(item.seq)
            assert item.seq <= len(lab.kept("r"))
    assert seqs == list(range(1, len(lab.types("r")) + 1))


async def test_leaving_a_stream_early_cancels_the_run(lab: Lab) -> None:
    gate = Gate()
    stream = lab.agent(model=GatedModel(gate, [call("look")], "done", at=1), tools=[look]).stream(
        "go", run_id="r"
    )
    async with contextlib.aclosing(stream):
        async for item in stream:
            if item.type == "tool_completed":
                break
    assert lab.types("r")[-1] == "run_paused"
    assert (await lab.agent("done", tools=[look]).resume("r")).output == "done"


async def test_a_stream_raises_what_the_run_raises(lab: Lab) -> None:
    await lab.agent("done").run("go", run_id="r")
    with pytest.raises(RunExistsError):
        async for _ in lab.agent("done").stream("go", run_id="r"):
            pass


async def test_a_run_is_the_same_with_and_without_a_listener(lab: Lab) -> None:
    steps: list[Answer] = [[call("look"), call("send"), call("nope")], [call("look", "{")], "done"]
    quiet = await lab.agent(*steps, tools=[look, send]).run("go")
    heard = await lab.agent(*steps, tools=[look, send]).run("go", on_event=lambda event: None)
    assert quiet.messages == heard.messages
    assert sorted(lab.types(quiet.run_id)) == sorted(lab.types(heard.run_id))


# Sessions


async def test_turns_of_a_session_share_a_journal_which_can_be_opened_again(lab: Lab) -> None:
    model = ScriptedModel(["one", "two"])
    async with lab.agent(model=model, instructions="Be brief.").session() as session:
        first = await session.send("a")
        second = await session.send("b")
        run_id = first.run_id
    assert (first.output, first.stop_reason, second.output) == ("one", "completed", "two")
    assert second.run_id == run_id
    assert [item.content for item in model.requests[1].messages] == ["Be brief.", "a", "one", "b"]
    async with lab.agent("three").session(run_id) as session:
        assert not session.is_turn_open
        third = await session.send("c")
    assert [item.content for item in third.messages] == ["Be brief.", "a", "one", "b", "two", "c", "three"]
    assert lab.types(run_id).count("turn_started") == 3
    assert "run_finished" not in lab.types(run_id)


async def test_files_of_a_session_live_on(lab: Lab) -> None:
    write = [call("write_file", {"file_path": "a.txt", "content": "1"})]
    async with lab.agent(write, "ok", tools=["files"]).session(files={"s.txt": "s"}) as session:
        await session.send("write")
        run_id = session.run_id
    read = [call("read_file", {"file_path": "a.txt"})]
    async with lab.agent(read, "ok", tools=["files"]).session(run_id) as session:
        run = await session.send("read")
    assert results(run)[-1][1].endswith("1")
    assert run.files == {"a.txt": b"1", "s.txt": b"s"}


async def test_a_cancelled_turn_is_over_and_the_next_one_begins(lab: Lab) -> None:
    gate = Gate()

    @tool(effect="once")
    async def wait() -> None:
        await gate.pass_through()

    agent = lab.agent([call("look"), call("wait"), call("nope")], "two", tools=[wait, look])
    async with agent.session() as session:
        await cancel_at(gate, asyncio.ensure_future(session.send("a")))
        assert not session.is_turn_open
        run = await session.send("b")
    assert (run.stop_reason, run.output) == ("completed", "two")
    assert "is unknown" in results(run)[1][1]
    ends = [event.body for event in run.events if isinstance(event.body, e.TurnCompleted)]
    assert [(item.turn, item.stop_reason) for item in ends] == [(1, "cancelled"), (2, "completed")]


@pytest.mark.parametrize("limit", [0, 1])
async def test_a_turn_cancelled_between_its_steps_is_over(slow_lab: Lab, limit: int) -> None:
    """The calls are recorded, but the limit has not been applied yet."""
    sending: asyncio.Future[Run]

    def on_event(event: e.Event | e.Ephemeral) -> None:
        if event.type == "inference_completed":
            sending.cancel()

    step = [call("look"), call("send"), call("look")]
    agent = slow_lab.agent(step, "two", tools=[look, send], max_tool_calls=limit)
    async with agent.session("s") as session:
        sending = asyncio.ensure_future(session.send("a", on_event=on_event))
        with contextlib.suppress(asyncio.CancelledError):
            await sending
        assert sending.cancelled()
        assert (await session.send("b")).output == "two"


async def test_a_turn_cancelled_in_the_model_is_over(lab: Lab) -> None:
    gate = Gate()
    async with lab.agent(model=GatedModel(gate, "two")).session() as session:
        await cancel_at(gate, asyncio.ensure_future(session.send("a")))
        assert not session.is_turn_open
        gate.opened.set()
        run = await session.send("b")
    assert run.output == "two"
    assert [item.content for item in run.messages] == ["a", "b", "two"]


async def test_files_changed_by_a_cancelled_tool_of_a_session_are_kept(lab: Lab) -> None:
    gate = Gate()

    @tool(effect="once")
    async def half(context: ToolContext) -> None:
        assert context.sandbox is not None
        context.sandbox.write("half.txt", b"half")
        await gate.pass_through()

    async with lab.agent([call("half")], tools=[half]).session("s") as session:
        await cancel_at(gate, asyncio.ensure_future(session.send("a")))
    assert list(fold([event.body for event in lab.journal.read("s")]).sandbox.files) == ["half.txt"]


async def test_cancelling_a_turn_that_is_over_does_not_end_it_again(lab: Lab) -> None:
    sending: asyncio.Future[Run]

    def on_event(event: e.Event | e.Ephemeral) -> None:
        if event.type == "turn_completed":
            sending.cancel()

    async with lab.agent("one", "two").session("s") as session:
        sending = asyncio.ensure_future(session.send("a", on_event=on_event))
        with contextlib.suppress(asyncio.CancelledError):
            await sending
        assert (await session.send("b")).output == "two"
    ends = [event.body for event in lab.journal.read("s") if isinstance(event.body, e.TurnCompleted)]
    assert [(item.turn, item.stop_reason) for item in ends] == [(1, "completed"), (2, "completed")]


async def test_a_turn_that_fails_leaves_the_session_usable(lab: Lab) -> None:
    async with lab.agent(ServerError("down"), "two").session() as session:
        first = await session.send("a")
        assert (first.stop_reason, first.fault) == ("error", "infrastructure")
        second = await session.send("b")
    assert (second.stop_reason, second.output, second.error) == ("completed", "two", None)


@pytest.mark.parametrize("max_steps", [0, 1])
async def test_a_turn_without_an_answer_has_no_output_of_an_earlier_one(lab: Lab, max_steps: int) -> None:
    async with lab.agent("one", ServerError("down"), max_steps=max_steps).session() as session:
        assert (await session.send("a")).output == "one"
        second = await session.send("b")
    assert (second.stop_reason, second.output) == ("error", "")


async def test_a_turn_that_was_interrupted_is_finished_before_the_next(lab: Lab) -> None:
    prefix = started(Policy(), calls=(S1,))
    first = prefix[0]
    assert isinstance(first, e.RunStarted)
    session_started = e.RunStarted(at=1.0, policy=Policy(), version=e.VERSION, is_session=True)
    interrupted(lab, "s", session_started, *prefix[1:], start_of(S1, "once"))
    async with lab.agent("one", "two", tools=[send]).session("s") as session:
        assert session.is_turn_open
        run = await session.send("b")
    assert [item.content for item in run.messages if item.role is Role.ASSISTANT] == ["", "one", "two"]
    interrupted(lab, "t", session_started, *prefix[1:])
    async with lab.agent("one", tools=[send]).session("t") as session:
        run = await session.finish_turn()
    assert (run.output, results(run)) == ("one", [("send", "sent a")])


async def test_a_turn_that_waits_for_an_answer_is_not_talked_over(lab: Lab) -> None:
    policy = Policy(in_doubt=InDoubt.ASK)
    session_started = e.RunStarted(at=1.0, policy=policy, version=e.VERSION, is_session=True)
    interrupted(lab, "s", session_started, *started(policy, calls=(S1,))[1:], start_of(S1, "once"))
    agent = lab.agent("one", "two", tools=[send])
    async with agent.session("s") as session:
        assert list((await session.finish_turn()).questions) == ["s1/1"]
        with pytest.raises(ConfigError, match="waits for an answer"):
            await session.send("b")
    answered = await agent.resume("s", answers={"s1/1": "it was sent"})
    assert (answered.output, results(answered)) == ("one", [("send", "it was sent")])
    async with agent.session("s") as session:
        assert (await session.send("b")).output == "two"


async def test_cancelling_a_turn_that_waits_for_an_answer_leaves_it_waiting(slow_lab: Lab) -> None:
    policy = Policy(in_doubt=InDoubt.ASK)
    session_started = e.RunStarted(at=1.0, policy=policy, version=e.VERSION, is_session=True)
    interrupted(slow_lab, "s", session_started, *started(policy, calls=(S1,))[1:], start_of(S1, "once"))
    finishing: asyncio.Future[Run]

    def on_event(event: e.Event | e.Ephemeral) -> None:
        if event.type == "run_paused":
            finishing.cancel()

    async with slow_lab.agent(tools=[send]).session("s") as session:
        finishing = asyncio.ensure_future(session.finish_turn(on_event=on_event))
        with contextlib.suppress(asyncio.CancelledError):
            await finishing
        assert finishing.cancelled()
        assert session.is_turn_open
    run = await slow_lab.agent("one", tools=[send]).resume("s", answers={"s1/1": "sent"})
    assert run.output == "one"


async def test_a_turn_that_failed_can_be_tried_again_when_the_session_is_opened_again(lab: Lab) -> None:
    async with lab.agent(ServerError("down")).session("s") as session:
        await session.send("a")
    async with lab.agent("one").session("s") as session:
        assert session.is_turn_open
        run = await session.finish_turn()
    assert (run.stop_reason, [item.content for item in run.messages]) == ("completed", ["a", "one"])


async def test_a_session_that_is_opened_and_closed_does_nothing_to_a_turn(lab: Lab) -> None:
    prefix = started(Policy(), calls=())
    session_started = e.RunStarted(at=1.0, policy=Policy(), version=e.VERSION, is_session=True)
    interrupted(lab, "s", session_started, *prefix[1:3])
    async with lab.agent().session("s") as session:
        assert session.is_turn_open
    assert lab.types("s")[-2:] == ["run_resumed", "run_paused"]
    async with lab.agent("one").session("s") as session:
        assert (await session.finish_turn()).output == "one"


async def test_turns_that_are_sent_at_once_follow_each_other(lab: Lab) -> None:
    async with lab.agent([call("look")], "one", "two", tools=[look]).session() as session:
        first, second = await asyncio.gather(session.send("a"), session.send("b"))
    assert (first.output, second.output) == ("one", "two")


async def test_a_session_is_open_in_one_place(lab: Lab) -> None:
    async with lab.agent("one").session("s"):
        with pytest.raises(LeaseHeldError):
            await lab.agent().session("s").open()
    closed = lab.agent("one").session("s")
    with pytest.raises(ConfigError, match="not open"):
        await closed.send("a")
    await lab.agent("done").run("go", run_id="r")
    with pytest.raises(ConfigError, match="not a session"):
        await lab.agent().session("r").open()


async def test_a_session_streams_a_turn_and_no_other(lab: Lab) -> None:
    async with lab.agent("one", "two", "three").session("s") as session:
        for text in ("one", "two"):
            items = [item async for item in session.stream("a")]
            assert "".join(item.body.text for item in items if isinstance(item.body, e.TextDelta)) == text
            types = [item.type for item in items if isinstance(item, e.Event)]
            assert types == ["turn_started", "inference_started", "inference_completed", "turn_completed"]
        heard: list[str] = []
        await session.send("b", on_event=lambda event: heard.append(event.type))
        before = list(heard)
    assert heard == before
    assert lab.types(items[0].run_id)[-1] == "run_paused"


# Forks


def rich_steps() -> list[Answer]:
    return [
        [
            call("write_file", {"file_path": "a.txt", "content": "1"}, call_id="x"),
            call("send", call_id="x"),
            call("look", "{", call_id="x"),
        ],
        [call("write_file", {"file_path": "b.txt", "content": "2"}, call_id="x")],
        "done",
    ]


async def test_every_event_of_a_run_can_be_forked_with_the_files_of_that_moment(lab: Lab) -> None:
    """The model uses the same call ids again, and in a fork it begins where the prefix ends."""
    steps = rich_steps()

    def answer(request: Request) -> Answer:
        return steps[sum(item.role is Role.ASSISTANT for item in request.messages)]

    agent = lab.agent(
        model=ScriptedModel(answer),
        tools=["files", look, send],
        files={"s.txt": "s"},
        instructions="Be brief.",
    )
    origin = await agent.run("go", metadata={"a": 1})
    events = origin.events
    for at in range(1, len(events) + 1):
        before = fold([event.body for event in events[:at]])
        is_whole = before.turn.number == 0 or not before.turn.is_open
        if is_whole:
            steps = ["said again"] * 4 if before.turn.number else rich_steps()
        fork = await agent.fork(origin.run_id, at, text="more" if is_whole else None)
        assert fork.stop_reason is StopReason.COMPLETED
        assert check_transcript(fork.messages) == []
        copied = [event.body for event in lab.journal.read(fork.run_id)[:at]]
        assert copied[1:] == [event.body for event in events[1:at]]
        assert fold(copied).sandbox.files == before.sandbox.files
        head = copied[0]
        assert isinstance(head, e.RunStarted)
        assert head.parent is not None
        assert (head.parent.run_id, head.parent.seq) == (origin.run_id, at)
        assert (head.instructions, head.metadata, head.is_session) == ("Be brief.", {"a": 1}, False)
        if not is_whole:
            assert fork.files == origin.files
    assert (await agent.replay(origin.run_id)).is_exact


@pytest.mark.parametrize("is_retried", [False, True])
async def test_a_fork_in_the_middle_of_an_inference_has_lost_nothing(lab: Lab, is_retried: bool) -> None:
    answers: list[Any] = [ServerError("busy", status=503)] * is_retried + ["done", "done again"]
    model = RetryModel(ScriptedModel(answers), max_attempts=2, min_delay_seconds=0.0)
    agent = lab.agent(model=model)
    origin = await agent.run("go")
    at = next(event.seq for event in origin.events if event.type == "inference_completed") - 1
    before = fold([event.body for event in origin.events[:at]])
    assert before.turn.asked is not None
    fork = await agent.fork(origin.run_id, at)
    assert (fork.output, fork.stop_reason) == ("done again", StopReason.COMPLETED)
    assert fork.state.turn.spent.lost == before.turn.spent.lost
    assert fork.usage.total_tokens == origin.usage.total_tokens
    assert count_lost(event.body for event in fork.events) == 0
    assert fork.state.turn.spent.tokens == origin.state.turn.spent.tokens
    assert (await agent.replay(fork.run_id)).is_exact


async def test_a_fork_of_a_session_is_a_session(lab: Lab) -> None:
    async with lab.agent("one", "two").session("s") as session:
        await session.send("a")
        await session.send("b")
    first_end = lab.types("s").index("turn_completed") + 1
    fork = await lab.agent("other").fork("s", first_end, text="c")
    async with lab.agent("more").session(fork.run_id) as session:
        run = await session.send("d")
    assert [item.content for item in run.messages] == ["a", "one", "c", "other", "d", "more"]


@pytest.mark.parametrize("limit", [None, 9])
async def test_a_fork_from_the_end_of_a_cancelled_turn_is_at_no_limit(lab: Lab, limit: int | None) -> None:
    gate = Gate()

    @tool(effect="once", concurrent=False)
    async def wait() -> None:
        await gate.pass_through()

    agent = lab.agent([call("wait"), call("look")], "done", tools=[wait, look], max_tool_calls=limit)
    async with agent.session("s") as session:
        await cancel_at(gate, asyncio.ensure_future(session.send("a")))
    fork = await agent.fork("s", lab.types("s").index("turn_completed"))
    assert kinds(fork) == [ToolErrorKind.IN_DOUBT, ToolErrorKind.NOT_RUN]
    assert (fork.stop_reason, fork.output) == ("completed", "done")


async def test_a_fork_takes_its_own_policy_and_is_exact_in_replay(lab: Lab) -> None:
    origin = await lab.agent([call("look")], "cut short", tools=[look], max_steps=1).run("go")
    types = lab.types(origin.run_id)
    fork = await lab.agent([call("look")], "done", tools=[look], max_steps=5).fork(
        origin.run_id, types.index("tool_completed") + 1
    )
    assert (fork.stop_reason, fork.output) == ("completed", "done")
    late = await lab.agent("wrapped", tools=[look], max_steps=5).fork(
        origin.run_id, types.index("message_injected") + 1
    )
    assert late.output == "wrapped"
    whole = await lab.agent("more", tools=[look], max_steps=5).fork(origin.run_id, text="go on")
    assert (whole.stop_reason, whole.output) == ("completed", "more")


async def test_a_fork_needs_a_text_exactly_between_turns(lab: Lab) -> None:
    origin = await lab.agent([call("look")], "done", tools=[look]).run("go")
    with pytest.raises(ConfigError, match="give a text"):
        await lab.agent("x").fork(origin.run_id)
    with pytest.raises(ConfigError, match="do not give a text"):
        await lab.agent("x").fork(origin.run_id, 4, text="more")
    for at in (0, 99):
        with pytest.raises(ConfigError, match="events 1 to 10"):
            await lab.agent("x").fork(origin.run_id, at)


# Replay


async def test_another_policy_diverges_at_the_first_decision_that_differs(lab: Lab) -> None:
    agent = lab.agent([call("look")], [call("look"), call("look")], "done", tools=[look])
    run = await agent.run("go")
    types = lab.types(run.run_id)
    second_ask = [index for index, item in enumerate(types, 1) if item == "inference_started"][1]
    found = await agent.replay(run.run_id, policy=Policy(max_steps=1))
    assert found.divergence is not None
    assert (found.divergence.seq, found.events) == (second_ask, second_ask - 1)
    assert "message_injected" in found.divergence.actual
    assert "inference_started" in found.divergence.expected
    few = await agent.replay(run.run_id, policy=Policy(max_tool_calls=2))
    assert few.divergence is not None
    assert types[few.divergence.seq - 1] == "tool_started"
    assert (await agent.replay(run.run_id, policy=Policy(max_steps=3))).is_exact


async def test_a_replay_touches_nothing(lab: Lab) -> None:
    ran: list[int] = []

    @tool(effect="once")
    async def touch() -> None:
        ran.append(1)

    run = await lab.agent([call("touch")], "done", tools=[touch]).run("go")
    replay = await lab.agent(tools=[touch]).replay(run.run_id)
    assert (replay.is_exact, replay.state, ran) == (True, run.state, [1])
    assert len(lab.types(run.run_id)) == replay.events


# Tasks


async def test_a_task_brings_files_and_tools_and_is_graded(lab: Lab) -> None:
    from treadle import load_task

    task = load_task("files:csv_sum-0003")
    oracle = oracle_for(task)
    assert oracle is not None
    run = await lab.agent(model=oracle).run(task)
    assert (run.reward, run.stop_reason) == (1.0, "completed")
    assert lab.types(run.run_id)[-1] == "rewarded"


async def test_a_run_that_failed_through_no_fault_of_its_own_gets_no_reward(lab: Lab) -> None:
    from treadle import load_task

    task = load_task("files:csv_sum-0003")
    failed = await lab.agent(ServerError("down")).run(task)
    assert (failed.fault, failed.reward) == (Fault.INFRASTRUCTURE, None)
    refused = await lab.agent(RefusedError("no")).run(task)
    assert refused.reward == 0.0
    oracle = oracle_for(task)
    assert oracle is not None
    assert (await lab.agent(model=oracle).resume(failed.run_id)).reward == 1.0


async def test_a_fork_of_a_task_has_its_tools_and_a_grade_of_its_own(lab: Lab) -> None:
    from treadle import load_task

    task = load_task("files:csv_sum-0003")
    wrong = await lab.agent("I do not know").run(task)
    assert wrong.reward == 0.0
    oracle = oracle_for(task)
    assert oracle is not None
    fork = await lab.agent(model=oracle).fork(wrong.run_id, lab.types(wrong.run_id).index("turn_started") + 1)
    assert fork.reward == 1.0
    again = await lab.agent("still not").fork(fork.run_id, text="sure?")
    assert len([item for item in lab.types(again.run_id) if item == "rewarded"]) == 2


async def test_the_tools_of_one_task_are_not_those_of_the_next_run(lab: Lab) -> None:
    from treadle import load_task

    model = ScriptedModel(["one", "two"])
    agent = lab.agent(model=model)
    await agent.run(load_task("files:csv_sum-0003"))
    await agent.run("plain")
    assert [len(item.tools) > 0 for item in model.requests] == [True, False]


# The blocking methods


def test_the_blocking_calls_do_the_same() -> None:
    journal = MemoryJournal()
    agent = Agent(ScriptedModel([[call("look")], "done", "more"]), tools=[look], journal=journal)
    run = agent.run_sync("go")
    assert run.output == "done"
    assert agent.resume_sync(run.run_id).output == "done"
    assert agent.replay_sync(run.run_id).is_exact
    assert agent.fork_sync(run.run_id, text="again").output == "more"
    with pytest.raises(RunNotFoundError):
        agent.resume_sync("nope")


def test_a_blocking_stream_that_is_left_early_cancels_the_run() -> None:
    journal = MemoryJournal()
    agent = Agent(ScriptedModel(["one"], delay_seconds=60.0), journal=journal)
    stream = agent.stream_sync("go", run_id="r")
    assert [next(stream).type for _ in range(3)] == ["run_started", "turn_started", "inference_started"]
    stream.close()  # type: ignore[attr-defined]
    assert journal.read("r")[-1].type == "run_paused"
    whole = Agent(ScriptedModel(["one"]), journal=journal).stream_sync("go")
    assert [item.type for item in whole][-1] == "run_finished"


def test_a_blocking_session() -> None:
    with Agent(ScriptedModel(["one", "two"]), journal=MemoryJournal()).session() as session:
        assert session.send_sync("a").output == "one"
        assert [item.type for item in session.stream_sync("b")][-1] == "turn_completed"
        assert session.run.output == "two"


async def test_a_session_in_a_loop_is_streamed_by_another_thread() -> None:
    async with Agent(ScriptedModel(["one"]), journal=MemoryJournal()).session() as session:
        found = await asyncio.to_thread(lambda: [item.type for item in session.stream_sync("a")])
        assert (found[0], found[-1]) == ("turn_started", "turn_completed")
        with pytest.raises(ConfigError, match=r"async for event in session.stream"):
            next(session.stream_sync("b"))


async def test_a_run_names_the_error_of_its_model() -> None:
    journal = MemoryJournal()
    error = RateLimitError("too fast", status=429)
    for script, expected in (
        ([error], ("RateLimitError", 429)),
        ([ValueError("no")], ("ValueError", None)),
        (["ok"], (None, None)),
    ):
        run = await Agent(ScriptedModel(script), journal=journal).run("go")
        assert (run.error_type, run.error_status) == expected
        loaded = Run.load(run.run_id, journal)
        assert (loaded.error_type, loaded.error_status) == expected


async def test_a_run_without_an_answer_has_no_value(lab: Lab) -> None:
    """Also one that a limit has ended before the model could wrap up. An answer of the wrap-up is a value."""
    asked = [call("look")]
    for answers, limits, value in (
        (["answer"], {}, "answer"),
        ([asked, "wrapped"], {"max_steps": 1}, "wrapped"),
        ([asked, ""], {"max_steps": 1}, None),
        ([asked, "never"], {"max_tokens": 1}, None),
        ([asked, asked], {"max_steps": 1}, None),
    ):
        run = await lab.agent(*answers, **limits).run("go")
        if value is not None:
            assert run.value == value
            continue
        with pytest.raises(ValueError, match="has no answer: it ended with max_"):
            _ = run.value


async def test_the_blocking_calls_refuse_to_block_a_running_loop(lab: Lab) -> None:
    agent = lab.agent("done")
    with pytest.raises(ConfigError, match=r"write `await agent.run\(...\)` instead"):
        agent.run_sync("go")
    with pytest.raises(ConfigError, match=r"async for event in agent.stream"):
        next(agent.stream_sync("go"))
    with pytest.raises(ConfigError, match=r"async with agent.session\(\)"), agent.session():
        pass


def test_a_provider_error_keeps_its_type_for_the_journal() -> None:
    run = Agent(ScriptedModel([ProviderError("odd")]), journal=MemoryJournal()).run_sync("go")
    failure = next(event.body for event in run.events if isinstance(event.body, e.InferenceFailed))
    assert (failure.error, failure.error_type, failure.fault) == (
        "odd",
        "ProviderError",
        Fault.INFRASTRUCTURE,
    )
