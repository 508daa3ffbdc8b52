"""Agents in the AG-UI protocol: each event is read by the types of the package `ag-ui-protocol`."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest
from ag_ui.core import Event, RunAgentInput
from openai import AsyncOpenAI
from pydantic import TypeAdapter
from tests.server.test_responses import ADD, client, config, journal

from treadle import Run
from treadle.journal.protocol import Journal
from treadle.journal.run_info import RunFilter

__all__ = ["client", "config", "journal"]
READ: TypeAdapter[Any] = TypeAdapter(Event)
TOOL = {"name": "add", "description": "Add two numbers.", "parameters": ADD["parameters"]}


def check_order(events: list[Any]) -> None:
    """Check that everything that was opened is closed, and that the run begins and ends once."""
    kinds = [event.type.value for event in events]
    assert kinds[0] == "RUN_STARTED"
    assert kinds[-1] in ("RUN_FINISHED", "RUN_ERROR")
    assert sum(kind in ("RUN_STARTED", "RUN_FINISHED", "RUN_ERROR") for kind in kinds) == 2
    open_now: set[Any] = set()
    for event in events:
        name, _, end = event.type.value.rpartition("_")
        key = (name, getattr(event, "message_id", None) or getattr(event, "tool_call_id", None))
        if name in ("TEXT_MESSAGE", "REASONING_MESSAGE", "TOOL_CALL", "REASONING"):
            if end == "START":
                assert key not in open_now
                open_now.add(key)
            elif end == "END":
                open_now.remove(key)
            elif end in ("CONTENT", "ARGS"):
                assert key in open_now
    assert not open_now
    assert kinds.count("STEP_STARTED") == kinds.count("STEP_FINISHED")


async def stream(client: AsyncOpenAI, agent: str, body: dict[str, Any]) -> AsyncIterator[Any]:
    url = f"{client.base_url}ag-ui/{agent}"
    async with client._client.stream("POST", url, json=body) as answer:
        assert answer.status_code == 200, await answer.aread()
        async for line in answer.aiter_lines():
            if line.startswith("data: "):
                yield READ.validate_json(line.removeprefix("data: "))


async def ask(client: AsyncOpenAI, agent: str, messages: list[Any], **more: Any) -> list[Any]:
    given = RunAgentInput(
        thread_id=more.pop("thread_id", "t1"), run_id="r1", state={}, messages=messages, context=[], **more
    )
    body = json.loads(given.model_dump_json(by_alias=True))
    events = [event async for event in stream(client, agent, body)]
    check_order(events)
    return events


def user(text: str) -> dict[str, Any]:
    return {"id": "u", "role": "user", "content": text}


def text_of(events: list[Any]) -> str:
    return "".join([event.delta for event in events if event.type.value == "TEXT_MESSAGE_CONTENT"])


async def test_a_thread_is_a_session(client: AsyncOpenAI, journal: Journal) -> None:
    text = " ".join(["one two three"] * 20)
    events = await ask(client, "echo", [user(text)])
    assert text_of(events) == f"You said: {text}"
    assert len([event for event in events if event.type.value == "TEXT_MESSAGE_CONTENT"]) > 1
    assert (events[0].thread_id, events[0].run_id) == ("t1", "r1")
    assert events[-1].outcome.type == "success"
    assert events[-1].usage[0].total_tokens > 0
    said = {"id": "a", "role": "assistant", "content": text_of(events)}
    again = await ask(client, "echo", [user(text), said, user("more")])
    assert text_of(again) == "You said: more"
    assert journal.runs()[0].turns == 2
    await ask(client, "echo", [user("other")], thread_id="t2")
    assert len(journal.runs()) == 2


async def test_a_thread_from_elsewhere_keeps_its_history(client: AsyncOpenAI, journal: Journal) -> None:
    history = [user("hello"), {"id": "a", "role": "assistant", "content": "hi"}, user("more")]
    assert text_of(await ask(client, "echo", history)) == "You said: more"
    (info,) = journal.runs()
    found = await client.get(f"/runs/{info.run_id}/messages", cast_to=dict)
    assert [message["content"] for message in found["data"]][:3] == ["hello", "hi", "more"]


async def test_the_client_runs_its_tools(client: AsyncOpenAI, journal: Journal) -> None:
    asked = user('call add {"a": 1, "b": 2}\nthen\nsay three')
    events = await ask(client, "echo", [asked], tools=[TOOL])
    (start,) = [event for event in events if event.type.value == "TOOL_CALL_START"]
    assert start.tool_call_name == "add"
    arguments = "".join([event.delta for event in events if event.type.value == "TOOL_CALL_ARGS"])
    assert json.loads(arguments) == {"a": 1, "b": 2}
    assert events[-1].outcome.pending_tool_call_ids == [start.tool_call_id]
    call = {"id": start.tool_call_id, "type": "function", "function": {"name": "add", "arguments": arguments}}
    history = [
        asked,
        {"id": "a", "role": "assistant", "toolCalls": [call]},
        {"id": "t", "role": "tool", "toolCallId": start.tool_call_id, "content": "3"},
    ]
    last = await ask(client, "echo", history, tools=[TOOL])
    assert text_of(last) == "three"
    assert [event for event in last if event.type.value == "TOOL_CALL_RESULT"] == []
    assert len(journal.runs()) == 1


async def test_the_agents_calls_are_shown_with_their_results(client: AsyncOpenAI) -> None:
    asked = user('call write_file {"file_path": "a.txt", "content": "one"}\nthen\nsay done')
    events = await ask(client, "clerk", [asked])
    kinds = [event.type.value for event in events]
    assert kinds.index("TOOL_CALL_END") < kinds.index("TOOL_CALL_RESULT") < kinds.index("TEXT_MESSAGE_START")
    (start,) = [event for event in events if event.type.value == "TOOL_CALL_START"]
    (result,) = [event for event in events if event.type.value == "TOOL_CALL_RESULT"]
    assert start.tool_call_id == result.tool_call_id
    assert "a.txt" in result.content


async def test_a_message_beside_answers_reaches_the_model(client: AsyncOpenAI, journal: Journal) -> None:
    asked = user('call add {"a": 1, "b": 2}\nthen\nsay three')
    (start,) = [
        event
        for event in await ask(client, "echo", [asked], tools=[TOOL])
        if event.type.value == "TOOL_CALL_START"
    ]
    call = {"id": start.tool_call_id, "type": "function", "function": {"name": "add", "arguments": "{}"}}
    history = [
        asked,
        {"id": "a", "role": "assistant", "toolCalls": [call]},
        {"id": "t", "role": "tool", "toolCallId": start.tool_call_id, "content": "3"},
        user("say four instead"),
    ]
    await ask(client, "echo", history, tools=[TOOL])
    (info,) = journal.runs()
    said = [message.content for message in Run.load(info.run_id, journal).messages]
    assert said[-3:] == ["3", "say four instead", "three"]


@pytest.mark.parametrize("is_approved", [True, False])
async def test_an_approval_is_an_interrupt(client: AsyncOpenAI, journal: Journal, is_approved: bool) -> None:
    asked = user('call write_file {"file_path": "a.txt", "content": "one"}\nthen\nsay done')
    events = await ask(client, "careful", [asked])
    (interrupt,) = events[-1].outcome.interrupts
    (start,) = [event for event in events if event.type.value == "TOOL_CALL_START"]
    assert (interrupt.reason, interrupt.tool_call_id) == ("tool_call", start.tool_call_id)
    more = [] if is_approved else [user("say sorry")]
    payload = {"approved": is_approved, "editedArgs": {"file_path": "b.txt", "content": "two"}}
    if not is_approved:
        payload = {"approved": False, "reason": "not now"}
    entry: Any = {"interruptId": interrupt.id, "status": "resolved", "payload": payload}
    last = await ask(client, "careful", [asked, *more], resume=[entry])
    (result,) = [event for event in last if event.type.value == "TOOL_CALL_RESULT"]
    assert ("b.txt" if is_approved else "not now") in result.content
    assert text_of(last) == "done"
    (info,) = journal.runs()
    said = [message.content for message in Run.load(info.run_id, journal).messages]
    assert info.turns == 1
    assert said[-2] == (result.content if is_approved else "say sorry")


@pytest.mark.parametrize("status", ["resolved", "cancelled"])
async def test_a_question_is_an_interrupt(client: AsyncOpenAI, status: str) -> None:
    options = [{"label": "a.txt", "description": "A"}, {"label": "b.txt", "description": "B"}]
    asked = user(f"call ask_user {json.dumps({'question': 'Which?', 'options': options})}\nthen\nsay ok")
    events = await ask(client, "curious", [asked])
    (interrupt,) = events[-1].outcome.interrupts
    assert (interrupt.reason, interrupt.message) == ("input_required", "Which?")
    assert interrupt.response_schema == {"type": "string", "enum": ["a.txt", "b.txt"]}
    entry: Any = {"interruptId": interrupt.id, "status": status, "payload": "b.txt"}
    last = await ask(client, "curious", [asked], resume=[entry])
    assert text_of(last) == "ok"
    assert ("b.txt" in str([event.content for event in last if event.type.value == "TOOL_CALL_RESULT"])) is (
        status == "resolved"
    )


@pytest.mark.parametrize(
    ("agent", "change", "said"),
    [
        ("nobody", {}, "there is no model"),
        ("echo", {"messages": []}, "not one of the user"),
        ("echo", {"messages": [{"role": "tool", "content": "x"}]}, "toolCallId"),
        ("echo", {"messages": [{"role": "wizard", "content": "x"}]}, "role"),
        ("echo", {"resume": [{"interruptId": "x", "status": "resolved"}]}, "waits for nothing"),
        ("echo", {"tools": [{"name": "", "parameters": 5}]}, "tools"),
        ("echo", {"threadId": ""}, "threadId"),
        ("echo", {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "inline"),
    ],
)
async def test_what_cannot_be_asked_is_refused(
    client: AsyncOpenAI, journal: Journal, agent: str, change: dict[str, Any], said: str
) -> None:
    body = {"threadId": "t", "runId": "r", "messages": [user("hi")]} | change
    answer = await client._client.post(f"{client.base_url}ag-ui/{agent}", json=body)
    assert answer.status_code in (400, 404), answer.text
    assert said in answer.text
    assert journal.runs() == []


async def test_a_client_that_leaves_cancels_the_run(client: AsyncOpenAI, journal: Journal) -> None:
    body = {"threadId": "t", "runId": "r", "messages": [user("word " * 20_000)]}
    events = stream(client, "echo", body)
    async for event in events:
        if event.type.value == "TEXT_MESSAGE_CONTENT":
            break
    await events.aclose()  # type: ignore[attr-defined]
    async with asyncio.timeout(20):
        while not journal.runs(RunFilter(is_turn_open=False)):
            await asyncio.sleep(0.02)
