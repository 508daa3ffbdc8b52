"""What a turn of a client rests on: the watch for clients that leave, work within a request, and a first turn."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from treadle import Agent, open_journal
from treadle.core.errors import ConfigError, UnsupportedPartError
from treadle.core.parts import make_part
from treadle.core.types import Message, Request, Role
from treadle.journal.memory import MemoryJournal
from treadle.journal.protocol import Journal
from treadle.models.scripted import ScriptedModel
from treadle.runs.begin import Beginning, run_first_turn
from treadle.runs.options import Given
from treadle.server.admission.access import (
    PRESENCE,
    LeavingWatch,
    Presence,
    RequestRefused,
    refuse,
    send_whole,
)
from treadle.server.gateway.gateway_host import GatewayHost
from treadle.server.listening import listen, serve_app

Answer = Callable[[Any, Any], Awaitable[None]]


class Client:
    """One connection to a server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.peer = writer.get_extra_info("peername")

    async def read(self) -> bytes:
        """Return the answer, up to the end of its body, which is an object of JSON."""
        return await self.reader.readuntil(b"}")


@asynccontextmanager
async def asking(answer: Answer, on_stop: Callable[[], Awaitable[None]] | None = None) -> Any:
    """Serve `answer`, a function of a scope and `send`, and yield a client that has asked, and the server."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "http":
            while (await receive()).get("more_body"):
                pass
            await answer(scope, send)
            return
        while (message := await receive())["type"] != "lifespan.shutdown":
            await send({"type": f"{message['type']}.complete"})
        await send({"type": "lifespan.shutdown.complete"})

    async def nothing() -> None:
        """Stop nothing."""

    listener, url = listen("127.0.0.1", 0)
    serving = asyncio.ensure_future(serve_app(app, listener, lambda: None, on_stop or nothing, 1))
    try:
        async with asyncio.timeout(10):
            reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
            writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\n\r\n{}")
            yield Client(reader, writer), serving
            writer.close()
    finally:
        serving.cancel()
        await asyncio.wait([serving])


async def test_a_client_that_leaves_is_told_once() -> None:
    left, told = asyncio.Event(), list[object]()

    async def answer(scope: Any, send: Any) -> None:
        watch = LeavingWatch(scope, lambda: (left.set(), told.append("left")))
        with watch:
            await left.wait()
        told.append(watch.has_left)

    async with asking(answer) as (client, _):
        client.writer.close()
        await left.wait()
    assert told == ["left", True]


async def test_a_client_that_leaves_before_the_watch_or_with_a_large_body_is_told() -> None:
    told: list[bool] = []
    ended = asyncio.Event()

    async def answer(scope: Any, send: Any) -> None:
        presence: Presence = scope[PRESENCE]
        while not presence.has_left:
            await asyncio.sleep(0)
        watch = LeavingWatch(scope, lambda: None)
        with watch:
            told.append(watch.has_left)
        ended.set()

    async with asking(answer) as (client, _):
        client.writer.close()
        await ended.wait()
        ended.clear()
        _, writer = await asyncio.open_connection(*client.peer)
        writer.write(b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 200000\r\n\r\n" + b" " * 200_000)
        await writer.drain()
        writer.close()
        await ended.wait()
    assert told == [True, True]


async def test_a_client_that_stays_is_not_taken_for_one_that_left() -> None:
    told: list[str] = []

    async def answer(scope: Any, send: Any) -> None:
        watch = LeavingWatch(scope, lambda: told.append("left"))
        with watch:
            await asyncio.sleep(0)
        await send_whole(send, 200, {"left": watch.has_left}, {})

    async with asking(answer) as (client, _):
        assert b'{"left":false}' in await client.read()
        client.writer.close()
    assert told == []


def make_host() -> GatewayHost:
    return GatewayHost(MemoryJournal(), None)  # type: ignore[arg-type]


async def test_a_server_that_stops_refuses_what_its_requests_wait_for() -> None:
    host, began, ended = make_host(), asyncio.Event(), []

    async def work() -> None:
        began.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.append("work")

    async def answer(scope: Any, send: Any) -> None:
        try:
            await host.do(work())
        except RequestRefused as refused:
            task = asyncio.current_task()
            ended.append(f"cancelled {0 if task is None else task.cancelling()} times")
            await refuse(send, refused)

    async with asking(answer, host.close) as (client, serving):
        await began.wait()
        serving.cancel()
        told = await client.read()
    assert b"503" in told
    assert b"retry-after: 5" in told
    assert b"server_stopping" in told
    assert ended == ["work", "cancelled 0 times"]


async def test_work_in_a_request_returns_raises_and_is_cancelled_as_it_is() -> None:
    host = make_host()

    async def work(value: int) -> int:
        return 6 // value

    assert await host.do(work(2)) == 3
    with pytest.raises(ZeroDivisionError):
        await host.do(work(0))

    began = asyncio.Event()

    async def wait() -> None:
        began.set()
        await asyncio.Event().wait()

    task = asyncio.ensure_future(host.do(wait()))
    await began.wait()
    task.cancel()  # by the client, and not by the host
    with pytest.raises(asyncio.CancelledError):
        await task
    await host.close()
    with pytest.raises(RequestRefused) as refused:
        await host.do(work(2))
    assert refused.value.status_code == 503


@pytest.fixture
def journal(tmp_path: Path) -> Any:
    with open_journal(tmp_path / "runs.db") as journal:
        yield journal


def begin(agent: Agent[Any], message: Message, blobs: Any = None, **more: Any) -> Any:
    beginning = Beginning("first", is_session=True, is_lazy=True, metadata={"by": "a client"})
    return run_first_turn(agent, message, Given(agent.answer, **more), beginning, blobs or {})


async def test_a_first_turn_is_stored_and_anybody_goes_on(journal: Journal) -> None:
    part, blobs = make_part(b"x" * 200_000, "image/png", name="x.png")
    agent = Agent(ScriptedModel(["one", "two"]), journal=journal)
    run = await begin(agent, Message(Role.USER, "go", parts=(part,)), blobs, keeps_events=True)
    assert (run.output, run.metadata) == ("one", {"by": "a client"})
    assert [event.body for event in run.events] == [event.body for event in journal.read("first")]
    assert [journal.read_blob(digest) for digest in blobs] == list(blobs.values())
    (info,) = journal.runs()
    assert (info.is_driven, info.is_turn_open, info.turns) == (False, False, 1)
    async with agent.session("first") as session:
        assert (await session.send("more")).output == "two"


async def test_a_first_turn_that_is_cancelled_stays_open(journal: Journal) -> None:
    asked = asyncio.Event()

    class Waiting(ScriptedModel):
        async def infer(self, request: Request, watch: Any) -> Any:
            asked.set()
            await asyncio.Event().wait()

    task = asyncio.ensure_future(begin(Agent(Waiting([]), journal=journal), Message(Role.USER, "go")))
    await asked.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (info,) = journal.runs()
    assert (info.is_driven, info.is_turn_open) == (False, True)
    run = await Agent(ScriptedModel(["done"]), journal=journal).resume("first")
    assert run.output == "done"


async def test_a_message_that_the_model_cannot_be_sent_begins_nothing(journal: Journal) -> None:
    class Blind(ScriptedModel):
        def check_part(self, part: Any) -> None:
            raise UnsupportedPartError("no images here")

    part, blobs = make_part(b"x", "image/png")
    with pytest.raises(ConfigError, match="the message was not sent: no images here"):
        await begin(Agent(Blind(["hi"]), journal=journal), Message(Role.USER, "go", parts=(part,)), blobs)
    assert journal.runs() == []
