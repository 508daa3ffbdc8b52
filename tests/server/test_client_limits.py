"""What a client sends can lower the limits of an agent, and takes nothing that the agent or persona has."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from openai import AsyncOpenAI
from tests.server.test_ag_ui import ask as ask_by_ag_ui
from tests.server.test_agent_tools import connect as connect_by_mcp
from tests.server.test_gateway import ADD_FUNCTION
from tests.server.test_relay import relaying
from tests.server.test_response_items import saying
from tests.server.test_responses import ADD, journal

from treadle.core.events import RunStarted
from treadle.core.policy import Approval, Autonomy, Policy
from treadle.journal.protocol import Journal

__all__ = ["journal"]
PERSONA = """
name: Ada
role: a careful analyst
autonomy: cautious
model: far
tools: [files]
"""
AGENTS = """
max_output_tokens = 50
price = { input_usd_per_million = 1.0, output_usd_per_million = 2.0 }

[agents.ada]
persona = "ada.yaml"

[agents.bound]
persona = "ada.yaml"
max_steps = 7
max_tool_calls = 4
max_tokens = 90000
max_cost_usd = 0.5
deadline_seconds = 60
approve = { write_file = "ask" }
"""
OWN = {
    "ada": Policy(autonomy=Autonomy.CAUTIOUS),
    "bound": Policy(
        autonomy=Autonomy.CAUTIOUS,
        max_steps=7,
        max_tool_calls=4,
        max_tokens=90000,
        max_cost_usd=0.5,
        deadline_seconds=60,
        approve={"write_file": Approval.ASK},
    ),
}
SCHEMA: Any = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
FORM: Any = {"type": "json_schema", "name": "n", "schema": SCHEMA}
ADD_FLAT: Any = {name: ADD[name] for name in ("type", "name", "description", "parameters")}
RESPONSES: list[tuple[dict[str, Any], dict[str, int]]] = [
    ({}, {}),
    ({"max_tool_calls": 2}, {"max_tool_calls": 2}),
    ({"max_tool_calls": 0}, {"max_tool_calls": 0}),
    ({"max_tool_calls": 99}, {"max_tool_calls": 99}),
    ({"max_infer_iters": 3}, {"max_steps": 3}),
    ({"max_infer_iters": 999}, {"max_steps": 999}),
    ({"max_output_tokens": 7}, {}),
    ({"temperature": 0.5, "top_p": 0.5}, {}),
    ({"parallel_tool_calls": False}, {}),
    ({"tool_choice": "none"}, {}),
    ({"instructions": "Be brief."}, {}),
    ({"tools": [ADD_FLAT]}, {}),
    ({"text": {"format": FORM}}, {}),
    ({"truncation": "auto"}, {}),
]
RUNS: list[tuple[dict[str, Any], dict[str, int]]] = [
    *[item for item in RESPONSES[:4] if item[0]],
    ({"max_steps": 3}, {"max_steps": 3}),
    ({"max_steps": 999}, {"max_steps": 999}),
    ({"max_output_tokens": 7, "temperature": 0.5, "top_p": 0.5}, {}),
    ({"instructions": "Be brief.", "tools": [ADD_FLAT]}, {}),
    ({"output_schema": SCHEMA}, {}),
    ({"files": {"a.txt": "a"}, "labels": {"a": "b"}}, {}),
]
CHATS: list[tuple[dict[str, Any], dict[str, int]]] = [
    ({"max_tokens": 7, "temperature": 0.5, "seed": 1, "stop": ["END"]}, {}),
    ({"tools": [ADD_FUNCTION], "parallel_tool_calls": False}, {}),
    ({"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA}}}, {}),
]


@pytest.fixture
async def client(tmp_path: Path, journal: Journal) -> AsyncIterator[AsyncOpenAI]:
    (tmp_path / "ada.yaml").write_text(PERSONA)
    said = saying(*[{"content": f'{{"n": {number}}}'} for number in range(3)])
    async with relaying(said, tmp_path, journal, AGENTS) as (made, _):
        yield made


def check(journal: Journal, agent: str, lowered: dict[str, int], *, more_tools: bool = False) -> RunStarted:
    """Check what a run may do: what its agent may do, as far as the client did not lower it."""
    started: Any = journal.read(journal.runs()[-1].run_id)[0].body
    own = OWN[agent]
    for name, value in lowered.items():
        least = min(value, value if (limit := getattr(own, name)) is None else limit)
        own = replace(own, **{name: least})
    assert started.agent.policy == own
    names = [tool.name for tool in started.tools]
    assert "write_file" in names
    assert ("add" in names) is more_tools
    return started


@pytest.mark.parametrize("agent", OWN)
@pytest.mark.parametrize(("given", "lowered"), RESPONSES, ids=lambda item: "-".join(item) or "-")
async def test_responses(
    client: AsyncOpenAI, journal: Journal, agent: str, given: Any, lowered: dict[str, int]
) -> None:
    body = {"model": agent, "input": "hi", **given}
    await client.post("/responses", body=body, cast_to=object)
    check(journal, agent, lowered, more_tools="tools" in given)


@pytest.mark.parametrize("agent", OWN)
@pytest.mark.parametrize(("given", "lowered"), RUNS, ids=lambda item: "-".join(item))
async def test_runs(
    client: AsyncOpenAI, journal: Journal, agent: str, given: Any, lowered: dict[str, int]
) -> None:
    await client.post("/runs", body={"agent": agent, "input": "hi", "wait": True, **given}, cast_to=object)
    check(journal, agent, lowered, more_tools="tools" in given)


@pytest.mark.parametrize("agent", OWN)
@pytest.mark.parametrize(("given", "lowered"), CHATS, ids=lambda item: "-".join(item))
async def test_chats(
    client: AsyncOpenAI, journal: Journal, agent: str, given: Any, lowered: dict[str, int]
) -> None:
    body = {"model": agent, "messages": [{"role": "user", "content": "hi"}], **given}
    await client.post("/chat/completions", body=body, cast_to=object)
    check(journal, agent, lowered, more_tools="tools" in given)


@pytest.mark.parametrize("agent", OWN)
async def test_ag_ui_a2a_and_mcp(client: AsyncOpenAI, journal: Journal, agent: str) -> None:
    tool = {"name": "add", "description": "Add.", "parameters": ADD["parameters"]}
    asked = [{"id": "u1", "role": "user", "content": "hi"}]
    await ask_by_ag_ui(client, agent, asked, tools=[tool])
    check(journal, agent, {}, more_tools=True)
    async with connect_by_mcp(client) as tools:
        await tools.call_tool(agent, {"message": "hi"})
    check(journal, agent, {})
    message = {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": "hi"}]}
    called = {"jsonrpc": "2.0", "id": 1, "method": "SendMessage", "params": {"message": message}}
    await client.post(f"/a2a/{agent}", body=called, cast_to=object)
    assert len(journal.runs()) == 3
    check(journal, agent, {})


async def test_a_limit_holds_for_its_request(client: AsyncOpenAI, journal: Journal) -> None:
    first = await client.responses.create(model="ada", input="hi", max_tool_calls=1)
    await client.responses.create(model="ada", input="and", previous_response_id=first.id)
    (info,) = journal.runs()
    resumed: Any = [event.body for event in journal.read(info.run_id) if event.type == "run_resumed"][-1]
    assert resumed.agent.policy == OWN["ada"]


async def test_the_longest_answer_of_a_model_cannot_be_raised(tmp_path: Path, journal: Journal) -> None:
    (tmp_path / "ada.yaml").write_text(PERSONA)
    said = saying(*[{"content": "a"}] * 4)
    async with relaying(said, tmp_path, journal, AGENTS) as (client, engine):
        for model, asked, sent in (("far", 7, 7), ("far", 99, 50), ("ada", 99, 50), ("ada", 7, 7)):
            await client.responses.create(model=model, input="hi", max_output_tokens=asked)
            assert engine.requests[-1].json()["max_tokens"] == sent
