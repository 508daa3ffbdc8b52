"""What clients of llama-stack and OGX ask beside what clients of OpenAI do, and how they put requests together."""

from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from msgspec.structs import replace
from openai import AsyncOpenAI
from tests.server.test_relay import assert_replays
from tests.server.test_response_items import calling, respond, talking
from tests.server.test_responses import ADD, client, config, journal

from treadle.core.replay import replay as decide_again
from treadle.journal.protocol import Journal
from treadle.tools.schema.answer_schema import find_output_fault

__all__ = ["client", "config", "journal"]
IMAGE = "data:image/png;base64," + "aGk="
LARGE = "data:image/png;base64," + "aGkh" * 4000
"""An image that the journal keeps beside its events."""


async def test_each_model_names_a_provider_that_is_listed(client: AsyncOpenAI) -> None:
    base = str(client.base_url)
    async with httpx.AsyncClient(base_url=base) as http:
        listed = (await http.get("providers")).json()["data"]
        assert {"inference", "files", "vector_io"} <= {item["api"] for item in listed}
        for model in (await http.get("models")).json()["data"]:
            name = model["custom_metadata"]["provider_id"]
            assert name in {item["provider_id"] for item in listed if item["api"] == "inference"}
            assert (await http.get(f"providers/{name}")).json()["provider_id"] == name
        assert (await http.get("providers/other")).status_code == 404


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_response_repeats_the_keys_of_its_request(client: AsyncOpenAI, is_stream: bool) -> None:
    keys = {"prompt_cache_key": "k1", "safety_identifier": "u1"}
    made, events = await respond(client, is_stream, model="echo", input="hi", **keys)
    read = await client.responses.retrieve(made.id)
    for response in (made, read, *[event.response for event in events[:1]]):
        assert {name: getattr(response, name) for name in keys} == keys


@pytest.mark.parametrize(
    ("given", "status", "error"),
    [
        ({"previous_response_id": "resp_x", "conversation": "conv_x"}, 400, "not both"),
        ({"conversation": "x"}, 400, "begins with 'conv_'"),
        ({"conversation": {"id": "x"}}, 400, "begins with 'conv_'"),
        ({"conversation": "conv_x"}, 404, "conv_x"),
        ({"guardrails": ["llama-guard"]}, 503, "no safety checks"),
        ({"guardrails": []}, 200, ""),
    ],
)
async def test_what_cannot_be_done_is_refused(
    client: AsyncOpenAI, given: Any, status: int, error: str
) -> None:
    body = {"model": "echo", "input": "hi", **given}
    async with httpx.AsyncClient(base_url=str(client.base_url)) as http:
        answer = await http.post("responses", json=body)
    assert (answer.status_code, error in answer.text) == (status, True)


async def test_only_what_goes_on_by_itself_can_be_cancelled(client: AsyncOpenAI) -> None:
    made = await client.responses.create(model="echo", input="hi")
    with pytest.raises(openai.ConflictError, match="is over"):
        await client.responses.cancel(made.id)


@pytest.mark.parametrize("is_stream", [False, True])
@pytest.mark.parametrize("is_first", [False, True])
async def test_a_message_beside_outputs_reaches_the_model_after_them(
    is_stream: bool, is_first: bool, tmp_path: Path, journal: Journal
) -> None:
    calls = calling(("c1", "add", '{"a": 1, "b": 2}'))
    async with talking(tmp_path, journal, calls, {"content": "done"}) as (client, engine):
        given: Any = {"model": "far", "tools": [ADD]}
        first, _ = await respond(client, is_stream, input="add", **given)
        output = {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "3"}
        words = [{"role": "user", "content": "and"}, {"role": "user", "content": "be brief"}]
        asked: Any = [*words, output] if is_first else [output, *words]
        last, _ = await respond(client, is_stream, input=asked, previous_response_id=first.id, **given)
        assert last.output_text == "done"
        told = engine.requests[-1].json()["messages"][-2:]
        assert [item["role"] for item in told] == ["tool", "user"]
        assert (told[0]["content"], told[1]["content"]) == ("3", "and\n\nbe brief")
        items = [item async for item in client.conversations.items.list(first.conversation.id, order="asc")]
        kinds = [item.type for item in items]
        assert kinds == ["message", "function_call", "function_call_output", "message", "message"]
    await assert_replays(journal)


@pytest.mark.parametrize("image", [IMAGE, LARGE])
async def test_images_and_files_in_an_output_reach_the_model(
    image: str, tmp_path: Path, journal: Journal
) -> None:
    calls = calling(("c1", "add", '{"a": 1, "b": 2}'))
    async with talking(tmp_path, journal, calls, {"content": "seen"}) as (client, engine):
        file = await client.files.create(file=("sales.txt", b"Revenue was 50."), purpose="assistants")
        given: Any = {"model": "far", "tools": [ADD]}
        first = await client.responses.create(input="add", **given)
        contents = [
            {"type": "input_text", "text": "Look:"},
            {"type": "input_file", "file_id": file.id},
            {"type": "input_image", "image_url": image},
        ]
        output = {"type": "function_call_output", "call_id": first.output[0].call_id, "output": contents}
        last = await client.responses.create(input=[output], previous_response_id=first.id, **given)
        assert last.output_text == "seen"
        told = engine.requests[-1].json()["messages"]
        (tool,) = [item for item in told if item["role"] == "tool"]
        assert "Look:\nRevenue was 50." in str(tool["content"]).replace("\\n", "\n")
        assert image in str(told)
        (shown,) = (await client.responses.input_items.list(last.id, limit=1)).data
        assert [part.type for part in shown.output] == ["input_text", "input_image"]
        odd = {**output, "output": [{"type": "odd"}]}
        with pytest.raises(openai.BadRequestError, match="'odd' are not supported"):
            await client.responses.create(input=[odd], previous_response_id=last.id, **given)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_calls_above_the_limit_are_not_shown(client: AsyncOpenAI, is_stream: bool) -> None:
    asked = "call list_files {}\ncall list_files {}\nthen\nsay done"
    made, _ = await respond(client, is_stream, model="clerk", input=asked, max_tool_calls=1)
    read = await client.responses.retrieve(made.id)
    for response in (made, read):
        assert [(item.type, item.status) for item in response.output] == [
            *(("mcp_call", "completed"), ("message", "completed")),
        ]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_only_calls_that_run_here_count(is_stream: bool, tmp_path: Path, journal: Journal) -> None:
    add = '{"a": 1, "b": 2}'
    said = [
        calling(("c1", "add", add), ("p1", "pay", "{}"), ("p2", "pay", "{}"), ("c2", "add", add)),
        calling(("p3", "pay", "{}"), ("c3", "add", add)),
        {"content": "done"},
    ]
    given: dict[str, Any] = {"model": "clerk", "tools": [ADD], "max_tool_calls": 1}
    async with talking(tmp_path, journal, *said) as (client, engine):
        asked, shown = "add", []
        last = None
        for _ in said:
            last, _ = await respond(
                client, is_stream, input=asked, previous_response_id=last and last.id, **given
            )
            assert last.status == "completed"
            shown.append(sorted(item.type for item in last.output))
            asked = [
                {"type": "function_call_output", "call_id": item.call_id, "output": "3"}
                for item in last.output
                if item.type == "function_call"
            ]
        assert shown == [["function_call", "function_call", "mcp_call"], ["function_call"], ["message"]]
        told = [item for item in engine.requests[-1].json()["messages"] if item["role"] == "tool"]
        assert [item["content"].startswith("Not run: the limit max_tool_calls") for item in told] == [
            *(False, False, True, False),
            *(True, False),
        ]
        assert engine.requests[-1].json()["tools"]
    (info,) = journal.runs()
    events = journal.read(info.run_id)
    await assert_replays(journal)
    older = [replace(events[0], body=replace(events[0].body, version="2.7"), raw=None), *events[1:]]
    assert not decide_again(older, find_output_fault).is_exact


async def test_a_small_file_is_read_when_it_has_been_attached(client: AsyncOpenAI) -> None:
    file = await client.files.create(file=("a.txt", b"The cat lives in Bonn."), purpose="assistants")
    store = await client.vector_stores.create(name="s")
    attached = await client.vector_stores.files.create(store.id, file_id=file.id)
    assert attached.chunking_strategy.type == "static"  # the API has no other name for sizes that are known
    other = await client.vector_stores.create(name="t", file_ids=[file.id])
    assert (attached.status, other.status, other.file_counts.completed) == ("completed", "completed", 1)
