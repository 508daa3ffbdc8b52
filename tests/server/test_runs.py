"""The runs of a server: their events as they happen, their inboxes, and what is left when the server is killed."""

import asyncio
import json
import os
import random
import signal
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import APIConnectionError, APIError, APIStatusError, AsyncOpenAI
from openai.types.responses import ResponseStreamEvent
from tests.conftest import IS_FULL
from tests.forks.process import FORKS, Process
from tests.server.test_responses import ADD, client, config, journal, serving

from treadle import Run, open_journal
from treadle.core.inbox import GiveAnswer
from treadle.journal.hub import SENT_BYTES
from treadle.journal.protocol import Journal
from treadle.journal.run_info import RunFilter

__all__ = ["client", "config", "journal"]


async def read_stream(
    client: AsyncOpenAI, path: str, **headers: str
) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """Yield the names and the data of a stream's events."""
    async with client._client.stream("GET", f"{client.base_url}{path}", headers=headers) as answer:
        name = ""
        async for line in answer.aiter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield name, json.loads(line.removeprefix("data: "))


async def test_events_are_followed_from_any_number(client: AsyncOpenAI, journal: Journal) -> None:
    asked = 'call add {"a": 1, "b": 2}\nthen\nsay one two three'
    first = await client.responses.create(model="echo", input=asked, tools=[ADD])
    run_id = journal.runs()[0].run_id
    call: Any = first.output[0]
    seen: list[tuple[str, dict[str, Any]]] = []

    async def follow() -> None:
        async for name, data in read_stream(client, f"runs/{run_id}/events?stream=true"):
            seen.append((name, data))
            if name == "turn_completed":
                return

    following = asyncio.ensure_future(follow())
    await asyncio.sleep(0.1)
    output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "3"}
    await client.responses.create(model="echo", input=[output], previous_response_id=first.id, tools=[ADD])
    async with asyncio.timeout(20):
        await following
    stored = journal.read(run_id)
    numbers = [data["seq"] for _, data in seen if data.get("seq")]
    assert numbers == list(range(1, len(numbers) + 1))
    assert [name for name, data in seen if data.get("seq")] == [
        event.type for event in stored[: len(numbers)]
    ]
    assert "text_delta" in [name for name, _ in seen]
    # A client that was away goes on after the last event that it has got.
    again = []
    async for name, data in read_stream(
        client, f"runs/{run_id}/events?stream=true", **{"Last-Event-ID": "3"}
    ):
        again.append(data["seq"])
        if name == "turn_completed":
            break
    assert again == numbers[3:]


async def test_followers_are_sent_large_events_in_pieces(client: AsyncOpenAI, journal: Journal) -> None:
    texts = [letter * SENT_BYTES * 3 for letter in "ab"]
    for text in texts:
        before = journal.runs()
        more = {"previous_response_id": f"resp_{before[0].run_id}_1_0"} if before else {}
        await client.responses.create(model="echo", input=text, **more)  # type: ignore[call-overload]
    run_id = journal.runs()[0].run_id
    reader, writer = await asyncio.open_connection(client.base_url.host, client.base_url.port)
    writer.write(f"GET /v1/runs/{run_id}/events?stream=true HTTP/1.1\r\nhost: localhost\r\n\r\n".encode())
    pieces: list[bytes] = []
    async with asyncio.timeout(20):
        await reader.readuntil(b"\r\n\r\n")
        while b"".join(pieces).count(b"event: turn_completed\n") < len(texts) or pieces[-1][-2:] != b"\n\n":
            size = int(await reader.readuntil(b"\r\n"), 16)
            pieces.append((await reader.readexactly(size + 2))[:-2])
    writer.close()
    assert max(map(len, pieces)) == SENT_BYTES
    lines = b"".join(pieces).split(b"\n")
    told = [json.loads(line.removeprefix(b"data: ")) for line in lines if line.startswith(b"data: ")]
    assert told == [json.loads(event.to_json()) for event in journal.read(run_id)[: len(told)]]


async def test_a_run_says_what_it_waits_for_and_goes_on_by_its_inbox(
    client: AsyncOpenAI, journal: Journal
) -> None:
    options = [{"label": "a.txt", "description": "A"}]
    asked = f"call ask_user {json.dumps({'question': 'Which file?', 'options': options})}\nthen\nsay ok"
    await client.responses.create(model="curious", input=asked, metadata={"team": "a"})
    (listed,) = (await client.get("/runs?is_waiting=true", cast_to=dict))["data"]
    run_id = listed["id"]
    found = await client.get(f"/runs/{run_id}", cast_to=dict)
    ((question_id, question),) = found["waits_for"]["questions"].items()
    assert question == {"text": "Which file?", "options": ["a.txt"]}
    assert found["turn_stop_reason"] is None
    with pytest.raises(APIStatusError, match="is not open"):
        await client.post(
            f"/runs/{run_id}/inbox", body={"type": "answer", "question_id": "x", "text": "a"}, cast_to=dict
        )
    for body in ({"type": "answr"}, {"type": "answer"}, {"type": "note", "labels": {"treadle.owner": "me"}}):
        with pytest.raises(APIStatusError) as refused:
            await client.post(f"/runs/{run_id}/inbox", body=body, cast_to=dict)
        assert refused.value.status_code == 400
    answer = {"type": "answer", "question_id": question_id, "text": "a.txt"}
    sent = await client.post(f"/runs/{run_id}/inbox", body=answer, cast_to=dict)
    assert sent["object"] == "inbox_message"
    async with asyncio.timeout(20):
        while (await client.get(f"/runs/{run_id}", cast_to=dict))["output"] != "ok":
            await asyncio.sleep(0.02)
        # The session waits for its next message, as one whose turn was never interrupted.
        while (await client.get(f"/runs/{run_id}", cast_to=dict))["is_driven"]:
            await asyncio.sleep(0.02)
    assert (await client.get(f"/runs/{run_id}", cast_to=dict))["turn_stop_reason"] == "completed"
    two = "call ask_user\ncall ask_user"
    limited = {"agent": "curious", "input": two, "max_tool_calls": 1, "wait": True}
    ended = await client.post("/runs", body=limited, cast_to=dict)
    assert (ended["stop_reason"], ended["turn_stop_reason"]) == ("closed", "max_tool_calls")
    await client.delete(f"/runs/{ended['id']}", cast_to=dict)
    assert (await client.get("/runs?status=running", cast_to=dict))["data"] == []
    assert [item["status"] for item in (await client.get("/runs", cast_to=dict))["data"]] == ["paused"]


async def test_a_message_that_a_dead_server_has_only_stored_is_taken_in(config: Path, tmp_path: Path) -> None:
    with open_journal(tmp_path / "runs.db") as journal:
        async with (
            serving(config, journal) as url,
            AsyncOpenAI(base_url=f"{url}/v1", api_key="any") as client,
        ):
            await client.responses.create(
                model="curious", input='call ask_user {"question": "Which?"}\nthen\nsay ok'
            )
        (info,) = journal.runs()
        question_id = next(iter(Run.load(info.run_id, journal).questions))
        journal.post(info.run_id, GiveAnswer(question_id, "this"))
        assert journal.runs(RunFilter(is_waiting=True))
    with open_journal(tmp_path / "runs.db") as journal:
        async with serving(config, journal), asyncio.timeout(20):
            while not journal.runs(RunFilter(is_turn_open=False)):
                await asyncio.sleep(0.02)


TOOLS = """
import asyncio

from treadle import tool


@tool(effect="idempotent")
async def nap() -> str:
    '''Sleep for a moment.'''
    await asyncio.sleep(0.05)
    return "rested"
"""
SERVED = """
[models.echo]
model = "mock:echo"

[agents.napper]
model = "echo"
tools = ["tools.py"]
"""


class Killed:
    """A server in a process of its own, on one port, that is killed and started again."""

    def __init__(self, folder: Path, journal: str = "runs.db") -> None:
        self.folder = folder
        self.journal = journal
        self.port = 0
        self.stderr: int | None = None
        self.process: Process | subprocess.Popen[str] | None = None

    def start(self) -> str:
        """Start the server, and return its address."""
        command = ["-m", "treadle", "serve", "--config", "treadle.toml", "--journal", self.journal, "--json"]
        self.process = FORKS.start(
            *command, "--port", str(self.port), cwd=self.folder, stdout=subprocess.PIPE, stderr=self.stderr
        )
        assert self.process.stdout is not None
        url = str(json.loads(self.process.stdout.readline())["url"])
        self.port = int(url.rpartition(":")[2])
        return url

    def kill(self, number: int = signal.SIGKILL) -> None:
        """End the server by a signal, and wait until it has ended."""
        assert self.process is not None
        os.kill(self.process.pid, number)
        self.process.wait(60)


@pytest.fixture
def killed(tmp_path: Path) -> Any:
    (tmp_path / "treadle.toml").write_text(SERVED)
    (tmp_path / "tools.py").write_text(TOOLS)
    server = Killed(tmp_path)
    yield server
    if server.process is not None and server.process.poll() is None:
        server.kill()


async def test_what_was_acknowledged_survives_kills(killed: Killed, tmp_path: Path) -> None:
    """Whatever happens to the server, each background response whose id a client has got is answered, and a client
    that follows it gets each event once, in order."""
    draw, kills = random.Random(7), 100 if IS_FULL else 2
    asked = "call nap {}\nthen\ncall nap {}\nthen\nsay done"
    acknowledged: list[str] = []
    followed: dict[str, list[ResponseStreamEvent]] = {}
    is_over, done = False, 0
    client = AsyncOpenAI(base_url=f"{killed.start()}/v1", api_key="any", max_retries=0)

    async def follow(response_id: str) -> None:
        seen = followed[response_id] = []
        while not seen or seen[-1].type != "response.completed":
            try:
                after = seen[-1].sequence_number if seen else -1
                async for event in await client.responses.retrieve(
                    response_id, stream=True, starting_after=after
                ):
                    if event.type == "error":  # the server stops
                        assert event.sequence_number == after
                        break
                    seen.append(event)
                    after = event.sequence_number
            except (APIConnectionError, APIStatusError, APIError, httpx.TransportError):
                await asyncio.sleep(0.05)

    async def ask() -> None:
        nonlocal done
        while not is_over:
            try:
                made = await client.responses.create(model="napper", input=asked, background=True)
            except (APIConnectionError, APIStatusError):
                await asyncio.sleep(0.05)
            else:
                acknowledged.append(made.id)
                await follow(made.id)
                done += 1

    asking = [asyncio.ensure_future(ask()) for _ in range(8)]
    for number in range(kills):
        # Each server takes the runs in and ends one, so that no run loses three drivers before it is driven.
        before = done
        while done == before:
            await asyncio.sleep(0.01)
        await asyncio.sleep(draw.random() * 0.3)
        await asyncio.to_thread(killed.kill, signal.SIGTERM if number % 3 == 2 else signal.SIGKILL)
        await asyncio.to_thread(killed.start)
    is_over = True
    async with asyncio.timeout(120):
        await asyncio.gather(*asking)
    assert len(acknowledged) >= kills
    for response_id, seen in followed.items():
        told = [(event.sequence_number, event.type) for event in seen]
        assert [number for number, _ in told] == list(range(len(seen))), (response_id, told)
        assert (await client.responses.retrieve(response_id)).output_text == "done", response_id
    killed.kill(signal.SIGTERM)
    with open_journal(tmp_path / "runs.db") as journal:
        runs = journal.runs(RunFilter(is_turn_open=False))
        assert {item.rpartition("_1_0")[0].removeprefix("resp_") for item in acknowledged} <= {
            info.run_id for info in runs
        }
        for info in runs:
            bodies = [event.body for event in journal.read(info.run_id)]
            assert [body.output for body in bodies if body.__class__.__name__ == "TurnCompleted"] == ["done"]  # type: ignore[attr-defined]


async def test_a_server_that_is_stopped_ends_and_says_nothing_odd(killed: Killed) -> None:
    url = killed.start()
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
        stream = await client.responses.create(
            model="napper", input="call nap {}\nthen\nsay done", stream=True
        )
        events = aiter(stream)
        await anext(events)
        killed.kill(signal.SIGTERM)
        assert killed.process is not None
        assert killed.process.returncode == 0


async def test_a_server_that_is_told_twice_to_stop_does_not_wait_and_says_nothing(killed: Killed) -> None:
    """A client that does not send the rest of its request is not waited for, and what is cancelled is no defect."""
    killed.stderr = subprocess.PIPE
    killed.start()
    _, writer = await asyncio.open_connection("127.0.0.1", killed.port)
    head = "POST /v1/conversations HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    writer.write(f"{head}Content-Length: 9\r\n\r\n{{".encode())
    reader, other = await asyncio.open_connection("127.0.0.1", killed.port)
    other.write(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    assert b" 200 " in await reader.read()  # the server has begun to read the first request, too
    process = killed.process
    assert process is not None
    process.send_signal(signal.SIGTERM)
    while True:
        try:
            _, late = await asyncio.open_connection("127.0.0.1", killed.port)
        except OSError:
            break
        late.close()
        await asyncio.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, errors = await asyncio.to_thread(process.communicate, timeout=60)
    writer.close()
    other.close()
    assert (process.returncode, errors) == (0, "")


async def test_a_message_that_says_what_nobody_can_mean_is_refused(
    client: AsyncOpenAI, journal: Journal
) -> None:
    """A mistyped key was ignored, so that a call ran with arguments that the user had changed."""
    asked = 'call write_file {"file_path": "a.txt", "content": "x"}\nthen\nsay ok'
    await client.responses.create(model="careful", input=asked)
    (info,) = journal.runs()
    (call_id,) = Run.load(info.run_id, journal).approvals

    async def tell(**body: Any) -> Any:
        return await client.post(f"/runs/{info.run_id}/inbox", body=body, cast_to=dict)

    decision: dict[str, Any] = {"type": "decide", "call_id": call_id, "is_approved": True}
    for more, why in (
        ({"argumnts": "{}"}, "did you mean 'arguments'"),
        ({"arguments": "{bad"}, "arguments is not JSON"),
        ({"arguments": "[1]"}, "give an object"),
    ):
        with pytest.raises(APIStatusError, match=why) as refused:
            await tell(**decision, **more)
        assert refused.value.status_code == 400
    for message, why in (
        ({"role": "assistant", "content": "I am done."}, "message.role is 'assistant'"),
        ({"role": "user", "content": ""}, "message.content is empty"),
    ):
        for kind in ("steer", "queue", "interrupt"):
            with pytest.raises(APIStatusError, match=why):
                await tell(type=kind, message=message)
    assert Run.load(info.run_id, journal).approvals
    await tell(**decision, arguments={"file_path": "b.txt", "content": "y"})
    async with asyncio.timeout(20):
        while journal.runs(RunFilter(is_turn_open=True)):
            await asyncio.sleep(0.02)
    assert Run.load(info.run_id, journal).files == {"b.txt": b"y"}


async def test_a_cursor_that_does_not_exist_says_nothing_about_the_server(client: AsyncOpenAI) -> None:
    with pytest.raises(APIStatusError, match="there is no run 'nope'") as refused:
        await client.get("/runs?after=nope", cast_to=dict)
    assert "runs.db" not in refused.value.message
