"""The Responses and Conversations API, as OpenAI's own SDK uses it over a socket."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from openai import AsyncOpenAI

from treadle import Policy, Run, open_journal
from treadle.core.errors import JournalError
from treadle.core.events import ToolCompleted
from treadle.journal.protocol import Journal
from treadle.journal.run_info import RunFilter
from treadle.server.api_server import Served, load_served, serve_api
from treadle.server.responses.item_parts import Echo
from treadle.server.responses.response_ids import ResponseId
from treadle.server.responses.response_records import read_request, record_of

ADD: Any = {
    "type": "function",
    "name": "add",
    "description": "Add two numbers.",
    "parameters": {
        "type": "object",
        "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}},
        "required": ["a", "b"],
        "additionalProperties": False,
    },
    "strict": True,
}
IMAGE: Any = {"type": "input_image", "image_url": "ftp://localhost/a.png"}
NAP = """
import asyncio

from treadle import tool


@tool(effect="idempotent")
async def nap() -> str:
    '''Sleep for long.'''
    await asyncio.sleep(10)
    return "rested"
"""
CONFIG = """
[models.echo]
model = "mock:echo"

[agents.clerk]
model = "echo"
instructions = "You keep files."
tools = ["files"]

[agents.careful]
model = "echo"
tools = ["files"]
approve = { write_file = "ask" }

[agents.curious]
model = "echo"
tools = ["ask"]
"""


@asynccontextmanager
async def serving(given: Path | Served, journal: Journal) -> AsyncIterator[str]:
    """Serve the agents of a configuration, or what is given, and yield the address."""
    served = load_served(given, None) if isinstance(given, Path) else given
    ready: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    faults: list[str] = []  # `treadle serve` tells them, and so makes all agents before the first request
    serve = serve_api(served, journal, "127.0.0.1", 0, ready.set_result, faults.append)
    task = asyncio.ensure_future(serve)
    try:
        await asyncio.wait([task, ready], return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            await task
        yield ready.result()
    finally:
        task.cancel()
        await asyncio.wait([task])


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "treadle.toml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
async def journal(tmp_path: Path) -> AsyncIterator[Journal]:
    with open_journal(tmp_path / "runs.db") as opened:
        yield opened


@pytest.fixture
async def client(config: Path, journal: Journal) -> AsyncIterator[AsyncOpenAI]:
    async with (
        serving(config, journal) as url,
        AsyncOpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as made,
    ):
        yield made


async def test_a_response_and_the_next_one(client: AsyncOpenAI, journal: Journal) -> None:
    first = await client.responses.create(model="echo", input="hello", metadata={"who": "kim"})
    assert first.output_text == "You said: hello"
    assert first.status == "completed"
    assert first.usage is not None
    assert first.usage.total_tokens > 0
    second = await client.responses.create(model="echo", input="again", previous_response_id=first.id)
    assert second.output_text == "You said: again"
    assert len(journal.runs()) == 1
    assert journal.runs()[0].turns == 2
    again = await client.responses.retrieve(first.id)
    assert again.output_text == first.output_text
    assert again.output[0].id == first.output[0].id


async def test_a_stream_has_every_event_in_order(client: AsyncOpenAI) -> None:
    stream = await client.responses.create(model="echo", input="one two three " * 20, stream=True)
    events = [event async for event in stream]
    kinds = [event.type for event in events]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert kinds[:4] == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
    ]
    assert kinds[-4:] == [
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.completed",
    ]
    deltas = [event.delta for event in events if event.type == "response.output_text.delta"]
    assert len(deltas) > 1
    last: Any = events[-1]
    assert "".join(deltas) == last.response.output_text
    assert last.response.output_text.startswith("You said: one two three")


async def test_the_client_runs_its_tools(client: AsyncOpenAI, journal: Journal) -> None:
    asked = 'call add {"a": 1, "b": 2}\ncall add {"a": 3, "b": 4}\nthen\nsay done'
    first = await client.responses.create(model="echo", input=asked, tools=[ADD])
    calls: list[Any] = list(first.output)
    assert [(item.type, item.name, item.arguments) for item in calls] == [
        ("function_call", "add", '{"a": 1, "b": 2}'),
        ("function_call", "add", '{"a": 3, "b": 4}'),
    ]
    outputs: list[Any] = [
        {"type": "function_call_output", "call_id": item.call_id, "output": output}
        for item, output in zip(calls, ("3", "7"), strict=True)
    ]
    with pytest.raises(openai.BadRequestError, match="no tool output found for the function call"):
        await client.responses.create(
            model="echo", previous_response_id=first.id, input=outputs[:1], tools=[ADD]
        )
    with pytest.raises(openai.BadRequestError, match="no tool output found"):
        await client.responses.create(model="echo", previous_response_id=first.id, input="hm", tools=[ADD])
    last = await client.responses.create(
        model="echo", previous_response_id=first.id, input=outputs, tools=[ADD]
    )
    assert last.output_text == "done"
    (info,) = journal.runs()
    events = journal.read(info.run_id)
    results = [event.body.result.content for event in events if event.type == "tool_completed"]  # type: ignore[union-attr]
    assert results == ["3", "7"]
    assert (await client.responses.retrieve(first.id)).output[0].id == calls[0].id
    assert (await client.responses.retrieve(last.id)).output_text == "done"


async def test_the_servers_tools_are_shown_with_their_results(client: AsyncOpenAI) -> None:
    asked = """
call write_file {"file_path": "a.txt", "content": "hi"}
call read_file {"file_path": "b.txt"}
then
say done"""
    stream = await client.responses.create(model="clerk", input=asked, stream=True)
    events = [event async for event in stream]
    done: list[Any] = [event.item for event in events if event.type == "response.output_item.done"]
    assert [(item.type, getattr(item, "name", None)) for item in done] == [
        ("mcp_call", "write_file"),
        ("mcp_call", "read_file"),
        ("message", None),
    ]
    assert done[0].error is None
    assert done[1].error.type == "mcp_tool_execution_error"
    assert "b.txt" in done[1].error.content[0]["text"]
    last: Any = events[-1]
    assert last.response.output_text == "done"
    assert [item.id for item in last.response.output] == [item.id for item in done]


async def test_an_approval_is_asked_of_the_client(client: AsyncOpenAI) -> None:
    asked = 'call write_file {"file_path": "a.txt", "content": "hi"}\nthen\nsay done'
    first = await client.responses.create(model="careful", input=asked)
    request: Any = first.output[-1]
    assert (request.type, request.name) == ("mcp_approval_request", "write_file")
    decision: Any = {
        "type": "mcp_approval_response",
        "approval_request_id": request.id,
        "approve": False,
        "reason": "no",
    }
    last = await client.responses.create(model="careful", previous_response_id=first.id, input=[decision])
    assert last.output_text == "done"


async def test_a_question_is_a_call_that_the_client_answers(client: AsyncOpenAI) -> None:
    asked = 'call ask_user {"question": "Which file?"}\nthen\nsay thanks'
    first = await client.responses.create(model="curious", input=asked)
    (question,) = [item for item in first.output if item.type == "function_call"]
    assert question.name == "ask_user"
    assert '"Which file?"' in question.arguments
    answer: Any = {"type": "function_call_output", "call_id": question.call_id, "output": "a.txt"}
    last = await client.responses.create(model="curious", previous_response_id=first.id, input=[answer])
    assert last.output_text == "thanks"


async def test_a_conversation(client: AsyncOpenAI, journal: Journal) -> None:
    conversation = await client.conversations.create(metadata={"name": "mine"})
    assert conversation.metadata == {"name": "mine"}
    for text in ("a", "b"):
        answer = await client.responses.create(
            model="echo", input=text, conversation=conversation.id, instructions="Be brief."
        )
        assert answer.output_text == f"You said: {text}"
    items = [item async for item in client.conversations.items.list(conversation.id, order="asc")]
    texts = [item.content[0].text for item in items]  # type: ignore[union-attr]
    assert texts == ["a", "You said: a", "b", "You said: b"]
    (info,) = journal.runs()
    assert info.turns == 2
    await client.conversations.delete(conversation.id)
    assert journal.runs() == []
    with pytest.raises(openai.NotFoundError):
        await client.conversations.retrieve(conversation.id)


async def test_a_history_comes_before_the_message(client: AsyncOpenAI, journal: Journal) -> None:
    given: Any = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is 1 + 2?"},
        {"type": "function_call", "call_id": "c1", "name": "add", "arguments": '{"a":1,"b":2}'},
        {"type": "function_call_output", "call_id": "c1", "output": "3"},
        {"role": "assistant", "content": [{"type": "output_text", "text": "It is 3."}]},
        {"role": "user", "content": [{"type": "input_text", "text": "Twice that?"}]},
    ]
    answer = await client.responses.create(model="echo", input=given)
    assert answer.output_text == "You said: Twice that?"
    assert answer.instructions == "Be brief."
    given.insert(4, {"type": "function_call_output", "call_id": "c2", "output": "3"})
    with pytest.raises(openai.BadRequestError, match="c2"):
        await client.responses.create(model="echo", input=given)


async def test_a_background_response_is_polled_and_cancelled(client: AsyncOpenAI) -> None:
    made = await client.responses.create(model="echo", input="hello", background=True)
    assert made.status == "queued"
    async with asyncio.timeout(20):
        while (found := await client.responses.retrieve(made.id)).status != "completed":
            await asyncio.sleep(0.02)
    assert found.output_text == "You said: hello"
    assert (await client.responses.cancel(made.id)).status == "completed"


@pytest.mark.parametrize(
    ("body", "error"),
    [
        ({"model": "ecko", "input": "a"}, "did you mean 'echo'"),
        ({"model": "echo", "inptu": "a"}, "inptu"),
        ({"model": "echo"}, "no message of the user"),
        ({"model": "echo", "input": "a", "previous_response_id": "x"}, "there is no response"),
        ({"model": "echo", "input": "a", "previous_response_id": "resp_x_1_0"}, "there is no run"),
        ({"model": "echo", "input": "a", "temperature": 9}, "temperature"),
        ({"model": "echo", "input": "a", "tools": [{"type": "file_search"}]}, r"tools\[0\]"),
        ({"model": "echo", "input": [{"type": "odd"}]}, r"input\[0\]: items of the type 'odd'"),
        ({"model": "echo", "input": [{"type": "function_call"}]}, r"input\[0\]: 'call_id' is missing"),
        ({"model": "echo", "input": [{"role": "user", "content": [IMAGE]}]}, "data URL"),
    ],
)  # fmt: skip
async def test_bad_requests_are_refused(client: AsyncOpenAI, body: Any, error: str) -> None:
    with pytest.raises(openai.APIStatusError, match=error) as refused:
        await client.post("/responses", body=body, cast_to=object)
    assert 400 <= refused.value.status_code < 500


async def test_what_was_interrupted_goes_on_at_the_next_start(config: Path, tmp_path: Path) -> None:
    with open_journal(tmp_path / "runs.db") as journal:
        asked = 'call add {"a": 1, "b": 2}\nthen\nsay done'
        async with (
            serving(config, journal) as url,
            AsyncOpenAI(base_url=f"{url}/v1", api_key="any") as client,
        ):
            first = await client.responses.create(model="echo", input=asked, tools=[ADD])
        call: Any = first.output[0]
        run_id = journal.runs()[0].run_id
    with open_journal(tmp_path / "runs.db") as journal:
        async with (
            serving(config, journal) as url,
            AsyncOpenAI(base_url=f"{url}/v1", api_key="any") as client,
        ):
            # The result comes by the inbox, as a webhook would send it, and nobody asks for a response.
            result = {
                "type": "result",
                "call_id": call.call_id.removeprefix(f"call_{run_id}_"),
                "content": "3",
            }
            await client.post(f"/runs/{run_id}/inbox", body=result, cast_to=object)
            async with asyncio.timeout(20):
                while not journal.runs(RunFilter(run_ids=[run_id], is_turn_open=False)):
                    await asyncio.sleep(0.02)
            found = journal.read(run_id)
    assert [event.body.output for event in found if event.type == "turn_completed"] == ["done"]  # type: ignore[union-attr]


async def test_an_earlier_response_can_be_continued_in_another_way(
    client: AsyncOpenAI, journal: Journal
) -> None:
    first = await client.responses.create(model="echo", input="one")
    second = await client.responses.create(model="echo", input="two", previous_response_id=first.id)
    other = await client.responses.create(model="echo", input="three", previous_response_id=first.id)
    assert (second.output_text, other.output_text) == ("You said: two", "You said: three")
    branch, main = journal.runs(newest_first=True)
    assert branch.parent_run_id == main.run_id
    page = await client.get(f"/runs/{branch.run_id}/messages", cast_to=object)
    texts = [item["content"] for item in page["data"]]  # type: ignore[index]
    assert texts == ["one", "You said: one", "three", "You said: three"]


async def test_a_call_of_an_earlier_response_can_be_answered_in_another_way(
    client: AsyncOpenAI, journal: Journal
) -> None:
    asked = await client.responses.create(model="echo", input='call add {"a": 1, "b": 2}', tools=[ADD])
    call_id = asked.output[0].call_id  # type: ignore[union-attr]
    texts = []
    for result in ("3", "4"):
        output = {"type": "function_call_output", "call_id": call_id, "output": result}
        answer = await client.responses.create(
            model="echo",
            input=[output],  # type: ignore[list-item]
            tools=[ADD],
            previous_response_id=asked.id,
        )
        texts.append(answer.output_text)
    assert texts == ["add: 3", "add: 4"]
    branch, main = journal.runs(newest_first=True)
    assert branch.parent_run_id == main.run_id


@pytest.mark.parametrize(
    "said",
    [[], [{"type": "function_call_output", "call_id": "other", "output": "3"}]],
    ids=["nothing", "other"],
)
async def test_a_request_that_is_refused_leaves_no_fork(
    client: AsyncOpenAI, journal: Journal, said: list[Any]
) -> None:
    first = await client.responses.create(model="echo", input="one")
    await client.responses.create(model="echo", input="two", previous_response_id=first.id)
    with pytest.raises(openai.BadRequestError):
        await client.responses.create(model="echo", input=said, previous_response_id=first.id)
    assert len(journal.runs()) == 1


async def test_a_client_that_keeps_the_history_itself_stays_in_one_run(
    client: AsyncOpenAI, journal: Journal
) -> None:
    """Frameworks send the whole conversation with each request, with the items as they got them."""
    items: list[Any] = [{"role": "user", "content": 'call add {"a": 1, "b": 2}\nthen\nsay done'}]
    first = await client.responses.create(model="echo", input=items, tools=[ADD])
    items += [item.model_dump(exclude_none=True) for item in first.output]
    items.append({"type": "function_call_output", "call_id": items[-1]["call_id"], "output": "3"})
    second = await client.responses.create(model="echo", input=items, tools=[ADD])
    items += [item.model_dump(exclude_none=True) for item in second.output]
    items.append({"role": "user", "content": "more"})
    third = await client.responses.create(model="echo", input=items)
    assert (second.output_text, third.output_text) == ("done", "You said: more")
    (info,) = journal.runs()
    assert (info.turns, info.steps) == (2, 3)
    # A history that was changed is another run.
    items[0]["content"] = "something else"
    await client.responses.create(model="echo", input=items)
    assert len(journal.runs()) == 2


async def test_a_conversation_lists_every_call_and_its_output(client: AsyncOpenAI) -> None:
    conversation = await client.conversations.create()
    asked = 'call add {"a": 1, "b": 2}\ncall add {"a": 3, "b": 4}\nthen\nsay done'
    first = await client.responses.create(
        model="echo", input=asked, conversation=conversation.id, tools=[ADD]
    )
    calls: list[Any] = list(first.output)
    outputs: list[Any] = [
        {"type": "function_call_output", "call_id": item.call_id, "output": "x"} for item in calls
    ]
    await client.responses.create(model="echo", input=outputs, conversation=conversation.id, tools=[ADD])
    items: list[Any] = [item async for item in client.conversations.items.list(conversation.id, order="asc")]
    assert [item.type for item in items] == [
        "message",
        "function_call",
        "function_call",
        "function_call_output",
        "function_call_output",
        "message",
    ]
    assert [item.call_id for item in items[1:5]] == [item.call_id for item in calls] * 2
    assert len({item.id for item in items}) == len(items)


async def test_a_client_cannot_raise_the_limits_of_an_agent(client: AsyncOpenAI, journal: Journal) -> None:
    await client.responses.create(model="echo", input="hi", extra_body={"max_infer_iters": 100_000})
    await client.responses.create(model="echo", input="hi", extra_body={"max_infer_iters": 2})
    limits = [Run.load(info.run_id, journal).spec.policy.max_steps for info in journal.runs()]
    assert limits == [Policy().max_steps, 2]


async def test_a_deleted_response_leaves_no_run(client: AsyncOpenAI, journal: Journal) -> None:
    made = await client.responses.create(model="echo", input="hi")
    await client.responses.delete(made.id)
    assert journal.runs() == []


async def test_requests_at_the_same_time_are_each_kept_before_their_answers(config: Path) -> None:
    """What many requests ask for is written together, and none of it is lost or mixed up."""
    with open_journal(config.parent / "runs.db") as journal:
        async with (
            serving(config, journal) as url,
            AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client,
        ):
            asked = [f"user {number}" for number in range(24)]
            answers = await asyncio.gather(
                *[client.responses.create(model="echo", input="hi", user=text) for text in asked]
            )
            read = await asyncio.gather(*[client.responses.retrieve(item.id) for item in answers])
    assert [item.user for item in read] == asked
    assert [item.output_text for item in read] == [item.output_text for item in answers]


async def test_a_body_that_cannot_be_read_is_refused_alike_whatever_its_type_is_called(config: Path) -> None:
    """FastAPI, which reads bodies of other types, and the shorter way for JSON give the same refusals."""
    bodies = [b"", b"{", b"[]", b'{"model": "echo", "temperature": 9}', b'{"model": "echo", "x": 1}', b"\xff"]
    with open_journal(config.parent / "runs.db") as journal:
        async with serving(config, journal) as url, httpx.AsyncClient(base_url=url) as client:
            for body in bodies:
                told = [
                    await client.post("/v1/responses", content=body, headers={"content-type": kind})
                    for kind in ("application/json", "application/json; charset=utf-8")
                ]
                assert [item.status_code for item in told] == [400, 400], (body, told[0].text)
                assert told[0].json() == told[1].json()


async def test_the_input_items_of_a_response_end_before_its_answer(client: AsyncOpenAI) -> None:
    first = await client.responses.create(model="echo", input="one")
    second = await client.responses.create(model="echo", input="two", previous_response_id=first.id)
    counts = []
    for response in (first, second):
        items = await client.responses.input_items.list(response.id)
        counts.append([item.role async for item in items])  # type: ignore[union-attr]
    assert counts == [["user"], ["user", "assistant", "user"]]


@pytest.mark.parametrize("is_stream", [True, False])
@pytest.mark.parametrize("path", ["responses", "chat/completions", "messages", "ag-ui/napper"])
async def test_a_client_that_leaves_at_once_cancels_its_run(
    tmp_path: Path, journal: Journal, path: str, is_stream: bool
) -> None:
    """The run is cancelled also if its client has left before it was stored, or before its stream began."""
    (tmp_path / "tools.py").write_text(NAP)
    config = tmp_path / "treadle.toml"
    config.write_text('[agents.napper]\nmodel = "mock:echo"\ntools = ["tools.py"]\n')
    asked = "call nap {}\nthen\nsay done"
    said = [{"id": "1", "role": "user", "content": asked}]
    body: dict[str, Any] = {"model": "napper", "stream": is_stream, "messages": said, "max_tokens": 99}
    if path == "responses":
        body = {"model": "napper", "stream": is_stream, "input": asked}
    elif path.startswith("ag-ui"):
        body = {"threadId": "t", "runId": "r", "messages": said}
    async with serving(config, journal) as url:
        address = httpx.URL(url)
        content = json.dumps(body).encode()
        head = f"POST /v1/{path} HTTP/1.1\r\nhost: {address.host}\r\ncontent-type: application/json\r\n"
        _, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(f"{head}content-length: {len(content)}\r\n\r\n".encode() + content)
        await writer.drain()
        writer.close()
        await asyncio.sleep(1)
        async with asyncio.timeout(20):
            while journal.runs(RunFilter(is_turn_open=True, is_waiting=False)):
                await asyncio.sleep(0.02)
        bodies = [event.body for info in journal.runs() for event in journal.read(info.run_id)]
    assert not [body for body in bodies if isinstance(body, ToolCompleted) and not body.result.is_error]


async def test_all_who_wait_hear_that_their_requests_cannot_be_kept(tmp_path: Path) -> None:
    echo = Echo(model="echo", created_at=1.0)
    places = [ResponseId("run", number, 0) for number in (1, 2)]

    async def keep(place: ResponseId) -> None:
        await journal.resources.add_soon([record_of(place, echo, "")], 1.0)

    with open_journal(tmp_path / "runs.db") as journal:
        await asyncio.gather(*[keep(place) for place in places])
        assert [read_request(journal, place) for place in places] == [echo, echo]
    with pytest.raises(JournalError):
        journal.resources.join([record_of(places[0], echo, "")])
    again = [keep(ResponseId("run", number, 0)) for number in (3, 4)]
    found = await asyncio.gather(*again, return_exceptions=True)
    assert [type(error) for error in found] == [JournalError, JournalError]


@pytest.mark.parametrize(
    "name", ["nope", "resp_nope", "conv_nope", "resp_019a2b3c_1_0", "file-nope", "vs_nope"]
)
async def test_what_does_not_exist_is_not_found(client: AsyncOpenAI, name: str) -> None:
    """Whatever the id looks like, the SDK raises the error that it has for this."""
    store = await client.vector_stores.create(name="s")
    asked: list[Callable[[], Any]] = [
        lambda: client.responses.retrieve(name),
        lambda: client.responses.cancel(name),
        lambda: client.responses.delete(name),
        lambda: client.responses.input_items.list(name),
        lambda: client.conversations.retrieve(name),
        lambda: client.conversations.delete(name),
        lambda: client.conversations.items.list(name),
        lambda: client.conversations.items.retrieve("msg_x", conversation_id=name),
        lambda: client.files.retrieve(name),
        lambda: client.files.content(name),
        lambda: client.files.delete(name),
        lambda: client.vector_stores.retrieve(name),
        lambda: client.vector_stores.update(name, name="x"),
        lambda: client.vector_stores.delete(name),
        lambda: client.vector_stores.search(name, query="x"),
        lambda: client.vector_stores.files.list(name),
        lambda: client.vector_stores.files.create(name, file_id="file-x"),
        lambda: client.vector_stores.files.retrieve(name, vector_store_id=store.id),
        lambda: client.vector_stores.files.update(name, vector_store_id=store.id, attributes={}),
        lambda: client.vector_stores.files.content(name, vector_store_id=store.id),
        lambda: client.vector_stores.files.delete(name, vector_store_id=store.id),
        lambda: client.vector_stores.file_batches.create(name, file_ids=["file-x"]),
        lambda: client.vector_stores.file_batches.retrieve(name, vector_store_id=store.id),
        lambda: client.vector_stores.file_batches.cancel(name, vector_store_id=store.id),
        lambda: client.vector_stores.file_batches.list_files(name, vector_store_id=store.id),
        lambda: client.models.retrieve(name),
    ]
    refusals = []
    for ask in asked:
        try:
            refusals.append(repr(await ask()))
        except openai.NotFoundError:
            continue
        except openai.APIStatusError as error:
            refusals.append(str(error))
    assert refusals == []
