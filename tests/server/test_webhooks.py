"""Webhooks: what is sent, as OpenAI's SDK verifies it, and what is never sent."""

import asyncio
import json
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from openai import AsyncOpenAI, InvalidWebhookSignatureError, OpenAI
from tests.conftest import IS_FULL
from tests.server.test_responses import CONFIG, journal, serving
from tests.server.test_run_work import ask, post
from tests.server.test_runs import SERVED, TOOLS, Killed

from treadle import Agent
from treadle.core.errors import ConfigError
from treadle.journal.protocol import Journal
from treadle.journal.resources import Resource
from treadle.models.config.tables import ServeTable
from treadle.server.responses.response_records import delete_run
from treadle.server.webhooks import Webhooks, sign

__all__ = ["journal"]
SECRET = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"
SDK = OpenAI(api_key="any", webhook_secret=SECRET)


class Receiver:
    """A program that gets events, over a real socket."""

    def __init__(self) -> None:
        self.heard: list[tuple[dict[str, str], bytes]] = []
        self.answers: list[str] = []
        """The status lines of the next answers; 200 afterwards."""
        self.url = ""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        headers = {
            name.lower(): value
            for name, _, value in [line.partition(": ") for line in head.split("\r\n")[1:]]
        }
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        self.heard.append((headers, body))
        status = self.answers.pop(0) if self.answers else "200 OK"
        writer.write(f"HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".encode())
        await writer.drain()
        writer.close()

    def events(self) -> list[Any]:
        """Return the events, each verified by the SDK."""
        return [SDK.webhooks.unwrap(body.decode(), headers) for headers, body in self.heard]

    async def until(self, count: int) -> list[Any]:
        async with asyncio.timeout(40):
            while len(self.heard) < count:
                await asyncio.sleep(0.02)
        return self.events()


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    made = Receiver()
    server = await asyncio.start_server(made.serve, "127.0.0.1", 0)
    made.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
    yield made
    server.close()


def configure(url: str, more: str = "") -> str:
    return f"""
[serve.webhooks.crm]
url = "{url}"
secret_env = "HOOK_SECRET"
allow_private = true
{more}
"""


@pytest.fixture(autouse=True)
def secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOOK_SECRET", SECRET)


async def test_a_receiver_is_told_of_turns_and_waits(
    tmp_path: Path, journal: Journal, receiver: Receiver
) -> None:
    (tmp_path / "treadle.toml").write_text(CONFIG + configure(receiver.url))
    async with (
        serving(tmp_path / "treadle.toml", journal) as url,
        AsyncOpenAI(base_url=f"{url}/v1", api_key="any") as client,
    ):
        made = await client.responses.create(model="echo", input="hello", background=True)
        (first,) = await receiver.until(1)
        assert (first.type, first.data.id, first.object) == ("response.completed", made.id, "event")
        assert (await client.responses.retrieve(first.data.id)).output_text == "You said: hello"
        asked = 'call ask_user {"question": "Which?"}\nthen\nsay ok'
        run = await post(client, "/runs", agent="curious", input=asked, wait=True)
        waiting = json.loads((await receiver.until(2))[1].model_dump_json())
        assert (waiting["type"], waiting["data"]["run_id"]) == ("run.waiting", run["id"])
        (question_id,) = (await ask(client, f"/runs/{run['id']}"))["waits_for"]["questions"]
        await post(client, f"/runs/{run['id']}/inbox", type="answer", question_id=question_id, text="this")
        last = (await receiver.until(3))[2]
        assert last.type == "response.completed"
        assert (await client.responses.retrieve(last.data.id)).output_text == "ok"
        await post(client, f"/runs/{run['id']}/turns", input="say more", wait=True)
        assert (await receiver.until(4))[3].type == "response.completed"
        # A fork has the two turns before it, of which the receiver knows.
        forked = await post(client, f"/runs/{run['id']}/fork", input="say third", wait=True)
        await post(client, f"/runs/{forked['id']}/turns", input="say fourth", wait=True)
        told = [event.data.model_dump() for event in (await receiver.until(6))[4:]]
        assert [(data["run_id"], data["turn"]) for data in told] == [(forked["id"], 3), (forked["id"], 4)]
        assert (await client.responses.retrieve(told[0]["id"])).output_text == "third"
    ids = [headers["webhook-id"] for headers, _ in receiver.heard]
    assert len(set(ids)) == 6
    assert SECRET not in "".join([event.to_json().decode() for event in journal.read(run["id"])])
    headers, body = receiver.heard[0]
    for name, value in (
        ("webhook-id", "evt_x"),
        ("webhook-timestamp", "1"),
        ("webhook-signature", "v1,AAAA"),
    ):
        with pytest.raises((InvalidWebhookSignatureError, ValueError)):
            SDK.webhooks.unwrap(body.decode(), {**headers, name: value})


async def test_only_the_events_that_a_receiver_wants_are_sent(
    tmp_path: Path, journal: Journal, receiver: Receiver
) -> None:
    more = 'events = ["run.waiting"]'
    (tmp_path / "treadle.toml").write_text(CONFIG + configure(receiver.url, more))
    async with (
        serving(tmp_path / "treadle.toml", journal) as url,
        AsyncOpenAI(base_url=f"{url}/v1", api_key="any") as client,
    ):
        await post(client, "/runs", agent="echo", input="hello", wait=True)
        asked = 'call ask_user {"question": "Which?"}\nthen\nsay ok'
        await post(client, "/runs", agent="curious", input=asked, wait=True)
        (event,) = await receiver.until(1)
        assert event.type == "run.waiting"


async def test_a_failure_is_tried_again_with_the_same_id(journal: Journal, receiver: Receiver) -> None:
    from treadle import Agent

    table = ServeTable.model_validate(
        {"webhooks": {"crm": {"url": receiver.url, "secret_env": "HOOK_SECRET", "allow_private": True}}}
    )
    hooks = Webhooks(journal, table, pauses_seconds=(0.1, 0.1, 0.1))
    receiver.answers = ["500 Oops", "302 Found\r\nLocation: http://169.254.169.254/", "429 Slow down"]
    working = asyncio.ensure_future(hooks.work())
    await Agent("mock:echo", journal=journal, hooks=[hooks]).run("hello")
    await receiver.until(4)
    working.cancel()
    assert len({headers["webhook-id"] for headers, _ in receiver.heard}) == 1
    assert receiver.events()[-1].type == "response.completed"


async def test_a_run_has_a_receiver_of_its_own_but_none_within(
    tmp_path: Path, journal: Journal, receiver: Receiver
) -> None:
    path = tmp_path / "treadle.toml"
    path.write_text(CONFIG)
    async with (
        serving(path, journal) as url,
        AsyncOpenAI(base_url=f"{url}/v1", api_key="any") as client,
    ):
        answer = await client._client.post(
            f"{url}/v1/runs", json={"agent": "echo", "input": "a", "webhook": "https://example.com"}
        )
        assert (answer.status_code, "webhook_secret_env" in answer.text) == (400, True)
    path.write_text(CONFIG + '\n[serve]\nwebhook_secret_env = "HOOK_SECRET"\n')
    async with (
        serving(path, journal) as url,
        AsyncOpenAI(base_url=f"{url}/v1", api_key="any") as client,
    ):
        for address in ("ftp://a.example", "http://me:secret@a.example/", "nonsense", "file:///etc/passwd"):
            body = {"agent": "echo", "input": "a", "webhook": address}
            assert (await client._client.post(f"{url}/v1/runs", json=body)).status_code == 400
        # Addresses of this machine and its network are looked up, and refused.
        for host in ("127.0.0.1", "localhost", "[::1]", "0x7f.1", "2130706433", "[::ffff:127.0.0.1]"):
            address = receiver.url.replace("127.0.0.1", host)
            body = {"agent": "echo", "input": "a", "webhook": address}
            refused = await client._client.post(f"{url}/v1/runs", json=body)
            assert refused.status_code == 400
            assert "no request is made" in refused.json()["error"]["message"]
        assert (journal.runs(), list(journal.resources.unfinished("webhook"))) == ([], [])
    assert receiver.heard == []


async def test_no_delivery_is_forgotten_among_many(journal: Journal, receiver: Receiver) -> None:
    """What is to be told is found although thousands of other deliveries wait for their next attempt."""
    later = msgspec.json.encode({"url": receiver.url, "due_at": time.time() + 9999}).decode()
    waiting: Any = {"kind": "webhook", "resource_id": "hook", "state": "in_progress", "created_at": 0.0}
    journal.resources.add(
        [Resource(**waiting, parent=f"a{number}", body=later) for number in range(11_000)], 0.0
    )
    due = msgspec.json.encode({"url": receiver.url}).decode()
    run = await Agent("mock:echo", journal=journal).run("hi")
    journal.resources.add([Resource(**waiting, parent=run.run_id, body=due)], 0.0)
    hooks = Webhooks(journal, ServeTable(webhook_secret_env="HOOK_SECRET"))
    assert hooks._find_left() == [run.run_id]
    delete_run(journal, run.run_id)
    assert hooks._find_left() == []


async def test_a_clock_that_was_set_back_delays_no_delivery(journal: Journal, receiver: Receiver) -> None:
    """A pause of 30 seconds does not last an hour."""
    run = await Agent("mock:echo", journal=journal).run("hi")
    table = {"url": receiver.url, "secret_env": "HOOK_SECRET", "allow_private": True}
    hooks = Webhooks(journal, ServeTable.model_validate({"webhooks": {"crm": table}}))
    told = {"url": receiver.url, "attempts": 1, "due_at": time.time() + 3610, "pause_seconds": 30.0}
    waiting: Any = {"kind": "webhook", "resource_id": "crm", "state": "in_progress", "created_at": 0.0}
    journal.resources.add(
        [Resource(**waiting, parent=run.run_id, body=msgspec.json.encode(told).decode())], 0.0
    )
    working = asyncio.ensure_future(hooks.work())
    (event,) = await receiver.until(1)
    working.cancel()
    assert event.type == "response.completed"


@pytest.mark.skipif(not IS_FULL, reason="long: it waits until the lease of a killed process has ended")
async def test_a_receiver_is_told_although_the_server_was_killed(tmp_path: Path, receiver: Receiver) -> None:
    (tmp_path / "treadle.toml").write_text(SERVED + configure(receiver.url))
    (tmp_path / "tools.py").write_text(TOOLS)
    server = Killed(tmp_path)
    url = await asyncio.to_thread(server.start)
    try:
        async with AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
            receiver.answers = ["500 Oops"] * 3
            made = [
                await post(client, "/runs", agent="napper", input="call nap {}\nthen\nsay done")
                for _ in range(3)
            ]
            await receiver.until(2)
            await asyncio.to_thread(server.kill)
            receiver.answers = []
            await asyncio.to_thread(server.start)
            told: set[str] = set()
            async with asyncio.timeout(60):
                while told != {item["id"] for item in made}:
                    await asyncio.sleep(0.1)
                    told = {json.loads(body)["data"]["run_id"] for _, body in receiver.heard[3:]}
    finally:
        server.kill()
    assert len({headers["webhook-id"] for headers, _ in receiver.heard}) == 3


@pytest.mark.parametrize(
    "url", ["http://127.0.0.1:9/a", "http://[::1]/a", "https://localhost", "http://10.1.2.3/"]
)
def test_a_receiver_of_a_private_network_is_refused_unless_it_is_meant(journal: Journal, url: str) -> None:
    given = {"url": url, "secret_env": "HOOK_SECRET"}
    with pytest.raises(ConfigError, match="allow_private = true"):
        Webhooks(journal, ServeTable.model_validate({"webhooks": {"a": given}}))
    Webhooks(journal, ServeTable.model_validate({"webhooks": {"a": {**given, "allow_private": True}}}))
    public = {**given, "url": "https://a.example"}
    Webhooks(journal, ServeTable.model_validate({"webhooks": {"a": public}}))
    with pytest.raises(ConfigError, match="take another one"):
        Webhooks(journal, ServeTable.model_validate({"webhooks": {"run": public}}))


def test_secrets_are_read_and_missing_ones_reported(
    journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = ServeTable.model_validate(
        {"webhooks": {"a": {"url": "https://a.example", "secret_env": "NOT_SET"}}}
    )
    with pytest.raises(ConfigError, match="set the environment variable NOT_SET"):
        Webhooks(journal, table)
    monkeypatch.setenv("NOT_SET", "whsec_!")
    with pytest.raises(ConfigError, match="base64") as refused:
        Webhooks(journal, table)
    assert "whsec_!" not in str(refused.value)
    headers = dict(sign(b"plain secret", "evt_1", b"{}"))
    SDK.webhooks.verify_signature("{}", headers, secret="plain secret")
