"""Runs whose ids have slashes, as jobs make them, and names of agents and models with slashes."""

from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest
from openai import AsyncOpenAI
from tests.environments import LateModule
from tests.server.test_responses import journal, serving

from treadle import Agent
from treadle.journal.protocol import Journal

__all__ = ["journal"]
sdk = LateModule("a2a.client")
RUN = "jobs/ä%2F?x=1/1.events"
CONFIG = """
[models."lab/echo"]
model = "mock:echo"
"""


@pytest.fixture
async def url(tmp_path: Path, journal: Journal) -> AsyncIterator[str]:
    config = tmp_path / "treadle.toml"
    config.write_text(CONFIG)
    async with serving(config, journal) as address:
        yield address


@pytest.fixture
async def http(url: str) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=url) as made:
        yield made


async def test_every_route_takes_ids_with_slashes(http: httpx.AsyncClient, journal: Journal) -> None:
    async with Agent("mock:echo", journal=journal).session(RUN) as session:
        run = await session.send("hello")
    await Agent("mock:echo", journal=journal).run("hello", run_id=f"{RUN}/g", metadata={"group": "g/1"})
    values = {
        "run_id": RUN,
        "response_id": f"resp_{RUN}_1_0",
        "name": f"conv_{RUN}",
        "group_id": "g/1",
        "step": "1",
        "digest": "0" * 64,
        "item_id": f"msg_resp_{RUN}_1_0_0",
    }
    seen = []
    for path, operations in (await http.get("/openapi.json")).json()["paths"].items():
        names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
        if "get" not in operations or not set(names) & {"run_id", "response_id", "name", "group_id"}:
            continue
        if path.startswith("/v1/models"):
            continue
        address = path
        for name in names:
            value = f"{RUN}/g" if name == "run_id" and "group_id" in names else values[name]
            address = address.replace(f"{{{name}}}", quote(value, safe=""))
        answer = await http.get(address)
        is_content = path.endswith("{digest}")  # there is none, and the run is found
        assert answer.status_code == (400 if is_content else 200), (path, answer.text)
        seen.append(path)
    assert len(seen) >= 15
    run_path = f"/v1/runs/{quote(RUN, safe='')}"
    assert (await http.get(run_path)).json()["run_id"] == RUN
    for what, body in (
        ("inbox", {"type": "note", "remark": "good"}),
        ("turns", {"input": "again", "wait": True}),
        ("fork", {"at": run.state.seq, "wait": True, "input": "else"}),
    ):
        answer = await http.post(f"{run_path}/{what}", json=body)
        assert answer.status_code in (201, 202), answer.text
    assert (await http.get(run_path)).json()["turns"] == 2
    assert (await http.delete(run_path)).json()["deleted"] == [RUN]
    assert (await http.get(run_path)).status_code == 404
    # A slash that is not encoded stands between the parts of a path.
    assert (await http.get("/v1/runs/jobs/a/events")).status_code == 404


async def test_names_with_slashes(url: str, http: httpx.AsyncClient) -> None:
    async with AsyncOpenAI(base_url=f"{url}/v1", api_key="any") as client:
        assert (await client.models.retrieve("lab/echo")).id == "lab/echo"
        made = await client.responses.create(model="lab/echo", input="hi")
        assert made.output_text == "You said: hi"
    card = await sdk.A2ACardResolver(http, f"{url}/v1/a2a/lab%2Fecho").get_agent_card()
    assert card.name == "lab/echo"
    assert card.supported_interfaces[0].url == f"{url}/v1/a2a/lab%2Fecho"
