"""Idempotency keys: the same request has one effect and one answer, also after the server was killed."""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import httpx2
import pytest
from openai import AsyncOpenAI
from tests.conftest import IS_FULL
from tests.server.test_access import KEYS
from tests.server.test_responses import client, config, journal, serving
from tests.server.test_runs import Killed, killed

from treadle import open_journal
from treadle.core.events import TurnStarted
from treadle.journal.protocol import Journal

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
    assert len(journal.runs()) == 1
    other = await post(client, path, {**body, "input": "another"}, "k1")
    assert (other.status_code, other.json()["error"]["code"]) == (422, "idempotency_key_reused")
    assert (
        await post(client, "runs", {"model": "echo", "input": "a"}, "k1")
    ).status_code == 422 or path == "runs"
    assert (await post(client, path, body, "k2")).is_success
    assert len(journal.runs()) == 2 or path.startswith("ag-ui")


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


@pytest.mark.sets(1)
@pytest.mark.parametrize(
    ("path", "more"),
    [
        ("responses", {"model": "napper"}),
        ("responses", {"model": "napper", "stream": True}),
        ("runs", {"agent": "napper", "wait": True}),
        ("turns", {"wait": True}),
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
