"""The items of responses: each is shown once, where it ends, and only if the client has something of it."""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from openai import AsyncOpenAI
from pydantic import BaseModel
from tests.models.answers import answer, chunk, usage_chunk
from tests.models.server import Received, Reply, Server, stream
from tests.models.server import sse as to_sse
from tests.server.test_relay import relaying
from tests.server.test_responses import ADD, journal

from treadle.core.events import InferenceCompleted
from treadle.core.types import Completion, FinishReason, Message, Role, ServerCall
from treadle.journal.protocol import Journal
from treadle.server.responses.item_parts import Echo
from treadle.server.responses.response_fold import ResponseFold
from treadle.server.responses.response_ids import ResponseId

__all__ = ["journal"]
TOOLS = '''
from treadle import tool


@tool(effect="once")
def pay(amount: int) -> str:
    """Pay an amount."""
    return f"paid {amount}"
'''
AGENT = """
[agents.clerk]
model = "far"
tools = ["paying.py:pay", "ask"]
approve = { pay = "ask" }
"""


class Count(BaseModel):
    """The form of an answer."""

    count: int


def saying(*messages: dict[str, Any]) -> Callable[[Received], Reply]:
    """Return a handler that gives each message of the model in turn, as a stream if that is asked for."""
    left = list(messages)

    def reply(request: Received) -> Reply:
        made = answer(**{"content": None, **left.pop(0)})
        if not request.json().get("stream"):
            return Reply(made)
        (choice,) = made["choices"]
        said = dict(choice["message"])
        # Reasoning comes before the text, and the arguments of calls in pieces.
        parts = [chunk(reasoning_content=said["reasoning_content"])] if "reasoning_content" in said else []
        parts += [chunk(content=said["content"])] if said["content"] else []
        for number, call in enumerate(said.get("tool_calls") or ()):
            text = call["function"]["arguments"]
            head = {**call, "index": number, "function": {**call["function"], "arguments": ""}}
            parts.append(chunk(tool_calls=[head]))
            pieces = (text[:4], text[4:])
            parts += [chunk(tool_calls=[{"index": number, "function": {"arguments": it}}]) for it in pieces]
        return stream(to_sse(*parts, chunk(choice["finish_reason"]), usage_chunk()))

    return reply


def calling(*calls: tuple[str, str, str]) -> dict[str, Any]:
    """Return a message with calls: their ids, names and arguments."""
    told = [
        {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}
        for call_id, name, arguments in calls
    ]
    return {"tool_calls": told, "finish": "tool_calls"}


@asynccontextmanager
async def talking(
    path: Path, journal: Journal, *messages: dict[str, Any]
) -> AsyncIterator[tuple[AsyncOpenAI, Server]]:
    """Serve the agent `clerk` and the model `far`, which gives the messages in turn."""
    (path / "paying.py").write_text(TOOLS)
    async with relaying(saying(*messages), path, journal, AGENT) as made:
        yield made


async def respond(client: AsyncOpenAI, is_stream: bool, **given: Any) -> tuple[Any, list[Any]]:
    """Return a response, and the events of its stream, if it was one."""
    if not is_stream:
        return await client.responses.create(**given), []
    events = [event async for event in await client.responses.create(stream=True, **given)]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    return events[-1].response, events


def kinds(response: Any) -> list[str]:
    return [item.type for item in response.output]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_call_that_was_refused_here_is_not_the_clients(
    is_stream: bool, tmp_path: Path, journal: Journal
) -> None:
    calls = calling(("c1", "add", '{"a": 1}'), ("c2", "add", '{"a": 1, "b": 2}'))
    async with talking(tmp_path, journal, calls, {"content": "done"}) as (client, _):
        given: Any = {"model": "far", "tools": [ADD]}
        first, events = await respond(client, is_stream, input="add", **given)
        (call,) = first.output
        assert (call.type, call.arguments) == ("function_call", '{"a": 1, "b": 2}')
        told = [event for event in events if "function_call_arguments" in event.type]
        assert [getattr(event, "delta", "done") for event in told] == (
            ['{"a"', ': 1, "b": 2}', "done"] if is_stream else []
        )
        output: Any = [{"type": "function_call_output", "call_id": call.call_id, "output": "3"}]
        last, _events = await respond(client, is_stream, input=output, previous_response_id=first.id, **given)
        assert last.output_text == "done"


async def test_a_response_without_tools_is_the_same_however_it_is_read(
    tmp_path: Path, journal: Journal
) -> None:
    call = calling(("c1", "add", '{"a": 1, "b": 2}'))
    messages = [call, {"content": "3"}, call, {"content": "no"}, call, {"content": "no"}]
    async with talking(tmp_path, journal, *messages) as (client, _):
        first, _events = await respond(client, False, model="far", tools=[ADD], input="add")
        output: Any = [{"type": "function_call_output", "call_id": first.output[0].call_id, "output": "3"}]
        last, _events = await respond(
            client, False, model="far", tools=[ADD], input=output, previous_response_id=first.id
        )
        for is_stream in (False, True):
            last, _events = await respond(
                client, is_stream, model="far", input="more", previous_response_id=last.id
            )
            assert kinds(last) == kinds(await client.responses.retrieve(last.id)) == ["mcp_call", "message"]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_reasoning_is_one_item(is_stream: bool, tmp_path: Path, journal: Journal) -> None:
    said = {"content": "yes", "reasoning_content": "let me see"}
    async with talking(tmp_path, journal, said) as (client, _):
        response, events = await respond(client, is_stream, model="far", input="well?")
        assert kinds(response) == ["reasoning", "message"]
        assert response.output[0].content[0].text == "let me see"
        parts = [event.part.type for event in events if event.type == "response.content_part.added"]
        assert parts == (["reasoning_text", "output_text"] if is_stream else [])


@pytest.mark.parametrize("is_stream", [False, True])
async def test_an_answer_that_was_thrown_away_is_not_shown(
    is_stream: bool, tmp_path: Path, journal: Journal
) -> None:
    said = [{"content": "three"}, {"content": '{"count": 3}'}]
    async with talking(tmp_path, journal, *said) as (client, _):
        given: Any = {"model": "far", "input": "count", "text_format": Count}
        if is_stream:
            async with client.responses.stream(**given) as events:
                done = [event.text async for event in events if event.type == "response.output_text.done"]
                response = await events.get_final_response()
            assert done == ['{"count": 3}']
        else:
            response = await client.responses.parse(**given)
        assert response.output_text == '{"count": 3}'
        assert response.output_parsed == Count(count=3)


async def test_an_answer_that_the_provider_cut_off_is_a_refusal(tmp_path: Path, journal: Journal) -> None:
    said = {"content": "I cannot", "finish": "content_filter"}
    async with talking(tmp_path, journal, said) as (client, _):
        response, events = await respond(client, True, model="far", input="do it")
        assert response.output[0].content[0].refusal == "I cannot"
        assert [event.refusal for event in events if event.type == "response.refusal.done"] == ["I cannot"]
        assert not [event for event in events if event.type == "response.output_text.done"]


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_call_is_shown_with_its_result_once_it_was_approved(
    is_stream: bool, tmp_path: Path, journal: Journal
) -> None:
    said = [calling(("c1", "pay", '{"amount": 3}')), {"content": "done"}, {"content": "bye"}]
    async with talking(tmp_path, journal, *said) as (client, _):
        first, _events = await respond(client, is_stream, model="clerk", input="pay")
        (request,) = first.output
        assert (request.type, request.arguments) == ("mcp_approval_request", '{"amount": 3}')
        told: Any = {"type": "mcp_approval_response", "approval_request_id": request.id, "approve": True}
        history: Any = [{"role": "user", "content": "pay"}, request.model_dump(exclude_none=True), told]
        # The ids in a history that the client keeps itself are enough.
        last, events = await respond(client, is_stream, model="clerk", input=history)
        call, message = last.output
        assert (call.name, call.output, call.approval_request_id) == ("pay", "paid 3", request.id)
        assert message.content[0].text == "done"
        assert last.conversation == first.conversation
        assert (await client.responses.retrieve(last.id)).output == last.output
        done = [event.item.type for event in events if event.type == "response.output_item.done"]
        assert done == (["mcp_call", "message"] if is_stream else [])
        history += [item.model_dump(exclude_none=True) for item in last.output]
        history.append({"role": "user", "content": "thanks"})
        next_one, _events = await respond(client, is_stream, model="clerk", input=history)
        assert next_one.output_text == "bye"
        assert next_one.conversation == first.conversation


@pytest.mark.parametrize("keeps_history", [False, True])
@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_run_may_wait_several_times_in_one_step(
    is_stream: bool, keeps_history: bool, tmp_path: Path, journal: Journal
) -> None:
    calls = calling(
        ("c1", "ask_user", '{"question": "Which?"}'),
        ("c2", "add", '{"a": 1, "b": 2}'),
        ("c3", "pay", '{"amount": 3}'),
    )
    async with talking(tmp_path, journal, calls, {"content": "done"}) as (client, _):
        history: Any = [{"role": "user", "content": "go"}]
        given: Any = {"model": "clerk", "tools": [ADD]}
        made: list[Any] = []
        while not made or made[-1].output_text != "done":
            response, _events = await respond(client, is_stream, input=history, **given)
            made.append(response)
            replies: Any = [
                {"type": "mcp_approval_response", "approval_request_id": item.id, "approve": True}
                if item.type == "mcp_approval_request"
                else {"type": "function_call_output", "call_id": item.call_id, "output": "this"}
                for item in response.output
                if item.type in ("mcp_approval_request", "function_call")
            ]
            if keeps_history:
                shown = [item.model_dump(exclude_none=True) for item in response.output]
                history = [*history, *shown, *replies]
            else:
                history, given["previous_response_id"] = replies, response.id
        assert [sorted(kinds(response)) for response in made] == [
            ["mcp_approval_request"],
            ["function_call", "function_call", "mcp_call"],
            ["message"],
        ]
        assert len({response.id for response in made}) == 3
        for response in made:
            assert (await client.responses.retrieve(response.id)).output == response.output
        items = client.conversations.items.list(made[0].conversation.id, order="asc")
        assert [item.type async for item in items] == [
            *("message", "mcp_approval_request", "mcp_approval_response"),
            *(item.type for item in made[1].output),
            *("function_call_output", "function_call_output", "message"),
        ]


async def test_what_is_asked_of_the_model_reaches_it(tmp_path: Path, journal: Journal) -> None:
    said = [calling(("c1", "add", '{"a": 1, "b": 2}')), *[{"content": "done"}] * 4]
    more = f"{AGENT}[models.far.extra]\nmin_p = 0.1\n"
    (tmp_path / "paying.py").write_text(TOOLS)
    async with relaying(saying(*said), tmp_path, journal, more) as (client, engine):
        given: Any = {"model": "far", "tools": [ADD]}
        first = await client.responses.create(
            input="add",
            tool_choice="required",
            parallel_tool_calls=False,
            reasoning={"effort": "high", "summary": "auto"},
            text={"verbosity": "low"},
            **given,
        )
        sent = engine.requests[-1].json()
        assert (sent["tool_choice"], sent["parallel_tool_calls"]) == ("required", False)
        assert (sent["reasoning_effort"], sent["verbosity"], sent["min_p"]) == ("high", "low", 0.1)
        output: Any = {"type": "function_call_output", "call_id": first.output[0].call_id, "output": "3"}  # type: ignore[union-attr]
        last = await client.responses.create(
            input=[output], previous_response_id=first.id, tool_choice="none", **given
        )
        assert last.output_text == "done"
        sent = engine.requests[-1].json()
        assert sent["tool_choice"] == "none"
        assert not sent.keys() & {"parallel_tool_calls", "reasoning_effort", "verbosity"}
        named: Any = {"type": "function", "name": "add"}
        await client.responses.create(input="add", tool_choice=named, **given)
        assert engine.requests[-1].json()["tool_choice"] == {"type": "function", "function": {"name": "add"}}
        nulls = {"tools": None, "stream": None, "store": None, "background": None, "tool_choice": None}
        await client.post("/responses", body={"model": "far", "input": "hi", **nulls}, cast_to=object)
        assert "tools" not in engine.requests[-1].json()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"tool_choice": "sometimes"}, "tool_choice is 'sometimes'; give 'auto', 'none', 'required'"),
        ({"tool_choice": {"type": "function", "name": "sub"}}, "names 'sub', which is none of the tools"),
        ({"model": "clerk", "tool_choice": "required"}, "needs tools of the client, and none that run here"),
        ({"tool_choice": "required", "tools": []}, "needs tools of the client"),
        ({"model": "gem", "reasoning": {"effort": "low"}}, "the effort 'low' cannot be sent to 'gem'"),
        ({"model": "claude", "text": {"verbosity": "low"}}, "the verbosity 'low' cannot be sent to 'claude'"),
        ({"model": "gem", "parallel_tool_calls": False}, "parallel_tool_calls cannot be sent to 'gem'"),
        (
            {"model": "own", "tool_choice": "required", "reasoning": {"summary": "auto"}},
            "tool_choice cannot be",
        ),
    ],
)
async def test_a_choice_that_cannot_be_kept_is_refused(
    given: dict[str, Any], said: str, tmp_path: Path, journal: Journal
) -> None:
    (tmp_path / "paying.py").write_text(TOOLS)
    more = AGENT + "".join(
        f'[models.{name}]\nmodel = "{provider}:m"\napi_key_env = ""\n'
        for name, provider in (("claude", "anthropic"), ("gem", "gemini"), ("own", "ollama"))
    )
    async with relaying([], tmp_path, journal, more) as (client, _):
        body: Any = {"model": "far", "input": "add", "tools": [ADD], **given}
        with pytest.raises(openai.BadRequestError, match=said):
            await client.responses.create(**body)
    assert not journal.runs()


async def test_a_history_may_refer_to_items(tmp_path: Path, journal: Journal) -> None:
    """Clients that know that responses are kept send the ids of items in place of them."""
    said = [
        {"reasoning_content": "hm", **calling(("c1", "add", '{"a": 1, "b": 2}'))},
        {"content": "three"},
        {"content": "bye"},
    ]
    async with talking(tmp_path, journal, *said) as (client, engine):
        given: Any = {"model": "far", "tools": [ADD]}
        history: Any = [{"role": "user", "content": "1 + 2?"}]
        first = await client.responses.create(input=history, **given)
        history += [{"type": "item_reference", "id": item.id} for item in first.output]
        call: Any = first.output[-1]
        history.append({"type": "function_call_output", "call_id": call.call_id, "output": "3"})
        second = await client.responses.create(input=history, **given)
        history += [{"type": "item_reference", "id": item.id} for item in second.output]
        third = await client.responses.create(input=[*history, {"role": "user", "content": "bye"}], **given)
        assert third.output_text == "bye"
        assert third.conversation == first.conversation
        roles = [message["role"] for message in engine.requests[-1].json()["messages"]]
        assert roles == ["user", "assistant", "tool", "assistant", "user"]
        history.append({"type": "item_reference", "id": "msg_resp_0123456789abcdef012_1_0_0"})
        with pytest.raises(openai.NotFoundError, match="there is no item 'msg_resp_0123"):
            await client.responses.create(input=history, **given)


async def test_nothing_of_a_history_is_left_out(tmp_path: Path, journal: Journal) -> None:
    async with talking(tmp_path, journal, {"content": "well"}) as (client, engine):
        refusal: Any = {"role": "assistant", "content": [{"type": "refusal", "refusal": "I cannot."}]}
        history: Any = [{"role": "user", "content": "do"}, refusal, {"role": "user", "content": "please"}]
        await client.responses.create(model="far", input=history)
        assert engine.requests[-1].json()["messages"][1] == {"role": "assistant", "content": "I cannot."}
        audio = {"type": "input_audio", "input_audio": {"data": "aGk=", "format": "wav"}}
        output: Any = {"type": "function_call_output", "call_id": "c1", "output": [audio]}
        with pytest.raises(openai.BadRequestError, match="parts of the type 'input_audio' are not supported"):
            await client.responses.create(model="far", input=[*history, output])


@pytest.mark.parametrize("is_stream", [False, True])
async def test_texts_have_log_probabilities_if_they_are_asked_for(
    is_stream: bool, tmp_path: Path, journal: Journal
) -> None:
    told = {
        "token": "yes",
        "logprob": -0.5,
        "bytes": [121],
        "top_logprobs": [{"token": "no", "logprob": -1.0}],
    }

    def reply(request: Received) -> Reply:
        assert (request.json()["logprobs"], request.json().get("top_logprobs")) in ((True, 1), (True, None))
        made = answer("yes")
        made["choices"][0]["logprobs"] = {"content": [told], "refusal": None}
        if not request.json().get("stream"):
            return Reply(made)
        part = chunk(content="yes")
        part["choices"][0]["logprobs"] = {"content": [told], "refusal": None}
        return stream(to_sse(part, chunk("stop"), usage_chunk()))

    async with relaying(reply, tmp_path, journal) as (client, _):
        for asked in ({"top_logprobs": 1}, {"include": ["message.output_text.logprobs"]}):
            response, events = await respond(client, is_stream, model="far", input="?", **asked)
            (token,) = response.output[0].content[0].logprobs
            assert (token.token, token.logprob) == ("yes", -0.5)
            done = [event.logprobs for event in events if event.type == "response.output_text.done"]
            assert [[item.token for item in items] for items in done] == ([["yes"]] if is_stream else [])
            assert (await client.responses.retrieve(response.id)).output == response.output


def test_calls_of_the_models_own_server_have_their_events() -> None:
    calls = (ServerCall("s1", "web_search", "owls"), ServerCall("s2", "look_up", "{}", "no", is_error=True))
    message = Message(Role.ASSISTANT, "done", server_calls=calls)
    fold = ResponseFold(ResponseId("r", 1, 0), Echo(model="far", created_at=0))
    fold.begin()
    told = fold.take(InferenceCompleted(1, Completion(message, FinishReason.STOP)))
    assert [str(event["type"]).removeprefix("response.") for event in told[:10]] == [
        *("output_item.added", "web_search_call.in_progress", "web_search_call.searching"),
        *("web_search_call.completed", "output_item.done", "output_item.added", "mcp_call.in_progress"),
        *("mcp_call_arguments.done", "mcp_call.failed", "output_item.done"),
    ]
    items: Any = fold.response()["output"]
    assert [(item["type"], item["status"]) for item in items] == [
        ("web_search_call", "completed"),
        ("mcp_call", "failed"),
        ("message", "completed"),
    ]


PATCH: Any = {"type": "custom", "name": "patch", "description": "Change files.", "format": {"type": "text"}}


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_custom_tool_takes_a_text(is_stream: bool, tmp_path: Path, journal: Journal) -> None:
    said = [
        calling(("c1", "patch", '{"input": "*** a\\n+ \\"b\\""}')),
        {"content": "done"},
        {"content": "bye"},
    ]
    async with talking(tmp_path, journal, *said) as (client, engine):
        grammar = {"type": "grammar", "syntax": "lark", "definition": "start: LINE"}
        given: Any = {"model": "far", "tools": [{**PATCH, "format": grammar}], "tool_choice": "required"}
        first, events = await respond(client, is_stream, input="patch it", **given)
        sent = engine.requests[0].json()["tools"][0]["function"]
        assert sent["parameters"]["required"] == ["input"]
        assert "start: LINE" in sent["description"]
        (call,) = first.output
        assert (call.type, call.name, call.input) == ("custom_tool_call", "patch", '*** a\n+ "b"')
        told = [event.type for event in events if "custom_tool_call" in event.type]
        kinds = ["response.custom_tool_call_input.delta", "response.custom_tool_call_input.done"]
        assert told == (kinds if is_stream else [])
        read = await client.responses.retrieve(first.id)
        assert [item.to_dict() for item in read.output] == [item.to_dict() for item in first.output]
        output: Any = {"type": "custom_tool_call_output", "call_id": call.call_id, "output": "ok"}
        given["tool_choice"] = "auto"
        last, _ = await respond(client, is_stream, input=[output], previous_response_id=first.id, **given)
        assert last.output_text == "done"
        items = await client.conversations.items.list(last.conversation.id, order="asc")
        assert [item.type for item in items.data] == [
            *("message", "custom_tool_call", "custom_tool_call_output", "message"),
        ]
        # The ids are enough, and so are the items.
        whole: Any = [{"role": "user", "content": "patch it"}, call.to_dict(), output]
        whole += [last.output[0].to_dict(), {"role": "user", "content": "bye"}]
        third, _ = await respond(client, is_stream, input=whole, **given)
        assert (third.output_text, third.conversation.id) == ("bye", last.conversation.id)
        asked = engine.requests[-1].json()["messages"]
        assert asked[1]["tool_calls"][0]["function"]["arguments"] == '{"input": "*** a\\n+ \\"b\\""}'


async def test_only_the_allowed_tools_are_given(tmp_path: Path, journal: Journal) -> None:
    async with talking(tmp_path, journal, {"content": "a"}, {"content": "b"}) as (client, engine):
        tools = [ADD, PATCH]
        only: Any = {
            "type": "allowed_tools",
            "mode": "required",
            "tools": [{"type": "custom", "name": "patch"}],
        }
        made = await client.responses.create(model="far", input="x", tools=tools, tool_choice=only)
        sent = engine.requests[-1].json()
        assert [tool["function"]["name"] for tool in sent["tools"]] == ["patch"]
        assert sent["tool_choice"] == "required"
        assert made.to_dict()["tool_choice"] == only
        assert len(made.tools) == 2
        for model, choice, error in (
            ("clerk", {**only, "mode": "auto"}, "cannot take away the agent's own tools"),
            ("far", {**only, "mode": "always"}, "tool_choice.mode is 'always'"),
            ("far", {**only, "tools": [{"type": "function", "name": "no"}]}, "none of the tools"),
        ):
            with pytest.raises(openai.BadRequestError, match=error):
                await client.responses.create(model=model, input="x", tools=tools, tool_choice=choice)


async def test_an_image_is_sent_however_it_is_given(tmp_path: Path, journal: Journal) -> None:
    """By its address, as a data URL, and as an upload; in chat completions as in responses."""
    link, data = "https://example.com/a.png", "data:image/png;base64,aGk="
    told = [{"type": "image_url", "image_url": {"url": url}} for url in (link, data)]
    async with talking(tmp_path, journal, *[{"content": "a"}] * 3) as (client, engine):
        file = await client.files.create(file=("a.png", b"hi", "image/png"), purpose="user_data")
        parts: Any = [
            {"type": "input_text", "text": "what is this?"},
            {"type": "input_image", "image_url": link, "detail": "auto"},
            {"type": "input_image", "image_url": data, "detail": "auto"},
            {"type": "input_image", "file_id": file.id, "detail": "auto"},
        ]
        made = await client.responses.create(model="far", input=[{"role": "user", "content": parts}])
        sent = engine.requests[-1].json()["messages"][0]["content"]
        assert sent == [{"type": "text", "text": "what is this?"}, *told, told[1]]
        items = await client.responses.input_items.list(made.id)
        kept: Any = items.data[0]
        assert [part.image_url for part in kept.content[1:]] == [link, None, None]
        chat: Any = [{"role": "user", "content": [{"type": "text", "text": "and this?"}, *told]}]
        await client.chat.completions.create(model="far", messages=chat)
        assert engine.requests[-1].json()["messages"] == chat
        document: Any = {"type": "input_file", "file_url": "https://example.com/a.pdf"}
        with pytest.raises(
            openai.BadRequestError, match=r"cannot send document \(application/pdf\) as a link"
        ):
            await client.responses.create(model="far", input=[{"role": "user", "content": [document]}])
        assert len(engine.requests) == 2
