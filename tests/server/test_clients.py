"""The server as agents of other frameworks use it; each test runs where its package is installed."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.models.answers import answer, chunk, usage_chunk
from tests.models.server import Received, Reply, stream
from tests.models.server import sse as to_sse
from tests.server.test_relay import calls, journal, relaying
from tests.server.test_responses import CONFIG, serving

from treadle.journal.protocol import Journal

__all__ = ["journal"]


def reply(request: Received) -> Reply:
    """Call `add` with 1 and 2, then say that it is done, or call `final_answer` if that is a tool."""
    asked = request.json()
    names = [tool["function"]["name"] for tool in asked.get("tools") or ()]
    is_first = not any([item["role"] == "tool" or "3" in str(item) for item in asked["messages"][1:]])
    if "add" in names and is_first:
        made = calls(("c1", "add", '{"a": 1, "b": 2}'))
    elif "final_answer" in names:
        made = calls(("c2", "final_answer", '{"answer": "done"}'))
    else:
        made = answer("done")
    if not asked.get("stream"):
        return Reply(made)
    message = dict(made["choices"][0]["message"])
    for number, call in enumerate(message.get("tool_calls") or ()):
        call["index"] = number
    return stream(to_sse(chunk(**message), chunk(made["choices"][0]["finish_reason"]), usage_chunk()))


def add(a: int, b: int) -> int:
    """Add two numbers.

    Args:
        a: the first
        b: the second
    """
    return a + b


async def test_openai_agents(tmp_path: Path, journal: Journal) -> None:
    agents: Any = pytest.importorskip("agents")
    agents.set_tracing_disabled(True)
    async with relaying(reply, tmp_path, journal) as (client, _):
        model = agents.OpenAIChatCompletionsModel("far", client)
        agent = agents.Agent(
            name="a", instructions="Be brief.", tools=[agents.function_tool(add)], model=model
        )
        assert (await agents.Runner.run(agent, "add 1 and 2")).final_output == "done"
        streamed = agents.Runner.run_streamed(agent, "add 1 and 2")
        async for _event in streamed.stream_events():
            pass
        assert streamed.final_output == "done"
    assert [info.steps for info in journal.runs()] == [2, 2]


@pytest.mark.parametrize("kind", ["openai", "anthropic"])
async def test_pydantic_ai(kind: str, tmp_path: Path, journal: Journal) -> None:
    pydantic_ai: Any = pytest.importorskip("pydantic_ai")
    async with relaying(reply, tmp_path, journal) as (client, _):
        url = str(client.base_url)
        if kind == "openai":
            from pydantic_ai.models.openai import OpenAIChatModel  # type: ignore[import-not-found]
            from pydantic_ai.providers.openai import OpenAIProvider  # type: ignore[import-not-found]

            model = OpenAIChatModel("far", provider=OpenAIProvider(base_url=url, api_key="any"))
        else:
            from pydantic_ai.models.anthropic import AnthropicModel  # type: ignore[import-not-found]
            from pydantic_ai.providers.anthropic import AnthropicProvider  # type: ignore[import-not-found]

            home = url.removesuffix("/v1/")
            model = AnthropicModel("far", provider=AnthropicProvider(base_url=home, api_key="any"))
        agent = pydantic_ai.Agent(model, instructions="Be brief.", tools=[add])
        assert (await agent.run("add 1 and 2")).output == "done"
        async with agent.run_stream("add 1 and 2") as streamed:
            assert await streamed.get_output() == "done"
    assert [info.steps for info in journal.runs()] == [2, 2]


async def test_langchain(tmp_path: Path, journal: Journal) -> None:
    langchain: Any = pytest.importorskip("langchain.agents")
    openai: Any = pytest.importorskip("langchain_openai")
    async with relaying(reply, tmp_path, journal) as (client, _):
        model = openai.ChatOpenAI(model="far", base_url=str(client.base_url), api_key="any")
        made = await langchain.create_agent(model, [add]).ainvoke({"messages": [("user", "add 1 and 2")]})
        assert made["messages"][-1].content == "done"
    assert [info.steps for info in journal.runs()] == [2]


async def test_smolagents(tmp_path: Path, journal: Journal) -> None:
    smolagents: Any = pytest.importorskip("smolagents")
    async with relaying(reply, tmp_path, journal) as (client, engine):
        model = smolagents.OpenAIServerModel("far", api_base=str(client.base_url), api_key="any")
        agent = smolagents.ToolCallingAgent(tools=[smolagents.tool(add)], model=model, max_steps=3)
        assert await asyncio.to_thread(agent.run, "add 1 and 2") == "done"
        assert engine.requests[0].json()["tool_choice"] == "required"
    assert sum(info.steps for info in journal.runs()) == 2


@pytest.mark.parametrize("package", ["ogx_client", "llama_stack_client"])
async def test_the_agent_of_llama_stack(package: str, tmp_path: Path, journal: Journal) -> None:
    """It is also called OGX. The server has its conversations, its files and its search."""
    stack: Any = pytest.importorskip(package)
    if not hasattr(stack, "AgentEventLogger"):
        pytest.skip(f"this version of {package} has no agents of the Responses API")
    path = tmp_path / "treadle.toml"
    path.write_text(CONFIG)

    def use(url: str) -> None:
        client = getattr(stack, "OgxClient", None) or stack.LlamaStackClient
        client = client(base_url=url, api_key="any")
        agent = stack.Agent(client, model="echo", instructions="Be brief.", tools=[plus])
        session = agent.create_session("one")
        asked = 'call plus {"a": 1, "b": 2}\nthen\nsay done'
        for text, said, steps in ((asked, "done", 3), ("say again", "again", 1)):
            content = [{"type": "input_text", "text": text}]
            message = {"role": "user", "type": "message", "content": content}
            events = [chunk.event for chunk in agent.create_turn([message], session, stream=True)]
            assert [event.event_type for event in events].count("step_completed") == steps
            assert events[-1].event_type == "turn_completed"
            assert events[-1].final_text == said
        assert len(list(client.conversations.items.list(session))) == 6
        (*_, first) = client.responses.list(order="desc")
        assert first.input
        file = client.files.create(file=("a.txt", b"The cat lives in Bonn."), purpose="assistants")
        store = client.vector_stores.create(name="s", file_ids=[file.id])
        while client.vector_stores.retrieve(store.id).status == "in_progress":
            pass
        (found,) = client.vector_stores.search(store.id, query="cat").data
        assert found.content[0].text == "The cat lives in Bonn."

    async with serving(path, journal) as url:
        await asyncio.to_thread(use, url)
    assert [info.steps for info in journal.runs()] == [3]


def plus(a: int, b: int) -> int:
    """Add two numbers.

    :param a: the first
    :param b: the second
    :returns: the sum
    """
    return a + b
