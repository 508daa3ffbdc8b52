"""The page of a server and what it asks: who may ask, and what is never given away."""

import asyncio
import gzip
import hashlib
import json
import re
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.server.test_responses import config, journal, serving
from tests.viewer.sample_runs import make_hostile, make_tidy

from treadle.journal.protocol import Journal
from treadle.knowledge.memory import Draft, Store, open_memory
from treadle.server.admission.access import hash_key
from treadle.viewer.bundle import NotBuiltError, encode_bundle, read_bundle

__all__ = ["config", "journal"]


def has_bundle() -> bool:
    try:
        read_bundle()
    except NotBuiltError:
        return False
    return True


@pytest.fixture
async def client(config: Path, journal: Journal) -> AsyncIterator[httpx.AsyncClient]:
    keys = [("kim", ["run", "read"]), ("boss", ["run", "read", "admin"])]
    tables = [
        f'[serve.keys.{name}]\nsha256 = "{hash_key(name)}"\nscopes = {json.dumps(scopes)}'
        for name, scopes in keys
    ]
    config.write_text("\n".join([config.read_text(), *tables]))
    async with serving(config, journal) as url, httpx.AsyncClient(base_url=url) as made:
        yield made


def by(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}"}


async def test_the_page_is_for_anybody_and_its_data_is_not(
    client: httpx.AsyncClient, journal: Journal
) -> None:
    run_id = (await make_tidy(journal)).run_id
    assert (await client.get("/")).headers["location"] == "/view"
    page = await client.get("/view")
    assert page.status_code == (200 if has_bundle() else 503)
    assert page.headers["content-security-policy"] == "frame-ancestors 'none'"
    assert page.headers["x-content-type-options"] == "nosniff"
    if not has_bundle():
        assert "make viewer" in page.text
    for place in ("events", "prompts/1", "relatives", f"contents/{'0' * 64}"):
        address = f"/v1/view/runs/{run_id}/{place}"
        assert (await client.get(address)).status_code == 401
        # The run of somebody else is not there.
        assert (await client.get(address, headers=by("kim"))).status_code == 404
    for address in ("/v1/view/memories", "/v1/view/memories/entries?persona=default&user=kim"):
        assert (await client.get(address)).status_code == 401
        assert (await client.get(address, headers=by("kim"))).status_code == 403
        assert (await client.get(address, headers=by("boss"))).status_code == 200


async def test_the_page_gets_events_prompts_contents_and_relatives(
    client: httpx.AsyncClient, journal: Journal
) -> None:
    run_id = (await make_tidy(journal)).run_id
    other_id = (await make_hostile(journal)).run_id
    base = f"/v1/view/runs/{run_id}"

    async def get(address: str) -> Any:
        answer = await client.get(address, headers=by("boss"))
        assert answer.status_code == 200, answer.text
        return answer.json()

    stored = [json.loads(event.to_json()) for event in journal.read(run_id)]
    events = (await get(f"{base}/events"))["data"]
    assert events == stored
    assert (await get(f"{base}/events?after_seq=3&limit=2"))["data"] == stored[3:5]
    prompt = await get(f"{base}/prompts/2")
    assert [item["message"]["role"] for item in prompt["messages"]][:2] == ["system", "user"]
    digests = [digest for event in events for digest in event.get("delta", {}).get("changed", {}).values()]
    texts = [(await get(f"{base}/contents/{digest}"))["text"] for digest in digests]
    assert texts == ["# Notes\n\nold\nkept\n", "# Notes\n\nnew\nkept\n"]
    # A content is given only to those who see a run that has it.
    refused = await client.get(f"/v1/view/runs/{other_id}/contents/{digests[0]}", headers=by("boss"))
    assert refused.status_code == 400
    relatives = await get(f"{base}/relatives")
    assert [run["id"] for run in relatives["family"]] == [run_id]
    (child,) = relatives["children"]
    assert child["call_id"] == next(event["result"]["call_id"] for event in events if event.get("child"))
    memory = open_memory(journal, "ada", "kim")
    memory.store.write(Draft(store=Store.SELF_FACTS, text="Kim likes tea."), 1.0)
    assert (await get("/v1/view/memories"))["data"] == [{"persona": "ada", "user": "kim"}]
    found = (await get("/v1/view/memories/entries?persona=ada&user=kim"))["data"]
    assert [entry["text"] for entry in found] == ["Kim likes tea."]
    odd = open_memory(journal, "ada/b", "crew/lee&co")
    odd.store.write(Draft(store=Store.SELF_FACTS, text="Lee sails."), 1.0)
    found = (await get("/v1/view/memories/entries?persona=ada%2Fb&user=crew%2Flee%26co"))["data"]
    assert [entry["text"] for entry in found] == ["Lee sails."]


@pytest.mark.parametrize(
    ("origin", "status"),
    [
        ("{url}", 200),
        ("http://127.0.0.1:1", 403),
        ("http://evil.example", 403),
        ("null", 403),
        ("{url}.evil.example", 403),
    ],
)
async def test_only_the_servers_own_page_may_ask(
    config: Path, journal: Journal, origin: str, status: int
) -> None:
    async with serving(config, journal) as url, httpx.AsyncClient(base_url=url) as client:
        asked = await client.get("/v1/runs", headers={"origin": origin.format(url=url)})
        assert asked.status_code == status
        # A foreign name of this machine makes the origin equal to the host, and is refused for its name.
        name = {"origin": "http://evil.example", "host": "evil.example"}
        assert (await client.get("/v1/runs", headers=name)).status_code == 403


async def test_followers_reach_the_end_of_their_streams_when_the_server_stops(
    config: Path, journal: Journal
) -> None:
    run_id = (await make_tidy(journal)).run_id
    async with httpx.AsyncClient(timeout=60) as client:
        async with serving(config, journal) as url:
            # A session stays open, and nothing happens in it.
            begun = await client.post(
                f"{url}/v1/runs", json={"model": "echo", "input": "hello", "wait": True}
            )
            run_id = begun.json()["id"]
            request = client.build_request("GET", f"{url}/v1/runs/{run_id}/events?stream=true")
            stream = await client.send(request, stream=True)
            lines = stream.aiter_lines()
            async for line in lines:
                if line == "event: turn_completed":
                    break
            reading = asyncio.ensure_future(_read_all(lines))
            await asyncio.sleep(0)
        # It would raise if the connection had been cut.
        await reading


async def _read_all(lines: AsyncIterator[str]) -> list[str]:
    return [line async for line in lines]


@pytest.mark.skipif(not has_bundle(), reason="the viewer is not built")
def test_the_policy_of_the_page_allows_its_own_script_and_styles_only() -> None:
    page = encode_bundle("</title><script>throw 1</script>", "#/runs", {"/v1/runs": "</script><b>"}).decode()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', page)
    assert policy is not None
    allowed = re.findall(r"'sha256-([^']*)'", policy[1])
    inline = re.findall(r"<script>(.*?)</script>|<style>(.*?)</style>", page, re.DOTALL)
    made = {b64encode(hashlib.sha256("".join(text).encode()).digest()).decode() for text in inline}
    assert made == set(allowed)
    assert "default-src 'none'" in policy[1]
    assert "unsafe" not in policy[1]
    assert not re.search(r'(?:src|href|action)="(?!data:)', page.partition("<script>")[0])


async def read_raw(client: httpx.AsyncClient, path: str, **headers: str) -> tuple[httpx.Response, bytes]:
    """Return a response, and its body as it was sent."""
    async with client.stream("GET", path, headers={**by("boss"), **headers}) as got:
        return got, b"".join([piece async for piece in got.aiter_raw()])


async def test_answers_are_compressed_for_clients_that_take_them_so(
    client: httpx.AsyncClient, journal: Journal
) -> None:
    run_id = (await make_tidy(journal)).run_id
    for path in (f"/v1/view/runs/{run_id}/events", f"/v1/runs/{run_id}/events", "/v1/runs", "/view"):
        plain, whole = await read_raw(client, path, **{"accept-encoding": "gzip;q=0, br"})
        packed, sent = await read_raw(client, path, **{"accept-encoding": "br, gzip"})
        assert "content-encoding" not in plain.headers
        assert packed.headers.get("content-encoding") == ("gzip" if len(whole) > 1024 else None), path
        assert len(sent) == int(packed.headers["content-length"])
        if len(whole) > 1024:
            assert gzip.decompress(sent) == whole
            assert len(sent) < len(whole)
            assert "accept-encoding" in packed.headers["vary"]
    # A stream is not, because its pieces would wait for each other.
    async with client.stream("GET", f"/v1/runs/{run_id}/events?stream=true", headers=by("boss")) as got:
        assert "content-encoding" not in got.headers
        async for line in got.aiter_lines():
            if line.startswith("event: run_finished"):
                break


async def test_a_page_that_has_not_changed_is_not_sent_again(client: httpx.AsyncClient) -> None:
    page = await client.get("/view")
    if not has_bundle():
        assert "etag" not in page.headers
        return
    again = await client.get("/view", headers={"if-none-match": f'"other", W/{page.headers["etag"]}'})
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", page.headers["etag"])
    assert again.headers["content-security-policy"] == page.headers["content-security-policy"]
    other = await client.get("/view", headers={"if-none-match": '"other"'})
    assert (other.status_code, other.text) == (200, page.text)
