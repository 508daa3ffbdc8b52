"""Chat completions and the Messages API, as the SDKs of OpenAI and Anthropic use them over a socket."""

import asyncio
from typing import TYPE_CHECKING, Any, cast

import openai
import pytest
from openai import AsyncOpenAI
from tests.environments import LateModule
from tests.server.test_responses import ADD, client, config, journal

from treadle.core.events import Noted
from treadle.core.inbox import Note
from treadle.core.state import State
from treadle.core.types import Message, Role
from treadle.journal.memory import MemoryJournal
from treadle.journal.protocol import Journal
from treadle.server.gateway.conversations import ConversationDigest, Conversations

if TYPE_CHECKING:
    from anthropic import AsyncAnthropic

    from treadle.journal.protocol import RunWriter

__all__ = ["client", "config", "journal"]
anthropic = LateModule("anthropic")
ADD_FUNCTION: Any = {
    "type": "function",
    "function": {name: ADD[name] for name in ("name", "description", "parameters")},
}
ADD_TOOL: Any = {"name": "add", "description": "Add two numbers.", "input_schema": ADD["parameters"]}
CALLS = 'call add {"a": 1, "b": 2}\ncall add {"a": 3, "b": 4}\nthen\nsay done'


@pytest.fixture
def claude(client: AsyncOpenAI) -> "AsyncAnthropic":
    return anthropic.AsyncAnthropic(
        base_url=str(client.base_url).removesuffix("/v1/"), api_key="any", max_retries=0
    )


async def test_chat_completions_with_tools_are_one_run(client: AsyncOpenAI, journal: Journal) -> None:
    messages: list[Any] = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": CALLS}]
    first = await client.chat.completions.create(
        model="echo", messages=messages, tools=[ADD_FUNCTION], seed=1
    )
    choice = first.choices[0]
    assert choice.finish_reason == "tool_calls"
    calls: Any = choice.message.tool_calls
    assert [call.function.arguments for call in calls] == ['{"a": 1, "b": 2}', '{"a": 3, "b": 4}']
    messages.append(choice.message.model_dump(exclude_none=True))
    messages += [{"role": "tool", "tool_call_id": call.id, "content": "x"} for call in calls]
    second = await client.chat.completions.create(model="echo", messages=messages, tools=[ADD_FUNCTION])
    assert second.choices[0].message.content == "done"
    assert second.usage is not None
    assert second.usage.total_tokens > 0
    messages += [{"role": "assistant", "content": "done"}, {"role": "user", "content": "more"}]
    third = await client.chat.completions.create(model="echo", messages=messages)
    assert third.choices[0].message.content == "You said: more"
    (info,) = journal.runs()
    assert (info.turns, info.steps) == (2, 3)
    assert [event.body.system_message for event in journal.read(info.run_id)[:1]] == ["Be brief."]  # type: ignore[union-attr]


async def test_a_chat_without_calls_is_joined_by_its_history(client: AsyncOpenAI, journal: Journal) -> None:
    messages: list[Any] = []
    for text in ("one", "two", "three"):
        messages.append({"role": "user", "content": text})
        answer = await client.chat.completions.create(model="echo", messages=messages)
        messages.append({"role": "assistant", "content": answer.choices[0].message.content})
    assert [info.turns for info in journal.runs()] == [3]
    raw = await client.chat.completions.with_raw_response.create(model="echo", messages=messages[:1])
    assert raw.headers["x-treadle-run"] != journal.runs()[0].run_id


async def test_a_chat_goes_on_although_its_run_has_changed_meanwhile(
    client: AsyncOpenAI, journal: Journal
) -> None:
    messages: list[Any] = []
    for number in range(4):
        messages.append({"role": "user", "content": f"say {number}"})
        answer = await client.chat.completions.create(model="echo", messages=messages)
        assert answer.choices[0].message.content == str(number)
        messages.append({"role": "assistant", "content": answer.choices[0].message.content})
        (info,) = journal.runs()
        if number == 0:
            await asyncio.wrap_future(journal.posting(info.run_id, Note({"label": "good"})))
        elif number == 1:
            writer = await journal.acquire(info.run_id)
            writer.append([Noted(at=1.0, labels={"by": "another"})])
            await writer.release()
            await writer.sync()
    (info,) = journal.runs()
    assert (info.turns, info.is_driven) == (4, False)
    labels = [event.body.labels for event in journal.read(info.run_id) if isinstance(event.body, Noted)]
    assert labels == [{"label": "good"}, {"by": "another"}]


async def test_chat_completions_stream(client: AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="echo",
        messages=[{"role": "user", "content": CALLS}],
        tools=[ADD_FUNCTION],
        stream=True,
        stream_options={"include_usage": True},
    )
    calls: dict[int, str] = {}
    reasons, usage = [], None
    async for chunk in stream:
        usage = chunk.usage or usage
        for choice in chunk.choices:
            reasons.append(choice.finish_reason)
            for call in choice.delta.tool_calls or ():
                assert call.function is not None
                calls[call.index] = calls.get(call.index, "") + (call.function.arguments or "")
    assert calls == {0: '{"a": 1, "b": 2}', 1: '{"a": 3, "b": 4}'}
    assert reasons[-1] == "tool_calls"
    assert usage is not None


async def test_an_agents_own_tools_stay_on_the_server(client: AsyncOpenAI) -> None:
    asked = 'call write_file {"file_path": "a.txt", "content": "hi"}\nthen\nsay done'
    answer = await client.chat.completions.create(
        model="clerk", messages=[{"role": "user", "content": asked}]
    )
    assert answer.choices[0].message.content == "done"
    assert answer.choices[0].message.tool_calls is None


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"model": "echo", "messages": []}, "messages is missing"),
        ({"model": "echo", "messages": [{"role": "user", "content": "a"}], "n": 2}, "n is 2"),
        ({"model": "nope", "messages": [{"role": "user", "content": "a"}]}, "there is no model 'nope'"),
        ({"model": "echo", "messages": [{"role": "odd", "content": "a"}]}, "'odd' is not a role"),
        ({"model": "echo", "messages": ["a"]}, r"messages\[0\]"),
        *[
            ({"model": "echo", "messages": [message]}, r"messages\[0\] cannot be read: content is missing")
            for message in (
                {"role": "user"},
                {"role": "user", "content": None},
                {"role": "system"},
                {"role": "tool", "tool_call_id": "c9"},
                {"role": "assistant"},
                {"role": "assistant", "content": None, "tool_calls": []},
            )
        ],
        (
            {"model": "echo", "messages": [{"role": "user", "content": "a"}], "tool_choice": "any"},
            "tool_choice",
        ),
        ({"model": "echo", "messages": [{"role": "user", "content": "a"}], "tools": ["x"]}, r"tools\[0\]"),
        (
            {"model": "echo", "messages": [{"role": "user", "content": "a"}], "temperature": "hot"},
            "temperature",
        ),
        ({"model": "echo", "messages": [{"role": "tool", "tool_call_id": "c9", "content": "a"}]}, "c9"),
    ],
)
async def test_bad_chats_are_refused(client: AsyncOpenAI, body: Any, error: str) -> None:
    with pytest.raises(openai.APIStatusError, match=error) as refused:
        await client.post("/chat/completions", body=body, cast_to=object)
    assert 400 <= refused.value.status_code < 500


@pytest.mark.xdist_group("vendors")
async def test_messages_with_tools_are_one_run(claude: "AsyncAnthropic", journal: Journal) -> None:
    messages: list[Any] = [{"role": "user", "content": CALLS}]
    asked: Any = {"model": "echo", "max_tokens": 100, "tools": [ADD_TOOL], "system": "Be brief."}
    first = await claude.messages.create(messages=messages, **asked)
    assert first.stop_reason == "tool_use"
    uses: list[Any] = [block for block in first.content if block.type == "tool_use"]
    assert [use.input for use in uses] == [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
    results = [
        {"type": "tool_result", "tool_use_id": use.id, "content": "x", "is_error": True} for use in uses
    ]
    messages += [
        {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in first.content]},
        {"role": "user", "content": results},
    ]
    second = await claude.messages.create(messages=messages, **asked)
    assert second.content[0].text == "done"  # type: ignore[union-attr]
    assert second.stop_reason == "end_turn"
    (info,) = journal.runs()
    completed = [event.body for event in journal.read(info.run_id) if event.type == "tool_completed"]
    assert all(body.result.is_error for body in completed)  # type: ignore[union-attr]


@pytest.mark.xdist_group("vendors")
async def test_messages_stream(claude: "AsyncAnthropic") -> None:
    asked: Any = {"model": "echo", "max_tokens": 100, "tools": [ADD_TOOL]}
    async with claude.messages.stream(messages=[{"role": "user", "content": CALLS}], **asked) as stream:
        message = await stream.get_final_message()
    assert [block.input for block in message.content if block.type == "tool_use"] == [
        {"a": 1, "b": 2},
        {"a": 3, "b": 4},
    ]
    async with claude.messages.stream(
        messages=[{"role": "user", "content": "say hello there"}], **asked
    ) as stream:
        texts = [text async for text in stream.text_stream]
    assert "".join(texts) == "hello there"


@pytest.mark.xdist_group("vendors")
async def test_bad_messages_are_refused(claude: "AsyncAnthropic") -> None:
    asked: Any = {"model": "echo", "max_tokens": 100}
    image = {"type": "image", "source": {"type": "odd", "url": "http://localhost/a.png"}}
    for messages, error in (
        ([{"role": "user", "content": [image]}], "not supported"),
        ([{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "u1"}]}], "u1"),
        ([], "missing or empty"),
        ([{"role": "user", "content": None}], "content is None"),
        ([{"role": "user"}], "'content' is missing"),
    ):
        with pytest.raises(anthropic.BadRequestError, match=error):
            await claude.messages.create(messages=messages, **asked)  # type: ignore[arg-type]


def test_long_conversations_are_kept_in_memory_up_to_a_size() -> None:
    known, said = Conversations(MemoryJournal()), Message(Role.USER, "word" * 2_500_001)
    for number in range(20):
        conversation = ConversationDigest()
        digest = conversation.add([said, Message(Role.ASSISTANT, str(number))])
        assert conversation.chars > 10_000_000
        known.note("kim", digest, str(number), State(), lambda: cast("RunWriter", None), conversation.chars)
    assert [number for number in range(20) if known.renew(str(number))] == [14, 15, 16, 17, 18, 19]
    known.note("kim", b"a", "a", State(), lambda: cast("RunWriter", None), 60_000_000)
    known.note("kim", b"b", "b", State(), lambda: cast("RunWriter", None), 60_000_000)
    assert [name for name in ("a", "b") if known.renew(name)] == ["b"]
