"""What those who operate a server see: its figures, the lines about its requests, and its description."""

import asyncio
import json
import re
import resource
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest
from openai import AsyncOpenAI
from tests.models.answers import answer
from tests.models.server import Received, Reply, serve
from tests.server.test_access import KEYS
from tests.server.test_responses import client, config, journal, serving
from tests.server.test_run_work import ask, post
from tests.server.test_runs import SERVED, TOOLS

from treadle.journal.protocol import Journal
from treadle.journal.run_info import RunFilter

__all__ = ["client", "config", "journal"]


async def test_figures_are_in_the_form_of_prometheus(client: AsyncOpenAI) -> None:
    await post(client, "/runs", model="echo", input="hello", wait=True)
    for _ in range(2):
        await client._client.get(f"{client.base_url}runs/nope")
    await client._client.get(str(client.base_url).replace("/v1/", "/odd%22%0a{path"))
    text = (await client._client.get(str(client.base_url).replace("/v1/", "/metrics"))).text
    figures = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
    assert figures['treadle_requests_total{method="POST",route="/v1/runs",status="201"}'] == "1"
    assert figures['treadle_requests_total{method="GET",route="/v1/runs/{run_id}",status="404"}'] == "2"
    assert figures['treadle_request_seconds_count{route="/v1/runs/{run_id}"}'] == "2"
    assert figures['treadle_requests_total{method="GET",route="other",status="404"}'] == "1"
    assert figures["treadle_is_ready"] == "1"
    assert "odd" not in text
    for kind in ("HELP", "TYPE"):
        told = [line.split()[2] for line in text.splitlines() if line.startswith(f"# {kind}")]
        names = {
            re.split(r"[ {]", line)[0].removesuffix("_bucket") for line in text.splitlines() if line[0] != "#"
        }
        names = {name.removesuffix("_sum").removesuffix("_count") for name in names}
        assert sorted(told) == sorted(names)


async def test_figures_need_a_key_and_probes_do_not(tmp_path: Path, journal: Journal) -> None:
    (tmp_path / "treadle.toml").write_text(KEYS)
    async with serving(tmp_path / "treadle.toml", journal) as url, httpx.AsyncClient() as http:
        assert (await http.get(f"{url}/metrics")).status_code == 401
        key = {"authorization": "Bearer readers-key"}
        assert (await http.get(f"{url}/metrics", headers=key)).status_code == 200
        assert [(await http.get(f"{url}/{name}")).status_code for name in ("healthz", "readyz")] == [200, 200]


async def test_runs_are_continued_once_a_full_disk_has_room(tmp_path: Path, journal: Journal) -> None:
    config = tmp_path / "treadle.toml"
    (tmp_path / "tools.py").write_text(TOOLS)
    config.write_text(SERVED)
    async with serving(config, journal) as url, httpx.AsyncClient(base_url=url) as http:
        naps = "call nap {}\nthen\n" * 20
        made = (await http.post("/v1/runs", json={"agent": "napper", "input": f"{naps}say done"})).json()
    assert journal.runs(RunFilter(is_turn_open=True))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    size = max([file.stat().st_size for file in tmp_path.glob("runs.db*") if file.is_file()])
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, limits[1]))
    try:
        async with serving(config, journal) as url, httpx.AsyncClient(base_url=url) as http:
            async with asyncio.timeout(60):
                while (await http.get("/readyz")).status_code == 200:
                    await asyncio.sleep(0.05)
                assert "is the disk full?" in (await http.get("/readyz")).text
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
                while (await http.get(f"/v1/runs/{made['id']}")).json()["output"] != "done":
                    await asyncio.sleep(0.05)
                while (await http.get("/readyz")).status_code != 200:
                    await asyncio.sleep(0.05)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


async def test_a_journal_that_was_deleted_acknowledges_nothing(client: AsyncOpenAI, journal: Journal) -> None:
    http, path = client._client, Path(str(journal.address))
    asked = {"model": "echo", "input": "a", "wait": True}
    assert (await http.post(f"{client.base_url}runs", json=asked)).status_code == 201
    path.rename(path.with_suffix(".kept"))
    async with asyncio.timeout(30):
        while (answer := await http.post(f"{client.base_url}runs", json=asked)).status_code == 201:
            await asyncio.sleep(0.05)
    assert (answer.status_code, "was deleted or replaced" in answer.text) == (503, True)
    path.with_suffix(".kept").rename(path)
    assert (await http.post(f"{client.base_url}runs", json=asked)).status_code == 201


async def test_a_request_is_a_line_of_json(
    tmp_path: Path, journal: Journal, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "treadle.toml").write_text(KEYS.replace("[serve]", "[serve]\nlogs_requests = true"))
    async with serving(tmp_path / "treadle.toml", journal) as url, httpx.AsyncClient() as http:
        key = {"authorization": "Bearer kims-key"}
        await http.get(f"{url}/v1/runs?text=secret", headers=key)
        await http.get(f"{url}/v1/models")
    lines = [json.loads(line) for line in capfd.readouterr().err.splitlines() if line.startswith("{")]
    found = [(line["method"], line["path"], line["status"], line["key"]) for line in lines]
    # A line is written after its answer was sent, so that the next request may be faster.
    assert sorted(found, key=str) == [("GET", "/v1/models", 401, None), ("GET", "/v1/runs", 200, "kim")]
    assert "kims-key" not in str(lines)
    assert "secret" not in str(lines)


async def test_answers_are_as_the_document_says(client: AsyncOpenAI) -> None:
    base = str(client.base_url).replace("/v1/", "")
    document = (await client._client.get(f"{base}/openapi.json")).json()

    def check(path: str, method: str, answer: Any) -> None:
        answers = document["paths"][path][method]["responses"]
        status = str(answer.status_code)
        said = answers[status if status in answers else f"{status[0]}XX"]["content"]["application/json"][
            "schema"
        ]
        schema = {**said, "components": document["components"]}
        jsonschema_rs.validator_for(schema).validate(answer.json())

    made = await client._client.post(f"{base}/v1/runs", json={"model": "echo", "input": "a", "wait": True})
    check("/v1/runs", "post", made)
    run = made.json()["id"]
    for place in ("", "/messages"):
        check(f"/v1/runs/{{run_id}}{place}", "get", await client._client.get(f"{base}/v1/runs/{run}{place}"))
    check("/v1/runs", "get", await client._client.get(f"{base}/v1/runs"))
    check("/v1/runs/{run_id}", "get", await client._client.get(f"{base}/v1/runs/nope"))
    check("/v1/runs", "post", await client._client.post(f"{base}/v1/runs", json={}))
    check("/v1/messages", "post", await client._client.post(f"{base}/v1/messages", json={}))
    for path in ("/v1/runs/export", "/v1/runs/{run_id}/export"):
        answer = await client._client.get(f"{base}{path.format(run_id=run)}")
        assert [*document["paths"][path]["get"]["responses"]["200"]["content"]] == [
            answer.headers["content-type"]
        ]
    operations = [item for path in document["paths"].values() for item in path.values()]
    assert all("4XX" in item["responses"] and "422" not in item["responses"] for item in operations)


@pytest.mark.parametrize("stored", [False, True])
async def test_answers_of_openai_are_as_the_document_says(client: AsyncOpenAI, stored: bool) -> None:
    base = str(client.base_url).replace("/v1/", "")
    document = (await client._client.get(f"{base}/openapi.json")).json()

    async def ask(method: str, path: str, names: dict[str, str] | None = None, **sent: Any) -> Any:
        answer = await client._client.request(method, f"{base}{path.format(**(names or {}))}", **sent)
        operation = document["paths"][path][method.lower()]
        assert answer.status_code == 200, answer.text
        schema = operation["responses"]["200"]["content"]["application/json"]["schema"]
        assert schema, operation["operationId"]
        jsonschema_rs.validator_for({**schema, "components": document["components"]}).validate(answer.json())
        return answer.json()

    if not stored:
        talk = await ask("POST", "/v1/conversations", json={})
        in_talk = {"name": talk["id"]}
        await ask("POST", "/v1/conversations/{name}", in_talk, json={"metadata": {"a": "b"}})
        said = {"items": [{"role": "user", "content": "hi"}]}
        added = await ask("POST", "/v1/conversations/{name}/items", in_talk, json=said)
        first = in_talk | {"item_id": added["data"][0]["id"]}
        await ask("DELETE", "/v1/conversations/{name}/items/{item_id}", first)
        asked = {"model": "echo", "input": "hello", "conversation": talk["id"]}
        made = {"response_id": (await ask("POST", "/v1/responses", json=asked))["id"]}
        for place in ("", "/input_items"):
            await ask("GET", f"/v1/responses/{{response_id}}{place}", made)
        behind = await ask("POST", "/v1/responses", json={**asked, "conversation": None, "background": True})
        await ask("POST", "/v1/responses/{response_id}/cancel", {"response_id": behind["id"]})
        assert (await ask("GET", "/v1/responses"))["data"]
        items = await ask("GET", "/v1/conversations/{name}/items", in_talk)
        item = in_talk | {"item_id": items["data"][0]["id"]}
        await ask("GET", "/v1/conversations/{name}/items/{item_id}", item)
        await ask("GET", "/v1/conversations/{name}", in_talk)
        run = (await client._client.get(f"{base}/v1/runs")).json()["data"][0]["id"]
        await ask("GET", "/v1/runs/{run_id}/events", {"run_id": run})
        await ask("DELETE", "/v1/conversations/{name}", in_talk)
        return
    upload = {"files": {"file": ("a.txt", b"the owl sleeps")}, "data": {"purpose": "assistants"}}
    file = {"file_id": (await ask("POST", "/v1/files", **upload))["id"]}
    await ask("GET", "/v1/files/{file_id}", file)
    names = file | {"store_id": (await ask("POST", "/v1/vector_stores", json={}))["id"]}
    store = "/v1/vector_stores/{store_id}"
    await ask("POST", store, names, json={"name": "birds"})
    await ask("POST", f"{store}/files", names, json={"file_id": file["file_id"]})
    for path in (store, f"{store}/files", f"{store}/files/{{file_id}}", "/v1/vector_stores", "/v1/files"):
        await ask("GET", path, names)
    await ask("POST", f"{store}/search", names, json={"query": "owl"})
    batch = await ask("POST", f"{store}/file_batches", names, json={"file_ids": [file["file_id"]]})
    names["batch_id"] = batch["id"]
    await ask("GET", f"{store}/file_batches/{{batch_id}}", names)
    await ask("GET", f"{store}/file_batches/{{batch_id}}/files", names)
    await ask("DELETE", f"{store}/files/{{file_id}}", names)
    await ask("DELETE", store, names)
    await ask("DELETE", "/v1/files/{file_id}", file)


async def test_a_run_of_a_stopped_server_is_interrupted_and_goes_on(tmp_path: Path, journal: Journal) -> None:
    is_free = asyncio.Event()

    def handle(received: Received) -> Reply:
        return Reply(answer("there"), before=None if is_free.is_set() else is_free)

    async with serve(handle) as engine:
        path = tmp_path / "treadle.toml"
        path.write_text(
            f'[models.far]\nmodel = "openai:far-1"\nbase_url = "{engine.base_url}"\napi_key_env = ""\n'
        )
        async with serving(path, journal) as url, AsyncOpenAI(base_url=f"{url}/v1", api_key="any") as client:
            run_id = (await post(client, "/runs", agent="far", input="hello"))["id"]
            await engine.asked.wait()
        (info,) = journal.runs(RunFilter(stop_reason="interrupted"))
        assert (info.status, info.is_turn_open, info.is_waiting) == ("paused", True, False)
        is_free.set()
        async with serving(path, journal) as url, AsyncOpenAI(base_url=f"{url}/v1", api_key="any") as client:
            async with asyncio.timeout(20):
                while (found := await ask(client, f"/runs/{run_id}"))["is_turn_open"]:
                    await asyncio.sleep(0.02)
            assert (found["output"], found["turn_stop_reason"]) == ("there", "completed")
