"""What those who operate a server see: its figures, the lines about its requests, and its description."""

import json
from pathlib import Path
from typing import Any

import httpx
import jsonschema_rs
import pytest
from openai import AsyncOpenAI
from tests.server.test_access import KEYS
from tests.server.test_responses import client, config, journal, serving
from tests.server.test_run_work import post

from treadle.journal.protocol import Journal

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


async def test_figures_need_a_key_and_probes_do_not(tmp_path: Path, journal: Journal) -> None:
    (tmp_path / "treadle.toml").write_text(KEYS)
    async with serving(tmp_path / "treadle.toml", journal) as url, httpx.AsyncClient() as http:
        assert (await http.get(f"{url}/metrics")).status_code == 401
        key = {"authorization": "Bearer readers-key"}
        assert (await http.get(f"{url}/metrics", headers=key)).status_code == 200
        assert [(await http.get(f"{url}/{name}")).status_code for name in ("healthz", "readyz")] == [200, 200]


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
    assert found == [("GET", "/v1/runs", 200, "kim"), ("GET", "/v1/models", 401, None)]
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
    operations = [item for path in document["paths"].values() for item in path.values()]
    assert all("4XX" in item["responses"] and "422" not in item["responses"] for item in operations)
