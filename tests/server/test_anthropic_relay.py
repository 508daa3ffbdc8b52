"""The gateway between a client of Anthropic's SDK and a server of its API: what one says reaches the other."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.environments import LateModule
from tests.models import test_anthropic as api
from tests.models.server import Handler, Reply, Server, serve
from tests.server.test_responses import journal, serving

from treadle.journal.protocol import Journal

__all__ = ["journal"]
anthropic = LateModule("anthropic")
pytestmark = pytest.mark.xdist_group("vendors")
TOOL = {"name": "add", "input_schema": {"type": "object"}}


@asynccontextmanager
async def relaying(handler: Handler, path: Path, journal: Journal) -> AsyncIterator[tuple[Any, Server]]:
    """Serve a model of a scripted server, and yield a client and the server."""
    async with serve(handler) as server:
        config = path / "treadle.toml"
        config.write_text(
            f'[models.claude]\nmodel = "anthropic:claude-x"\nbase_url = "{server.base_url}"\n'
            'api_key_env = ""\nmax_attempts = 1\n'
        )
        async with (
            serving(config, journal) as url,
            anthropic.AsyncAnthropic(base_url=url, api_key="any", max_retries=0) as client,
        ):
            yield client, server


async def ask(client: Any, messages: Any, *, is_streamed: bool) -> Any:
    asked = {"model": "claude", "max_tokens": 2000, "tools": [TOOL], "messages": messages}
    if not is_streamed:
        return await client.messages.create(**asked)
    async with client.messages.stream(**asked) as got:
        return await got.get_final_message()


@pytest.mark.parametrize("name", ["signed", "signed, no text", "hidden thinking", "redacted", "two thoughts"])
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_signed_thoughts_go_both_ways(
    name: str, is_streamed: bool, tmp_path: Path, journal: Journal
) -> None:
    """The API refuses a request in which the thoughts before a call are missing, or have no signature."""
    blocks = api.SHAPES[name]
    raw = api.answer(*blocks, stop="tool_use" if api.USE in blocks else "end_turn")

    def handle(received: Any) -> Reply:
        return api.stream(raw) if received.json().get("stream") else Reply(raw)

    async with relaying(handle, tmp_path, journal) as (client, server):
        said = await ask(client, [{"role": "user", "content": "hi"}], is_streamed=is_streamed)
        got = [block.model_dump(exclude_none=True) for block in said.content]
        # A stream has no pieces of what is hidden.
        told = [block for block in blocks if not is_streamed or block.get("thinking") != ""]
        told = [block for block in told if not is_streamed or block["type"] != "redacted_thinking"]
        assert got == told
        # The gateway knows no conversation that began like this.
        results = [
            {"type": "tool_result", "tool_use_id": b["id"], "content": "3"} for b in got if "input" in b
        ]
        history = [
            {"role": "user", "content": "elsewhere"},
            {"role": "assistant", "content": got},
            {"role": "user", "content": results or "more"},
        ]
        await ask(client, history, is_streamed=False)
        sent = server.requests[-1].json()["messages"]
    assert [strip(block) for block in sent[1]["content"]] == got
    assert len(journal.runs()) == 2


def strip(block: dict[str, Any]) -> dict[str, Any]:
    """Return a block without the mark for the cache, which Treadle sets."""
    return {name: value for name, value in block.items() if name != "cache_control"}


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_the_client_is_told_which_sequence_stopped_the_answer(
    is_streamed: bool, tmp_path: Path, journal: Journal
) -> None:
    raw = api.answer(api.TEXT, stop="stop_sequence", stop_sequence="END")

    def handle(received: Any) -> Reply:
        return api.stream(raw) if received.json().get("stream") else Reply(raw)

    async with relaying(handle, tmp_path, journal) as (client, _):
        said = await ask(client, [{"role": "user", "content": "hi"}], is_streamed=is_streamed)
    assert (said.stop_reason, said.stop_sequence) == ("stop_sequence", "END")


COUNTED: Any = {
    "system": "Be brief.",
    "tools": [TOOL],
    "messages": [{"role": "user", "content": "hello " * 50}],
}


async def test_the_server_of_the_model_counts_tokens(tmp_path: Path, journal: Journal) -> None:
    replies = [Reply({"input_tokens": 123}), Reply(b'{"error": {"message": "slow down"}}', 429)]
    async with relaying(lambda _: replies.pop(0), tmp_path, journal) as (client, server):
        counted = await client.messages.count_tokens(model="claude", **COUNTED)
        assert counted.input_tokens == 123
        (asked,) = server.requests
        assert asked.path == "/v1/messages/count_tokens"
        assert asked.json() == {"model": "claude-x", **COUNTED}
        with pytest.raises(anthropic.RateLimitError, match="slow down"):
            await client.messages.count_tokens(model="claude", **COUNTED)
    assert not journal.runs()


async def test_tokens_are_estimated_for_other_models(tmp_path: Path, journal: Journal) -> None:
    config = tmp_path / "treadle.toml"
    config.write_text(
        '[models.echo]\nmodel = "mock:echo"\n[agents.clerk]\nmodel = "echo"\ntools = ["files"]\n'
    )
    async with (
        serving(config, journal) as url,
        anthropic.AsyncAnthropic(base_url=url, api_key="any", max_retries=0) as client,
    ):
        counts = []
        for model in ("echo", "clerk"):
            answer = await client.messages.with_raw_response.count_tokens(model=model, **COUNTED)
            assert answer.headers["x-treadle-estimated"] == "true"
            counts.append((await answer.parse()).input_tokens)
        assert 50 < counts[0] < 400
        assert counts[1] > counts[0] + 100  # the agent has tools of its own
        with pytest.raises(anthropic.NotFoundError, match="there is no model"):
            await client.messages.count_tokens(model="nope", **COUNTED)
        with pytest.raises(anthropic.BadRequestError):
            await client.messages.count_tokens(model="echo", messages=[{"role": "user", "content": 5}])
    assert not journal.runs()
