"""A server under mixed load for a while: nothing fails, and what the server holds does not grow.

`make test-full` runs this for an hour, or for TREADLE_SOAK_SECONDS.
"""

import asyncio
import io
import json
import os
import random
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import pytest
from msgspec import Struct, field
from openai import APIStatusError, AsyncOpenAI
from tests.conftest import IS_FULL
from tests.forks.process import FORKS
from tests.server.test_runs import SERVED, Killed, killed

__all__ = ["killed"]

SECONDS = float(os.environ.get("TREADLE_SOAK_SECONDS", "3600" if IS_FULL else "1"))
USERS = 24
PAUSE_SECONDS = 0.3
GROWTH_BYTES = 40_000_000
"""How much more memory the server may have at the end than after a third of the time."""
CLERK = """
[agents.clerk]
model = "echo"
tools = ["files"]
"""


class Load(Struct):
    """What the users of a server do, and what they have seen."""

    client: AsyncOpenAI
    http: httpx.AsyncClient
    draw: random.Random
    done: Counter[str] = field(default_factory=Counter)
    runs: set[str] = field(default_factory=set)
    """The runs of which the server has said that they exist, and that were not deleted."""

    @property
    def port(self) -> int:
        return int(self.client.base_url.port or 0)


async def talk(load: Load) -> None:
    """Hold a conversation by the ids of its responses, streamed or not."""
    before: Any = {}
    for number in range(load.draw.randint(1, 5)):
        text = f"turn {number} of {load.draw.random()}"
        call = 'call write_file {"file_path": "a.txt", "content": "x"}\nthen\n'
        asked: Any = {"model": "clerk", "input": f"{call}say {text}", **before}
        if load.draw.random() < 0.5:
            stream = await load.client.responses.create(stream=True, **asked)
            events = [event async for event in stream]
            assert [event.sequence_number for event in events] == list(range(len(events)))
            found = events[-1].response
        else:
            found = await load.client.responses.create(**asked)
        assert found.output_text == text
        load.runs.add(found.id.removeprefix("resp_").rsplit("_", 2)[0])
        before = {"previous_response_id": found.id}


async def leave(load: Load) -> None:
    """Leave in the middle of a stream."""
    asked: Any = {
        "model": "napper",
        "input": "call nap {}\nthen\ncall nap {}\nthen\nsay done",
        "stream": True,
    }
    stream = await load.client.responses.create(**asked)
    for _ in range(load.draw.randint(1, 4)):
        await anext(aiter(stream))
    await stream.close()


async def wait_for(load: Load) -> None:
    """Begin a response in the background; wait for it, or cancel it."""
    made = await load.client.responses.create(
        model="napper", input="call nap {}\nthen\nsay done", background=True
    )
    load.runs.add(made.id.removeprefix("resp_").rsplit("_", 2)[0])
    wanted = {"completed"}
    if load.draw.random() < 0.3:
        with suppress(APIStatusError):  # it may be over
            await load.client.responses.cancel(made.id)
        wanted = {"completed", "cancelled"}
    while (found := await load.client.responses.retrieve(made.id)).status in ("queued", "in_progress"):
        await asyncio.sleep(0.05)
    assert found.status in wanted, found


async def chat(load: Load) -> None:
    """Ask a model over the gateway, with a history that grows."""
    messages: list[Any] = [{"role": "user", "content": f"say hello {load.draw.random()}"}]
    for _ in range(load.draw.randint(1, 4)):
        is_stream = load.draw.random() < 0.5
        answer: Any = await load.client.chat.completions.create(
            model="echo", messages=messages, stream=is_stream
        )
        if is_stream:
            pieces = [chunk.choices[0].delta.content or "" async for chunk in answer if chunk.choices]
            text = "".join(pieces)
        else:
            text = answer.choices[0].message.content
        assert text.startswith("hello"), text
        messages += [{"role": "assistant", "content": text}, {"role": "user", "content": "say hello again"}]


async def follow(load: Load) -> None:
    """Begin a run, follow its events with a break, and delete it now and then."""
    body = {"agent": "napper", "input": "call nap {}\nthen\nsay done"}
    made = (await load.http.post("/v1/runs", json=body)).raise_for_status().json()
    run_id, seen = made["id"], [0]
    load.runs.add(run_id)
    note = {"type": "note", "labels": {"team": "soak"}}
    while seen[-1] >= 0:
        headers = {"last-event-id": str(seen[-1])}
        url = f"/v1/runs/{run_id}/events?stream=true"
        async with load.http.stream("GET", url, headers=headers) as answer:
            async for line in answer.aiter_lines():
                if line.startswith("data: ") and (seq := json.loads(line[6:]).get("seq")):
                    assert seq == seen[-1] + 1
                    seen.append(seq)
                if line.startswith("event: turn_completed"):
                    seen.append(-1)
                    break
                if load.draw.random() < 0.1:
                    break
    await load.http.post(f"/v1/runs/{run_id}/inbox", json=note)
    assert (await load.http.get(f"/v1/runs/{run_id}")).raise_for_status().json()["output"] == "done"
    while load.draw.random() < 0.7:
        answer = await load.http.delete(f"/v1/runs/{run_id}")
        if answer.status_code == 200:
            load.runs.discard(run_id)
            break
        assert answer.status_code == 409, answer.text  # it is still driven
        await asyncio.sleep(0.05)


async def keep_files(load: Load) -> None:
    """Search in a file of a store, and delete both."""
    word = f"word{load.draw.randrange(10**9)}"
    file = io.BytesIO(f"The {word} is green.".encode())
    kept = await load.client.files.create(file=("a.txt", file), purpose="assistants")
    store = await load.client.vector_stores.create(name="soak")
    await load.client.vector_stores.files.create_and_poll(
        kept.id, vector_store_id=store.id, poll_interval_ms=20
    )
    found = await load.client.vector_stores.search(store.id, query=word)
    assert word in found.data[0].content[0].text
    await load.client.vector_stores.delete(store.id)
    await load.client.files.delete(kept.id)


async def converse(load: Load) -> None:
    """Add items to a conversation, let it be answered, and delete it."""
    made = await load.client.conversations.create()
    item: Any = {"type": "message", "role": "user", "content": "before"}
    await load.client.conversations.items.create(made.id, items=[item])
    await load.client.responses.create(model="echo", input="say hello", conversation=made.id)
    items = [item async for item in load.client.conversations.items.list(made.id)]
    assert len(items) == 3
    await load.client.conversations.delete(made.id)


async def misuse(load: Load) -> None:
    """Send what is wrong, in part or not at all."""
    for path, body in (
        ("responses", b"{"),
        ("runs", b'{"agent": "nobody", "input": "x"}'),
        ("chat/completions", b"[]"),
    ):
        answer = await load.http.post(
            f"/v1/{path}", content=body, headers={"content-type": "application/json"}
        )
        assert 400 <= answer.status_code < 500, answer.text
    assert (await load.http.get("/v1/responses/resp_nothing")).status_code == 404
    _, writer = await asyncio.open_connection("127.0.0.1", load.port)
    writer.write(b"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
    await writer.drain()
    writer.transport.abort()


async def look(load: Load) -> None:
    """Read the page, the list of runs and the figures of the server."""
    for path in (
        "/view",
        "/v1/runs?limit=20",
        "/v1/models",
        "/metrics",
        "/healthz",
        "/readyz",
        "/openapi.json",
    ):
        (await load.http.get(path)).raise_for_status()


VISITS: list[Callable[[Load], Awaitable[None]]] = [
    talk, leave, wait_for, chat, follow, keep_files, converse, misuse, look,
]  # fmt: skip


def _held(pid: int) -> tuple[int, int, int]:
    """Return the bytes of memory, the threads and the open files of a process."""
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return int(fields["VmRSS"].split()[0]) * 1024, int(fields["Threads"]), len(os.listdir(f"/proc/{pid}/fd"))


@pytest.mark.timeout(SECONDS + 600)
@pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")
async def test_a_server_holds_nothing_of_what_is_over(killed: Killed, tmp_path: Path) -> None:
    (tmp_path / "treadle.toml").write_text(SERVED + CLERK)
    server = killed
    with (tmp_path / "stderr").open("w") as errors:
        server.stderr = errors.fileno()
        url = server.start()
    assert server.process is not None
    pid, loop = server.process.pid, asyncio.get_running_loop()
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)
    load = Load(client, httpx.AsyncClient(base_url=url, timeout=60), random.Random(5))
    end = loop.time() + SECONDS

    async def use(number: int) -> None:
        visit = VISITS[number % len(VISITS)]
        while visit.__name__ not in load.done or loop.time() < end:
            await visit(load)
            load.done[visit.__name__] += 1
            await asyncio.sleep(load.draw.expovariate(1 / PAUSE_SECONDS))
            visit = load.draw.choice(VISITS)

    sizes: list[int] = []

    async def measure() -> None:
        while len(sizes) < 9 or loop.time() < end:
            sizes.append(_held(pid)[0])
            await asyncio.sleep(SECONDS / 120)

    async with asyncio.TaskGroup() as group:
        group.create_task(measure())
        for number in range(USERS):
            group.create_task(use(number))
    assert set(load.done) == {visit.__name__ for visit in VISITS}, load.done
    third = len(sizes) // 3
    first, last = median(sizes[third : third + 3]), median(sizes[-3:])
    print(f"{sum(load.done.values())} visits: {dict(load.done)}; {first / 1e6:.0f} to {last / 1e6:.0f} MB")
    assert last - first < GROWTH_BYTES, sizes
    await client.close()
    await load.http.aclose()
    _, threads, files = _held(pid)
    for _ in range(200):  # what clients have left is closed after a while
        if files <= 60:
            break
        await asyncio.sleep(0.1)
        _, threads, files = _held(pid)
    assert (threads <= 60, files <= 60) == (True, True), (threads, files)
    await asyncio.to_thread(server.kill, signal.SIGTERM)
    assert server.process.returncode == 0
    assert (tmp_path / "stderr").read_text() == ""
    checked = FORKS.run("-m", "treadle", "check", "--journal", "runs.db", cwd=tmp_path)
    assert checked.returncode == 0, checked.stdout
    listing = ("runs", "--journal", "runs.db", "--json", "--limit", "1000000")
    listed = FORKS.run("-m", "treadle", *listing, cwd=tmp_path)
    assert listed.returncode == 0, listed.stderr
    assert load.runs <= {json.loads(line)["run_id"] for line in listed.stdout.splitlines()}
