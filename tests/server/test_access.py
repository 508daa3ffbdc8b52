"""Who may ask a server, and what it does not let in: keys, hosts, origins, sizes, and the runs of others."""

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from tests.models.answers import answer, chunk
from tests.models.server import Received, Reply, sse, stream
from tests.server.test_relay import relaying
from tests.server.test_responses import CONFIG, journal, serving

from treadle import Run
from treadle.core.errors import ConfigError, JournalError
from treadle.core.texts.hiding import hide_model, hide_servers
from treadle.journal.protocol import Journal
from treadle.journal.registry import open_journal
from treadle.journal.run_info import RunFilter
from treadle.server.admission.access import hash_key
from treadle.server.api_server import load_served, serve_api

__all__ = ["journal"]
KEYS = f"""
{CONFIG}
[serve]
max_body_bytes = 20000
body_timeout_seconds = 1
allow_origins = ["https://app.example"]

[serve.keys.kim]
sha256 = "{hash_key("kims-key")}"

[serve.keys.bo]
sha256 = "{hash_key("bos-key")}"
requests_per_minute = 5

[serve.keys.root]
sha256 = "{hash_key("roots-key")}"
scopes = ["run", "read", "admin"]

[serve.keys.old]
sha256 = "{hash_key("old-key")}"
expires = 2020-01-01

[serve.keys.reader]
sha256 = "{hash_key("readers-key")}"
scopes = ["read"]
"""


@pytest.fixture
async def url(tmp_path: Path, journal: Journal) -> AsyncIterator[str]:
    path = tmp_path / "treadle.toml"
    path.write_text(KEYS)
    async with serving(path, journal) as served:
        yield served


def client_of(url: str, key: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0)


async def send(url: str, raw: bytes) -> bytes:
    """Send bytes to a server, and return all that it answers until it closes the connection."""
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(raw)
    await writer.drain()
    try:
        async with asyncio.timeout(20):
            return await reader.read()
    finally:
        writer.close()


def request(path: str, *headers: str, method: str = "GET", body: str = "", host: str = "localhost") -> bytes:
    lines = [f"{method} {path} HTTP/1.1", f"Host: {host}", "Connection: close", *headers]
    if body:
        lines += ["Content-Type: application/json", f"Content-Length: {len(body.encode())}"]
    return ("\r\n".join(lines) + "\r\n\r\n" + body).encode()


def status_of(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


KIM = "Authorization: Bearer kims-key"


async def test_a_name_that_looks_like_a_place_continues_no_conversation_of_others(
    tmp_path: Path, journal: Journal
) -> None:
    """The responses of one client are not continued by the chats of another, whatever their names are."""
    path, other = tmp_path / "treadle.toml", hash_key("others-key")
    key = f'[serve.keys."kim/responses"]\nsha256 = "{other}"\nscopes = ["run", "read"]\n'
    path.write_text(f"{KEYS}\n{key}")
    async with serving(path, journal) as url:
        said = await client_of(url, "kims-key").responses.create(model="clerk", input="hello")
        messages: Any = [
            {"role": "user", "content": "hello"},
            {"role": "assistant", "content": said.output_text},
            {"role": "user", "content": "more"},
        ]
        await client_of(url, "others-key").chat.completions.create(model="clerk", messages=messages)
    assert sorted(info.labels["treadle.owner"] for info in journal.runs()) == ["kim", "kim/responses"]


async def test_a_client_sees_only_its_own_runs(url: str, journal: Journal) -> None:
    kim, bo, root = client_of(url, "kims-key"), client_of(url, "bos-key"), client_of(url, "roots-key")
    made = await kim.responses.create(model="echo", input="secret")
    run_id = journal.runs()[0].run_id
    conversation = f"conv_{run_id}"
    attempts: list[Any] = [
        lambda: bo.responses.retrieve(made.id),
        lambda: bo.responses.create(model="echo", input="a", previous_response_id=made.id),
        lambda: bo.responses.create(model="echo", input="a", conversation=conversation),
        lambda: bo.conversations.retrieve(conversation),
    ]
    for attempt in attempts:
        with pytest.raises(openai.NotFoundError):
            await attempt()
    for path in ("", "/messages", "/events", "/events?stream=true"):
        answer = await send(url, request(f"/v1/runs/{run_id}{path}", "Authorization: Bearer readers-key"))
        assert status_of(answer) == 404, path
    for caller, seen in ((kim, 1), (root, 1)):
        assert len((await caller.get("/runs", cast_to=dict))["data"]) == seen
    # A history of somebody else's conversation is a new run of one's own.
    history: Any = [
        {"role": "user", "content": "secret"},
        {"role": "assistant", "content": "You said: secret"},
        {"role": "user", "content": "more"},
    ]
    await bo.responses.create(model="echo", input=history)
    assert len(journal.runs()) == 2


@pytest.mark.parametrize(
    ("headers", "said"),
    [
        ([], "there is no API key"),
        (["Authorization: Bearer wrong"], "is wrong"),
        (["Authorization: Basic a2ltOmtpbXMta2V5"], "there is no API key"),
        (["Authorization: Bearer old-key"], "has expired"),
        (["X-Api-Key: wrong"], "is wrong"),
    ],
)
async def test_keys_are_needed(url: str, headers: list[str], said: str) -> None:
    answer = await send(url, request("/v1/models", *headers))
    assert status_of(answer) == 401
    assert said in answer.decode()
    assert b"kims-key" not in answer
    assert status_of(await send(url, request("/healthz"))) == 200


async def test_a_key_does_what_its_scopes_allow(url: str) -> None:
    reader = client_of(url, "readers-key")
    assert [item.id async for item in reader.models.list()]
    with pytest.raises(openai.PermissionDeniedError, match="scope 'run'"):
        await reader.responses.create(model="echo", input="a")


async def test_a_key_may_ask_so_often(url: str) -> None:
    statuses = [
        status_of(await send(url, request("/v1/models", "Authorization: Bearer bos-key"))) for _ in range(8)
    ]
    assert statuses[:5] == [200] * 5
    assert 429 in statuses[5:]
    assert status_of(await send(url, request("/v1/models", KIM))) == 200


@pytest.mark.parametrize("kind", ["answer", "stream", "background", "chat", "run"])
async def test_a_key_has_so_many_runs_under_way(kind: str, tmp_path: Path, journal: Journal) -> None:
    """A run counts from its request on, before it is stored."""
    may_answer = asyncio.Event()

    def reply(request: Received) -> Reply:
        made = (
            stream(sse(chunk(content="hi"), chunk("stop")))
            if request.json().get("stream")
            else Reply(answer())
        )
        return replace(made, before=may_answer)

    key = f'[serve.keys.kim]\nsha256 = "{hash_key("any")}"\nmax_open_runs = 1\n'
    async with relaying(reply, tmp_path, journal, key) as (client, _):

        async def ask(kind: str) -> None:
            given: Any = {"model": "far", "input": "hello"}
            if kind == "chat":
                messages: Any = [{"role": "user", "content": "hello"}]
                await client.chat.completions.create(model="far", messages=messages)
            elif kind == "run":
                await client.post("/runs", body=given, cast_to=object)
            elif kind == "stream":
                [event async for event in await client.responses.create(stream=True, **given)]
            else:
                await client.responses.create(background=kind == "background", **given)

        asked = [asyncio.ensure_future(ask(kind)) for _ in range(6)]
        refused: set[asyncio.Future[None]] = set()
        try:
            async with asyncio.timeout(20):
                while len(refused) < 5:
                    refused = {it for it in asked if it.done() and it.exception()}
                    await asyncio.sleep(0.01)
        finally:
            may_answer.set()
        for it in refused:
            with pytest.raises(openai.RateLimitError, match="1 runs of this key are under way"):
                await it
        await asyncio.gather(*[it for it in asked if it not in refused])
        while journal.runs(RunFilter(is_turn_open=True)):
            await asyncio.sleep(0.01)
        await ask("answer")


async def test_a_page_is_told_why_it_was_refused(url: str) -> None:
    asked = request("/v1/models", "Authorization: Bearer wrong", "Origin: https://app.example")
    refused = await send(url, asked)
    assert status_of(refused) == 401
    assert b"access-control-allow-origin: https://app.example" in refused.lower()


def test_an_origin_that_no_browser_sends_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "treadle.toml"
    for origin in ("*", "https://app.example/", "app.example"):
        path.write_text(f'{CONFIG}\n[serve]\nallow_origins = ["{origin}"]\n')
        with pytest.raises(ConfigError, match=r"allow_origins: '.*' is no origin; give it"):
            load_served(path, None)


def test_a_key_has_one_owner(tmp_path: Path) -> None:
    path = tmp_path / "treadle.toml"
    path.write_text(
        f'{CONFIG}\n[serve.keys.kim]\nsha256 = "{"a" * 64}"\n[serve.keys.bo]\nsha256 = "{"a" * 64}"\n'
    )
    with pytest.raises(ConfigError, match="'kim' and 'bo' have the same key"):
        load_served(path, None)


async def test_names_of_hosts_have_no_case_and_rates_may_be_below_one(
    tmp_path: Path, journal: Journal
) -> None:
    path = tmp_path / "treadle.toml"
    key = f'[serve.keys.kim]\nsha256 = "{hash_key("kims-key")}"\nrequests_per_minute = 0.01\n'
    path.write_text(f'{CONFIG}\n[serve]\nallow_hosts = ["App.Example"]\n{key}')
    async with serving(path, journal) as url:
        assert status_of(await send(url, request("/v1/models", KIM, host="app.example"))) == 200
        refused = await send(url, request("/v1/models", KIM, host="APP.example"))
        assert status_of(refused) == 429
        assert int(refused.lower().split(b"retry-after: ")[1].split(b"\r")[0]) > 5000


async def test_pages_of_other_origins_may_not_ask(url: str) -> None:
    body = json.dumps({"model": "echo", "input": "a"})
    foreign = request("/v1/responses", KIM, "Origin: https://evil.example", method="POST", body=body)
    assert status_of(await send(url, foreign)) == 403
    own = await send(url, request("/v1/models", KIM, "Origin: https://app.example"))
    assert status_of(own) == 200
    assert b"access-control-allow-origin: https://app.example" in own.lower()
    asked = ("Origin: https://app.example", "Access-Control-Request-Method: POST")
    assert status_of(await send(url, request("/v1/responses", *asked, method="OPTIONS"))) == 200


async def test_without_keys_only_this_machine_may_ask(tmp_path: Path, journal: Journal) -> None:
    path = tmp_path / "treadle.toml"
    path.write_text(CONFIG)
    async with serving(path, journal) as url:
        assert status_of(await send(url, request("/v1/models"))) == 200
        # A name that a page's owner lets stand for this machine.
        assert status_of(await send(url, request("/v1/models", host="evil.example"))) == 403
        assert status_of(await send(url, request("/v1/models", "Origin: http://localhost:3000"))) == 403
    with pytest.raises(ConfigError, match="treadle serve --new-key"):
        await serve_api(load_served(path, None), journal, "0.0.0.0", 0, print)


def post(path: str, body: str) -> bytes:
    return request(path, KIM, method="POST", body=body)


def post_raw(rest: str) -> bytes:
    """Return a request whose last headers and body are written as they are."""
    return f"POST /v1/responses HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{KIM}\r\n{rest}".encode()


CHUNKS = ("2000\r\n" + "a" * 0x2000 + "\r\n") * 3
HOSTILE = {
    "large": (post("/v1/responses", '{"input": "' + "a" * 30_000 + '"}'), 413),
    "endless": (post_raw("Content-Length: 99999999999999999999\r\n\r\n"), 400),
    "large chunks": (post_raw(f"Transfer-Encoding: chunked\r\n\r\n{CHUNKS}0\r\n\r\n"), 413),
    "slow": (post_raw("Content-Length: 100\r\n\r\n{"), 408),
    "smuggled": (
        post_raw(
            "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /v1/runs HTTP/1.1\r\n\r\n"
        ),
        400,
    ),
    "deep": (post("/v1/responses", '{"model": "echo", "input": ' + "[" * 9000 + "]" * 9000 + "}"), 400),
    "cut": (post("/v1/responses", '{"model": "echo"'), 400),
    "a list": (post("/v1/responses", "[]"), 400),
    "odd message": (post("/v1/messages", '{"model": 5}'), 400),
    "odd chat": (post("/v1/chat/completions", '{"model": "echo", "messages": {"a": 1}}'), 400),
    "traversal": (request("/v1/runs/..%2f..%2fetc%2fpasswd", KIM), 404),
    "nul": (request("/v1/runs/%00", KIM), 404),
    "no such inbox": (post("/v1/runs/x/inbox", '{"type": "cancel"}'), 404),
    "many": (request("/v1/runs?limit=100000000", KIM), 400),
    "no such place": (request("/v1/runs?after=nope", KIM), 404),
    "no label": (request("/v1/runs?label=nope", KIM), 400),
    "emoji": (request("/v1/conversations/conv_%F0%9F%92%A9", KIM), 404),
    "large number": (request("/v1/responses/resp_x_99999999999999999999_1", KIM), 404),
    "no such path": (request("/nothing", KIM), 404),
    "no such method": (request("/v1/models", KIM, method="PATCH"), 405),
}


@pytest.mark.parametrize(
    "sent", ["Idempotency-Key: {}", "Authorization: Bearer {}", "x-treadle-run: {}", "x-treadle-labels: a={}"]
)
async def test_a_header_that_counts_once_is_sent_once(url: str, journal: Journal, sent: str) -> None:
    both = f"{sent.format('one')}\r\n{sent.format('two')}"
    for path in ("/v1/responses", "/v1/chat/completions"):
        body = '{"model": "echo", "input": "hi", "messages": [{"role": "user", "content": "hi"}]}'
        raw = await send(url, post(path, body).replace(b"\r\n\r\n", f"\r\n{both}\r\n\r\n".encode(), 1))
        assert status_of(raw) == 400
        name = sent.partition(":")[0].lower()
        assert f"the request has the header '{name}' more than once" in raw.decode()
    assert journal.runs() == []
    # Others may come as often as a client likes.
    more = request("/v1/models", f"{KIM}\r\nAccept: text/html\r\nAccept: */*")
    assert status_of(await send(url, more)) == 200


@pytest.mark.parametrize(("raw", "status"), HOSTILE.values(), ids=HOSTILE)
async def test_hostile_requests_are_refused(url: str, raw: bytes, status: int) -> None:
    assert status_of(await send(url, raw)) == status
    assert status_of(await send(url, request("/v1/models", KIM))) == 200


async def test_what_the_operator_has_to_mend_is_no_fault_of_the_client(
    tmp_path: Path, journal: Journal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    path = tmp_path / "treadle.toml"
    path.write_text('[models.fast]\nmodel = "openai:gpt-5-mini"\n[models.echo]\nmodel = "mock:echo"\n')
    async with serving(path, journal) as url:
        client = client_of(url, "x")
        for temperature in (None, 0.5):
            with pytest.raises(openai.InternalServerError, match="OPENAI_API_KEY") as refused:
                await client.responses.create(model="fast", input="x", temperature=temperature)
            assert refused.value.status_code == 503
            assert refused.value.code == "agent_unavailable"


async def test_a_large_picture_of_a_client_is_kept(url: str, journal: Journal) -> None:
    picture = base64.b64encode(bytes(range(256)) * 24).decode()
    part = {"type": "input_image", "image_url": f"data:image/png;base64,{picture}"}
    message: Any = {"role": "user", "content": [{"type": "input_text", "text": "x"}, part]}
    await client_of(url, "kims-key").responses.create(model="echo", input=[message])
    (info,) = journal.runs()
    asked = (await asyncio.to_thread(Run.load, info.run_id, journal)).messages[0]
    assert journal.read_blob(asked.parts[0].digest or "") == bytes(range(256)) * 24


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("http://vllm:80: 500, see http://vllm.org/errors", "the server: 500, see http://vllm.org/errors"),
        ("http://vllm:80 failed; http://vllm:8000 too.", "the server failed; the server too."),
        ("http://vllm failed at http://vllm/v1/chat", "the server failed at the server"),
        ("http://10.1.1.1/x and https://a:b@host.org/x failed", "the server and the server failed"),
        (
            "https://host.org/v1/chat?key=sk-1 and https://host.org/x?k=1 failed",
            "the server and the server failed",
        ),
        (
            "see https://host.org/docs. No file '/home/op/a b', /v1/runs",
            "see https://host.org/docs. No file 'a file of the server b', /v1/runs",
        ),
        ("http://vllm failed; see http://vllm.org/errors", "the server failed; see http://vllm.org/errors"),
        (
            "HTTP://db:8000/v1 and [fe80::1%eth0]:80 failed at [12:30:45]",
            "the server and the server failed at [12:30:45]",
        ),
        ("overloaded on 10.0.0.5:8000, file:///srv/log", "overloaded on the server, the server"),
    ],
)
def test_the_address_of_a_server_is_hidden_and_no_other_is_cut(text: str, told: str) -> None:
    assert hide_servers(text) == told


@pytest.mark.parametrize(
    "name",
    ["m-1", "m-1-2026-01", "m-1:latest", "ft:m-1-mini:org::4f", "org/m-1", "org/big-m-1_v2", "M-1.awq"],
)
def test_names_that_derive_from_that_of_a_model_are_hidden(name: str) -> None:
    told = hide_servers(
        f"model 'm-1' failed: '{name}' is overloaded, use \"{name}\", not {name}. The form-1 is m-11."
    )
    assert hide_model(f"{name} and m-1-fast", "m-1", "m-1-fast") == "m-1-fast and m-1-fast"
    assert told == (
        "the model failed: 'the model' is overloaded, use \"the model\", not the model. The form-1 is m-11."
    )


def test_a_model_whose_name_is_a_word_hides_no_words() -> None:
    assert hide_servers("model 'a' failed: a file is missing") == "the model failed: a file is missing"
    told = "cannot echo: {} and model={} failed in /bin/echo, the echo-server"
    assert hide_model(told.format('model \'echo\', "model": "echo", echo-2026', "echo"), "echo", "M") == (
        told.format('M, "model": "M", M', "M")
    )
    assert hide_model("no model: a file, a-1", "a", "M") == "no model: a file, a-1"
    assert hide_model("o3 is down, see o3-mini", "o3", "fast") == "fast is down, see fast"


@pytest.mark.parametrize("place", ["owner@127.0.0.1:1", "owner@db.invalid", "?host=/nowhere/owner"])
def test_the_address_of_a_database_is_hidden(place: str) -> None:
    at, _, options = place.partition("?")
    with pytest.raises(JournalError) as raised:
        open_journal(f"postgres://{at}/runs?connect_timeout=2&{options}")
    assert "owner" in str(raised.value)
    told = hide_servers(str(raised.value))
    assert told.startswith("the journal 'the server' cannot be reached")
    assert not [word for word in ("owner", "127.0.0.1", "invalid", "nowhere") if word in told]
