"""Hostile and broken requests about files and vector stores: each is refused with a clear error, none with 500."""

import asyncio
import json
import resource
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from tests.conftest import IS_FULL
from tests.server.test_access import CONFIG, request, send, status_of
from tests.server.test_files import attach, upload
from tests.server.test_responses import client, config, journal, serving

from treadle.journal.protocol import Journal

__all__ = ["client", "config", "journal"]
ODD: tuple[Any, ...] = (
    None,
    True,
    -1,
    0,
    1e300,
    10**30,
    "",
    "x",
    "\0",
    "\ud800",
    "../../etc/passwd",
    [],
    ["x", "x"],
    [None],
    [{"file_id": "x"}],
    {},
    {"type": "static"},
    {"type": "static", "static": {"max_chunk_size_tokens": "9", "chunk_overlap_tokens": []}},
    {"type": "eq"},
    {"type": "eq", "key": "a", "value": {}},
    {"type": "gt", "key": "a", "value": "x"},
    {"type": {}, "key": "a", "value": "x"},
    {"type": "and", "filters": [{"type": [], "key": "a", "value": "x"}]},
    {"type": "and", "filters": [{"type": "or", "filters": [None]}]},
    {"a": [1]},
    {"a" * 1000: "x"},
    {"anchor": "last_active_at", "days": 10**18},
    {"score_threshold": "x"},
)
FIELDS = {
    "/v1/vector_stores": ("name", "metadata", "expires_after", "file_ids", "chunking_strategy"),
    "/v1/vector_stores/{store}": ("name", "metadata", "expires_after"),
    "/v1/vector_stores/{store}/search": ("query", "filters", "max_num_results", "ranking_options"),
    "/v1/vector_stores/{store}/files": ("file_id", "attributes", "chunking_strategy"),
    "/v1/vector_stores/{store}/files/{file}": ("attributes",),
    "/v1/vector_stores/{store}/file_batches": ("file_ids", "files", "attributes", "chunking_strategy"),
}
GOOD: dict[str, Any] = {"query": "word", "file_id": "{file}", "file_ids": ["{file}"]}


async def post(url: str, path: str, body: str) -> tuple[int, Any]:
    raw = await send(url, request(path, method="POST", body=body))
    return status_of(raw), raw.partition(b"\r\n\r\n")[2]


async def test_odd_bodies_are_refused(client: AsyncOpenAI) -> None:
    url = str(client.base_url).removesuffix("/v1/")
    file_id = await upload(client, "a.txt", "a word")
    store = await client.vector_stores.create()
    await attach(client, store.id, file_id)

    def fill(text: str) -> str:
        return text.replace("{store}", store.id).replace("{file}", file_id)

    seen = set()
    for path, fields in FIELDS.items():
        for name in fields:
            for value in ODD if IS_FULL else ODD[:: len(ODD) // 4]:
                good = {field: GOOD[field] for field in fields if field in GOOD and field != name}
                status, answer = await post(url, fill(path), fill(json.dumps({**good, name: value})))
                assert status in (200, 400, 404), (path, name, value, answer)
                seen.add(status)
        for body in ("", "[]", "null", "{", '{"filters": ' + "[" * 5000 + "]" * 5000 + "}"):
            status, answer = await post(url, fill(path), body)
            assert status in (200, 400), (path, body[:50], answer)
    assert seen == {200, 400, 404}
    for path in ("files?limit=0", "files?after=%00", "files?order=up", "files/%2e%2e%2fx", "files/x/content"):
        assert status_of(await send(url, request(f"/v1/{path}"))) in (200, 400, 404)
    for path in (
        "?limit=101",
        "?after=%00",
        f"/{store.id}/files?filter=odd",
        "/%00",
        f"/{store.id}/files/%00",
    ):
        assert status_of(await send(url, request(f"/v1/vector_stores{path}"))) in (200, 400, 404)


def part(name: str, body: bytes, more: str = "") -> bytes:
    return f'--b\r\nContent-Disposition: form-data; name="{name}"{more}\r\n\r\n'.encode() + body + b"\r\n"


FILE = part("file", b"x", '; filename="a.txt"')
PURPOSE = part("purpose", b"assistants")
END = b"--b--\r\n"
FORM = "multipart/form-data; boundary=b"
UPLOADS: dict[str, tuple[str, bytes, tuple[int, ...]]] = {
    "good": (FORM, FILE + PURPOSE + END, (200,)),
    "json": ("application/json", b'{"file": "x", "purpose": "assistants"}', (400,)),
    "no type": ("", FILE + PURPOSE + END, (400,)),
    "no boundary": ("multipart/form-data", FILE + PURPOSE + END, (400,)),
    "another boundary": ("multipart/form-data; boundary=c", FILE + PURPOSE + END, (400,)),
    "no file": (FORM, PURPOSE + END, (400,)),
    "no purpose": (FORM, FILE + END, (400,)),
    "odd purpose": (FORM, FILE + part("purpose", b"../x") + END, (400,)),
    "a field as the file": (FORM, part("file", b"x") + PURPOSE + END, (400,)),
    "a file as the purpose": (FORM, FILE + part("purpose", b"x", '; filename="p"') + END, (400,)),
    "two files": (FORM, FILE + FILE + PURPOSE + END, (200, 400)),
    "many parts": (FORM, FILE + part("x", b"y") * 3000 + PURPOSE + END, (400,)),
    "many files": (FORM, part("x", b"y", '; filename="f"') * 3000 + FILE + PURPOSE + END, (400,)),
    "a long field": (FORM, FILE + part("purpose", b"x" * 100_000) + END, (400,)),
    "a header without an end": (FORM, b"--b\r\n" + b"a" * 100_000, (400,)),
    "a strange name": (FORM, part("file", b"x", '; filename="\xff\x80"') + PURPOSE + END, (200, 400)),
    "odd name": (FORM, part("file", b"x", '; filename="..%2f\\\\..\\\\a\x01.txt"') + PURPOSE + END, (200, 400)),
    "odd expiry": (FORM, FILE + PURPOSE + part("expires_after[seconds]", b"1e99") + END, (400,)),
    "short expiry": (FORM, FILE + PURPOSE + part("expires_after[seconds]", b"1") + END, (400,)),
    "empty": (FORM, b"", (400,)),
}  # fmt: skip


@pytest.mark.parametrize(("kind", "body", "wanted"), UPLOADS.values(), ids=UPLOADS)
async def test_odd_uploads_are_refused(
    client: AsyncOpenAI, kind: str, body: bytes, wanted: tuple[int, ...]
) -> None:
    url = str(client.base_url).removesuffix("/v1/")
    lines = [
        "POST /v1/files HTTP/1.1",
        "Host: localhost",
        "Connection: close",
        f"Content-Length: {len(body)}",
    ]
    head = "\r\n".join([*lines, *([f"Content-Type: {kind}"] if kind else [])])
    answer = await send(url, f"{head}\r\n\r\n".encode() + body)
    assert status_of(answer) in wanted, answer
    if status_of(answer) != 200:
        assert b'"error"' in answer
    for item in (await client.files.list()).data:
        assert "/" not in item.filename
        assert item.filename.isprintable()


async def test_a_refused_field_of_a_form_is_named(client: AsyncOpenAI) -> None:
    for purpose, seconds, said in (
        ("made up", 3600, r"purpose: 'made up' is not possible"),
        ("assistants", 3, r"expires_after\[seconds\]: '3' is not possible; it should be greater than"),
    ):
        with pytest.raises(openai.BadRequestError, match=said):
            await client.files.create(
                file=("a.txt", b"x"),
                purpose=purpose,  # type: ignore[arg-type]
                expires_after={"anchor": "created_at", "seconds": seconds},
            )


async def test_half_an_upload_leaves_nothing(client: AsyncOpenAI) -> None:
    host, _, port = str(client.base_url).removeprefix("http://").removesuffix("/v1/").partition(":")
    for _ in range(3):
        _, writer = await asyncio.open_connection(host, int(port))
        lines = [
            "POST /v1/files HTTP/1.1",
            "Host: localhost",
            f"Content-Type: {FORM}",
            "Content-Length: 99999",
        ]
        writer.write("\r\n".join([*lines, "", ""]).encode() + PURPOSE + FILE)
        await writer.drain()
        writer.close()
        await writer.wait_closed()
    assert (await client.files.list()).data == []
    assert await upload(client, "a.txt", "x")


async def test_a_full_disk_is_said_and_nothing_acknowledged_is_lost(config: Path, journal: Journal) -> None:
    config.write_text(CONFIG)
    path = Path(str(journal.address))
    async with serving(config, journal) as url:
        client = AsyncOpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0)
        kept = await upload(client, "a.txt", "kept")
        limits = resource.getrlimit(resource.RLIMIT_FSIZE)
        size = max([file.stat().st_size for file in path.parent.glob("runs.db*")])
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 300_000, limits[1]))
        try:
            statuses = []
            for _ in range(4):
                answer = await client._client.post(
                    f"{url}/v1/files",
                    data={"purpose": "assistants"},
                    files={"file": ("big.txt", b"x" * 250_000)},
                )
                statuses.append(answer.status_code)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert statuses[-1] == 503, statuses
        listed = [item.id async for item in client.files.list()]
        assert len(listed) == 1 + statuses.count(200)
        assert (await client.files.content(kept)).content == b"kept"
        assert await upload(client, "b.txt", "there is room again")
        await client.close()
