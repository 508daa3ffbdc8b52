"""Streams of background responses that are read again, from any event, in any process, after any crash; and uploads
that survive kills."""

import asyncio
import json
import os
import random
import signal
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import APIConnectionError, APIStatusError, AsyncOpenAI
from tests.conftest import IS_FULL
from tests.server.test_files import attach, upload
from tests.server.test_responses import ADD, client, config, journal
from tests.server.test_runs import Killed, killed

from treadle.core.events import VERSION, RunStarted, TurnStarted
from treadle.core.types import Message, Role
from treadle.journal.hub import SENT_BYTES
from treadle.journal.protocol import Journal
from treadle.server.api_server import load_served
from treadle.server.catalog import AgentCatalog
from treadle.server.responses.item_parts import Echo
from treadle.server.responses.response_ids import ResponseId
from treadle.server.responses.response_records import follow_response
from treadle.server.routes.response_routes import write_lines
from treadle.server.run_host import RunHost

__all__ = ["client", "config", "journal", "killed"]
USER = Message(Role.USER, "hello")
NAPS = "call nap {}\nthen\ncall nap {}\nthen\ncall nap {}\nthen\nsay done at last"


async def read(client: AsyncOpenAI, response_id: str, after: int = -1, most: int = 10_000) -> list[Any]:
    found: list[Any] = []
    stream = await client.responses.retrieve(response_id, stream=True, starting_after=after)
    async with stream:
        async for event in stream:
            if event.type == "error":  # the server stops
                break
            found.append(event)
            if len(found) == most:
                break
    return found


def shape(events: list[Any]) -> list[Any]:
    return [event.model_dump() for event in events]


async def test_a_background_stream_is_read_again_from_any_event(client: AsyncOpenAI) -> None:
    asked = 'call write_file {"file_path": "a.txt", "content": "x"}\nthen\nsay one two three'
    stream = await client.responses.create(model="clerk", input=asked, background=True, stream=True)
    events: list[Any] = [event async for event in stream]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed"
    done = events[-1].response
    assert done.output_text == "one two three"
    assert done.background
    assert done.model == "clerk"
    for after in range(-1, len(events)):
        assert shape(await read(client, done.id, after)) == shape(events[after + 1 :])
    second = await client.responses.create(
        model="clerk", input="and now?", previous_response_id=done.id, background=True
    )
    told = await read(client, second.id)
    assert told[-1].response.output_text.startswith("You said: and now?")
    assert told[-1].response.previous_response_id == done.id
    assert shape(await read(client, done.id)) == shape(events)
    direct = await client.responses.create(model="echo", input="x")
    with pytest.raises(openai.BadRequestError, match="background"):
        await read(client, direct.id)


async def test_a_response_says_what_was_asked_for(client: AsyncOpenAI) -> None:
    made = await client.responses.create(
        model="clerk",
        input="x",
        instructions="Be brief.",
        tools=[ADD],
        temperature=0.3,
        max_output_tokens=99,
        metadata={"a": "b"},
    )
    again = await client.responses.retrieve(made.id)
    assert again.model_dump() == made.model_dump()
    conversation = await client.conversations.create()
    first = await client.responses.create(model="clerk", input="x", conversation=conversation.id)
    second = await client.responses.create(model="clerk", input="y", conversation=conversation.id)
    assert (first.previous_response_id, second.previous_response_id) == (None, first.id)
    await client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        await client.responses.retrieve(first.id)


async def test_a_background_stream_goes_on_after_kills(killed: Killed) -> None:
    """A client that asks again for the events after the last that it got sees each event once, in order."""
    url = killed.start()
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
        made = await client.responses.create(model="napper", input=NAPS, background=True)
        seen: list[Any] = []
        for number in range(6):
            try:
                seen += await read(client, made.id, seen[-1].sequence_number if seen else -1, most=5)
            except (APIConnectionError, APIStatusError, openai.APIError):
                await asyncio.sleep(0.05)
            if number < 2:
                kill = (signal.SIGKILL, signal.SIGTERM)[number]
                await asyncio.to_thread(killed.kill, kill)
                await asyncio.to_thread(killed.start)
        while seen[-1].type != "response.completed":
            seen += await read(client, made.id, seen[-1].sequence_number)
        assert [event.sequence_number for event in seen] == list(range(len(seen)))
        assert shape(await read(client, made.id)) == shape(seen)
        assert seen[-1].response.output_text == "done at last"


@pytest.mark.parametrize("is_late", [False, True])
async def test_a_follower_is_let_go_when_the_server_stops(
    config: Path, journal: Journal, is_late: bool
) -> None:
    """The last event has the number from which the client goes on, also if it begins to follow at the end."""
    writer = journal.create("r")
    writer.append([RunStarted(at=1.0, version=VERSION), TurnStarted(at=1.0, turn=1, message=USER)])
    await writer.sync()
    served = load_served(config, None)
    host = RunHost(journal, AgentCatalog(served.config, journal, served.names))
    echo = Echo(model="m", created_at=1.0, is_background=True)
    told: list[bytes] = []

    async def follow() -> None:
        async for line in write_lines(follow_response(host, ResponseId("r", 1, 0), echo, -1)):
            told.append(line)

    if is_late:
        await host.close()
    following = asyncio.ensure_future(follow())
    if not is_late:
        while not told:
            await asyncio.sleep(0.01)
        await host.close()
    ended, _ = await asyncio.wait([following], timeout=20)
    assert ended
    data = [json.loads(line.partition(b"data: ")[2]) for line in told[:-1]]
    assert [event["type"] for event in data][-1] == "error"
    numbers = [event["sequence_number"] for event in data]
    assert numbers[:-1] == list(range(len(data) - 1))
    assert numbers[-1] == len(data) - 2
    assert is_late or len(data) > 1


@pytest.mark.sets(0)
async def test_uploads_and_attached_files_survive_kills(killed: Killed) -> None:
    """Every upload and every attached file that was acknowledged is there and read in the end."""
    draw, kills = random.Random(3), 20 if IS_FULL else 3
    client = AsyncOpenAI(base_url=f"{killed.start()}/v1", api_key="any", max_retries=0)
    store = await client.vector_stores.create(name="all")
    files: dict[str, bytes] = {}
    attached: set[str] = set()

    async def work() -> None:
        for number in range(100_000):
            content = os.urandom(2000).hex().encode() + b" word%d" % number
            try:
                made = await client.files.create(file=(f"{number}.txt", content), purpose="assistants")
                files[made.id] = content
                await client.vector_stores.files.create(store.id, file_id=made.id)
                attached.add(made.id)
            except (APIConnectionError, APIStatusError):
                await asyncio.sleep(0.05)

    working = [asyncio.ensure_future(work()) for _ in range(3)]
    for _ in range(kills):
        before = len(attached)
        while len(attached) < before + 3:
            await asyncio.sleep(0.02)
        await asyncio.sleep(draw.random() * 0.2)
        await asyncio.to_thread(killed.kill)
        await asyncio.to_thread(killed.start)
    for task in working:
        task.cancel()
    await asyncio.wait(working)
    for file_id, content in files.items():
        assert (await client.files.content(file_id)).content == content
    while (await client.vector_stores.retrieve(store.id)).file_counts.in_progress:
        await asyncio.sleep(0.05)
    done = {
        item.id async for item in client.vector_stores.files.list(store.id, filter="completed", limit=100)
    }
    assert attached <= done
    assert len(attached) >= 3 * kills
    found = await attach(client, store.id, await upload(client, "last.txt", "The last word."))
    assert found.status == "completed"
    await client.close()


async def test_a_background_stream_is_sent_in_pieces(client: AsyncOpenAI) -> None:
    """A client that does not read its stream holds one piece in the server, however long the answer is."""
    made = await client.responses.create(model="echo", input="word " * 40_000, background=True)
    while (await client.responses.retrieve(made.id)).status != "completed":
        await asyncio.sleep(0.02)
    reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
    path = f"/v1/responses/{made.id}?stream=true"
    writer.write(f"GET {path} HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    pieces: list[bytes] = []
    async with asyncio.timeout(20):
        await reader.readuntil(b"\r\n\r\n")
        while not b"".join(pieces[-2:]).endswith(b"data: [DONE]\n\n"):
            size = int(await reader.readuntil(b"\r\n"), 16)
            pieces.append((await reader.readexactly(size + 2))[:-2])
    writer.close()
    assert max(map(len, pieces)) == SENT_BYTES
    assert b"response.completed" in b"".join(pieces)
