"""Custom tools and the choices of tools in chat completions, as OpenAI's SDK sends them."""

from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from tests.server.test_gateway import ADD_FUNCTION
from tests.server.test_relay import assert_replays
from tests.server.test_response_items import calling, talking
from tests.server.test_responses import journal

from treadle.journal.protocol import Journal

__all__ = ["journal"]
GRAMMAR: Any = {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: LINE"}}
PATCH: Any = {
    "type": "custom",
    "custom": {"name": "patch", "description": "Change files.", "format": GRAMMAR},
}
ONLY_PATCH: Any = {"type": "custom", "custom": {"name": "patch"}}
PATCH_TEXT = '*** a\n+ "b"'
PATCH_ARGUMENTS = '{"input": "*** a\\n+ \\"b\\""}'


async def ask(client: AsyncOpenAI, is_stream: bool, **given: Any) -> dict[str, Any]:
    """Return the message of an answer, as a client sends it back."""
    if not is_stream:
        made = await client.chat.completions.create(**given)
        return made.choices[0].message.model_dump(exclude_none=True)
    message: dict[str, Any] = {"role": "assistant", "content": "", "tool_calls": []}
    async for piece in await client.chat.completions.create(stream=True, **given):
        for choice in piece.choices:
            message["content"] += choice.delta.content or ""
            message["tool_calls"] += [call.to_dict() for call in choice.delta.tool_calls or ()]
    for call in message["tool_calls"]:
        del call["index"]
    return {name: value for name, value in message.items() if value}


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_custom_tool_takes_a_text(is_stream: bool, tmp_path: Path, journal: Journal) -> None:
    said = [calling(("c1", "patch", PATCH_ARGUMENTS)), {"content": "done"}]
    async with talking(tmp_path, journal, *said) as (client, engine):
        given: Any = {"model": "far", "tools": [PATCH, ADD_FUNCTION], "tool_choice": ONLY_PATCH}
        messages: list[Any] = [{"role": "user", "content": "patch it"}]
        first = await ask(client, is_stream, messages=messages, **given)
        assert first["tool_calls"] == [
            {"id": "c1", "type": "custom", "custom": {"name": "patch", "input": PATCH_TEXT}}
        ]
        sent = engine.requests[0].json()
        told = sent["tools"][0]["function"]
        assert told["parameters"]["required"] == ["input"]
        assert "start: LINE" in told["description"]
        assert sent["tool_choice"] == {"type": "function", "function": {"name": "patch"}}
        messages += [first, {"role": "tool", "tool_call_id": "c1", "content": "ok"}]
        given["tool_choice"] = "auto"
        last = await ask(client, is_stream, messages=messages, **given)
        assert last["content"] == "done"
        asked = engine.requests[1].json()["messages"]
        assert asked[1]["tool_calls"][0]["function"]["arguments"] == PATCH_ARGUMENTS
        (info,) = journal.runs()
        assert info.turns == 1
        await assert_replays(journal)


async def test_functions_and_texts_are_streamed_together(tmp_path: Path, journal: Journal) -> None:
    """The SDK's `stream` cannot read custom tools, of any server; its chunks can."""
    said = calling(("c1", "patch", PATCH_ARGUMENTS), ("c2", "add", '{"a": 1}'))
    async with talking(tmp_path, journal, said) as (client, _):
        chunks = await client.chat.completions.create(
            model="far",
            messages=[{"role": "user", "content": "go"}],
            tools=[ADD_FUNCTION, PATCH],
            stream=True,
        )
        pieces = [item.choices[0].delta.tool_calls or () async for item in chunks if item.choices]
    told = [call.to_dict() for calls in pieces for call in calls]
    assert [call["index"] for call in told] == [1, 1, 1, 0]
    assert "".join([call["function"]["arguments"] for call in told[:3]]) == '{"a": 1}'
    assert told[3] == {
        "index": 0,
        "id": "c1",
        "type": "custom",
        "custom": {"name": "patch", "input": PATCH_TEXT},
    }


async def test_only_the_allowed_tools_are_given(tmp_path: Path, journal: Journal) -> None:
    async with talking(tmp_path, journal, {"content": "a"}) as (client, engine):
        allowed: Any = {"mode": "required", "tools": [ONLY_PATCH]}
        given: Any = {"tools": [ADD_FUNCTION, PATCH], "messages": [{"role": "user", "content": "x"}]}
        await client.chat.completions.create(
            model="far", tool_choice={"type": "allowed_tools", "allowed_tools": allowed}, **given
        )
        sent = engine.requests[-1].json()
        assert [tool["function"]["name"] for tool in sent["tools"]] == ["patch"]
        assert sent["tool_choice"] == "required"
        unknown: Any = [{"type": "function", "function": {"name": "no"}}]
        for model, wrong, error in (
            ("clerk", {**allowed, "mode": "auto"}, "cannot take away the agent's own tools"),
            ("far", {**allowed, "mode": "always"}, "tool_choice.allowed_tools.mode is 'always'"),
            ("far", {**allowed, "tools": unknown}, "none of the tools"),
            ("far", {**allowed, "tools": ["patch"]}, r"tool_choice.allowed_tools.tools\[0\]"),
        ):
            with pytest.raises(openai.BadRequestError, match=error):
                await client.chat.completions.create(
                    model=model, tool_choice={"type": "allowed_tools", "allowed_tools": wrong}, **given
                )


async def test_what_an_agent_must_call_is_a_tool_of_the_client(tmp_path: Path, journal: Journal) -> None:
    """Its model would call its own tools in every step, and never answer."""
    async with talking(tmp_path, journal, {"content": "a"}) as (client, engine):
        given: Any = {"model": "clerk", "messages": [{"role": "user", "content": "x"}]}
        choices: Any = ("required", {"type": "function", "function": {"name": "pay"}})
        for choice in choices:
            with pytest.raises(openai.BadRequestError, match="needs tools of the client"):
                await client.chat.completions.create(tool_choice=choice, **given)
        await client.chat.completions.create(tool_choice="none", **given)
        assert engine.requests[-1].json()["tool_choice"] == "none"
