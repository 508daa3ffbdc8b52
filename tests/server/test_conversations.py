"""Conversations, and the items of responses, as OpenAI's SDK lists and changes them."""

import asyncio
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from tests.models.answers import answer, chunk
from tests.models.server import Received, Reply, sse, stream
from tests.server.test_access import KEYS, client_of
from tests.server.test_relay import relaying
from tests.server.test_response_items import calling, respond, talking
from tests.server.test_responses import ADD, client, config, journal, serving

from treadle import Run
from treadle.core.events import Noted, ToolCompleted, TurnStarted
from treadle.core.types import Message, Role
from treadle.journal.protocol import Journal
from treadle.journal.run_info import RunFilter
from treadle.runs.begin import make_run_id
from treadle.server.admission.access import ANYBODY, RequestRefused
from treadle.server.api_server import load_served
from treadle.server.catalog import AgentCatalog
from treadle.server.responses.request_items import CreateResponse
from treadle.server.responses.response_ids import read_response_id
from treadle.server.responses.response_plan import plan_response
from treadle.server.responses.response_records import (
    KeptConversation,
    conversation_of,
    read_request,
    record_of,
)
from treadle.server.responses.response_turn import MARK, ResponseTurn
from treadle.server.run_host import RunHost

__all__ = ["client", "config", "journal"]
PIXEL = "data:image/png;base64,iVBORw0KGgo="


async def listed(client: AsyncOpenAI, conversation_id: str) -> list[Any]:
    return [item async for item in client.conversations.items.list(conversation_id, order="asc", limit=2)]


async def test_a_conversation_is_changed_until_its_first_response(tmp_path: Path, journal: Journal) -> None:
    async with talking(tmp_path, journal, {"content": "blue"}, {"content": "red"}) as (client, engine):
        made = await client.conversations.create(
            metadata={"a": "b"},
            items=[{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "wrong"}],
        )
        assert journal.runs() == []
        items = await client.conversations.items.create(
            made.id,
            items=[
                {"role": "user", "content": "1 + 2?"},
                {"type": "function_call", "call_id": "c1", "name": "add", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "c1", "output": "3"},
            ],
        )
        assert [item.type for item in items.data] == ["message", "function_call", "function_call_output"]
        _, wrong, *_others = before = await listed(client, made.id)
        await client.conversations.items.delete(wrong.id, conversation_id=made.id)
        assert await listed(client, made.id) == [item for item in before if item.id != wrong.id]
        assert (await client.conversations.update(made.id, metadata={"c": "d"})).metadata == {"c": "d"}
        first = await client.responses.create(model="far", input="And the sky?", conversation=made.id)
        sent = engine.requests[-1].json()["messages"]
        assert [message["role"] for message in sent] == ["system", "user", "assistant", "tool", "user"]
        await client.responses.create(model="far", input="And a rose?", conversation=made.id)
        # What a developer has said holds for the whole conversation, and instructions for one response.
        assert engine.requests[-1].json()["messages"][0]["content"] == "Be brief."
        after = await listed(client, made.id)
        assert after[: len(before) - 1] == [item for item in before if item.id != wrong.id]
        (item,) = first.output
        assert await client.conversations.items.retrieve(item.id, conversation_id=made.id)
        assert (await client.conversations.retrieve(made.id)).metadata == {"c": "d"}
        await client.conversations.delete(made.id)
        assert journal.runs() == []
        with pytest.raises(openai.NotFoundError, match="there is no conversation 'conv_"):
            await client.conversations.retrieve(made.id)


async def test_a_conversation_is_changed_after_a_response(tmp_path: Path, journal: Journal) -> None:
    said = [
        calling(("c1", "add", '{"a": 1, "b": 2}')),
        *({"content": word} for word in ("three", "grey", "green", "new", "old")),
    ]
    async with talking(tmp_path, journal, *said) as (client, engine):
        made = await client.conversations.create(metadata={"a": "b"})
        given: Any = {"model": "far", "conversation": made.id, "tools": [ADD]}
        first = await client.responses.create(
            input=[{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "1 + 2?"}],
            **given,
        )
        add: Any = {"role": "user", "content": "I live by the sea."}
        with pytest.raises(openai.ConflictError, match="waits for outputs"):
            await client.conversations.items.create(made.id, items=[add])
        call: Any = first.output[0]
        output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "3"}
        second = await client.responses.create(input=[output], **given)
        before = await listed(client, made.id)
        reply: Any = {"role": "assistant", "content": "Nice."}
        added = await client.conversations.items.create(made.id, items=[add, reply])
        assert await listed(client, made.id) == [*before, *added.data]
        third = await client.responses.create(input="Its colour?", **given)
        assert third.conversation is not None
        assert third.conversation.id == made.id
        sent = engine.requests[-1].json()["messages"]
        assert [message.get("content") for message in sent] == [
            *("Be brief.", "1 + 2?", None, "3", "three", "I live by the sea.", "Nice.", "Its colour?"),
        ]
        wrong = (await listed(client, made.id))[-1]
        await client.conversations.items.delete(wrong.id, conversation_id=made.id)
        fourth = await client.responses.create(input="Sure?", **given)
        sent = engine.requests[-1].json()["messages"]
        assert [message["content"] for message in sent][-3:] == ["Nice.", "Its colour?", "Sure?"]
        after = await listed(client, made.id)
        assert "grey" not in str(after)
        assert after[-1].id == fourth.output[0].id
        # The responses of before stay as they are, and can be continued.
        assert (await client.responses.retrieve(second.id)).output_text == "three"
        branch = await client.responses.create(model="far", input="x", previous_response_id=second.id)
        assert branch.output_text == "new"
        last = await client.responses.create(model="far", input="y", previous_response_id=fourth.id)
        assert last.conversation is not None
        assert last.conversation.id == made.id
        assert (await client.conversations.retrieve(made.id)).metadata == {"a": "b"}
        await client.conversations.delete(made.id)
        with pytest.raises(openai.NotFoundError):
            await client.conversations.retrieve(made.id)
        with pytest.raises(openai.NotFoundError):
            await client.responses.retrieve(second.id)


async def test_a_conversation_with_images_is_not_changed_after_a_response(
    tmp_path: Path, journal: Journal
) -> None:
    async with talking(tmp_path, journal, {"content": "a dot"}) as (client, _):
        part: Any = {"type": "input_image", "image_url": PIXEL, "detail": "auto"}
        made = await client.responses.create(model="far", input=[{"role": "user", "content": [part]}])
        assert made.conversation is not None
        with pytest.raises(openai.BadRequestError, match="images or files cannot be changed"):
            await client.conversations.items.create(
                made.conversation.id, items=[{"role": "user", "content": "x"}]
            )


async def test_items_are_those_of_the_responses(tmp_path: Path, journal: Journal) -> None:
    """Items have the ids that the responses gave them, and input items end before the response's own."""
    said = [
        calling(("c1", "add", '{"a": 1}'), ("c2", "add", '{"a": 1, "b": 2}')),
        {"content": "three", "reasoning_content": "hm"},
        calling(("c3", "pay", '{"amount": 3}')),
        {"content": "paid"},
    ]
    async with talking(tmp_path, journal, *said) as (client, _):
        conversation = (await client.conversations.create()).id
        content: Any = [{"type": "input_text", "text": "1 + 2?"}, {"type": "input_image", "image_url": PIXEL}]
        asked: Any = {"role": "user", "content": content}
        given: Any = {"model": "far", "tools": [ADD], "conversation": conversation}
        first = await client.responses.create(input=[asked], instructions="Add.", **given)
        (call,) = first.output
        output: Any = {"type": "function_call_output", "call_id": call.call_id, "output": "3"}  # type: ignore[union-attr]
        second = await client.responses.create(input=[output], **given)
        third = await client.responses.create(model="clerk", input="pay", conversation=conversation)
        decision: Any = {
            "type": "mcp_approval_response",
            "approval_request_id": third.output[0].id,
            "approve": True,
        }
        last = await client.responses.create(model="clerk", input=[decision], conversation=conversation)
        items = await listed(client, conversation)
        assert [item.type for item in items] == [
            *("message", "function_call", "function_call_output", "reasoning", "message"),
            *("message", "mcp_approval_request", "mcp_approval_response", "mcp_call", "message"),
        ]
        assert [part.type for part in items[0].content] == ["input_text", "input_image"]
        made = [item.id for response in (first, second, third, last) for item in response.output]
        assert [item.id for item in items if item.id in made] == made
        page = await client.responses.input_items.list(second.id, order="asc", limit=1)
        assert [item.id async for item in page] == [item.id for item in items[:3]]
        newest = (await client.responses.input_items.list(last.id)).data[0]
        assert newest.type == "mcp_approval_response"
        with pytest.raises(openai.NotFoundError, match="there is no item 'nope'"):
            await client.responses.input_items.list(last.id, after="nope")


async def test_a_conversation_belongs_to_its_key(tmp_path: Path, journal: Journal) -> None:
    path = tmp_path / "treadle.toml"
    path.write_text(KEYS)
    async with serving(path, journal) as url:
        made = await client_of(url, "kims-key").conversations.create(items=[{"role": "user", "content": "x"}])
        (item,) = await listed(client_of(url, "roots-key"), made.id)
        other = client_of(url, "bos-key").conversations
        for attempt in (
            other.retrieve(made.id),
            other.update(made.id, metadata={}),
            other.items.create(made.id, items=[]),
            other.items.delete(item.id, conversation_id=made.id),
        ):
            with pytest.raises(openai.NotFoundError):
                await attempt
        with pytest.raises(openai.NotFoundError):
            await client_of(url, "readers-key").responses.input_items.list(f"resp_{made.id[5:]}_1_0")


async def test_responses_are_listed(tmp_path: Path, journal: Journal) -> None:
    path = tmp_path / "treadle.toml"
    path.write_text(KEYS)
    async with serving(path, journal) as url:
        kim, root = client_of(url, "kims-key"), client_of(url, "roots-key")
        made = [await kim.responses.create(model="echo", input=f"say {number}") for number in range(3)]
        made.append(await kim.responses.create(model="clerk", input="x", previous_response_id=made[0].id))
        await root.responses.create(model="echo", input="mine")

        async def names(client: AsyncOpenAI, **asked: Any) -> list[str]:
            page: Any = await client.get("/responses", options={"params": asked}, cast_to=object)
            assert not page["data"] or page["last_id"] == page["data"][-1]["id"]
            return [item["id"] for item in page["data"]]

        ids = [item.id for item in made]
        assert await names(kim) == ids[::-1]
        assert await names(kim, order="asc", limit=2) == ids[:2]
        assert await names(kim, order="asc", limit=2, after=ids[1]) == ids[2:]
        assert await names(kim, model="clerk") == ids[3:]
        assert len(await names(root)) == 5
        page: Any = await kim.get("/responses", options={"params": {"limit": 1}}, cast_to=object)
        assert (page["has_more"], page["data"][0]["status"]) == (True, "completed")
        assert [item["content"][0]["text"] for item in page["data"][0]["input"]] == ["say 0", "0", "x"]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_conversation_has_one_response_at_a_time(
    is_stream: bool, tmp_path: Path, journal: Journal
) -> None:
    may_answer = asyncio.Event()

    def reply(request: Received) -> Reply:
        said = (
            stream(sse(chunk(content="hi"), chunk("stop")))
            if request.json().get("stream")
            else Reply(answer())
        )
        return replace(said, before=may_answer)

    async with relaying(reply, tmp_path, journal) as (client, _):
        name = (await client.conversations.create(items=[{"role": "user", "content": "old"}])).id
        for turn in (1, 2):
            asked = [
                asyncio.ensure_future(respond(client, is_stream, model="far", input="x", conversation=name))
                for _ in range(3)
            ]
            refused: list[Any] = []
            try:
                async with asyncio.timeout(20):
                    while len(refused) < 2:
                        refused = [it for it in asked if it.done()]
                        await asyncio.sleep(0.01)
            finally:
                may_answer.set()
            for it in refused:
                with pytest.raises(openai.ConflictError, match="another response of this conversation is"):
                    await it
            await asyncio.gather(*[it for it in asked if it not in refused])
            may_answer.clear()
            (info,) = journal.runs()
            assert info.turns == turn


async def test_what_is_under_way_is_cancelled_before_it_is_deleted(tmp_path: Path, journal: Journal) -> None:
    has_asked, may_answer = asyncio.Event(), asyncio.Event()

    def reply(_: Received) -> Reply:
        has_asked.set()
        return Reply(answer("late"), before=may_answer)

    async with relaying(reply, tmp_path, journal) as (client, _):
        made = await client.responses.create(model="far", input="x", background=True)
        await has_asked.wait()
        with pytest.raises(openai.ConflictError, match="it is under way; cancel it first"):
            await client.responses.delete(made.id)
        assert (await client.responses.cancel(made.id)).status == "cancelled"
        may_answer.set()
        while journal.runs(RunFilter(is_driven=True)):
            await asyncio.sleep(0.01)
        await client.responses.delete(made.id)
    assert journal.runs() == []


async def test_items_that_no_model_can_be_told_are_refused(client: AsyncOpenAI) -> None:
    odd: Any = {"type": "drawing"}
    with pytest.raises(openai.BadRequestError, match=r"input\[0\]: items of the type 'drawing'"):
        await client.conversations.create(items=[odd])
    made = await client.conversations.create(items=[{"role": "user", "content": "x"}])
    with pytest.raises(openai.BadRequestError, match=r"input\[1\]: items of the type 'drawing'"):
        await client.conversations.items.create(made.id, items=[odd])


async def test_a_conversation_goes_on_after_the_clock_was_set_back(tmp_path: Path, journal: Journal) -> None:
    """What a developer has said in each of its responses holds."""
    texts = [{"content": "one"}, {"content": "two"}, {"content": "three"}]
    async with talking(tmp_path, journal, *texts) as (client, engine):
        made = await client.conversations.create()
        for said in ("Be brief.", "Be kind.", "Be exact."):
            words: Any = [{"role": "developer", "content": said}, {"role": "user", "content": "And?"}]
            response = await client.responses.create(model="far", input=words, conversation=made.id)
            if said == "Be brief.":
                place = read_response_id(response.id)
                echo = read_request(journal, place)
                assert echo is not None
                echo.created_at += 3600
                journal.resources.delete("response", response.id, place.run_id)
                journal.resources.add([record_of(place, echo, "")], time.time())
        system = engine.requests[-1].json()["messages"][0]
    assert system["content"].split("\n\n") == ["Be brief.", "Be kind.", "Be exact."]


@pytest.fixture
async def host(config: Path, journal: Journal) -> AsyncIterator[RunHost]:
    """A server without sockets, which continues no runs."""
    served = load_served(config, None)
    made = RunHost(journal, AgentCatalog(served.config, journal, served.names))
    yield made
    await made.close()


async def plan(host: RunHost, text: Any, run_id: str | None = None, **more: Any) -> ResponseTurn:
    conversation = None if run_id is None else f"conv_{run_id}"
    asked = CreateResponse(model="clerk", input=text, conversation=conversation, **more)
    return await plan_response(host, ANYBODY, asked)


async def test_of_requests_at_the_same_moment_one_is_answered(host: RunHost, journal: Journal) -> None:
    """The others were planned for the turn that the first one has had meanwhile."""
    first = await plan(host, "hello")
    await first.answer()
    plans = [await plan(host, "call list_files {}\nthen\nsay done", first.run_id) for _ in range(3)]
    noted: list[str] = []

    async def note(place: str) -> None:
        noted.append(place)

    for planned in plans:
        planned.keep_first(note, "mark")
    answered = await plans[0].answer()
    for ask in (plans[1].answer, plans[2].start):
        with pytest.raises(RequestRefused) as refused:
            await ask()
        assert (refused.value.status_code, refused.value.code) == (409, "conversation_locked")
    assert noted == [answered["id"]]  # the keys of the others know nothing of this response
    await (await plan(host, "say more", first.run_id)).answer()
    assert journal.runs()[0].turns == 3


async def test_of_first_requests_at_the_same_moment_one_is_kept(host: RunHost, journal: Journal) -> None:
    """Each asks for the first response of a conversation, which has its id before anybody has begun it."""
    made = conversation_of(make_run_id(), "", KeptConversation({}))
    journal.resources.add([made], made.created_at)
    plans = [
        await plan(host, "hello", made.resource_id, instructions=f"You are clerk {number}.")
        for number in range(3)
    ]
    for number, planned in enumerate(plans):

        async def note(place: str) -> None:
            raise AssertionError(f"the run says by its mark who has begun {place}")

        planned.keep_first(note, f"mark {number}")
    told = await asyncio.gather(*[planned.answer() for planned in plans], return_exceptions=True)
    [number] = [number for number, answer in enumerate(told) if isinstance(answer, dict)]
    answered: Any = told[number]
    assert journal.runs()[0].labels[MARK] == f"mark {number}"
    kept = read_request(journal, read_response_id(answered["id"]))
    assert kept is not None
    assert kept.instructions == f"You are clerk {number}."


async def test_of_results_at_the_same_moment_those_of_one_client_count(
    host: RunHost, journal: Journal
) -> None:
    """The results of the others are not in the run, and their keys know nothing of its response."""
    asked = await plan(host, 'call add {"a":1,"b":2}', tools=[ADD])
    answer: Any = await asked.answer()
    call_id = answer["output"][-1]["call_id"]
    plans = []
    for number in range(3):
        given: Any = [{"type": "function_call_output", "call_id": call_id, "output": f"result {number}"}]
        plans.append(await plan(host, given, tools=[ADD], previous_response_id=answer["id"]))
    noted: list[str] = []
    for number, planned in enumerate(plans):

        async def note(place: str, number: int = number) -> None:
            noted.append(f"{number} {place}")

        planned.keep_first(note, "mark")
    told = await asyncio.gather(*[planned.answer() for planned in plans], return_exceptions=True)
    [number] = [number for number, said in enumerate(told) if isinstance(said, dict)]
    assert [said.code for said in told if isinstance(said, RequestRefused)] == ["conversation_locked"] * 2
    assert noted == [f"{number} {told[number]['id']}"]
    run = await asyncio.to_thread(Run.load, asked.run_id, journal)
    results = [event.body.result for event in run.events if isinstance(event.body, ToolCompleted)]
    assert [result.content for result in results] == [f"result {number}"]
    assert not any(isinstance(event.body, Noted) for event in run.events)


async def test_a_message_after_an_interrupted_turn_is_refused(host: RunHost, journal: Journal) -> None:
    """Whoever continues the run finishes that turn first."""
    first = await plan(host, "hello")
    await first.answer()
    writer = await journal.acquire(first.run_id)
    then = Message(Role.USER, "call list_files {}\nthen\nsay then")
    writer.append([TurnStarted(at=time.time(), turn=2, message=then)])
    await writer.release()
    with pytest.raises(RequestRefused) as refused:
        await (await plan(host, "say more", first.run_id)).answer()
    assert (refused.value.status_code, refused.value.code) == (409, "conversation_locked")
