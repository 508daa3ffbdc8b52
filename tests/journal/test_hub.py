"""The events and the live output of a run for any number of listeners."""

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from treadle import Agent, ScriptedModel, ToolContext, open_journal, tool
from treadle.core.errors import RunNotFoundError
from treadle.core.events import VERSION, Ephemeral, Event, Noted, RunFinished, RunStarted
from treadle.core.events.body import TextDelta, ToolProgress
from treadle.core.events.narrowing import Item
from treadle.core.policy import Policy
from treadle.core.types import StopReason
from treadle.journal.hub import KEPT_DELTAS, listen
from treadle.journal.protocol import Journal
from treadle.models import call


@pytest.fixture(params=["memory:", "file"])
def journal(request: pytest.FixtureRequest, tmp_path: Path) -> Journal:
    return open_journal(tmp_path / "runs.db" if request.param == "file" else request.param)


async def gather(journal: Journal, until: str, *, after_seq: int | None = 0, slow: float = 0) -> list[Item]:
    """Return what a listener gets until an event of a type."""
    found: list[Item] = []
    async with asyncio.timeout(60):
        async for item in listen(journal, "r", after_seq):
            found.append(item)
            await asyncio.sleep(slow)
            if item.type == until:
                break
    return found


def check(found: list[Item], journal: Journal, text: str, *, after_seq: int = 0) -> None:
    events = [item for item in found if isinstance(item, Event)]
    assert [item.seq for item in events] == list(range(after_seq + 1, events[-1].seq + 1))
    assert events == journal.read("r", after_seq)[: len(events)]
    said = [item.body.text for item in found if isinstance(item.body, TextDelta)]
    assert "".join(said) == text
    for before, item in pairwise(found):
        if isinstance(item.body, TextDelta):
            assert isinstance(before, Ephemeral) or before.type == "inference_started"


async def test_each_listener_gets_everything(journal: Journal) -> None:
    @tool(effect="pure")
    async def work(context: ToolContext) -> str:
        context.progress("half")
        await asyncio.sleep(0)
        return "done"

    agent = Agent(ScriptedModel(["ready", [call("work")], "one two three"]), tools=[work], journal=journal)
    async with agent.session("r") as session:
        await session.send("begin")
        kept = len(journal.read("r"))
        listeners = [
            asyncio.ensure_future(gather(journal, "turn_completed", after_seq=after, slow=slow))
            for after, slow in ((kept, 0), (kept, 0.01), (None, 0))
        ]
        await asyncio.sleep(0.2)
        heard: list[Item] = []
        await session.send("go", on_event=heard.append)
        assert (
            "".join([item.body.text for item in heard if isinstance(item.body, TextDelta)]) == "one two three"
        )
        found = await asyncio.gather(*listeners)
        for items in found:
            check(items, journal, "one two three", after_seq=kept)
            assert [item.body.text for item in items if isinstance(item.body, ToolProgress)] == ["half"]
        assert journal.driven.find("r") is not None
        assert not journal.driven.find("r").listeners  # type: ignore[union-attr]


async def test_a_slow_listener_loses_deltas_and_no_event(journal: Journal) -> None:
    words = " ".join(["word"] * (KEPT_DELTAS * 2))
    agent = Agent(ScriptedModel(["ready", words]), journal=journal)
    async with agent.session("r") as session:
        await session.send("begin")
        kept = len(journal.read("r"))
        slow = listen(journal, "r", kept)
        first = asyncio.ensure_future(anext(slow))
        await asyncio.sleep(0.1)
        await session.send("go")
        found = [await first]
        async with asyncio.timeout(60):
            async for item in slow:
                found.append(item)
                if item.type == "turn_completed":
                    break
        events = [item.seq for item in found if isinstance(item, Event)]
        assert events == list(range(kept + 1, len(journal.read("r")) + 1))
    assert 0 < len(found) - len(events) <= KEPT_DELTAS


async def test_listeners_share_items_and_need_no_task_for_each(journal: Journal) -> None:
    agent = Agent(ScriptedModel(["ready", "one two three"]), journal=journal)
    async with agent.session("r") as session:
        await session.send("begin")
        kept = len(journal.read("r"))
        before = len(asyncio.all_tasks())
        listeners = [
            asyncio.ensure_future(gather(journal, "turn_completed", after_seq=kept)) for _ in range(40)
        ]
        await asyncio.sleep(0)
        [channel] = journal.driven.channels.values()
        await asyncio.shield(channel.opening)
        assert len(channel.inlets) == 40
        assert len(asyncio.all_tasks()) <= before + 42
        await session.send("go")
        found = await asyncio.gather(*listeners)
    for items in found:
        check(items, journal, "one two three", after_seq=kept)
    assert len({id(item) for items in found for item in items}) == len(found[0])
    assert not journal.driven.channels


async def test_a_listener_that_comes_later_gets_what_it_lacks(journal: Journal) -> None:
    agent = Agent(ScriptedModel(["ready", *["word"] * 150, "the end"]), journal=journal)
    async with agent.session("r") as session:
        await session.send("begin")
        first = asyncio.ensure_future(gather(journal, "run_paused"))
        for _ in range(150):
            await session.send("go")
        late = [
            asyncio.ensure_future(gather(journal, "run_paused", after_seq=after)) for after in (0, 5, 600)
        ]
        await session.send("go")
    for after, items in zip((0, 0, 5, 600), [await first, *[await task for task in late]], strict=True):
        events = [item for item in items if isinstance(item, Event)]
        assert [item.seq for item in events] == list(range(after + 1, events[-1].seq + 1))


async def test_a_listener_that_falls_far_behind_reads_the_journal(journal: Journal) -> None:
    writer = journal.create("r")
    writer.append([RunStarted(at=1.0, version=VERSION, policy=Policy())])
    await writer.sync()
    slow = listen(journal, "r")
    found = [await anext(slow)]
    for number in range(3 * KEPT_DELTAS):
        writer.append([Noted(at=1.0, remark=str(number))])
        if number % 100 == 0:
            await writer.sync()
            await asyncio.sleep(0.01)
    writer.append([RunFinished(at=3.0, stop_reason=StopReason.COMPLETED)])
    await writer.release()
    await writer.sync()
    async with asyncio.timeout(60):
        found += [item async for item in slow]
    assert found == journal.read("r")


async def test_a_run_that_does_not_exist(journal: Journal) -> None:
    with pytest.raises(RunNotFoundError):
        await anext(listen(journal, "nobody"))
    assert not journal.driven.channels
