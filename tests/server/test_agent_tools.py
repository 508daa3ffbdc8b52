"""Agents as tools of MCP, as the official SDK's client calls them."""

import json
from pathlib import Path
from typing import Any

import httpx2
import pytest
from mcp import Client
from openai import AsyncOpenAI
from tests.server.test_access import KEYS
from tests.server.test_responses import client, config, journal, serving

from treadle.journal.protocol import Journal

__all__ = ["client", "config", "journal"]


def connect(client: AsyncOpenAI) -> Client:
    return Client(str(client.base_url).replace("/v1/", "/mcp"))


async def test_agents_are_tools(client: AsyncOpenAI, journal: Journal) -> None:
    told: list[str] = []

    async def hear(progress: float, total: float | None, message: str | None) -> None:
        told.append(message or "")

    async with connect(client) as mcp:
        tools = {tool.name: tool for tool in (await mcp.list_tools()).tools}
        assert set(tools) == {"echo", "clerk", "careful", "curious"}
        asked = 'call write_file {"file_path": "a.txt", "content": "one"}\nthen\nsay done'
        first: Any = await mcp.call_tool("clerk", {"message": asked}, progress_callback=hear)
        assert first.content[0].text == "done"
        assert told == ["step 1", "calling write_file", "step 2"]
        run_id = first.structured_content["run_id"]
        again: Any = await mcp.call_tool("clerk", {"message": "say more", "run_id": run_id})
        assert again.structured_content["output"] == "more"
    assert [info.turns for info in journal.runs()] == [2]
    assert journal.runs()[0].labels["treadle.agent"] == "clerk"


async def test_a_question_is_answered_with_the_next_call(client: AsyncOpenAI) -> None:
    async with connect(client) as mcp:
        asked: Any = await mcp.call_tool(
            "curious", {"message": 'call ask_user {"question": "Which?"}\nthen\nsay ok'}
        )
        found = asked.structured_content
        (question_id,) = found["waits_for"]["questions"]
        assert json.loads(asked.content[0].text.partition("answers: ")[2]) == found["waits_for"]
        refused: Any = await mcp.call_tool("curious", {"run_id": found["run_id"]})
        assert refused.is_error
        last: Any = await mcp.call_tool(
            "curious", {"run_id": found["run_id"], "answers": {question_id: "this"}}
        )
        assert last.structured_content["output"] == "ok"


@pytest.mark.parametrize(
    ("name", "arguments", "said"),
    [
        ("nobody", {"message": "a"}, "there is no model"),
        ("echo", {}, "give a message"),
        ("echo", {"message": "a", "run_id": "nope"}, "has no run"),
        ("echo", {"mesage": "a"}, "did you mean 'message'?"),
        ("echo", {"message": "a", "answers": "yes"}, "answers"),
        ("echo", {"message": 5}, "message"),
    ],
)
async def test_what_cannot_be_called_is_an_error(
    client: AsyncOpenAI, journal: Journal, name: str, arguments: dict[str, Any], said: str
) -> None:
    async with connect(client) as mcp:
        found: Any = await mcp.call_tool(name, arguments)
        assert found.is_error
        assert said in found.content[0].text
    assert journal.runs() == []


async def test_a_key_calls_only_for_itself(tmp_path: Path, journal: Journal) -> None:
    (tmp_path / "treadle.toml").write_text(KEYS)
    call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call"}

    async def ask(url: str, key: str | None, arguments: dict[str, Any]) -> tuple[int, Any]:
        headers = {"accept": "application/json, text/event-stream", "mcp-protocol-version": "2025-11-25"}
        if key is not None:
            headers["authorization"] = f"Bearer {key}"
        body = {**call, "params": {"name": "echo", "arguments": arguments}}
        async with httpx2.AsyncClient() as http:
            answer = await http.post(f"{url}/mcp", json=body, headers=headers)
        lines = [line for line in answer.text.splitlines() if line.startswith("data: ")]
        return answer.status_code, json.loads(lines[-1].removeprefix("data: "))["result"] if lines else None

    async with serving(tmp_path / "treadle.toml", journal) as url:
        assert (await ask(url, None, {"message": "a"}))[0] == 401
        _, made = await ask(url, "kims-key", {"message": "a"})
        run_id = made["structuredContent"]["run_id"]
        _, other = await ask(url, "bos-key", {"message": "b", "run_id": run_id})
        assert "has no run" in other["content"][0]["text"]
        _, reader = await ask(url, "readers-key", {"message": "a"})
        assert "scope 'run'" in reader["content"][0]["text"]
    assert len(journal.runs()) == 1
