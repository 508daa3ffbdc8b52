"""Attacks on a server with keys: each must leave other users' runs, the server and its machine as they were."""

import asyncio
import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.server.test_access import KEYS, KIM, request, send, status_of
from tests.server.test_responses import journal, serving

from treadle.core.events import digests_of
from treadle.journal.protocol import Journal
from treadle.server.admission.access import hash_key

__all__ = ["journal"]
EVE = "Authorization: Bearer eves-key"
MORE = f"""
[serve.keys.eve]
sha256 = "{hash_key("eves-key")}"
"""


@pytest.fixture
async def url(tmp_path: Path, journal: Journal) -> AsyncIterator[str]:
    path = tmp_path / "treadle.toml"
    path.write_text(KEYS + MORE)
    async with serving(path, journal) as served:
        yield served


def body_of(answer: bytes) -> Any:
    return json.loads(answer.partition(b"\r\n\r\n")[2])


def post(path: str, body: Any, *headers: str, method: str = "POST") -> bytes:
    return request(path, *(headers or (EVE,)), method=method, body=json.dumps(body))


async def make_run(url: str) -> str:
    """Begin a run of Kim that waits for an answer, and return its id."""
    asked = {
        "agent": "curious",
        "input": 'call ask_user {"question": "Which?"}\nthen\nsay secret',
        "wait": True,
    }
    return str(body_of(await send(url, post("/v1/runs", asked, KIM)))["id"])


MESSAGE = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "a"}]}
TRESPASS = {
    "get": lambda run: request(f"/v1/runs/{run}", EVE),
    "messages": lambda run: request(f"/v1/runs/{run}/messages", EVE),
    "events": lambda run: request(f"/v1/runs/{run}/events", EVE),
    "stream": lambda run: request(f"/v1/runs/{run}/events?stream=true", EVE),
    "export": lambda run: request(f"/v1/runs/{run}/export?format=journal", EVE),
    "cancel": lambda run: post(f"/v1/runs/{run}/inbox", {"type": "cancel"}),
    "answer": lambda run: post(f"/v1/runs/{run}/inbox", {"type": "answer", "question_id": "x", "text": "y"}),
    "note": lambda run: post(f"/v1/runs/{run}/inbox", {"type": "note", "labels": {"a": "b"}}),
    "turn": lambda run: post(f"/v1/runs/{run}/turns", {"input": "a"}),
    "fork": lambda run: post(f"/v1/runs/{run}/fork", {}),
    "resume": lambda run: post(f"/v1/runs/{run}/resume", {}),
    "delete": lambda run: request(f"/v1/runs/{run}", EVE, method="DELETE"),
    "response": lambda run: request(f"/v1/responses/resp_{run}_1_0", EVE),
    "response input": lambda run: request(f"/v1/responses/resp_{run}_1_0/input_items", EVE),
    "response cancel": lambda run: post(f"/v1/responses/resp_{run}_1_0/cancel", {}),
    "response delete": lambda run: request(f"/v1/responses/resp_{run}_1_0", EVE, method="DELETE"),
    "continue": lambda run: post(
        "/v1/responses", {"model": "echo", "input": "a", "previous_response_id": f"resp_{run}_1_0"}
    ),
    "conversation": lambda run: request(f"/v1/conversations/conv_{run}", EVE),
    "items": lambda run: request(f"/v1/conversations/conv_{run}/items", EVE),
    "conversation delete": lambda run: request(f"/v1/conversations/conv_{run}", EVE, method="DELETE"),
    "join": lambda run: post("/v1/responses", {"model": "echo", "input": "a", "conversation": f"conv_{run}"}),
}


@pytest.mark.sets(len(TRESPASS))
@pytest.mark.parametrize("attack", TRESPASS.values(), ids=TRESPASS)
async def test_nobody_reaches_the_runs_of_others(url: str, journal: Journal, attack: Any) -> None:
    run = await make_run(url)
    before = [event.to_json() for event in journal.read(run)]
    answer = await send(url, attack(run))
    assert status_of(answer) == 404
    assert b"secret" not in answer
    assert [event.to_json() for event in journal.read(run)] == before
    assert len(journal.runs()) == 1


HIDDEN = {
    "all": "/v1/runs",
    "owner": "/v1/runs?label=treadle.owner=kim",
    "text": "/v1/runs?text=secret",
    "agent": "/v1/runs?agent=curious",
    "forks": "/v1/runs?parent=RUN",
    "export": "/v1/runs/export?format=journal",
    "export by owner": "/v1/runs/export?label=treadle.owner=kim&format=openai",
}


@pytest.mark.parametrize("path", HIDDEN.values(), ids=HIDDEN)
async def test_lists_have_only_ones_own_runs(url: str, path: str) -> None:
    run = await make_run(url)
    answer = await send(url, request(path.replace("RUN", run), EVE))
    assert status_of(answer) == 200
    assert run.encode() not in answer
    assert b"secret" not in answer


async def test_a_task_of_a2a_and_a_thread_of_ag_ui_belong_to_their_owner(url: str, journal: Journal) -> None:
    made = post("/v1/a2a/curious", {"id": 1, "method": "SendMessage", "params": {"message": MESSAGE}}, KIM)
    task = body_of(await send(url, made))["result"]["task"]
    for method in ("GetTask", "CancelTask", "SubscribeToTask"):
        answer = await send(
            url, post("/v1/a2a/curious", {"id": 1, "method": method, "params": {"id": task["id"]}})
        )
        assert body_of(answer)["error"]["code"] == -32001
    for name in ("taskId", "contextId"):
        params = {"message": {**MESSAGE, name: task["contextId" if name == "contextId" else "id"]}}
        await send(url, post("/v1/a2a/curious", {"id": 1, "method": "SendMessage", "params": params}))
    thread = {"threadId": "shared", "runId": "r", "messages": [{"id": "1", "role": "user", "content": "a"}]}
    for key in (KIM, EVE):
        assert status_of(await send(url, post("/v1/ag-ui/echo", thread, key))) == 200
    # The same names of another client are other runs.
    owners = [(info.labels["treadle.owner"], info.turns) for info in journal.runs()]
    assert sorted(owners) == [("eve", 1), ("eve", 1), ("kim", 1), ("kim", 1)]


async def test_no_request_names_code_to_be_run(url: str, tmp_path: Path) -> None:
    code = tmp_path / "code.py"
    code.write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\ndef weigh(message):\n    return 1.0\n")
    made = post("/v1/runs", {"model": "echo", "input": "a", "wait": True}, KIM)
    run = body_of(await send(url, made))["id"]
    for place in ("export?format=tokens&", f"{run}/export?format=tokens&", f"{run}/export?format=openai&"):
        for mask in (f"{code}:weigh", f"all,{code}:weigh", "os:abort", str(code)):
            answer = await send(url, request(f"/v1/runs/{place}mask={quote(mask, '')}", KIM))
            assert (status_of(answer), b"loss mask" in answer) == (400, True), (place, mask, answer)
    assert not (tmp_path / "ran").exists()


async def test_a_content_is_not_kept_for_another_key(url: str, journal: Journal) -> None:
    made = post("/v1/runs", {"model": "echo", "input": "a", "files": {"a": "b"}, "wait": True}, KIM)
    run = body_of(await send(url, made))["id"]
    digest = next(digest for event in journal.read(run) for digest in digests_of(event.body))
    answer = await send(url, request(f"/v1/view/runs/{run}/contents/{digest}", KIM))
    assert status_of(answer) == 200
    assert b"vary: authorization, x-api-key" in answer.lower()


@pytest.mark.parametrize("place", ["/healthz", "/readyz", "/view"])
async def test_an_idempotency_key_without_a_key_is_no_fault_of_the_server(url: str, place: str) -> None:
    answer = await send(url, request(place, "Idempotency-Key: a", method="POST", body="{}"))
    assert status_of(answer) == 405


async def test_nobody_takes_the_id_of_a_run_of_others(url: str, journal: Journal) -> None:
    run = await make_run(url)
    before = [event.to_json() for event in journal.read(run)]
    asked = {"model": "echo", "messages": [{"role": "user", "content": "say a"}]}
    answer = await send(url, post("/v1/chat/completions", asked, EVE, f"x-treadle-run: {run}"))
    assert status_of(answer) == 409
    assert [event.to_json() for event in journal.read(run)] == before


FORGED = {
    "owner of a new run": ("/v1/runs", {"model": "echo", "input": "a", "labels": {"treadle.owner": "kim"}}),
    "queue": ("/v1/runs", {"model": "echo", "input": "a", "labels": {"treadle.queue": "x"}}),
    "owner of a fork": ("/v1/runs/OWN/fork", {"input": "a", "labels": {"treadle.owner": "kim"}}),
    "owner by a note": ("/v1/runs/OWN/inbox", {"type": "note", "labels": {"treadle.owner": "kim"}}),
    "no such agent": ("/v1/runs", {"agent": "../../etc/passwd", "input": "a"}),
    "files above the root": ("/v1/runs", {"model": "echo", "input": "a", "files": {"../../x": "y"}}),
    "files with nul": ("/v1/runs", {"model": "echo", "input": "a", "files": {"a\0b": "y"}}),
    "tools of the server": ("/v1/runs", {"model": "echo", "input": "a", "tools": [{"type": "shell"}]}),
    "a tool by path": (
        "/v1/responses",
        {"model": "echo", "input": "a", "tools": [{"type": "function", "name": "../x"}]},
    ),
    "more steps": ("/v1/runs", {"model": "echo", "input": "a", "max_steps": -1}),
    "a huge fork": ("/v1/runs/OWN/fork", {"at": 10**30}),
    "a fork at nothing": ("/v1/runs/OWN/fork", {"at": 2**53 - 1}),
    "a local image": (
        "/v1/responses",
        {
            "model": "echo",
            "input": [
                {"role": "user", "content": [{"type": "input_image", "image_url": "file:///etc/passwd"}]}
            ],
        },
    ),
    "half of a pair": ("/v1/runs", {"model": "echo", "input": "\ud800"}),
    "half of a pair as a label": ("/v1/runs", {"model": "echo", "input": "a", "labels": {"\ud800": "a"}}),
}


@pytest.mark.sets(len(FORGED))
@pytest.mark.parametrize(("path", "body"), FORGED.values(), ids=FORGED)
async def test_bodies_cannot_take_what_is_not_theirs(
    url: str, journal: Journal, path: str, body: dict[str, Any]
) -> None:
    own = body_of(await send(url, post("/v1/runs", {"model": "echo", "input": "a", "wait": True})))["id"]
    answer = await send(url, post(path.replace("OWN", own), body))
    assert 400 <= status_of(answer) < 500, answer
    assert b"root:" not in answer
    assert [info.labels.get("treadle.owner") for info in journal.runs()] == ["eve"]


async def test_a_note_says_who_has_written_it(url: str, journal: Journal) -> None:
    own = body_of(await send(url, post("/v1/runs", {"model": "echo", "input": "a", "wait": True})))["id"]
    note = {"type": "note", "remark": "well done", "by": "kim"}
    assert status_of(await send(url, post(f"/v1/runs/{own}/inbox", note))) == 202
    assert [event.body.by for event in journal.read(own) if event.type == "noted"] == ["eve"]  # type: ignore[union-attr]


def raw(*lines: str, body: str = "") -> bytes:
    return ("\r\n".join([*lines, "", ""]) + body).encode("latin-1")


GET = "GET /v1/models HTTP/1.1"
WIRE = {
    "two lengths": (
        raw(
            "POST /v1/runs HTTP/1.1",
            "Host: localhost",
            EVE,
            "Content-Length: 1",
            "Content-Length: 9",
            body="{}",
        ),
        (400,),
    ),
    "length and chunks": (
        raw(
            "POST /v1/runs HTTP/1.1",
            "Host: localhost",
            EVE,
            "Content-Length: 2",
            "Transfer-Encoding: chunked",
            body="{}",
        ),
        (400,),
    ),
    "chunks, spelled oddly": (
        raw(
            "POST /v1/runs HTTP/1.1", "Host: localhost", EVE, "Transfer-Encoding: xchunked", body="0\r\n\r\n"
        ),
        (400,),
    ),
    "a negative length": (
        raw("POST /v1/runs HTTP/1.1", "Host: localhost", EVE, "Content-Length: -5"),
        (400,),
    ),
    "a negative chunk": (
        raw("POST /v1/runs HTTP/1.1", "Host: localhost", EVE, "Transfer-Encoding: chunked", body="-5\r\n"),
        (400,),
    ),
    "a space before the colon": (
        raw(GET, "Host: localhost", "Connection: close", "Authorization : Bearer roots-key"),
        (400, 401),
    ),
    "a folded header": (
        raw(GET, "Host: localhost", "Connection: close", "X-A: b", " Authorization: Bearer roots-key"),
        (400, 401),
    ),
    "nul in a header": (
        raw(GET, "Host: localhost", "Connection: close", "X-Api-Key: ro\0ots-key"),
        (400, 401),
    ),
    "no host": (raw("GET /v1/models HTTP/1.1", "Connection: close"), (400, 401, 403)),
    "another protocol": (raw("PRI * HTTP/2.0", "", "SM"), (400, 505)),
    "not HTTP": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 64 + b"\r\n\r\n", (400,)),
    "a whole URL": (
        raw("GET http://evil.example/v1/models HTTP/1.1", "Host: localhost", "Connection: close"),
        (400, 401, 404),
    ),
    "CONNECT": (
        raw("CONNECT evil.example:443 HTTP/1.1", "Host: evil.example", "Connection: close"),
        (400, 401, 404, 405),
    ),
    "TRACE": (raw("TRACE /v1/models HTTP/1.1", "Host: localhost", "Connection: close", EVE), (405,)),
    "a long path": (
        raw(f"GET /{'a' * 100_000} HTTP/1.1", "Host: localhost", "Connection: close"),
        (400, 401, 414, 431),
    ),
    "a long header": (
        raw(GET, "Host: localhost", "Connection: close", f"X-A: {'a' * 1_000_000}"),
        (400, 431),
    ),
    "many headers": (
        raw(GET, "Host: localhost", "Connection: close", *[f"X-{n}: {n}" for n in range(20_000)]),
        (400, 431),
    ),
    "a newline in the path": (
        raw("GET /v1/models/%0d%0aSet-Cookie:%20a=b HTTP/1.1", "Host: localhost", "Connection: close", EVE),
        (404,),
    ),
    "a key in the query": (
        raw("GET /v1/models?api_key=eves-key HTTP/1.1", "Host: localhost", "Connection: close"),
        (401,),
    ),
    "a key with more": (raw(GET, "Host: localhost", "Connection: close", EVE + "x"), (401,)),
    "two keys": (
        raw(GET, "Host: localhost", "Connection: close", "Authorization: Bearer x", "X-Api-Key: y"),
        (401,),
    ),
    "a websocket": (
        raw(
            GET,
            "Host: localhost",
            "Upgrade: websocket",
            "Connection: Upgrade, close",
            "Sec-WebSocket-Key: eA==",
            "Sec-WebSocket-Version: 13",
        ),
        (400, 401),
    ),
    "a page of nowhere": (raw(GET, "Host: localhost", "Connection: close", EVE, "Origin: null"), (403,)),
    "a foreign form": (
        raw(
            "POST /v1/runs HTTP/1.1",
            "Host: localhost",
            EVE,
            "Origin: https://evil.example",
            "Content-Type: text/plain",
            "Content-Length: 2",
            body="{}",
        ),
        (403,),
    ),
    "packed": (
        raw(
            "POST /v1/runs HTTP/1.1",
            "Host: localhost",
            EVE,
            "Connection: close",
            "Content-Type: application/json",
            "Content-Encoding: gzip",
            "Content-Length: 4",
            body="\x1f\x8b\x08\x00",
        ),
        (400, 415),
    ),
    "a form": (
        raw(
            "POST /v1/runs HTTP/1.1",
            "Host: localhost",
            EVE,
            "Connection: close",
            "Content-Type: application/x-www-form-urlencoded",
            "Content-Length: 7",
            body="input=a",
        ),
        (400, 415),
    ),
    "an endless number": (request("/v1/runs/x/events?after_seq=" + "9" * 40, EVE), (400, 404)),
    "an endless event id": (request("/v1/runs/OWN/events", EVE, "Last-Event-ID: " + "9" * 40), (400,)),
    "not a number": (request("/v1/runs?created_since=nan", EVE), (200, 400)),
    "too large a number": (request("/v1/runs?created_before=1e999", EVE), (200, 400)),
    "nul in a label": (request("/v1/runs?label=a=%00", EVE), (200, 400)),
    "SQL in a label": (request("/v1/runs?label=a'%20OR%201=1--=b", EVE), (200,)),
    "SQL in an order": (request("/v1/runs?after=x'%20OR%20'1'='1", EVE), (404,)),
    "wildcards": (request("/v1/runs?text=%25", EVE), (200,)),
}


@pytest.mark.sets(10)
@pytest.mark.parametrize(("attack", "statuses"), WIRE.values(), ids=WIRE)
async def test_odd_requests_are_refused(
    url: str, journal: Journal, attack: bytes, statuses: tuple[int, ...]
) -> None:
    run = await make_run(url)
    own = body_of(await send(url, post("/v1/runs", {"model": "echo", "input": "a", "wait": True})))["id"]
    try:
        answer = await send(url, attack.replace(b"OWN", own.encode()))
    except ConnectionError:  # the server has closed the connection while more was coming
        answer = b""
    assert not answer or status_of(answer) in statuses, answer[:300]
    assert b"Set-Cookie" not in answer.partition(b"\r\n\r\n")[0]
    assert run.encode() not in answer
    assert len(journal.runs()) == 2
    assert status_of(await send(url, request("/v1/models", EVE))) == 200


SCHEMAS = ("http://127.0.0.1:PORT/schema.json", "file:///etc/passwd", "https://169.254.169.254/latest")


@pytest.fixture
def trap() -> Iterator[tuple[int, list[bytes]]]:
    """Yield the port of a server that notes who connects to it."""
    heard: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                heard.append(b"connected")
                connection.close()

        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1], heard


@pytest.mark.parametrize("address", SCHEMAS)
async def test_no_schema_is_fetched(
    url: str, journal: Journal, trap: tuple[int, list[bytes]], address: str
) -> None:
    port, heard = trap
    schema = {"type": "object", "properties": {"a": {"$ref": address.replace("PORT", str(port))}}}
    tool = {"type": "function", "name": "add", "parameters": schema}
    asked = {"model": "echo", "input": 'call add {"a": 1}', "wait": True}
    for body in ({**asked, "tools": [tool]}, {**asked, "output_schema": schema}):
        answer = await send(url, post("/v1/runs", body))
        assert status_of(answer) < 500, answer
        assert b"root:" not in answer
    assert heard == []


async def test_a_slow_head_ends_and_others_are_served_meanwhile(tmp_path: Path, journal: Journal) -> None:
    path = tmp_path / "treadle.toml"
    path.write_text(KEYS + MORE)  # a body may take one second, and so may a head
    async with serving(path, journal) as url:
        host, _, port = url.removeprefix("http://").partition(":")
        slow = [await asyncio.open_connection(host, int(port)) for _ in range(50)]
        for _, writer in slow:
            writer.write(b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX-A: ")
        assert status_of(await send(url, request("/v1/models", EVE))) == 200
        async with asyncio.timeout(20):
            for reader, writer in slow:
                await reader.read()
                writer.close()


@pytest.mark.parametrize(
    "place", ["runs/RUN/events?stream=true", "responses/resp_RUN_1_0?stream=true", "a2a"]
)
async def test_the_stream_of_a_run_that_is_deleted_ends(
    url: str, caplog: pytest.LogCaptureFixture, place: str
) -> None:
    asked = {"model": "curious", "input": 'call ask_user {"question": "Which?"}', "background": True}
    run = body_of(await send(url, post("/v1/responses", asked, KIM)))["id"].split("_")[1]
    while not body_of(await send(url, request(f"/v1/runs/{run}", KIM)))["waits_for"].get("questions"):
        await asyncio.sleep(0.01)
    begun = request(f"/v1/{place.replace('RUN', run)}", KIM)
    if place == "a2a":
        follow = {"id": 1, "method": "SubscribeToTask", "params": {"id": f"{run}.1"}}
        begun = post("/v1/a2a/curious", follow, KIM)
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(begun)
    seen = await reader.readuntil(b"data: ")
    assert status_of(seen) == 200
    assert status_of(await send(url, request(f"/v1/runs/{run}", KIM, method="DELETE"))) == 200
    async with asyncio.timeout(20):
        assert (await reader.read()).endswith(b"0\r\n\r\n")
    writer.close()
    assert not [record for record in caplog.records if record.levelname == "ERROR"]


@pytest.mark.parametrize("method", ["SendMessage", "SendStreamingMessage"])
async def test_an_id_that_cannot_be_repeated_begins_nothing(url: str, journal: Journal, method: str) -> None:
    asked = {"id": "\ud800", "method": method, "params": {"message": MESSAGE}}
    answer = await send(url, post("/v1/a2a/curious", asked))
    assert (status_of(answer), b"surrogate" in answer) == (400, True)
    assert journal.runs() == []


async def test_html_is_never_a_page(url: str) -> None:
    page = "<script>alert(1)</script><img src=x onerror=alert(1)>"
    made = {"model": "echo", "input": page, "labels": {"title": page, page: page}, "wait": True}
    run = body_of(await send(url, post("/v1/runs", made)))["id"]
    paths = ["", "/messages", "/events", "/export?format=trl", f"/{page}", "?a=<b>"]
    for path in [
        *[f"/v1/runs/{run}{path.replace(' ', '%20')}" for path in paths],
        "/v1/runs",
        "/v1/models/<b>",
    ]:
        head = (await send(url, request(path, EVE))).partition(b"\r\n\r\n")[0].lower()
        assert b"text/html" not in head
        assert b"x-content-type-options: nosniff" in head, (path, head)
