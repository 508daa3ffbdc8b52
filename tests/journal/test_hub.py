"""The events and the live output of a run for any number of listeners."""

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from treadle import Agent, ScriptedModel, ToolContext, open_journal, tool
from treadle.core.events import Ephemeral, Event
from treadle.core.events.body import TextDelta, ToolProgress
from treadle.core.events.narrowing import Item
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
