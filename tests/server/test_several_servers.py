"""Several processes of a server over one PostgreSQL: any of them follows, cancels and answers any run."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from openai import AsyncOpenAI
from tests.server.test_run_work import ask, post
from tests.server.test_runs import SERVED, TOOLS, Killed, read_stream

SLOW = TOOLS.replace("0.05", "0.3")
MORE = """
[agents.curious]
model = "echo"
tools = ["ask"]

[agents.friend]
model = "echo"
memory = true
"""


@pytest.fixture
def servers(tmp_path: Path, postgres_url: str) -> Iterator[list[Killed]]:
    (tmp_path / "treadle.toml").write_text(SERVED + MORE)
    (tmp_path / "tools.py").write_text(SLOW)
    made = [Killed(tmp_path, postgres_url) for _ in range(2)]
    yield made
    for server in made:
        if server.process is not None and server.process.poll() is None:
            server.kill()


@pytest.fixture
async def clients(servers: list[Killed]) -> list[AsyncOpenAI]:
    urls = [await asyncio.to_thread(server.start) for server in servers]
    return [AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) for url in urls]


async def until(client: AsyncOpenAI, run_id: str, is_met: Any) -> dict[str, Any]:
    async with asyncio.timeout(60):
        while not is_met(found := await ask(client, f"/runs/{run_id}")):
            await asyncio.sleep(0.05)
    return found


async def follow(client: AsyncOpenAI, run_id: str) -> list[tuple[int, str]]:
    """Return the numbers and names of a run's events until its first turn is over."""
    seen = []
    async for name, data in read_stream(client, f"runs/{run_id}/events?stream=true"):
        if data.get("seq"):
            seen.append((data["seq"], name))
        if name == "turn_completed":
            break
    return seen


async def test_any_process_follows_cancels_and_answers_any_run(clients: list[AsyncOpenAI]) -> None:
    one, two = clients
    naps = "\nthen\n".join(["call nap {}"] * 4)
    run_id = (await post(one, "/runs", agent="napper", input=f"{naps}\nthen\nsay done"))["id"]
    seen = await asyncio.wait_for(follow(two, run_id), 60)
    assert [number for number, _ in seen] == list(range(1, len(seen) + 1))
    assert (await ask(two, f"/runs/{run_id}"))["output"] == "done"
    # The other process stops a run in the middle of a tool.
    long = "\nthen\n".join(["call nap {}"] * 100)
    run_id = (await post(one, "/runs", agent="napper", input=long))["id"]
    await until(two, run_id, lambda found: found["steps"] >= 2)
    assert (await ask(two, f"/runs/{run_id}"))["is_driven"]
    await post(two, f"/runs/{run_id}/inbox", type="cancel", reason="enough")
    stopped = await until(one, run_id, lambda found: not found["is_turn_open"])
    assert stopped["steps"] < 50
    # It answers what a run of the first one asks, and goes on with it.
    asked = 'call ask_user {"question": "Which?"}\nthen\nsay ok'
    run_id = (await post(one, "/runs", agent="curious", input=asked, wait=True))["id"]
    (question_id,) = (await ask(two, f"/runs/{run_id}"))["waits_for"]["questions"]
    await post(two, f"/runs/{run_id}/inbox", type="answer", question_id=question_id, text="this")
    await until(two, run_id, lambda found: found["output"] == "ok")
    # A conversation that one process has begun goes on at the other.
    again = await post(two, f"/runs/{run_id}/turns", input="say more", wait=True)
    assert again["turns"] == 2


async def test_runs_of_a_killed_process_go_on_at_the_other(
    clients: list[AsyncOpenAI], servers: list[Killed]
) -> None:
    one, two = clients
    naps = "\nthen\n".join(["call nap {}"] * 6)
    made = [await post(one, "/runs", agent="napper", input=f"{naps}\nthen\nsay done") for _ in range(3)]
    following = [asyncio.ensure_future(follow(two, item["id"])) for item in made]
    await until(two, made[0]["id"], lambda found: found["steps"] >= 2)
    await asyncio.to_thread(servers[0].kill)
    async with asyncio.timeout(100):
        for item, task in zip(made, following, strict=True):
            seen = await task
            assert [number for number, _ in seen] == list(range(1, len(seen) + 1))
            assert (await ask(two, f"/runs/{item['id']}"))["output"] == "done"


async def test_an_agent_remembers_in_every_process(clients: list[AsyncOpenAI]) -> None:
    one, two = clients
    fact = {"text": "Kim's dog is called Rex.", "reason": "told", "confidence": 0.9}
    told = f"call remember {json.dumps(fact)}\nthen\nsay noted"
    said = await post(one, "/runs", agent="friend", input=told, wait=True)
    assert said["output"] == "noted"
    asked = await post(
        two, "/runs", agent="friend", input='call recall {"query": "dog"}\nthen\nsay ok', wait=True
    )
    messages = (await ask(two, f"/runs/{asked['id']}/messages"))["data"]
    assert "Kim's dog is called Rex." in next(item for item in messages if item["role"] == "tool")["content"]
    owners = (await ask(one, "/view/memories"))["data"]
    assert len(owners) == 1
    # The episodes of a run that is deleted are forgotten with it, in every process.
    where = f"/view/memories/entries?persona={owners[0]['persona']}&user={owners[0]['user']}"
    assert len((await ask(one, where))["data"]) == 3
    await two.delete(f"/runs/{said['id']}", cast_to=object)
    assert len((await ask(one, where))["data"]) == 2
