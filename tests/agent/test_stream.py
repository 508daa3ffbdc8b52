"""Streams that are closed."""

import asyncio

from treadle import Agent, ScriptedModel
from treadle.journal.memory import MemoryJournal


def agent() -> Agent:
    return Agent(ScriptedModel(["ok"], delay_seconds=0.01), journal=MemoryJournal())


async def test_a_closed_stream_has_ended() -> None:
    stream = agent().stream("go")
    assert (await anext(stream)).type == "run_started"
    await stream.aclose()
    assert [item async for item in stream] == []
    assert stream.run is None


async def test_a_stream_that_is_closed_first_starts_no_run() -> None:
    it = agent()
    stream = it.stream("go")
    await stream.aclose()
    assert [item async for item in stream] == []
    assert it.journal.runs() == []


async def test_whoever_waits_at_a_stream_sees_its_end_when_another_task_closes_it() -> None:
    stream = agent().stream("go")

    async def read() -> list[str]:
        return [item.type async for item in stream]

    reading = asyncio.ensure_future(read())
    while not reading.done() and stream._task is None:
        await asyncio.sleep(0)
    await stream.aclose()
    assert "run_finished" not in await reading
