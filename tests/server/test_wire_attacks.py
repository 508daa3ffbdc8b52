"""Requests that are framed or addressed oddly: none brings a second request with it, and none is a defect."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.server.test_access import request, send, status_of
from tests.server.test_attacks import EVE, KEYS, KIM, MORE, body_of, post, raw
from tests.server.test_responses import journal, serving

from treadle.journal.protocol import Journal

__all__ = ["journal"]


@pytest.fixture
async def url(tmp_path: Path, journal: Journal) -> AsyncIterator[str]:
    path = tmp_path / "treadle.toml"
    path.write_text(KEYS + MORE)
    async with serving(path, journal) as served:
        yield served


HIDDEN = "GET /v1/runs HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer roots-key\r\n\r\n"
CHUNKED = "Transfer-Encoding: chunked"
FRAMES = {
    "length before chunks": (["Content-Length: 4", CHUNKED], "0\r\n\r\n" + HIDDEN),
    "a space in the name": (["Content-Length: 5", "Transfer-Encoding : chunked"], "0\r\n\r\n" + HIDDEN),
    "two codings": ([CHUNKED, "Transfer-Encoding: identity"], "0\r\n\r\n" + HIDDEN),
    "a tab": (["Transfer-Encoding: \x0bchunked"], "0\r\n\r\n" + HIDDEN),
    "a list of codings": (["Transfer-Encoding: gzip, chunked"], "2\r\n{}\r\n0\r\n\r\n"),
    "a signed length": (["Content-Length: +2"], "{}" + HIDDEN),
    "a list of lengths": (["Content-Length: 2, 2"], "{}" + HIDDEN),
    "a hexadecimal length": (["Content-Length: 0x2"], "{}" + HIDDEN),
    "a huge chunk": ([CHUNKED], "fffffffffffffffff\r\n{}" + HIDDEN),
    "lines without returns": ([CHUNKED], "2\n{}\n0\n\n" + HIDDEN),
    "a trailer with a key": ([CHUNKED], "2\r\n{}\r\n0\r\nAuthorization: Bearer roots-key\r\n\r\n"),
    "a long extension": ([CHUNKED], f"2;a={'x' * 100_000}\r\n{{}}\r\n0\r\n\r\n"),
}


@pytest.mark.sets(len(FRAMES))
@pytest.mark.parametrize(("headers", "body"), FRAMES.values(), ids=FRAMES)
async def test_no_request_hides_in_another(url: str, headers: list[str], body: str) -> None:
    await send(url, post("/v1/runs", {"model": "echo", "input": "secret", "wait": True}, KIM))
    head = ["POST /v1/runs HTTP/1.1", "Host: localhost", "Connection: close", EVE]
    try:
        answer = await send(url, raw(*head, "Content-Type: application/json", *headers, body=body))
    except ConnectionError:  # the server has closed the connection while more was coming
        answer = b""
    assert b"secret" not in answer
    assert answer.count(b"HTTP/1.1 ") <= 1
    assert not answer or status_of(answer) == 400


HOSTS = (
    "[::1",
    "[",
    "[]",
    "[v1.x]",
    "localhost:99999999",
    "localhost:x",
    "a b",
    "a/b?c#d",
    "a@b",
    "\xe9",
    "http://x",
)


@pytest.mark.parametrize("host", HOSTS)
async def test_odd_hosts_are_no_defect(url: str, host: str) -> None:
    for path in ("/v1/a2a/echo/.well-known/agent-card.json", "/v1/nothing", "/v1/runs/", "/", "/mcp"):
        answer = await send(url, request(path, EVE, host=host))
        assert status_of(answer) < 500, (path, answer)


def upload(name: str, text: str, key: str) -> bytes:
    parts = (("purpose", "", "assistants"), ("file", f'; filename="{name}"', text))
    body = "".join(
        [
            f'--b\r\nContent-Disposition: form-data; name="{kind}"{more}\r\n\r\n{value}\r\n'
            for kind, more, value in parts
        ]
    )
    head = ["POST /v1/files HTTP/1.1", "Host: localhost", "Connection: close", key]
    size = f"Content-Length: {len(body) + 7}"
    return raw(*head, "Content-Type: multipart/form-data; boundary=b", size, body=f"{body}--b--\r\n")


async def test_nobody_reaches_the_files_of_others(url: str) -> None:
    file = body_of(await send(url, upload("a.txt", "secret", KIM)))["id"]
    made = post("/v1/vector_stores", {"name": "k", "file_ids": [file]}, KIM)
    store = body_of(await send(url, made))["id"]
    own = body_of(await send(url, post("/v1/vector_stores", {"name": "e"})))["id"]
    attached = [{"type": "input_file", "file_id": file}, {"type": "input_text", "text": "a"}]
    search = [{"type": "file_search", "vector_store_ids": [store]}]
    attacks = [
        post(f"/v1/vector_stores/{own}/files", {"file_id": file}),
        post("/v1/vector_stores", {"file_ids": [file]}),
        post(f"/v1/vector_stores/{own}/file_batches", {"file_ids": [file]}),
        post(f"/v1/vector_stores/{store}/search", {"query": "secret"}),
        post("/v1/responses", {"model": "echo", "input": [{"role": "user", "content": attached}]}),
        post("/v1/responses", {"model": "echo", "input": "a", "tools": search}),
        post("/v1/runs", {"model": "echo", "input": "a", "tools": search}),
        post("/v1/conversations", {"items": [{"role": "user", "content": attached}]}),
        request(f"/v1/files/{file}/content", EVE),
        request(f"/v1/files/{file}", EVE, method="DELETE"),
        request(f"/v1/vector_stores/{store}/files/{file}/content", EVE),
        request(f"/v1/vector_stores/{own}/files/{file}/content", EVE),
    ]
    for attack in attacks:
        answer = await send(url, attack)
        assert (status_of(answer), b"secret" in answer) == (404, False), (attack, answer)
    assert status_of(await send(url, request(f"/v1/files/{file}", KIM))) == 200
