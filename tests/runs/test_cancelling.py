"""Cancelling at every turn of the event loop, once, twice and repeatedly: nothing is done twice or left open."""

import asyncio
import os
import signal
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from treadle import Agent, ApprovalRequest, Policy, Run, ScriptedModel, ToolContext, tool
from treadle.core.errors import ServerError
from treadle.core.prompts.transcript import check_transcript
from treadle.core.state import Status
from treadle.core.types import Completion, Request
from treadle.http.background import run_blocking
from treadle.journal.memory import MemoryJournal, MemoryWriter
from treadle.models import RetryModel, call
from treadle.models.protocol import Watch

IS_FULL = bool(os.environ.get("TREADLE_FULL"))
CLEANING_TURNS = 3
"""For how many turns of the event loop a tool's scope takes to close."""


class SlowJournal(MemoryJournal):
    """A journal whose `sync` and `release` let other tasks run before they return."""

    def create(self, run_id: str) -> "SlowWriter":
        return SlowWriter(self, run_id, is_new=True)

    async def acquire(self, run_id: str) -> "SlowWriter":
        await asyncio.sleep(0)
        await super().acquire(run_id)
        return SlowWriter(self, run_id, is_new=False)


class SlowWriter(MemoryWriter):
    async def sync(self) -> None:  # type: ignore[override]
        for _ in range(2):
            await asyncio.sleep(0)

    async def release(self) -> None:
        await super().release()
        await asyncio.sleep(0)


class Held:
    """Something that a tool holds for the run, which takes its time to be given back."""

    def __init__(self, world: "World") -> None:
        self._world = world

    async def __aenter__(self) -> "Held":
        self._world.held += 1
        return self

    async def __aexit__(self, *_: object) -> None:
        for _ in range(CLEANING_TURNS):
            await asyncio.sleep(0)
        self._world.held -= 1


class SlowModel(ScriptedModel):
    """A model that calls twice, and takes its time. With `fails`, the first attempt at each answer fails."""

    def __init__(self, name: str, *, fails: bool) -> None:
        super().__init__(self._answer)
        self._calls = [call(name), call(name)]
        self._fails = fails
        self._attempts = 0

    async def infer(self, request: Request, watch: Watch) -> Completion:
        for _ in range(2):
            await asyncio.sleep(0)
        self._attempts += 1
        if self._fails and self._attempts % 2:
            raise ServerError("overloaded", status=503)
        return await super().infer(request, watch)

    def _answer(self, request: Request) -> Any:
        is_over = request.messages[len(request.messages) - 1].role == "tool"
        return "done" if is_over else self._calls


class World:
    """What the outside saw."""

    def __init__(self) -> None:
        self.journal = SlowJournal()
        self.effects: Counter[str] = Counter()
        self.held = 0

    def agent(self, tool_name: str = "pay", *, fails: bool = False, asks: bool = False) -> Agent:
        @tool(effect="idempotent")
        async def relay(context: ToolContext) -> str:
            """Pay in an inner call."""
            return (await context.call_tool("pay", {})).content

        async def sleep(seconds: float) -> None:
            for _ in range(2):
                await asyncio.sleep(0)

        async def decide(request: ApprovalRequest) -> bool:
            for _ in range(2):
                await asyncio.sleep(0)
            return True

        @tool(effect="once")
        async def pay(context: ToolContext) -> str:
            """Pay."""
            await context.scope.get("held", lambda: Held(self))
            self.effects[context.idempotency_key] += 1
            for _ in range(3):
                await asyncio.sleep(0)
            return "paid"

        model = RetryModel(SlowModel(tool_name, fails=fails), sleep=sleep)
        policy = Policy(max_steps=4, approve={"once": "ask"} if asks else {})
        return Agent(model, tools=[pay, relay], policy=policy, journal=self.journal, approver=decide)

    async def check(self) -> None:
        """Check that nobody drives, nothing was done twice, every transcript is whole and every replay exact."""
        agent = self.agent()
        for info in self.journal.runs():
            assert not info.is_driven, "the lease was kept"
            run = Run.load(info.run_id, self.journal)
            if not run.state.turn.calls:
                assert check_transcript(run.messages) == []
            assert (await agent.replay(info.run_id)).divergence is None
        assert all(count == 1 for count in self.effects.values()), self.effects


async def run_once(world: World) -> None:
    await world.agent().run("go", run_id="r")


async def resume_once(world: World) -> None:
    if not world.journal.runs():
        await world.agent().run("go", run_id="r")
    await world.agent().resume("r")


async def converse(world: World) -> None:
    async with world.agent().session("s") as session:
        await session.send("one")
        await session.send("two")


async def leave_stream(world: World) -> None:
    async for event in world.agent().stream("go", run_id="r"):
        if event.type == "tool_started":
            break
    await asyncio.sleep(0)


async def read_stream(world: World) -> None:
    async for _ in world.agent().stream("go", run_id="r"):
        await asyncio.sleep(0)


async def close_stream(world: World) -> None:
    stream = world.agent().stream("go", run_id="r")
    async for event in stream:
        if event.type == "tool_started":
            await stream.aclose()


async def stream_turns(world: World) -> None:
    async with world.agent().session("s") as session:
        async for _ in session.stream("one"):
            await asyncio.sleep(0)
        async for event in session.stream("two"):
            if event.type == "tool_started":
                break


async def listen(world: World) -> None:
    await world.agent().run("go", run_id="r", on_event=lambda event: None)


async def fork_once(world: World) -> None:
    if not world.journal.runs():
        await world.agent().run("go", run_id="r")
    await world.agent().fork("r", text="more", new_run_id="f")


async def fork_within(world: World) -> None:
    """Fork at the answer that calls, so that the fork makes the calls."""
    if not world.journal.runs():
        await world.agent().run("go", run_id="r")
    await world.agent().fork("r", 4, new_run_id="f")


async def wait_for_approvals(world: World) -> None:
    await world.agent(asks=True).run("go", run_id="r")


async def try_again(world: World) -> None:
    await world.agent(fails=True).run("go", run_id="r")


async def call_within_calls(world: World) -> None:
    await world.agent("relay").run("go", run_id="r")


async def call_within_approved_calls(world: World) -> None:
    await world.agent("relay", asks=True, fails=True).run("go", run_id="r", on_event=lambda event: None)


def again(gap: int) -> Callable[["asyncio.Task[None]"], Awaitable[None]]:
    """Return what cancels a task for a second time, `gap` turns after the first."""

    async def cancel(task: "asyncio.Task[None]") -> None:
        for _ in range(gap):
            await asyncio.sleep(0)
        task.cancel()

    return cancel


async def once(task: "asyncio.Task[None]") -> None:
    return


async def each_turn(task: "asyncio.Task[None]") -> None:
    """Cancel as anyio does: at every turn, until the task has ended."""
    while not task.done():
        task.cancel()
        await asyncio.sleep(0)


WAYS = {
    "once": once,
    "at once again": again(0),
    **{f"{gap} later": again(gap) for gap in (range(1, 16) if IS_FULL else (1, 2, 3, 5, 8))},
    "each turn": each_turn,
}
OFTEN = [run_once, resume_once, converse, leave_stream]
"""These are cancelled in all ways in the short form too, the others in two ways and at every second turn."""
WORKS = [
    *OFTEN,
    listen,
    read_stream,
    close_stream,
    stream_turns,
    fork_once,
    fork_within,
    wait_for_approvals,
    try_again,
    call_within_calls,
    call_within_approved_calls,
]
FEW = ("once", "each turn")
CASES = [
    pytest.param(work, way, id=f"{work.__name__}-{way}")
    for work in WORKS
    for way in WAYS
    if IS_FULL or work in OFTEN or way in FEW
]


@pytest.mark.parametrize(("work", "way"), CASES)
async def test_cancelling_at_any_turn_leaves_everything_in_order(
    work: Callable[[World], Awaitable[None]], way: str
) -> None:
    for turns in range(0, 400, 1 if IS_FULL or work in OFTEN else 2):
        world = World()
        task = asyncio.ensure_future(work(world))
        for _ in range(turns):
            await asyncio.sleep(0)
        was_over = task.done()
        if not was_over:
            task.cancel()
            await WAYS[way](task)
        await asyncio.wait([task])
        for _ in range(40):
            await asyncio.sleep(0)
        left = [item for item in asyncio.all_tasks() if item is not asyncio.current_task()]
        assert left == [], f"somebody still works after {turns} turns"
        await world.check()
        assert world.held == 0
        for info in world.journal.runs():
            if info.run_id != "s":
                run = await world.agent().resume(info.run_id)
                assert run.status is Status.FINISHED
            else:
                async with world.agent().session("s") as session:
                    await session.send("three")
        await world.check()
        assert world.held == 0
        if was_over:
            return
    raise AssertionError("the work never ended")


async def test_a_loop_that_shuts_down_cancels_every_task_and_the_lease_is_given_back() -> None:
    for turns in range(40):
        world = World()
        task = asyncio.ensure_future(run_once(world))
        for _ in range(turns):
            await asyncio.sleep(0)
        for _ in range(3):
            for item in asyncio.all_tasks() - {asyncio.current_task()}:  # type: ignore[operator]
                item.cancel()
            await asyncio.sleep(0)
        await asyncio.wait([task])
        await world.check()


class Interrupts:
    """Ctrl-C for the main thread, from the event loop of blocking calls: as often as `gaps` says."""

    def __init__(self, turns: int, gaps: tuple[int, ...]) -> None:
        self._gaps = (turns, *gaps)
        self._is_armed = False
        self.sent = threading.Event()

    def __enter__(self) -> "Interrupts":
        self._before = signal.signal(signal.SIGINT, self._on_signal)
        self._is_armed = True
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        self._is_armed = False
        self.sent.wait()
        signal.signal(signal.SIGINT, self._before)
        return kind is KeyboardInterrupt

    async def send(self) -> None:
        for gap in self._gaps:
            for _ in range(gap):
                await asyncio.sleep(0)
            os.kill(os.getpid(), signal.SIGINT)
        self.sent.set()

    def _on_signal(self, *_: object) -> None:
        if self._is_armed:
            raise KeyboardInterrupt


@pytest.mark.skipif(threading.current_thread() is not threading.main_thread(), reason="signals need it")
@pytest.mark.parametrize("gaps", [(), (0,), (1,), (3, 3), (0, 0, 0, 0)], ids=str)
def test_ctrl_c_at_any_turn_of_a_blocking_call_returns_once_everything_is_in_order(
    gaps: tuple[int, ...],
) -> None:
    for turns in range(0, 60, 1 if IS_FULL else 4):
        world = World()
        interrupts = Interrupts(turns, gaps)

        async def work(world: World = world, interrupts: Interrupts = interrupts) -> None:
            sending = asyncio.ensure_future(interrupts.send())
            try:
                await world.agent().run("go", run_id="r")
            finally:
                await asyncio.wait([sending])

        with interrupts:
            run_blocking(work())
        asyncio.run(world.check())
        assert world.held == 0
        if world.journal.runs():
            assert world.agent().resume_sync("r").status is Status.FINISHED
        asyncio.run(world.check())


def test_a_blocking_call_that_is_interrupted_before_it_begins_does_not_hang() -> None:
    is_held, let_go = threading.Event(), threading.Event()
    began: list[bool] = []

    async def hold() -> None:
        is_held.set()
        let_go.wait()

    async def work() -> None:
        began.append(True)

    def interrupt() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        let_go.set()

    with Interrupts(0, ()) as interrupts:
        interrupts.sent.set()
        holding = threading.Thread(target=run_blocking, args=(hold(),))
        holding.start()
        is_held.wait()
        threading.Thread(target=interrupt).start()
        run_blocking(work())
    holding.join()
    assert began in ([], [True])
