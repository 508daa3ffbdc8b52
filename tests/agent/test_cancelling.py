"""Cancelling at every turn of the event loop, once, twice and repeatedly: nothing is done twice or left open."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from treadle import Agent, Policy, Run, ScriptedModel, ToolContext, tool
from treadle.core.transcript import check_transcript
from treadle.core.types import Completion, Request
from treadle.journal.memory import MemoryJournal, MemoryWriter
from treadle.models import call
from treadle.models.protocol import Watch

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
        await asyncio.sleep(0)
        await super().release()


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
    """A model that calls twice, and takes its time."""

    def __init__(self) -> None:
        super().__init__(self._answer)

    async def infer(self, request: Request, watch: Watch) -> Completion:
        for _ in range(2):
            await asyncio.sleep(0)
        return await super().infer(request, watch)

    @staticmethod
    def _answer(request: Request) -> Any:
        is_over = request.messages[len(request.messages) - 1].role == "tool"
        return "done" if is_over else [call("pay"), call("pay")]


class World:
    """What the outside saw."""

    def __init__(self) -> None:
        self.journal = SlowJournal()
        self.effects: Counter[str] = Counter()
        self.held = 0

    def agent(self) -> Agent:
        @tool(effect="once")
        async def pay(context: ToolContext) -> str:
            """Pay."""
            await context.scope.get("held", lambda: Held(self))
            self.effects[context.idempotency_key] += 1
            for _ in range(3):
                await asyncio.sleep(0)
            return "paid"

        return Agent(SlowModel(), tools=[pay], policy=Policy(max_steps=4), journal=self.journal)

    async def check(self) -> None:
        """Check that nobody drives, nothing was done twice, every transcript is whole and every replay exact."""
        agent = self.agent()
        for info in self.journal.runs():
            assert not info.is_driven, "the lease was kept"
            run = Run.load(info.run_id, self.journal)
            if not run.state.calls:
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
    **{f"{gap} later": again(gap) for gap in (1, 2, 3, 5, 8)},
    "each turn": each_turn,
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(
    "work", [run_once, resume_once, converse, leave_stream], ids=lambda work: work.__name__
)
async def test_cancelling_at_any_turn_leaves_everything_in_order(
    work: Callable[[World], Awaitable[None]], way: str
) -> None:
    for turns in range(200):
        world = World()
        task = asyncio.ensure_future(work(world))
        for _ in range(turns):
            await asyncio.sleep(0)
        was_over = task.done()
        if not was_over:
            task.cancel()
            await WAYS[way](task)
        await asyncio.wait([task])
        for _ in range(20):
            await asyncio.sleep(0)
        left = [item for item in asyncio.all_tasks() if item is not asyncio.current_task()]
        assert left == [], f"somebody still works after {turns} turns"
        await world.check()
        assert world.held == 0
        for info in world.journal.runs():
            if info.run_id != "s":
                await world.agent().resume(info.run_id)
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
