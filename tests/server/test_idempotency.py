"""Idempotency keys: the same request has one effect and one answer, also after the server was killed."""

import asyncio
import json
import random
import sqlite3
import time
from pathlib import Path
from typing import Any

import httpx2
import pytest
from msgspec.structs import replace
from openai import AsyncOpenAI
from tests.conftest import IS_FULL
from tests.server.test_access import KEYS
from tests.server.test_responses import client, config, journal, serving
from tests.server.test_runs import SERVED, TOOLS, Killed, killed

from treadle import open_journal
from treadle.core.events import RunStarted, TurnStarted
from treadle.journal.protocol import Journal
from treadle.journal.resources import ResourceFilter
from treadle.knowledge.files.file_store import FILE
from treadle.knowledge.files.vector_stores import STORE
from treadle.server.responses.response_records import CONVERSATION, page_of_responses

__all__ = ["client", "config", "journal", "killed"]


async def post(client: AsyncOpenAI, path: str, body: Any, key: str | None) -> httpx2.Response:
    headers = {} if key is None else {"Idempotency-Key": key}
    return await client._client.post(f"{client.base_url}{path}", json=body, headers=headers, timeout=60)


BODIES = {
    "responses": {"model": "echo", "input": "hello"},
    "responses, streamed": {"model": "echo", "input": "hello there", "stream": True},
    "responses, in the background": {"model": "echo", "input": "hello", "background": True},
    "conversations": {"metadata": {"a": "b"}},
    "chat/completions": {"model": "echo", "messages": [{"role": "user", "content": "hello"}]},
    "runs": {"agent": "clerk", "input": "say hi", "wait": True},
    "runs, streamed": {"agent": "clerk", "input": "say hi", "stream": True},
    "ag-ui/echo": {"threadId": "t", "runId": "r", "messages": [{"id": "1", "role": "user", "content": "a"}]},
    "a2a/echo": {
        "id": 1,
        "method": "SendMessage",
        "params": {"message": {"messageId": "m", "parts": [{"text": "hello"}]}},
    },
}


MORE_BODIES = {
    **BODIES,
    "chat/completions, streamed": {**BODIES["chat/completions"], "stream": True},
    "chat/completions, of an agent": {**BODIES["chat/completions"], "model": "clerk"},
    "messages": {"model": "echo", "max_tokens": 9, "messages": [{"role": "user", "content": "hello"}]},
    "a2a/echo, in a context": {
        "id": 1,
        "method": "SendStreamingMessage",
        "params": {"message": {"messageId": "m", "contextId": "c", "parts": [{"text": "hello"}]}},
    },
    "../mcp": {
        "jsonrpc": "2.0",
        "id": 1,
        "method": "tools/call",
        "params": {"name": "echo", "arguments": {"message": "hello"}},
    },
    "vector_stores": {"name": "books"},
}


async def forget_answers(journal: Journal, *keys: str) -> None:
    """Leave keys as a server does that dies after its work was stored, and before its answers were kept."""
    for key in keys:
        while (record := journal.resources.get("request", key, 0.0)) is None or record.state != "completed":
            await asyncio.sleep(0.02)
        body = json.loads(record.body) | {"beat_at": 0.0, "status": 0}
        assert journal.resources.replace(record, replace(record, state="in_progress", body=json.dumps(body)))


def effects_of(journal: Journal) -> list[Any]:
    """Return what requests have made: the runs with their turns, and the resources."""
    kept = [
        item.resource_id
        for kind in (FILE, STORE, CONVERSATION)
        for item in journal.resources.page(ResourceFilter(kind=kind), time.time())
    ]
    return [*sorted((info.run_id, info.turns) for info in journal.runs()), *sorted(kept)]


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_the_first_response_of_a_conversation_is_stored_at_once(
    client: AsyncOpenAI, journal: Journal, tmp_path: Path, is_streamed: bool
) -> None:
    """Its run, its turn, what it repeats of its request, and whose request it was."""
    items: Any = [
        {"type": "message", "role": "system", "content": "You are brief."},
        {"type": "message", "role": "user", "content": "Mine is tea."},
        {"type": "message", "role": "assistant", "content": "I see."},
    ]
    made = await client.conversations.create(items=items)
    body = {"model": "echo", "input": "hello", "conversation": made.id, "stream": is_streamed}
    first = await post(client, "responses", body, "k")
    assert first.is_success, first.text
    (info,) = journal.runs()
    with sqlite3.connect(tmp_path / "runs.db") as db:
        (events,) = db.execute("SELECT count FROM frames ORDER BY seq LIMIT 1").fetchone()
    db.close()
    stored = [event.body for event in journal.read(info.run_id, until_seq=events)]
    assert [type(body) for body in stored[:2]] == [RunStarted, TurnStarted]
    (kept,) = page_of_responses(journal, ResourceFilter(kind=""))
    await forget_answers(journal, "k")
    again = await post(client, "responses", body, "k")
    assert kept.resource_id in again.text
    assert "You are brief." in journal.read(info.run_id)[0].body.system_message
    assert [info.turns for info in journal.runs()] == [1]
    assert (await post(client, "responses", body, "other key")).is_success
    assert [info.turns for info in journal.runs()] == [2]


@pytest.mark.parametrize(("name", "body"), MORE_BODIES.items(), ids=MORE_BODIES)
async def test_a_request_whose_answer_died_with_its_server_has_one_effect(
    client: AsyncOpenAI, journal: Journal, name: str, body: dict[str, Any]
) -> None:
    path = name.partition(",")[0]
    first = await post(client, path, body, "k")
    made = effects_of(journal)
    assert first.is_success, first.text
    assert made
    await forget_answers(journal, "k")
    again = await post(client, path, body, "k")
    assert again.is_success, again.text
    assert "idempotency-replayed" not in again.headers
    assert effects_of(journal) == made
    assert again.headers.get("x-treadle-run") == first.headers.get("x-treadle-run")
    if "hello" in json.dumps(body) and "background" not in name:
        assert "You said: hello" in again.text


async def test_an_answer_is_kept_before_its_client_has_it(client: AsyncOpenAI, journal: Journal) -> None:
    """So a server that is killed then gives the same answer, with the same time in it."""
    for number in range(20):
        for path in ("chat/completions", "responses", "runs"):
            key = f"{path} {number}"
            assert (await post(client, path, BODIES[path], key)).is_success
            record = journal.resources.get("request", key, 0.0)
            assert record is not None
            assert record.state == "completed"


async def test_a_chat_that_is_continued_goes_on_once(client: AsyncOpenAI, journal: Journal) -> None:
    messages: list[Any] = [{"role": "user", "content": "one"}]
    for number in range(3):
        body = {"model": ("echo", "clerk")[number % 2], "messages": messages}
        first = await post(client, "chat/completions", body, f"k{number}")
        made = effects_of(journal)
        await forget_answers(journal, f"k{number}")
        again = await post(client, "chat/completions", body, f"k{number}")
        assert effects_of(journal) == made
        answer = first.json()["choices"][0]["message"]["content"]
        assert again.json()["choices"][0]["message"]["content"] == answer
        messages += [{"role": "assistant", "content": answer}, {"role": "user", "content": f"more {number}"}]


async def test_files_and_batches_are_made_once(client: AsyncOpenAI, journal: Journal) -> None:
    headers, batches = {"Idempotency-Key": "f"}, set()
    for _ in range(2):
        form: Any = {"files": {"file": ("a.txt", b"text")}, "data": {"purpose": "assistants"}}
        file = (await client._client.post(f"{client.base_url}files", headers=headers, **form)).json()["id"]
        store = (await post(client, "vector_stores", {"name": "books"}, "s")).json()["id"]
        batch = await post(client, f"vector_stores/{store}/file_batches", {"file_ids": [file]}, "b")
        batches.add(batch.json()["id"])
        await forget_answers(journal, "f", "s", "b")
    assert (len(effects_of(journal)), len(batches)) == (2, 1)


async def test_errors_in_answers_of_json_rpc_are_not_kept(client: AsyncOpenAI) -> None:
    message = {"messageId": "m", "parts": [{"text": "hello"}]}
    asked = {"id": 1, "method": "SendMessage", "params": {"message": {**message, "taskId": "gone.1"}}}
    tool = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}
    call = {**tool, "params": {"name": "echo", "arguments": {"message": "a", "run_id": "gone"}}}
    for path, body in (("a2a/echo", asked), ("../mcp", call)):
        for _ in range(2):
            answer = await post(client, path, body, "k" + path)
            assert answer.status_code == 200
            assert "error" in answer.text.lower()
            assert "idempotency-replayed" not in answer.headers


@pytest.mark.parametrize(("name", "body"), BODIES.items(), ids=BODIES)
async def test_the_same_request_has_one_effect_and_one_answer(
    client: AsyncOpenAI, journal: Journal, name: str, body: dict[str, Any]
) -> None:
    path = name.partition(",")[0]
    # Those that come while the first is under way get its answer too.
    answers = await asyncio.gather(*[post(client, path, body, "k1") for _ in range(4)])
    answers.append(await post(client, path, body, "k1"))
    assert answers[0].is_success, answers[0].text
    assert {answer.text for answer in answers} == {answers[0].text}
    assert answers[-1].headers["idempotency-replayed"] == "true"
    assert answers[-1].headers["content-type"] == answers[0].headers["content-type"]
    assert len(effects_of(journal)) == 1
    other = await post(client, path, {**body, "input": "another"}, "k1")
    assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_key_reused")
    assert (
        await post(client, "runs", {"model": "echo", "input": "a"}, "k1")
    ).status_code == 422 or path == "runs"
    assert (await post(client, path, body, "k2")).is_success
    assert len(effects_of(journal)) == 2 or path.startswith("ag-ui")


async def test_the_next_turn_and_a_fork_have_one_effect(client: AsyncOpenAI, journal: Journal) -> None:
    run_id = (await post(client, "runs", {"model": "echo", "input": "a", "wait": True}, None)).json()["id"]
    for path, body in (
        (f"runs/{run_id}/turns", {"input": "b", "wait": True}),
        (f"runs/{run_id}/fork", {"input": "c"}),
    ):
        first, again = [await post(client, path, body, f"key {path}") for _ in range(2)]
        assert first.text == again.text
    assert sorted(info.turns for info in journal.runs()) == [2, 3]


async def test_a_client_that_leaves_can_ask_again(client: AsyncOpenAI, journal: Journal) -> None:
    body = {"model": "echo", "input": "word " * 2000, "stream": True}
    url = f"{client.base_url}responses"
    async with client._client.stream("POST", url, json=body, headers={"Idempotency-Key": "k"}) as answer:
        async for line in answer.aiter_lines():
            if line.startswith("event: response.output_text.delta"):
                break
    again = await post(client, "responses", body, "k")
    assert '"status":"completed"' in again.text
    assert len(journal.runs()) == 1


async def test_a_key_does_not_expire_before_its_answer(tmp_path: Path, journal: Journal) -> None:
    """The clock is set a day forward while the work is done, or the work takes as long."""
    (tmp_path / "tools.py").write_text(TOOLS)
    (tmp_path / "treadle.toml").write_text(SERVED)
    asked = {"agent": "napper", "input": "call nap {}\nthen\n" * 10 + "say done", "wait": True}
    async with (
        serving(tmp_path / "treadle.toml", journal) as url,
        AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client,
    ):
        asking = asyncio.ensure_future(post(client, "runs", asked, "k"))
        async with asyncio.timeout(30):
            while not journal.runs():
                await asyncio.sleep(0.01)
        await asyncio.to_thread(journal.resources.add, [], time.time() + 25 * 3600)
        first = await asking
        again = await post(client, "runs", asked, "k")
    assert (first.status_code, again.headers.get("idempotency-replayed")) == (201, "true")
    assert (len(journal.runs()), again.text) == (1, first.text)


async def test_what_was_refused_can_be_tried_again(client: AsyncOpenAI, journal: Journal) -> None:
    for _ in range(2):
        refused = await post(client, "runs", {"agent": "nobody", "input": "a"}, "k")
        assert refused.status_code == 404
        assert "idempotency-replayed" not in refused.headers
    assert (await post(client, "runs", {"agent": "clerk", "input": "a"}, "k")).status_code == 201
    for key in ("", "é", "a" * 256):
        raw = {"Idempotency-Key": key.encode("latin-1")}
        answer = await client._client.post(f"{client.base_url}runs", json={}, headers=raw)
        assert answer.status_code == 400


async def test_a_key_belongs_to_its_owner(tmp_path: Path, journal: Journal) -> None:
    (tmp_path / "treadle.toml").write_text(KEYS)
    async with serving(tmp_path / "treadle.toml", journal) as url, httpx2.AsyncClient() as http:
        texts = []
        for owner in ("kims-key", "bos-key", "kims-key"):
            headers = {"authorization": f"Bearer {owner}", "Idempotency-Key": "k"}
            body = {"model": "echo", "input": "a", "wait": True}
            texts.append((await http.post(f"{url}/v1/runs", json=body, headers=headers)).json()["id"])
        assert texts[0] == texts[2] != texts[1]
        assert len(journal.runs()) == 2


@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("responses", {"model": "napper"}),
        ("responses", {"model": "napper", "stream": True}),
        ("runs", {"agent": "napper", "wait": True}),
        ("turns", {"wait": True}),
        ("chat/completions", {"model": "napper"}),
        ("ag-ui/napper", {"threadId": "t", "runId": "r"}),
    ],
)
async def test_an_answer_survives_a_kill(
    killed: Killed, tmp_path: Path, path: str, more: dict[str, Any]
) -> None:
    """Clients that lose the connection ask again with the same key, and their work is done once."""
    draw, kills = random.Random(5), 20 if IS_FULL else 1
    url = killed.start()
    asked = "call nap {}\nthen\ncall nap {}\nthen\ncall nap {}\nthen\nsay done"
    client = AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0)
    texts: list[str] = []

    async def insist(where: str, body: dict[str, Any], key: str, wanted: str) -> httpx2.Response:
        while True:
            try:
                answer = await post(client, where, body, key)
            except httpx2.TransportError:
                await asyncio.sleep(0.05)
                continue
            if answer.is_success and wanted in answer.text:
                return answer
            assert answer.status_code in (200, 201, 202, 409, 503), answer.text
            await asyncio.sleep(0.05)

    async def ask(number: int) -> None:
        where, body = path, {**more, "input": asked}
        if path.startswith(("chat", "ag-ui")):
            body = {**more, "messages": [{"id": "1", "role": "user", "content": asked}]}
        if path.startswith("ag-ui"):
            body["threadId"] = f"t{number}"
        if path == "turns":
            first = {"agent": "napper", "input": "say hi", "wait": True}
            where = f"runs/{(await insist('runs', first, f'first {number}', 'hi')).json()['id']}/turns"
        answer = await insist(where, body, f"key {number}", "done")
        texts.append(answer.text)
        assert (await insist(where, body, f"key {number}", "done")).text == answer.text

    asking = [asyncio.ensure_future(ask(number)) for number in range(4)]
    for _ in range(kills):
        await asyncio.sleep(0.15 + draw.random() * 0.2)
        await asyncio.to_thread(killed.kill)
        await asyncio.to_thread(killed.start)
    async with asyncio.timeout(120):
        await asyncio.gather(*asking)
    killed.kill()
    with open_journal(tmp_path / "runs.db") as journal:
        runs = journal.runs()
        assert len(runs) == 4
        for info in runs:
            turns = [event for event in journal.read(info.run_id) if isinstance(event.body, TurnStarted)]
            assert len(turns) == (2 if path == "turns" else 1)
    assert len({json.dumps(text) for text in texts}) == 4
