"""Budgets of tokens and money count lost answers, which are no steps; deadlines do not depend on the wall clock."""

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from treadle import Agent, Policy, Run, ScriptedModel, open_journal, tool
from treadle.core import events as e
from treadle.core.errors import ProviderError, RateLimitError, ServerError, TransportError
from treadle.core.prompts.transcript import check_transcript
from treadle.core.types import Completion, Request, Role, StopReason, Usage
from treadle.http.transport_errors import cannot_connect
from treadle.journal.memory import MemoryJournal
from treadle.models import CacheModel, RetryModel, call
from treadle.models.protocol import Watch


class Silent:
    """A model that takes requests and never answers."""

    name = "silent"

    def __init__(self) -> None:
        self.asked = 0

    async def infer(self, request: Request, watch: Watch) -> Completion:
        self.asked += 1
        await asyncio.Event().wait()
        raise AssertionError

    def estimate_cost_usd(self, usage: Usage) -> float:
        return usage.total_tokens / 1000


async def lose_answers(policy: Policy, text: str = "go") -> tuple[Silent, MemoryJournal, str]:
    """Drive a run whose process is killed during each inference, until nothing more is asked."""
    model, journal, run_id = Silent(), MemoryJournal(), "run0"
    for number in range(1, 20):
        agent = Agent(model, policy=policy, journal=journal)
        asked = model.asked
        work = agent.run(text, run_id=run_id) if number == 1 else agent.resume(run_id)
        task = asyncio.ensure_future(work)
        while model.asked == asked and not task.done():
            await asyncio.sleep(0)
        if task.done():
            return model, journal, run_id
        events = journal.read(run_id)
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
        run_id = f"run{number}"
        writer = journal.create(run_id)
        writer.append_events(events)
        await writer.release()
    raise AssertionError("it is asked for ever")


@pytest.mark.parametrize(
    ("policy", "asked", "stop_reason"),
    [
        (Policy(max_steps=2), 9, StopReason.ERROR),
        (Policy(max_steps=12), 13, StopReason.ERROR),
        (Policy(max_tokens=3000), 3, StopReason.MAX_TOKENS),
        (Policy(max_cost_usd=3.0), 3, StopReason.MAX_COST),
        (Policy(max_tokens=3000, max_steps=2), 3, StopReason.MAX_TOKENS),
        (Policy(max_steps=0), 9, StopReason.MAX_STEPS),
        (Policy(max_tokens=3000, max_steps=2, charges_lost=False), 9, StopReason.ERROR),
        (Policy(max_cost_usd=3.0, max_steps=2, charges_lost=False), 9, StopReason.ERROR),
    ],
)
async def test_answers_that_were_lost_with_the_process_count(
    policy: Policy, asked: int, stop_reason: StopReason
) -> None:
    model, journal, run_id = await lose_answers(policy, "x" * 4000)
    agent = Agent(model, policy=policy, journal=journal)
    run = Run.load(run_id, journal)
    assert (model.asked, run.stop_reason) == (asked, stop_reason)
    replay = await agent.replay(run_id)
    assert replay.is_exact, replay.divergence


async def test_lost_answers_are_no_steps_and_a_turn_that_is_tried_again_may_lose_as_many() -> None:
    broke = TransportError("broke")
    model = ScriptedModel([broke, broke, "done"])
    agent = Agent(
        RetryModel(model, min_delay_seconds=0.0), journal=MemoryJournal(), policy=Policy(max_steps=1)
    )
    run = await agent.run("go")
    assert (run.stop_reason, run.output) == (StopReason.COMPLETED, "done")
    assert (run.state.turn.spent.steps, run.state.turn.spent.lost) == (1, 2)
    agent.model = RetryModel(ScriptedModel([broke] * 99), min_delay_seconds=0.0, max_attempts=99)
    run = await agent.run("go")
    assert (run.stop_reason, run.fault, run.state.turn.spent.lost) == (StopReason.ERROR, "infrastructure", 9)
    agent.model = model = ScriptedModel([broke, "done"])
    run = await agent.resume(run.run_id)
    assert (run.stop_reason, run.state.turn.spent.lost) == (StopReason.ERROR, 10)
    assert (await agent.resume(run.run_id)).output == "done"
    assert (await agent.replay(run.run_id)).is_exact


async def test_in_an_older_journal_nothing_counts_that_was_lost() -> None:
    journal = MemoryJournal()
    agent = Agent(ScriptedModel(["done"]), policy=Policy(max_steps=1), journal=journal)
    run = await agent.run("go", run_id="new")
    for version, expected in (("2.0", (1, 0)), ("2.3", (2, 0)), (e.VERSION, (1, 1))):
        begin, *rest = [event.body for event in run.events[:3]]
        assert isinstance(begin, e.RunStarted)
        writer = journal.create(version)
        writer.append([replace(begin, version=version), *rest])
        await writer.release()
        again = Agent(ScriptedModel(["done"]), policy=Policy(max_steps=1), journal=journal)
        spent = (await again.resume(version)).state.turn.spent
        assert (spent.steps, spent.lost) == expected
        assert (await again.replay(version)).is_exact


FAILURES = [
    (TransportError("broke"), True),
    (ServerError("cannot be read", status=200), True),
    (ServerError("down", status=503), False),
    (RateLimitError("slow", status=429), False),
    (cannot_connect("http://x", "refused", "start it"), False),
]


@pytest.mark.parametrize(("error", "is_billed"), FAILURES, ids=lambda item: type(item).__name__)
async def test_failed_attempts_count_if_the_server_may_charge_for_them(
    error: ProviderError, is_billed: bool
) -> None:
    async def sleep(seconds: float) -> None:
        return

    model = RetryModel(ScriptedModel([error, error, "done"]), sleep=sleep)
    agent = Agent(model, journal=MemoryJournal(), policy=Policy(max_tokens=10_000))
    run = await agent.run("x" * 400)
    assert run.output == "done"
    assert (run.state.turn.spent.steps, run.state.turn.spent.lost) == (1, 2 if is_billed else 0)
    assert (run.state.turn.spent.tokens > 200) is is_billed
    assert (await agent.replay(run.run_id)).is_exact


async def test_no_attempt_is_made_that_the_budget_does_not_hold() -> None:
    inner = ScriptedModel([TransportError("broke")] * 9)
    agent = Agent(
        RetryModel(inner, min_delay_seconds=0.0), journal=MemoryJournal(), policy=Policy(max_tokens=250)
    )
    run = await agent.run("x" * 400)
    assert (len(inner.requests), run.stop_reason) == (2, StopReason.ERROR)
    assert run.state.turn.spent.tokens == 200
    run = await agent.resume(run.run_id)
    assert (len(inner.requests), run.stop_reason) == (2, StopReason.MAX_TOKENS)
    assert (await agent.replay(run.run_id)).is_exact


class Jumping:
    """A clock whose wall time is moved by tools; its monotonic time is the event loop's."""

    def __init__(self) -> None:
        self.offset = 0.0

    def time(self) -> float:
        return 1e9 + asyncio.get_running_loop().time() + self.offset

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
async def test_a_clock_that_is_set_ends_no_run(jump: float) -> None:
    clock = Jumping()

    @tool(effect="pure")
    async def step() -> str:
        """Set the clock."""
        clock.offset += jump
        return "s"

    agent = Agent(
        ScriptedModel([[call("step")], [call("step")], "done"]),
        tools=[step],
        journal=MemoryJournal(),
        policy=Policy(deadline_seconds=600),
        clock=clock,
    )
    run = await agent.run("go")
    assert run.stop_reason is StopReason.COMPLETED
    assert 0 <= run.state.work_seconds < 600
    assert (await agent.replay(run.run_id)).is_exact


async def test_a_deadline_holds_although_the_clock_is_set_back() -> None:
    clock = Jumping()

    @tool(effect="pure")
    async def nap() -> str:
        """Set the clock back, and wait."""
        clock.offset -= 3600
        await asyncio.sleep(0.02)
        return "z"

    agent = Agent(
        ScriptedModel(lambda request: [call("nap")]),
        tools=[nap],
        journal=MemoryJournal(),
        policy=Policy(deadline_seconds=0.1, max_steps=None),
        clock=clock,
    )
    run = await agent.run("go")
    assert run.stop_reason is StopReason.DEADLINE
    assert run.state.work_seconds >= 0.1
    assert (await agent.replay(run.run_id)).is_exact


@pytest.mark.parametrize("jump", [3600.0, -3600.0])
async def test_what_was_used_of_a_deadline_is_known_after_a_resume(jump: float) -> None:
    """The process that resumes has another clock, and its monotonic time begins anew."""

    class Counting:
        def __init__(self, wall: float) -> None:
            self.wall, self.ticks = wall, 0.0

        def time(self) -> float:
            return self.wall

        def monotonic(self) -> float:
            self.ticks += 1.0
            return self.ticks

    def agent(wall: float, *answers: Any) -> Agent:
        policy = Policy(deadline_seconds=1000, approve={"once": "ask"})
        return Agent(
            ScriptedModel(answers), tools=[act], journal=journal, policy=policy, clock=Counting(wall)
        )

    @tool(effect="once")
    async def act() -> str:
        """Act."""
        return "acted"

    journal = MemoryJournal()
    run = await agent(1e9, [call("act")]).run("go", run_id="r")
    used = run.state.work_seconds
    assert used > 0
    second = agent(1e9 + jump, "done")
    run = await second.resume("r", approvals=dict.fromkeys(run.approvals, True))
    assert run.stop_reason is StopReason.COMPLETED
    resumed = next(event.body for event in run.events if isinstance(event.body, e.RunResumed))
    assert resumed.worked_seconds == used
    assert used < run.state.work_seconds < used + 100
    assert (await second.replay("r")).is_exact


@pytest.mark.parametrize("mode", ["native", "text", "tool"])
async def test_a_run_resumed_after_its_answers_broke_the_schema_is_told_why(mode: str) -> None:
    schema = {"type": "object", "properties": {"v": {"type": "integer"}}, "required": ["v"]}
    bad: Any = [call("final_answer", {"v": "x"})] if mode == "tool" else '{"v": "x"}'
    good: Any = [call("final_answer", {"v": 1})] if mode == "tool" else '{"v": 1}'
    journal = MemoryJournal()

    def agent(*answers: Any) -> tuple[Agent, ScriptedModel]:
        model = ScriptedModel(answers)
        model.output_mode = mode  # type: ignore[attr-defined]
        policy = Policy(max_output_attempts=2)
        return Agent(model, schema=schema, journal=journal, policy=policy), model

    run = await agent(bad, bad)[0].run("go", run_id="r")
    assert run.stop_reason is StopReason.ERROR
    second, model = agent(bad, good)
    run = await second.resume("r")
    assert (run.stop_reason, run.value) == (StopReason.COMPLETED, {"v": 1})
    last = model.requests[0].messages[len(model.requests[0].messages) - 1]
    assert last.role in (Role.USER, Role.TOOL)
    assert "integer" in last.content
    assert check_transcript(run.messages) == []
    assert (await second.replay("r")).is_exact


async def test_a_choice_given_as_text_is_the_same_as_the_value() -> None:
    assert Policy(in_doubt="tell") == Policy()  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="in_doubt is 'perhaps'; use 'tell' or 'ask'"):
        Policy(in_doubt="perhaps")  # type: ignore[arg-type]


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("effect", ["pure", "idempotent", "once"])
async def test_an_answer_is_kept_while_a_tool_blocks_the_event_loop(
    tmp_path: Path, effect: Any, is_streamed: bool
) -> None:
    seen: list[list[str]] = []

    @tool(effect=effect)
    async def block(x: int) -> str:
        """Block the event loop until another process would see that a call has started."""
        with open_journal(tmp_path / "runs.db") as other:
            for _ in range(6000):
                types = [event.type for event in other.read("r")]
                if "tool_started" in types:
                    break
                time.sleep(0.01)
            seen.append(types)
        return "ok"

    inner = ScriptedModel([[call("block", {"x": 1}), call("block", {"x": 2})], "done"])
    model = CacheModel(RetryModel(inner), tmp_path / "cache")
    with open_journal(tmp_path / "runs.db") as journal:
        agent = Agent(model, tools=[block], journal=journal)
        run = await agent.run("go", run_id="r", on_event=(lambda event: None) if is_streamed else None)
        assert [event.type for event in journal.read("r")] == [event.type for event in run.events]
    assert len(seen) == 2
    assert all(types[3:5] == ["inference_completed", "tool_started"] for types in seen)
