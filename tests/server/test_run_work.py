"""Runs that clients begin, continue, fork and export over HTTP."""

import asyncio
import base64
import gc
import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import APIStatusError, AsyncOpenAI
from tests.models.answers import answer, chunk
from tests.models.server import Received, Reply, sse, stream
from tests.server.test_relay import relaying
from tests.server.test_responses import ADD, client, config, journal, serving
from tests.server.test_runs import SERVED, TOOLS, read_stream

from treadle import Agent, Run
from treadle.core.errors import LeaseHeldError
from treadle.core.events import Noted
from treadle.core.inbox import InboxMessage
from treadle.journal.memory import MemoryJournal, MemoryWriter
from treadle.journal.protocol import Journal
from treadle.journal.run_info import RunFilter
from treadle.server.run_host import BegunTurn

__all__ = ["client", "config", "journal"]


async def post(client: AsyncOpenAI, path: str, **body: Any) -> dict[str, Any]:
    return await client.post(path, body=body, cast_to=dict)


async def ask(client: AsyncOpenAI, path: str) -> dict[str, Any]:
    return await client.get(path, cast_to=dict)


async def until_closed(client: AsyncOpenAI, run_id: str) -> None:
    async with asyncio.timeout(20):
        while (await ask(client, f"/runs/{run_id}"))["is_turn_open"]:
            await asyncio.sleep(0.02)


async def test_a_run_is_begun_and_continued(client: AsyncOpenAI, journal: Journal) -> None:
    made = await post(
        client,
        "/runs",
        agent="clerk",
        input="say hi",
        labels={"team": "a"},
        wait=True,
        files={"a.txt": "one"},
    )
    assert (made["object"], made["output"], made["is_turn_open"]) == ("run", "hi", False)
    assert made["labels"]["team"] == "a"
    run_id = made["id"]
    assert Run.load(run_id, journal).files == {"a.txt": b"one"}
    again = await post(client, f"/runs/{run_id}/turns", input="say more", wait=True)
    assert (again["id"], again["output"], again["turns"]) == (run_id, "more", 2)
    assert len(journal.runs()) == 1


def attached(content: bytes) -> dict[str, Any]:
    data = "data:application/pdf;base64," + base64.b64encode(content).decode()
    parts = [{"type": "input_text", "text": "say a"}, {"type": "input_file", "file_data": data}]
    return {"role": "user", "content": parts}


async def test_large_parts_of_messages_are_stored_with_them(client: AsyncOpenAI, journal: Journal) -> None:
    given = [bytes([number]) * 6000 for number in range(5)]
    run_id = (await post(client, "/runs", model="echo", input=[attached(given[0])], wait=True))["id"]
    await post(client, f"/runs/{run_id}/turns", input=[attached(given[1])], wait=True)
    rest = [{"role": "assistant", "content": "a"}, {"role": "user", "content": "say b"}]
    await post(client, "/runs", model="echo", input=[attached(given[2]), *rest], wait=True)
    await post(client, "/responses", model="echo", input=[attached(given[3]), *rest])
    value = base64.b64encode(given[4]).decode()
    source = {"type": "data", "mimeType": "application/pdf", "value": value}
    said = {"id": "u", "role": "user", "content": [{"type": "document", "source": source}]}
    thread = {"threadId": "t", "runId": "r", "messages": [said]}
    answer = await client._client.post(f"{client.base_url}ag-ui/echo", json=thread)
    assert "RUN_FINISHED" in answer.text
    for content in given:
        assert journal.read_blob(hashlib.sha256(content).hexdigest()) == content


async def test_a_run_goes_on_without_its_client_and_waits_for_results(
    client: AsyncOpenAI, journal: Journal
) -> None:
    asked = 'call add {"a": 1, "b": 2}\nthen\nsay three'
    made = await post(client, "/runs", model="echo", input=asked, tools=[ADD])
    run_id = made["id"]
    async with asyncio.timeout(20):
        while not (found := await ask(client, f"/runs/{run_id}"))["waits_for"]["results"]:
            await asyncio.sleep(0.02)
    ((call_id, call),) = found["waits_for"]["results"].items()
    assert call == {"name": "add", "arguments": '{"a": 1, "b": 2}'}
    await post(client, f"/runs/{run_id}/inbox", type="result", call_id=call_id, content="3")
    await until_closed(client, run_id)
    assert (await ask(client, f"/runs/{run_id}"))["output"] == "three"


async def test_a_stream_has_the_events_of_one_turn(client: AsyncOpenAI, journal: Journal) -> None:
    run_id = (await post(client, "/runs", model="echo", input="first", wait=True))["id"]
    before = journal.read(run_id)[-1].seq
    seen = []
    body = {"input": "one two three", "stream": True}
    url = f"{client.base_url}runs/{run_id}/turns"
    async with client._client.stream("POST", url, json=body) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                seen.append(json.loads(line.removeprefix("data: ")))
    numbers = [item["seq"] for item in seen if item.get("seq")]
    stored = [event.seq for event in journal.read(run_id, before)]
    assert numbers == stored[stored.index(numbers[0]) :][: len(numbers)]
    assert len(numbers) >= 4
    assert seen[-1]["type"] == "turn_completed"
    assert "text_delta" in [item["type"] for item in seen]


async def test_a_message_reaches_an_open_turn(client: AsyncOpenAI, journal: Journal) -> None:
    made = await post(
        client, "/runs", agent="curious", input='call ask_user {"question": "Which?"}\nthen\nsay ok'
    )
    run_id = made["id"]
    async with asyncio.timeout(20):
        while not (found := await ask(client, f"/runs/{run_id}"))["waits_for"]["questions"]:
            await asyncio.sleep(0.02)
    queued = await post(client, f"/runs/{run_id}/turns", input="say next")
    assert queued["is_turn_open"]
    (question_id,) = found["waits_for"]["questions"]
    await post(client, f"/runs/{run_id}/inbox", type="answer", question_id=question_id, text="this")
    async with asyncio.timeout(20):
        while (await ask(client, f"/runs/{run_id}"))["output"] != "next":
            await asyncio.sleep(0.02)


class LettingGo(MemoryJournal):
    """A journal in which a run is let go just before a message for it is stored."""

    let_go: Callable[[], None] | None = None

    def post(self, run_id: str, message: InboxMessage, blobs: Mapping[str, bytes] | None = None) -> int:
        let_go, self.let_go = self.let_go, None
        if let_go is not None:
            let_go()
        return super().post(run_id, message, blobs)


async def test_a_message_to_a_run_whose_driver_just_leaves_is_answered_once(config: Path) -> None:
    journal, loop = LettingGo(), asyncio.get_running_loop()
    async with (
        serving(config, journal) as url,
        AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client,
    ):
        run_id = (await post(client, "/runs", model="echo", input="say one", wait=True))["id"]
        writer = await journal.acquire(run_id)
        journal.let_go = lambda: asyncio.run_coroutine_threadsafe(writer.release(), loop).result()
        again = await post(client, f"/runs/{run_id}/turns", input="say two", wait=True)
        assert (again["output"], again["turns"]) == ("two", 2)
        said = [message.content for message in Run.load(run_id, journal).messages]
        assert said.count("say two") == 1


async def test_a_run_is_forked_at_an_event(client: AsyncOpenAI, journal: Journal) -> None:
    first = await post(client, "/runs", model="echo", input="hello", wait=True)
    await post(client, f"/runs/{first['id']}/turns", input="again", wait=True)
    events = journal.read(first["id"])
    end = next(event.seq for event in events if event.type == "turn_completed")
    fork = await post(
        client, f"/runs/{first['id']}/fork", at=end, input="other", labels={"kind": "fork"}, wait=True
    )
    assert (fork["output"], fork["parent_run_id"], fork["turns"]) == ("You said: other", first["id"], 2)
    assert fork["labels"]["kind"] == "fork"
    # The fork begins with the same events, and stays a run of the server.
    assert [event.type for event in journal.read(fork["id"])[1:end]] == [
        event.type for event in events[1:end]
    ]
    assert fork["labels"]["treadle.queue"] == "serve"
    listed = await ask(client, f"/runs?parent={first['id']}")
    assert [item["id"] for item in listed["data"]] == [fork["id"]]
    with pytest.raises(APIStatusError, match="cannot be forked at 999"):
        await post(client, f"/runs/{first['id']}/fork", at=999)
    with pytest.raises(APIStatusError, match="there is no model 'nobody'"):
        await post(client, f"/runs/{first['id']}/fork", at=end, input="a", agent="nobody")


async def test_a_cancelled_turn_is_over_and_a_cancelled_run_is_resumed(
    client: AsyncOpenAI, journal: Journal
) -> None:
    asked = 'call ask_user {"question": "Which?"}\nthen\nsay ok'
    run_id = (await post(client, "/runs", agent="curious", input=asked, wait=True))["id"]
    await post(client, f"/runs/{run_id}/inbox", type="cancel", reason="enough")
    assert not (await ask(client, f"/runs/{run_id}"))["is_turn_open"]
    # To resume it would do nothing, and say that it did.
    with pytest.raises(
        APIStatusError, match=r"the turn was cancelled, and is over.* fork the run at 2"
    ) as over:
        await post(client, f"/runs/{run_id}/resume", wait=True)
    assert over.value.status_code == 409
    again = await post(client, f"/runs/{run_id}/turns", input="say hi", wait=True)
    assert (again["is_turn_open"], again["turns"]) == (False, 2)
    # A run that is no session keeps its turn open when it is cancelled.
    other = await Agent("mock:echo", tools=["ask"], journal=journal).run(asked)
    await post(client, f"/runs/{other.run_id}/inbox", type="cancel")
    (question_id,) = other.questions
    await post(client, f"/runs/{other.run_id}/inbox", type="answer", question_id=question_id, text="this")
    assert (await ask(client, f"/runs/{other.run_id}"))["stop_reason"] == "cancelled"
    resumed = await post(client, f"/runs/{other.run_id}/resume", wait=True)
    assert (resumed["status"], resumed["output"]) == ("finished", "ok")
    with pytest.raises(APIStatusError, match="no session"):
        await post(client, f"/runs/{other.run_id}/turns", input="more")
    with pytest.raises(APIStatusError) as refused:
        await post(client, f"/runs/{run_id}nope/resume")
    assert refused.value.status_code == 404


async def test_what_a_client_leaves_out_or_misspells(client: AsyncOpenAI) -> None:
    run = await post(client, "/runs", model="echo", input="say one", wait=True)
    async with httpx.AsyncClient(base_url=str(client.base_url), timeout=30) as http:
        # All keys of these bodies have defaults, and so has the body.
        forked = await http.post(f"runs/{run['id']}/fork")
        assert (forked.status_code, forked.json()["parent_run_id"]) == (201, run["id"])
        resumed = await http.post(f"runs/{run['id']}/resume")
        assert resumed.status_code == 202, resumed.text
        for kind, hint in (("cancle", "did you mean 'cancel'"), (None, "known are steer, queue,")):
            refused = await http.post(f"runs/{run['id']}/inbox", json={"type": kind})
            assert refused.status_code == 400
            assert hint in refused.json()["error"]["message"]


async def test_runs_are_found_by_agent_label_text_and_time(client: AsyncOpenAI, journal: Journal) -> None:
    made = []
    for number in range(5):
        run = await post(
            client, "/runs", agent="clerk", input=f"apple {number}", labels={"n": str(number)}, wait=True
        )
        made.append(run["id"])
    other = await post(client, "/runs", model="echo", input="a Pear", wait=True)

    async def find(query: str) -> list[str]:
        return [item["id"] for item in (await ask(client, f"/runs?{query}"))["data"]]

    assert await find("agent=clerk") == made[::-1]
    assert await find("agent=echo") == [other["id"]]
    assert await find("label=n=3") == [made[3]]
    assert await find("text=pear") == [other["id"]]
    assert await find("text=APPLE&limit=2") == made[:2:-1]
    assert await find(f"text=apple&limit=2&after={made[3]}") == made[2:0:-1]
    assert await find("text=nothing") == []
    # A text is also the beginning of an id, which is longer than most words.
    assert await find(f"text={made[1][:-1]}&agent=echo") == []
    assert made[1] in await find(f"text={made[1]}")
    assert await find(f"text={made[1][:3]}") == []
    assert await find(f"created_since={other['created_at']}") == [other["id"]]
    assert await find(f"created_before={other['created_at']}&agent=echo") == []
    single = await Agent("mock:echo", journal=journal).run("a single plum")
    assert await find("text=Plum") == [single.run_id]
    await post(client, f"/runs/{made[0]}/inbox", type="note", labels={"good": "yes"}, remark="well done")
    assert await find("label=good=yes") == [made[0]]
    assert [event.body.remark for event in journal.read(made[0]) if isinstance(event.body, Noted)] == [
        "well done"
    ]


async def test_runs_are_exported(client: AsyncOpenAI, journal: Journal) -> None:
    made = [(await post(client, "/runs", model="echo", input=f"hi {n}", wait=True))["id"] for n in range(2)]

    async def export(path: str) -> Any:
        return await client._client.get(f"{client.base_url}runs/{path}")

    one = await export(f"{made[0]}/export?format=trl")
    assert one.headers["content-type"] == "application/x-ndjson"
    (row,) = [json.loads(line) for line in one.text.splitlines()]
    assert row["messages"][-1]["content"] == "You said: hi 0"
    journal_lines = (await export(f"{made[0]}/export?format=journal")).text.splitlines()
    assert len(journal_lines) >= len(journal.read(made[0]))
    both = await export("export?format=openai&agent=echo")
    assert both.headers["x-treadle-left-out"] == "0"
    assert len(both.text.splitlines()) == 2
    # The echo gives no token ids, so there is nothing to train on.
    tokens = await export(f"{made[0]}/export?format=trl_grpo")
    assert tokens.status_code == 409
    assert (await export(f"{made[0]}/export?format=nope")).status_code == 400
    assert (await export("nope/export")).status_code == 404


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"input": "a"}, "give the name of an agent"),
        ({"agent": "clerk", "model": "echo", "input": "a"}, "give the name of an agent"),
        ({"agent": "clerk", "input": ""}, "at least 1"),
        ({"agent": "clerk", "input": "a", "labels": {"treadle.owner": "me"}}, "Treadle's own"),
        ({"agent": "clerk", "input": "a", "files": {"../../a": "b"}}, "leaves the sandbox"),
        (
            {"agent": "clerk", "input": [{"type": "function_call_output", "call_id": "x", "output": "y"}]},
            "inbox",
        ),
        ({"agent": "clerk", "input": "a", "nope": 1}, "nope"),
        ({"agent": "nobody", "input": "a"}, "there is no model"),
    ],
)
async def test_what_cannot_be_begun_leaves_nothing(
    client: AsyncOpenAI, journal: Journal, body: dict[str, Any], said: str
) -> None:
    with pytest.raises(APIStatusError, match=said) as refused:
        await post(client, "/runs", **body)
    assert refused.value.status_code in (400, 404)
    assert journal.runs() == []


async def test_events_follow_from_a_number(client: AsyncOpenAI) -> None:
    run_id = (await post(client, "/runs", model="echo", input="hello", wait=True))["id"]
    async for _, data in read_stream(client, f"runs/{run_id}/events?stream=true&after_seq=2"):
        assert data["seq"] == 3
        break


async def test_what_nobody_reads_is_not_kept(client: AsyncOpenAI, journal: Journal) -> None:
    """The output of a turn does not pile up in the server if its client only waits for the end."""
    waits = {"agent": "clerk", "input": "say " + "word " * 3000}
    asked = [
        asyncio.ensure_future(post(client, "/runs", **waits, wait=True)),
        asyncio.ensure_future(client.responses.create(model="clerk", input=waits["input"], background=True)),
    ]
    most = 0
    gc.freeze()  # what the other tests left is not looked through again and again, and stays so
    while not (len(journal.runs()) == 2 and not journal.runs(RunFilter(is_turn_open=True))):
        turns = [item for item in gc.get_objects() if isinstance(item, BegunTurn)]
        most = max([most, *[0 if turn._items is None else turn._items.qsize() for turn in turns]])
        await asyncio.sleep(0.01)
    await asyncio.gather(*asked)
    assert most < 50


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("delivery", ["queue", "steer", "interrupt"])
async def test_a_message_that_comes_while_a_turn_is_driven_is_answered(
    delivery: str, is_streamed: bool, tmp_path: Path, journal: Journal
) -> None:
    """It stayed in the queue until somebody sent the run another request."""
    is_free = asyncio.Event()

    def handle(received: Received) -> Reply:
        said = received.json()["messages"]
        text = stream(sse(chunk(content=f"heard {said[-1]['content']}"), chunk("stop")))
        text.before = is_free if len(said) == 1 else None
        return text

    async with relaying(handle, tmp_path, journal) as (client, engine):
        run_id = (await post(client, "/runs", model="far", input="one"))["id"]
        async with asyncio.timeout(20):
            while not engine.requests:
                await asyncio.sleep(0.01)
        body = {"input": "two", "delivery": delivery, "wait": True, "stream": is_streamed}
        url = f"{client.base_url}runs/{run_id}/turns"
        asking = asyncio.ensure_future(client._client.post(url, json=body))
        async with asyncio.timeout(20):
            while not journal.inbox(run_id) and len(journal.read(run_id)) < 4:
                await asyncio.sleep(0.01)
        is_free.set()
        async with asyncio.timeout(20):
            told = (await asking).text
        found = await ask(client, f"/runs/{run_id}")
        assert (found["output"], found["is_turn_open"]) == ("heard two", False)
        assert found["turns"] == (1 if delivery == "steer" else 2)
        assert "heard two" in told


@pytest.mark.parametrize("kind", ["queue", "steer", "interrupt"])
async def test_a_message_to_an_idle_session_begins_its_turn(client: AsyncOpenAI, kind: str) -> None:
    run_id = (await post(client, "/runs", model="echo", input="say one", wait=True))["id"]
    await post(client, f"/runs/{run_id}/inbox", type=kind, message={"role": "user", "content": "say two"})
    async with asyncio.timeout(20):
        while (await ask(client, f"/runs/{run_id}"))["output"] != "two":
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("delivery", ["queue", "steer", "interrupt"])
async def test_a_message_that_comes_while_a_turn_ends_is_answered(
    delivery: str, tmp_path: Path, journal: Journal
) -> None:
    """The turn was open when the request came, and over when the message was there, which nobody answered then."""

    def handle(received: Received) -> Reply:
        return Reply(answer(f"heard {received.json()['messages'][-1]['content']}"))

    async with relaying(handle, tmp_path, journal) as (client, _):
        for number in range(40):
            run_id = (await post(client, "/runs", model="far", input="one"))["id"]
            await asyncio.sleep(number / 10_000)
            body = {"input": "two", "delivery": delivery, "wait": True}
            async with asyncio.timeout(20):
                await client._client.post(f"{client.base_url}runs/{run_id}/turns", json=body)
            found = await ask(client, f"/runs/{run_id}")
            assert (found["output"], found["is_turn_open"]) == ("heard two", False), number


class HeldWriter(MemoryWriter):
    """A writer whose release waits until the lease was refused to somebody, once."""

    _journal: "HeldJournal"

    async def release(self) -> None:
        if not self._journal.is_releasing.is_set():
            self._journal.is_releasing.set()
            async with asyncio.timeout(20):
                await self._journal.is_refused.wait()
        await super().release()


class HeldJournal(MemoryJournal):
    def __init__(self) -> None:
        super().__init__()
        self.is_releasing, self.is_refused = asyncio.Event(), asyncio.Event()

    def create(self, run_id: str) -> HeldWriter:
        return HeldWriter(self, run_id, is_new=True)

    async def acquire(self, run_id: str) -> MemoryWriter:
        try:
            return await super().acquire(run_id)
        except LeaseHeldError:
            self.is_refused.set()
            raise


@pytest.mark.parametrize("delivery", ["queue", "steer", "interrupt"])
@pytest.mark.parametrize("way", ["turns", "inbox"])
async def test_a_message_that_comes_while_the_lease_is_released_is_answered(
    way: str, delivery: str, tmp_path: Path
) -> None:
    """Its sender was told that the run was driven, but its driver had looked for messages for the last time."""

    def handle(received: Received) -> Reply:
        return Reply(answer(f"heard {received.json()['messages'][-1]['content']}"))

    journal = HeldJournal()
    async with relaying(handle, tmp_path, journal) as (client, _), asyncio.timeout(20):
        run_id = (await post(client, "/runs", model="far", input="one"))["id"]
        await journal.is_releasing.wait()
        if way == "turns":
            await post(client, f"/runs/{run_id}/turns", input="two", delivery=delivery, wait=True)
        else:
            said = {"role": "user", "content": "two"}
            assert (await post(client, f"/runs/{run_id}/inbox", type=delivery, message=said))["is_driven"]
        while (await ask(client, f"/runs/{run_id}"))["output"] != "heard two":
            await asyncio.sleep(0.02)
        assert not (await ask(client, f"/runs/{run_id}"))["is_turn_open"]


async def test_a_message_that_comes_while_a_response_is_made_is_answered(
    tmp_path: Path, journal: Journal
) -> None:
    is_free = asyncio.Event()

    def handle(received: Received) -> Reply:
        said = received.json()["messages"]
        return Reply(answer(f"heard {said[-1]['content']}"), before=is_free if len(said) == 3 else None)

    async with relaying(handle, tmp_path, journal) as (client, engine):
        first = await client.responses.create(model="far", input="one")
        making = asyncio.ensure_future(
            client.responses.create(model="far", input="two", previous_response_id=first.id)
        )
        async with asyncio.timeout(20):
            while len(engine.requests) < 2:
                await asyncio.sleep(0.01)
        (info,) = journal.runs()
        message = {"role": "user", "content": "three"}
        await post(client, f"/runs/{info.run_id}/inbox", type="queue", message=message)
        is_free.set()
        async with asyncio.timeout(20):
            assert (await making).output_text == "heard two"
            while (await ask(client, f"/runs/{info.run_id}"))["output"] != "heard three":
                await asyncio.sleep(0.02)


async def test_a_message_to_a_run_that_nobody_drives_yet_can_be_waited_for(
    tmp_path: Path, journal: Journal
) -> None:
    """A server that was started again continues one run at a time here."""
    config = tmp_path / "treadle.toml"
    (tmp_path / "tools.py").write_text(TOOLS)
    config.write_text(f"{SERVED}\n[serve]\nwindow = 1\n")

    async with serving(config, journal) as url, AsyncOpenAI(base_url=f"{url}/v1", api_key="any") as client:
        for _ in range(3):
            await post(client, "/runs", agent="napper", input="call nap {}\nthen\n" * 8 + "say one")
    async with serving(config, journal) as url, AsyncOpenAI(base_url=f"{url}/v1", api_key="any") as client:
        waiting = [info for info in journal.runs(RunFilter(is_turn_open=True)) if not info.is_driven]
        run_id = waiting[-1].run_id
        answered = await post(client, f"/runs/{run_id}/turns", input="say two", wait=True)
    assert (answered["output"], answered["turns"], answered["is_turn_open"]) == ("two", 2, False)
