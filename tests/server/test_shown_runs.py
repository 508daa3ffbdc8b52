"""What a client that sees only its own runs learns of what stands behind the server, by every route."""

import json
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.models.answers import answer
from tests.models.server import Received, Reply, serve
from tests.server.test_access import KEYS
from tests.server.test_relay import calls
from tests.server.test_responses import journal, serving

from treadle.journal.protocol import Journal

__all__ = ["journal"]
TOOLS = '''
from treadle import tool


@tool(effect="pure")
def weigh(item: str) -> str:
    """Weigh an item."""
    return "2 kg"
'''
ROUTES = (
    *("runs", "runs/RUN", "runs/RUN/events", "runs/RUN/messages", "runs/RUN/export", "responses", "models"),
    *("runs/RUN/export?format=journal", "runs/RUN/export?format=atif", "runs/export?format=journal"),
    *("view/runs/RUN/events", "view/runs/RUN/prompts/1", "view/runs/RUN/relatives", "conversations/conv_RUN"),
    *("view/runs/RUN/exported?format=journal", "view/runs/RUN/exported?format=atif", "view/runs/RUN/tokens"),
    *[f"runs/RUN/export?format={name}" for name in ("tokens", "atropos", "verifiers")],
    *("view/runs/RUN/exported?format=tokens", "runs/export?format=tokens", "runs/export?format=verifiers"),
    *("conversations/conv_RUN/items", "../metrics", "../openapi.json", "../readyz"),
)


def serve_engine(received: Received) -> Reply:
    """Answer with a call, then with a text; a message that says so fails."""
    said = received.json()["messages"]
    if "fail" in json.dumps(said[-1]):
        where = "http://10.1.2.3:8000/v1/chat/completions?key=sk-hidden"
        return Reply(
            {
                "error": {
                    "message": f"hidden-model-7 (ft:hidden-model:org) at {where} is broken, see /srv/hidden/log"
                }
            },
            500,
        )
    made = calls(("c1", "weigh", '{"item": "a"}')) if said[-1]["role"] == "user" else answer("2 kg")
    return Reply({**made, "model": "hidden-model-7"})


@pytest.fixture
async def key_of() -> Any:
    return lambda name: {"authorization": f"Bearer {name}s-key"}


async def test_a_client_learns_nothing_of_what_stands_behind_the_server(
    tmp_path: Path, journal: Journal, key_of: Any
) -> None:
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    (hidden / "secret_tools.py").write_text(TOOLS)
    path = hidden / "treadle.toml"
    (hidden / "facts.md").write_text("# Facts\n\nAll is well.\n")
    async with serve(serve_engine) as engine:
        path.write_text(
            f'{KEYS}\n[models.fast]\nmodel = "openai:hidden-model"\nbase_url = "{engine.base_url}"\n'
            f'api_key_env = ""\nmax_attempts = 1\n[agents.scales]\nmodel = "fast"\ntools = [\n'
            f'"{hidden}/secret_tools.py:weigh"]\n'
            f'documents = ["{hidden}/facts.md"]\n'
        )
        secrets = ("hidden", str(engine.port), "secret_tools", "10.1.2.3", '"root"')
        async with (
            serving(path, journal) as url,
            httpx.AsyncClient(base_url=f"{url}/v1/", timeout=30) as http,
        ):

            async def read(name: str, route: str, **more: Any) -> str:
                return (await http.get(route, headers=key_of(name), **more)).text

            async def post(name: str, route: str, body: Any) -> Any:
                return await http.post(route, json=body, headers=key_of(name))

            told = {}
            for said in ("weigh it", "fail"):
                body = {"agent": "scales", "input": said, "wait": True}
                run_id = (made := await post("kim", "runs", body)).json()["id"]
                note = {"type": "note", "remark": "seen"}
                assert (await post("root", f"runs/{run_id}/inbox", note)).status_code == 202
                told[f"made {said}"] = made.text
                for route in ROUTES:
                    told[f"{route} {said}"] = await read("kim", route.replace("RUN", run_id))
                streamed = {"model": "scales", "input": said, "stream": True}
                told[f"stream {said}"] = (await post("kim", "responses", streamed)).text
                told[f"run stream {said}"] = (
                    await post("kim", "runs", {"agent": "scales", "input": said, "stream": True})
                ).text
                told[f"followed {said}"] = await _follow(
                    http, f"runs/{run_id}/events?stream=true", key_of("kim")
                )
                chat = {"model": "scales", "messages": [{"role": "user", "content": said}]}
                told[f"chat {said}"] = (await post("kim", "chat/completions", chat)).text
                told[f"plain chat {said}"] = (
                    await post("kim", "chat/completions", chat | {"model": "fast"})
                ).text
                for asked, is_known in (("scales", True), ("fast", False), ("openai:hidden-model", False)):
                    listed = json.loads(await read("kim", "runs", params={"model": asked}))
                    assert (run_id in [run["id"] for run in listed["data"]]) is is_known
                # The operator sees all.
                listed = json.loads(await read("root", "runs", params={"model": "fast"}))
                assert run_id in [run["id"] for run in listed["data"]]
                seen = await read("root", f"runs/{run_id}/events")
                assert "secret_tools" in seen
                assert '"by":"root"' in seen
            learned = {
                place: [text[max(0, text.find(it) - 60) :][:120] for it in secrets if it in text]
                for place, text in told.items()
            }
            assert {place: found for place, found in learned.items() if found} == {}
            assert "2 kg" in told["runs/RUN/events weigh it"]
            assert '"model":"scales"' in told["runs/RUN/events weigh it"]


async def _follow(http: httpx.AsyncClient, route: str, headers: dict[str, str]) -> str:
    lines = ""
    async with http.stream("GET", route, headers=headers) as answer_:
        async for line in answer_.aiter_lines():
            lines += line
            if line.startswith("event: noted"):
                break
    return lines


async def test_a_client_is_not_told_the_error_of_a_sub_agents_engine(
    tmp_path: Path, journal: Journal, key_of: Any
) -> None:
    path = tmp_path / "treadle.toml"

    def serve_both(received: Received) -> Reply:
        body = received.json()
        if body["model"] == "secret-model":
            told = "secret-model (ft:secret-model:org) at http://10.1.2.3:8000/v1 is broken"
            return Reply({"error": {"message": told}}, 500)
        is_begin = body["messages"][-1]["role"] == "user"
        return Reply(calls(("c1", "helper", '{"task": "go"}')) if is_begin else answer("done"))

    async with serve(serve_both) as engine:
        (tmp_path / "helpers.py").write_text(
            "from treadle import Agent, model as make\n"
            f'model = make("openai:secret-model", base_url="{engine.base_url}", api_key="k", max_attempts=1)\n'
            'helper = Agent(model).as_tool("helper", "Helps.")\n'
        )
        path.write_text(
            f'{KEYS}\n[models.fast]\nmodel = "openai:plain"\nbase_url = "{engine.base_url}"\n'
            f'api_key_env = ""\n[agents.boss]\nmodel = "fast"\ntools = ["{tmp_path}/helpers.py:helper"]\n'
        )
        async with (
            serving(path, journal) as url,
            httpx.AsyncClient(base_url=f"{url}/v1/", timeout=30) as http,
        ):
            body = {"agent": "boss", "input": "go", "wait": True}
            made = (await http.post("runs", json=body, headers=key_of("kim"))).json()
            assert "id" in made, made
            for route in ROUTES:
                told = (await http.get(route.replace("RUN", made["id"]), headers=key_of("kim"))).text
                assert "secret-model" not in told, route
                assert "10.1.2.3" not in told, route
            seen = await http.get(f"runs/{made['id']}/events", headers=key_of("kim"))
            assert "The agent failed: " in seen.text
