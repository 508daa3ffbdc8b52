"""Tests of the dialect `openai_responses` alone. Tests for all dialects are in tests/contract."""

import json

import msgspec
import pytest
from tests.models.answers import Listener
from tests.models.server import Reply, serve, sse
from tests.models.wire import openai_responses as wire

from treadle import Agent, tool
from treadle.core.errors import (
    ConfigError,
    ContextOverflowError,
    ProviderTimeoutError,
    RateLimitError,
    RequestError,
    ServerError,
    TransportError,
)
from treadle.core.events import ServerCallDelta, TextDelta
from treadle.core.log import Log
from treadle.core.tokens.packed import unpack_logprobs
from treadle.core.types import (
    FinishReason,
    Message,
    Request,
    Role,
    ServerCall,
    Settings,
    ToolCall,
    ToolSpec,
    Usage,
)
from treadle.models import HttpResponse, HttpTransport, InProcessTransport, OpenAIResponsesModel, Watch

SPEC = ToolSpec("look_up", "Looks a word up.", {"type": "object"})
USER = Message(Role.USER, "Hello?")
QUESTION = Request(Log([USER]))

REASONING = {
    "id": "rs_1",
    "type": "reasoning",
    "summary": [{"type": "summary_text", "text": "First."}, {"type": "summary_text", "text": "Then."}],
    "encrypted_content": "Z29uZQ==",
}
HIDDEN = {"id": "rs_2", "type": "reasoning", "summary": [], "encrypted_content": "Z29uZQ=="}
OPEN = {
    "id": "rs_3",
    "type": "reasoning",
    "summary": [],
    "content": [{"type": "reasoning_text", "text": "Raw."}],
}
CALL = {
    "id": "fc_1",
    "type": "function_call",
    "call_id": "call_1",
    "name": "look_up",
    "arguments": '{"word": "a"}',
    "status": "completed",
}
SEARCH = {
    "id": "ws_1",
    "type": "web_search_call",
    "status": "completed",
    "action": {"type": "search", "query": "owls", "sources": [{"type": "url", "url": "https://a.b"}]},
}
FILES = {
    "id": "fs_1",
    "type": "file_search_call",
    "status": "completed",
    "queries": ["owls"],
    "results": [{"file_id": "f1", "text": "they fly"}],
}
MCP_LIST = {"id": "ml_1", "type": "mcp_list_tools", "server_label": "s", "tools": []}
MCP = {
    "id": "mc_1",
    "type": "mcp_call",
    "server_label": "s",
    "name": "add",
    "arguments": '{"a": 1}',
    "output": "2",
}
MCP_FAILED = {**MCP, "id": "mc_2", "output": None, "error": "no such thing"}
CODE = {
    "id": "ci_1",
    "type": "code_interpreter_call",
    "status": "completed",
    "container_id": "c",
    "code": "print(1)",
    "outputs": [{"type": "logs", "logs": "1"}],
}
CITATION = {"type": "url_citation", "url": "https://a.b", "title": "A", "start_index": 0, "end_index": 4}


def said(text="I look.", number=1, annotations=(), **more):
    part = {"type": "output_text", "text": text, "annotations": list(annotations), "logprobs": []}
    return {
        "id": f"msg_{number}",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [part],
        **more,
    }


def answer(*items, status="completed", **more):
    return {
        "id": "resp_1",
        "object": "response",
        "model": "gpt-x",
        "status": status,
        "error": None,
        "incomplete_details": None,
        "output": list(items),
        "usage": {"input_tokens": 10, "output_tokens": 5},
        **more,
    }


def stream(raw):
    return Reply(headers={"content-type": "text/event-stream"}, pieces=wire.events(raw))


def make(server, **options):
    transport = HttpTransport(timeout_seconds=5.0)
    return OpenAIResponsesModel("gpt-x", base_url=server.base_url, transport=transport, **options)


async def ask(replies, request=QUESTION, *, is_streamed=False, **options):
    """Return the completion, and the bodies of the requests."""
    async with serve(replies) as server:
        watch = Listener().watch if is_streamed else Watch()
        completion = await make(server, **options).infer(request, watch)
        return completion, [item.json() for item in server.requests]


def bare(item):
    """Return an item without its null fields, which a server may or may not include."""
    return {key: value for key, value in item.items() if value is not None}


SHAPES = {
    "reasoned": (REASONING, said(), CALL),
    "hidden reasoning": (HIDDEN, CALL),
    "open reasoning": (OPEN, said()),
    "reasoning between": (REASONING, CALL, HIDDEN, {**CALL, "id": "fc_2", "call_id": "call_2"}),
    "phases": (said("I look.", 1, phase="commentary"), CALL),
    "two messages": (said("One.", 1), said("Two.", 2), CALL),
    "text after a call": (REASONING, CALL, said()),
    "searched": (SEARCH, said("Owls fly.", annotations=[CITATION])),
    "files": (FILES, said()),
    "mcp": (MCP_LIST, MCP, MCP_FAILED, said()),
    "code": (HIDDEN, CODE, said(), CALL),
    "unknown": ({"id": "x_1", "type": "brand_new", "x": [1]}, said()),
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_items_are_sent_back_as_they_came(name, is_streamed):
    raw = answer(*SHAPES[name])
    completion, _ = await ask([stream(raw) if is_streamed else Reply(raw)], is_streamed=is_streamed)
    message = msgspec.json.decode(msgspec.json.encode(completion.message), type=Message)
    results = [Message(Role.TOOL, "found", call_id=call.call_id) for call in message.tool_calls]
    _, (body,) = await ask([Reply(answer(said()))], Request(Log([USER, message, *results]), (SPEC,)))
    items = body["input"][1 : len(body["input"]) - len(results)]
    for item in items:
        if item["type"] == "message" and "logprobs" not in item["content"][0]:
            item["content"][0]["logprobs"] = []
    assert items == [bare(item) for item in SHAPES[name]] or items == list(SHAPES[name])
    assert [item["call_id"] for item in body["input"][1 + len(items) :]] == [
        item["call_id"] for item in SHAPES[name] if item["type"] == "function_call"
    ]


async def test_nothing_is_kept_of_a_plain_answer():
    completion, _ = await ask([Reply(answer(said(), CALL))])
    call = ToolCall("call_1", "look_up", '{"word": "a"}')
    assert completion.message == Message(Role.ASSISTANT, "I look.", (call,))
    completion, _ = await ask([stream(answer(said(), CALL))], is_streamed=True)
    assert completion.message == Message(Role.ASSISTANT, "I look.", (call,))


async def test_what_the_server_looked_up_is_told():
    completion, _ = await ask([Reply(answer(SEARCH, FILES, MCP, MCP_FAILED, CODE, said()))])
    search, files, add, failed, code = completion.message.server_calls
    assert (search.name, json.loads(search.arguments)) == (
        "web_search",
        {"type": "search", "query": "owls"},
    )
    assert json.loads(search.result) == [{"type": "url", "url": "https://a.b"}]
    assert (files.name, json.loads(files.result)[0]["text"]) == ("file_search", "they fly")
    assert add == ServerCall("mc_1", "add", '{"a": 1}', "2", offset=0)
    assert (failed.result, failed.is_error) == ("no such thing", True)
    assert (json.loads(code.arguments), json.loads(code.result)[0]["logs"]) == ({"code": "print(1)"}, "1")


async def test_what_the_server_does_is_told_while_it_streams():
    listener = Listener()
    async with serve([stream(answer(said("I look."), SEARCH, MCP, said()))]) as server:
        completion = await make(server).infer(QUESTION, listener.watch)
    made = completion.message.server_calls
    told = [item for item in listener.deltas if isinstance(item, ServerCallDelta)]
    assert [(item.index, item.is_done) for item in told] == [(0, False), (0, True), (1, False), (1, True)]
    assert tuple(item.call for item in told if item.is_done) == made
    assert isinstance(listener.deltas[0], TextDelta)
    assert isinstance(listener.deltas[-1], TextDelta)


async def test_an_edited_message_is_sent_as_it_now_is():
    completion, _ = await ask([Reply(answer(REASONING, said("Two.", annotations=[CITATION]), CALL))])
    edited = msgspec.structs.replace(completion.message, content="Edited.")
    _, (body,) = await ask([Reply(answer(said()))], Request(Log([USER, edited])))
    assert [item.get("type") for item in body["input"]] == [None, None, "function_call"]
    assert body["input"][1] == {"role": "assistant", "content": "Edited."}


async def test_nothing_is_stored_by_default():
    _, (body,) = await ask([Reply(answer(said()))])
    included = ["reasoning.encrypted_content"]
    asked = [{"role": "user", "content": "Hello?"}]
    assert body == {"model": "gpt-x", "store": False, "include": included, "input": asked}


def numbered(number, *items):
    return {**answer(*(items or (said(f"Answer {number}."),))), "id": f"resp_{number}"}


async def test_only_what_is_new_is_sent_to_a_server_that_remembers():
    replies = [Reply(numbered(1, CALL)), Reply(numbered(2)), Reply(numbered(3))]
    async with serve(replies) as server:
        model = make(server, state="previous_response_id")
        log = Log([Message(Role.SYSTEM, "Be brief."), USER])
        first = (await model.infer(Request(log, (SPEC,)), Watch())).message
        log = log.extend([first, Message(Role.TOOL, "found", call_id="call_1")])
        second = (await model.infer(Request(log, (SPEC,)), Watch())).message
        log = log.extend([second, USER])
        # A journal returns the items in this form.
        again = Log(msgspec.json.decode(msgspec.json.encode(list(log)), type=list[Message]))
        await model.infer(Request(again, (SPEC,)), Watch())
        bodies = [request.json() for request in server.requests]
    assert [body.get("previous_response_id") for body in bodies] == [None, "resp_1", "resp_2"]
    assert [len(body["input"]) for body in bodies] == [2, 1, 1]
    assert bodies[1]["input"][0]["type"] == "function_call_output"
    assert all(body["store"] for body in bodies)


async def test_a_changed_transcript_is_sent_whole():
    async with serve([Reply(numbered(1)), Reply(numbered(2))]) as server:
        model = make(server, state="previous_response_id")
        message = (await model.infer(Request(Log([USER])), Watch())).message
        # The messages were compacted or edited.
        changed = Log([Message(Role.USER, "Something else."), message, USER])
        await model.infer(Request(changed), Watch())
        body = server.requests[1].json()
    assert "previous_response_id" not in body
    assert len(body["input"]) == 3


async def test_a_response_that_is_gone_is_done_without():
    gone = wire.error(400, "Previous response with id 'resp_1' not found.")
    replies = [Reply(numbered(1)), Reply(gone, 400), Reply(numbered(2)), Reply(numbered(3))]
    async with serve(replies) as server:
        model = make(server, state="previous_response_id")
        first = (await model.infer(Request(Log([USER])), Watch())).message
        log = Log([USER, first, USER])
        second = await model.infer(Request(log), Watch())
        assert second.message.content == "Answer 2."
        await model.infer(Request(log), Watch())
        bodies = [request.json() for request in server.requests]
    assert [body.get("previous_response_id") for body in bodies] == [None, "resp_1", None, None]
    assert [len(body["input"]) for body in bodies] == [1, 1, 3, 3]


async def test_other_refusals_of_a_request_are_errors():
    replies = [Reply(numbered(1)), Reply(wire.error(400, "bad temperature"), 400)]
    async with serve(replies) as server:
        model = make(server, state="previous_response_id")
        first = (await model.infer(Request(Log([USER])), Watch())).message
        with pytest.raises(RequestError, match="bad temperature"):
            await model.infer(Request(Log([USER, first, USER])), Watch())


async def test_a_conversation_gets_what_is_new():
    async with serve([Reply(numbered(1)), Reply(numbered(2))]) as server:
        model = make(server, state="conversation", conversation="conv_1")
        first = (await model.infer(Request(Log([USER])), Watch())).message
        await model.infer(Request(Log([USER, first, Message(Role.USER, "And?")])), Watch())
        bodies = [request.json() for request in server.requests]
    assert [body["conversation"] for body in bodies] == ["conv_1", "conv_1"]
    assert bodies[1]["input"] == [{"role": "user", "content": "And?"}]


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"state": "memory"}, r"state is 'memory'"),
        ({"state": "conversation"}, "belong together"),
        ({"conversation": "conv_1"}, "belong together"),
        ({"server_tools": [{"type": "custom", "name": "x"}]}, "give it to the agent as a tool"),
        ({"server_tools": [{"type": "mcp", "server_label": "s"}]}, "require_approval"),
        ({"settings": Settings(stop=("x",))}, "has no stop"),
        ({"settings": Settings(extra={"input": 1})}, "must not contain"),
    ],
)
def test_what_cannot_work_is_refused(options, text):
    with pytest.raises(ConfigError, match=text):
        OpenAIResponsesModel("gpt-x", **options)


async def test_an_approval_that_nobody_gives_is_an_error():
    item = {
        "id": "mr_1",
        "type": "mcp_approval_request",
        "name": "rm",
        "arguments": "{}",
        "server_label": "s",
    }
    with pytest.raises(RequestError, match="waits for an approval of the MCP tool 'rm'"):
        await ask([Reply(answer(item))])


async def test_settings_and_schemas_are_sent():
    schema = {"type": "object", "properties": {}, "additionalProperties": False}
    extra = {"text": {"verbosity": "low"}, "reasoning": {"effort": "high"}}
    settings = Settings(temperature=0.5, max_output_tokens=9, logprobs=True, extra=extra)
    search = {"type": "web_search"}
    request = Request(QUESTION.messages, (SPEC,), schema, "look_up")
    _, (body,) = await ask([Reply(answer(said()))], request, settings=settings, server_tools=[search])
    assert body["text"] == {
        "verbosity": "low",
        "format": {"type": "json_schema", "name": "answer", "schema": schema, "strict": True},
    }
    assert (body["temperature"], body["max_output_tokens"]) == (0.5, 9)
    assert body["include"] == ["message.output_text.logprobs", "reasoning.encrypted_content"]
    assert body["reasoning"] == {"effort": "high"}
    assert body["tool_choice"] == {"type": "function", "name": "look_up"}
    assert [tool["type"] for tool in body["tools"]] == ["web_search", "function"]


async def test_logprobs_are_recorded():
    item = said("ab")
    item["content"][0]["logprobs"] = [{"token": "a", "logprob": -0.5}, {"token": "b", "logprob": -1}]
    completion, _ = await ask([Reply(answer(item))])
    assert unpack_logprobs(completion.tokens.logprobs) == (-0.5, -1.0)
    assert completion.tokens.tokens == ("a", "b")


REFUSAL = {**said(), "content": [{"type": "refusal", "refusal": "I will not."}]}


@pytest.mark.parametrize(
    ("raw", "reason", "opaque"),
    [
        (answer(said()), FinishReason.STOP, None),
        (answer(CALL), FinishReason.TOOL_CALLS, None),
        (answer(REFUSAL), FinishReason.CONTENT_FILTER, None),
        (
            answer(said(), status="incomplete", incomplete_details={"reason": "max_output_tokens"}),
            FinishReason.LENGTH,
            None,
        ),
        (
            answer(said(), status="incomplete", incomplete_details={"reason": "content_filter"}),
            FinishReason.CONTENT_FILTER,
            None,
        ),
        (
            answer(said(), status="incomplete", incomplete_details={"reason": "steered"}),
            FinishReason.LENGTH,
            {"finish_reason": "steered"},
        ),
        (answer(said(), service_tier="flex"), FinishReason.STOP, {"service_tier": "flex"}),
    ],
)
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_finish_reasons(raw, reason, opaque, is_streamed):
    completion, _ = await ask([stream(raw) if is_streamed else Reply(raw)], is_streamed=is_streamed)
    assert (completion.finish_reason, completion.opaque) == (reason, opaque)
    if raw["output"][0] is REFUSAL:
        assert completion.message.content == "I will not."


@pytest.mark.parametrize(
    ("code", "text", "kind"),
    [
        ("server_error", "oops", ServerError),
        ("rate_limit_exceeded", "slow down", RateLimitError),
        ("invalid_prompt", "no", RequestError),
        ("context_length_exceeded", "Your input exceeds the context window", ContextOverflowError),
    ],
)
@pytest.mark.parametrize("form", ["whole", "failed", "event"])
async def test_a_failed_response_is_an_error(code, text, kind, form):
    error = {"code": code, "message": text}
    raw = answer(status="failed", error=error)
    if form == "whole":
        reply = Reply(raw)
    else:
        event = (
            {"type": "response.failed", "response": raw} if form == "failed" else {"type": "error", **error}
        )
        pieces = [*wire.events(answer(said()))[:5], sse(event, is_done=False)]
        reply = Reply(headers={"content-type": "text/event-stream"}, pieces=pieces)
    with pytest.raises(kind, match=text):
        await ask([reply], is_streamed=form != "whole")


async def test_a_stream_without_its_last_event_is_cut():
    pieces = wire.events(answer(said()))[:-1]
    with pytest.raises(TransportError, match="before it was complete"):
        await ask([Reply(headers={"content-type": "text/event-stream"}, pieces=pieces)], is_streamed=True)


async def test_a_last_event_without_the_items_takes_them_from_before():
    raw = answer(REASONING, said(), CALL)
    pieces = wire.events(raw)[:-1]
    pieces.append(sse({"type": "response.completed", "response": {**raw, "output": []}}, is_done=False))
    reply = Reply(headers={"content-type": "text/event-stream"}, pieces=pieces)
    completion, _ = await ask([reply], is_streamed=True)
    assert completion.message.tool_calls[0].call_id == "call_1"
    assert completion.message.reasoning == "First.\n\nThen."


async def test_a_run_reasons_and_calls():
    @tool(effect="pure")
    def look_up(word: str) -> str:
        """Looks a word up."""
        return f"{word} is a word"

    bodies = []

    async def respond(request):
        bodies.append(json.loads(request.body))
        return HttpResponse(answer(REASONING, CALL) if len(bodies) == 1 else answer(HIDDEN, said("Done.")))

    agent = Agent(OpenAIResponsesModel("gpt-x", transport=InProcessTransport(respond)), tools=[look_up])
    run = await agent.run("What is a?")
    assert run.output == "Done."
    assert bodies[1]["input"][1:] == [
        REASONING,
        CALL,
        {"type": "function_call_output", "call_id": "call_1", "output": "a is a word"},
    ]
    assert run.usage == Usage(20, 10)


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_response_in_the_background_is_asked_for_until_it_is_finished(is_streamed):
    waiting = [answer(status="queued"), answer(status="in_progress"), answer(said())]
    transport = InProcessTransport(lambda _: HttpResponse(waiting.pop(0)))
    model = OpenAIResponsesModel(
        "m", transport=transport, settings=Settings(extra={"background": True, "store": True})
    )
    completion = await model.infer(QUESTION, Listener().watch if is_streamed else Watch())
    assert (completion.message.content, completion.finish_reason) == ("I look.", FinishReason.STOP)
    asked = [item.url.removeprefix("https://api.openai.com/v1") for item in transport.requests]
    assert asked == ["/responses", "/responses/resp_1", "/responses/resp_1"]


async def test_a_response_in_the_background_is_not_waited_for_longer_than_the_caller_does():
    transport = InProcessTransport(lambda _: HttpResponse(answer(status="queued")))
    with pytest.raises(ProviderTimeoutError, match="did not finish the response 'resp_1'"):
        await OpenAIResponsesModel("m", transport=transport).infer(QUESTION, Watch(left_seconds=0.3))


@pytest.mark.parametrize(
    ("model", "thinks"),
    [
        ("gpt-5-mini", True),
        ("o4-mini", True),
        ("gpt-oss-120b", True),
        ("codex-mini-latest", True),
        ("gpt-4.1", False),
        ("gpt-4o-mini", False),
        ("gpt-5.1-chat-latest", False),
        ("ft:gpt-4o:org::1", False),
    ],
)
async def test_reasoning_is_asked_for_where_the_server_keeps_none(model, thinks):
    bodies = []
    async with serve([Reply(answer(said()))]) as server:
        for state in ("none", "previous_response_id"):
            made = OpenAIResponsesModel(model, base_url=server.base_url, state=state)
            await made.infer(Request(Log([USER])), Watch())
            bodies.append(server.requests[-1].json())
    included = [body.get("include") for body in bodies]
    assert included == [["reasoning.encrypted_content"] if thinks else None, None]


async def test_reasoning_that_the_server_has_not_kept_is_not_referred_to():
    reference = {"id": "rs_1", "type": "reasoning", "summary": []}
    for item, state, is_sent in (
        (reference, "none", False),
        (reference, "previous_response_id", True),
        (OPEN, "none", True),
    ):
        async with serve([Reply(answer(item, CALL)), Reply(answer(said()))]) as server:
            model = make(server, state=state)
            log = Log([USER])
            first = (await model.infer(Request(log, (SPEC,)), Watch())).message
            edited = Message(Role.USER, "Something else")
            log = Log([edited, first, Message(Role.TOOL, "found", call_id="call_1")])
            await model.infer(Request(log, (SPEC,)), Watch())
            sent = server.requests[-1].json()["input"]
        assert (item in sent) is is_sent
        assert [entry.get("type") for entry in sent[-2:]] == ["function_call", "function_call_output"]
