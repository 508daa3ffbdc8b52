"""Agents in the A2A protocol, as its own SDK uses them over a socket."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from openai import AsyncOpenAI
from tests.environments import LateModule
from tests.server.test_responses import client, config, journal

from treadle.journal.protocol import Journal
from treadle.journal.run_info import RunFilter

__all__ = ["client", "config", "journal"]

sdk = LateModule("a2a.client")
wire = LateModule("a2a.types.a2a_pb2")
errors = LateModule("a2a.utils.errors")
json_format = LateModule("google.protobuf.json_format")


@pytest.fixture
async def connect(client: AsyncOpenAI) -> AsyncIterator[Any]:
    async with httpx.AsyncClient() as http:

        async def make(agent: str, *, streaming: bool = True) -> Any:
            card = await sdk.A2ACardResolver(http, f"{client.base_url}a2a/{agent}").get_agent_card()
            assert card.name == agent
            return sdk.ClientFactory(sdk.ClientConfig(streaming=streaming, httpx_client=http)).create(card)

        yield make


def said(text: str = "", data: dict[str, Any] | None = None, **names: str) -> Any:
    part = wire.Part(text=text) if data is None else json_format.ParseDict({"data": data}, wire.Part())
    message = wire.Message(message_id="m1", role=wire.Role.ROLE_USER, parts=[part], **names)
    return wire.SendMessageRequest(message=message)


async def ask(agent: Any, request: Any) -> list[Any]:
    return [item async for item in agent.send_message(request)]


def text_of(task: Any) -> list[str]:
    return ["".join([part.text for part in artifact.parts]) for artifact in task.artifacts]


async def test_a_task_is_a_turn_and_a_context_a_session(connect: Any, journal: Journal) -> None:
    agent = await connect("echo", streaming=False)
    (first,) = await ask(agent, said("hello"))
    assert first.task.status.state == wire.TaskState.TASK_STATE_COMPLETED
    assert text_of(first.task) == ["You said: hello"]
    (second,) = await ask(agent, said("again", context_id=first.task.context_id))
    assert second.task.id != first.task.id
    assert second.task.context_id == first.task.context_id
    assert journal.runs()[0].turns == 2
    (named,) = await ask(agent, said("mine", context_id="my context"))
    assert named.task.context_id == "my context"
    (again,) = await ask(agent, said("more", context_id="my context"))
    assert (again.task.context_id, len(journal.runs())) == ("my context", 2)
    found = await agent.get_task(wire.GetTaskRequest(id=first.task.id))
    assert (found.id, text_of(found)) == (first.task.id, ["You said: hello"])
    assert found.history[0].parts[0].text == "hello"


async def test_a_stream_says_what_a_task_does(connect: Any) -> None:
    agent = await connect("clerk")
    asked = 'call write_file {"file_path": "a.txt", "content": "one"}\nthen\nsay ' + "word " * 50
    items = await ask(agent, said(asked))
    assert items[0].task.status.state == wire.TaskState.TASK_STATE_WORKING
    tools = [
        json_format.MessageToDict(item.status_update.metadata).get("tool")
        for item in items
        if item.HasField("status_update")
    ]
    assert tools == ["write_file", None]
    chunks = [item.artifact_update for item in items if item.HasField("artifact_update")]
    assert len(chunks) > 2
    assert chunks[-1].last_chunk
    assert "".join([chunk.artifact.parts[0].text for chunk in chunks]).split() == ["word"] * 50
    assert items[-1].status_update.status.state == wire.TaskState.TASK_STATE_COMPLETED
    done = await agent.get_task(wire.GetTaskRequest(id=items[0].task.id))
    assert done.status.state == wire.TaskState.TASK_STATE_COMPLETED


@pytest.mark.parametrize("answer", ["yes", "no, not now"], ids=["yes", "no"])
async def test_an_approval_needs_input(connect: Any, answer: str) -> None:
    agent = await connect("careful", streaming=False)
    asked = 'call write_file {"file_path": "a.txt", "content": "one"}\nthen\nsay done'
    (first,) = await ask(agent, said(asked))
    assert first.task.status.state == wire.TaskState.TASK_STATE_INPUT_REQUIRED
    assert first.task.status.message.parts[0].text.startswith("May I call write_file(")
    (last,) = await ask(agent, said(answer, task_id=first.task.id))
    assert last.task.id == first.task.id
    assert last.task.status.state == wire.TaskState.TASK_STATE_COMPLETED
    assert text_of(last.task) == ["done"]
    with pytest.raises(errors.TaskNotFoundError):
        await ask(agent, said("yes", task_id=first.task.id))


async def test_a_question_is_answered_by_its_id(connect: Any) -> None:
    agent = await connect("curious", streaming=False)
    (first,) = await ask(agent, said('call ask_user {"question": "Which?"}\nthen\nsay ok'))
    status = json_format.MessageToDict(first.task.status.message)
    (question_id,) = status["parts"][1]["data"]["questions"]
    (last,) = await ask(agent, said(data={question_id: "this"}, task_id=first.task.id))
    assert text_of(last.task) == ["ok"]


async def test_a_task_is_cancelled_and_followed(connect: Any, journal: Journal) -> None:
    agent = await connect("curious", streaming=False)
    (first,) = await ask(agent, said('call ask_user {"question": "Which?"}\nthen\nsay ok'))
    following = asyncio.ensure_future(
        _collect((await connect("curious")).subscribe(wire.SubscribeToTaskRequest(id=first.task.id)))
    )
    await asyncio.sleep(0.1)
    cancelled = await agent.cancel_task(wire.CancelTaskRequest(id=first.task.id))
    assert cancelled.status.state == wire.TaskState.TASK_STATE_CANCELED
    async with asyncio.timeout(20):
        seen = await following
    assert seen[-1].status_update.status.state == wire.TaskState.TASK_STATE_CANCELED
    with pytest.raises(errors.TaskNotCancelableError):
        await agent.cancel_task(wire.CancelTaskRequest(id=first.task.id))
    for name in ("nope", "nope.1", f"{first.task.id}9", "..", "\x00.1"):
        with pytest.raises(errors.TaskNotFoundError):
            await agent.get_task(wire.GetTaskRequest(id=name))
    assert len(journal.runs(RunFilter(is_turn_open=False))) == 1


async def test_tasks_are_listed_in_pages(connect: Any, client: AsyncOpenAI) -> None:
    agent = await connect("curious", streaming=False)
    asked = 'call ask_user {"question": "Which?"}\nthen\nsay ok'
    made = []
    for text, context in (("one", "a"), ("two", "b"), ("three", "a"), (asked, "c")):
        (item,) = await ask(agent, said(text, context_id=context))
        made.append(item.task.id)
    await ask(await connect("echo", streaming=False), said("of another agent"))

    async def find(**given: Any) -> Any:
        return await agent.list_tasks(wire.ListTasksRequest(**given))

    found = await find()
    assert [task.id for task in found.tasks] == made[::-1]
    assert (found.total_size, found.page_size, found.next_page_token) == (4, 4, "")
    assert not found.tasks[0].artifacts
    assert found.tasks[1].history[0].parts[0].text == "three"
    pages, token = [], ""
    while len(pages) < 3:
        page = await find(page_size=2, page_token=token)
        pages.append([task.id for task in page.tasks])
        assert page.total_size == 4
        if not (token := page.next_page_token):
            break
    assert pages == [made[:1:-1], made[1::-1]]
    whole = await find(context_id="a", include_artifacts=True, history_length=0)
    assert [text_of(task)[0].split("\n")[0] for task in whole.tasks] == ["You said: three", "You said: one"]
    assert not whole.tasks[0].history
    for since, count in (
        ("0001-01-01T00:00:00", 4),
        ("9999-12-31T23:59:59", 0),
        ("0001-01-01T00:00:00+14:00", 4),
    ):
        params = {"statusTimestampAfter": since}
        answer = await client._client.post(
            f"{client.base_url}a2a/curious", json={"id": 1, "method": "ListTasks", "params": params}
        )
        assert answer.json()["result"]["totalSize"] == count
    waiting = await find(status=wire.TaskState.TASK_STATE_INPUT_REQUIRED)
    assert ([task.id for task in waiting.tasks], waiting.total_size) == ([made[3]], 1)
    done = await find(status=wire.TaskState.TASK_STATE_COMPLETED, page_size=2)
    assert ([task.id for task in done.tasks], done.total_size) == ([made[2], made[1]], 3)
    since = await find(status_timestamp_after=found.tasks[1].status.timestamp)
    assert [task.id for task in since.tasks] == [made[3], made[2]]
    assert not (await find(context_id="of nobody")).tasks
    for wrong in ({"page_token": "nonsense"}, {"page_size": 101}):
        with pytest.raises(errors.InvalidParamsError):
            await find(**wrong)


async def _collect(items: AsyncIterator[Any]) -> list[Any]:
    return [item async for item in items]


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({}, -32601),
        ({"method": "Nope"}, -32601),
        ({"method": "SendMessage"}, -32602),
        ({"method": "SendMessage", "params": []}, -32602),
        ({"method": "SendMessage", "params": {"message": {"messageId": "a", "parts": []}}}, -32602),
        ({"method": "SendMessage", "params": {"message": {"messageId": 5, "parts": 5}}}, -32602),
        ({"method": "GetTask", "params": {"id": "x"}}, -32001),
        ({"method": "GetTask", "params": "x"}, -32602),
        (
            {
                "method": "SendMessage",
                "params": {"message": {"messageId": "a", "parts": [{"text": "\ud800"}]}},
            },
            None,
        ),
    ],
)
async def test_odd_requests_get_an_error(
    client: AsyncOpenAI, config: Path, body: dict[str, Any], code: int | None
) -> None:
    import json

    raw = json.dumps({"id": 7, **body}).encode()
    headers = {"content-type": "application/json"}
    answer = await client._client.post(f"{client.base_url}a2a/echo", content=raw, headers=headers)
    assert answer.status_code < 500, answer.text
    if code is not None:
        found = answer.json()
        assert (found["id"], found["error"]["code"]) == (7, code)


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"message": {"parts": [{"text": 5}]}}, "message.messageId: it is missing"),
        (
            {"message": {"messageId": "m", "role": "ROLE_USER", "parts": [{"text": 5}]}},
            "message.parts.0.text: 5 is",
        ),
        ([1], "params: [1] is not possible"),
    ],
)
async def test_wrong_parameters_are_named(client: AsyncOpenAI, params: Any, message: str) -> None:
    body = {"jsonrpc": "2.0", "id": 7, "method": "SendMessage", "params": params}
    answer = await client._client.post(f"{client.base_url}a2a/echo", json=body)
    assert message in answer.json()["error"]["message"]
    assert "\n" not in answer.json()["error"]["message"]


@pytest.mark.parametrize(
    ("part", "configuration", "headers", "code"),
    [
        ({"raw": "aGk=", "mediaType": "image/png", "filename": "a.png"}, {}, {}, -32005),
        ({"url": "https://example.com/a.png"}, {}, {}, -32005),
        ({"data": {"a": 1}}, {}, {}, -32005),
        (None, {"taskPushNotificationConfig": {"url": "https://example.com"}}, {}, -32003),
        (None, {"historyLength": -1}, {}, -32602),
        (None, {}, {"a2a-version": "2.0"}, -32009),
        (None, {}, {"a2a-version": "1.0"}, None),
    ],
)
async def test_what_an_agent_would_not_see_is_refused(
    client: AsyncOpenAI,
    journal: Journal,
    part: dict[str, Any] | None,
    configuration: dict[str, Any],
    headers: dict[str, str],
    code: int | None,
) -> None:
    parts = [{"text": "what is this?"}, *([] if part is None else [part])]
    message = {"messageId": "m", "role": "ROLE_USER", "parts": parts}
    params = {"message": message, "configuration": configuration}
    body = {"jsonrpc": "2.0", "id": 7, "method": "SendMessage", "params": params}
    answer = await client._client.post(f"{client.base_url}a2a/echo", json=body, headers=headers)
    assert answer.json().get("error", {}).get("code") == code
    assert len(journal.runs()) == (1 if code is None else 0)
