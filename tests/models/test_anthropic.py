"""Tests of the dialect `anthropic` alone. Tests for all dialects are in tests/contract."""

import json

import msgspec
import pytest
from tests.models.answers import Listener
from tests.models.server import Reply, serve, sse
from tests.models.wire import anthropic as wire

from treadle import Agent, tool
from treadle.core.errors import ConfigError, RateLimitError, ServerError
from treadle.core.events import ServerCallDelta, TextDelta
from treadle.core.log import Log
from treadle.core.types import (
    UNREPORTED,
    FinishReason,
    Message,
    OutputMode,
    Request,
    Role,
    ServerCall,
    Settings,
    ToolCall,
    ToolSpec,
    Usage,
)
from treadle.models import AnthropicModel, HttpResponse, HttpTransport, InProcessTransport, Price, Watch
from treadle.models.protocol import output_mode_of

SPEC = ToolSpec("look_up", "Looks a word up.", {"type": "object"})
USER = Message(Role.USER, "Hello?")
QUESTION = Request(Log([USER]))

THINKING = {"type": "thinking", "thinking": "First.", "signature": "c2ln"}
REDACTED = {"type": "redacted_thinking", "data": "ZGF0YQ=="}
TEXT = {"type": "text", "text": "I look."}
USE = {"type": "tool_use", "id": "toolu_1", "name": "look_up", "input": {"word": "a"}}
SEARCH = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "owls"}}
FOUND = {
    "type": "web_search_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": [
        {
            "type": "web_search_result",
            "url": "https://a.b",
            "title": "Owls",
            "encrypted_content": "eA==",
            "page_age": None,
        }
    ],
}
FAILED = {
    "type": "web_search_tool_result",
    "tool_use_id": "srvtoolu_1",
    "content": {"type": "web_search_tool_result_error", "error_code": "max_uses_exceeded"},
}
CITED = {
    "type": "text",
    "text": "Owls fly.",
    "citations": [
        {
            "type": "web_search_result_location",
            "url": "https://a.b",
            "title": "Owls",
            "encrypted_index": "eQ==",
            "cited_text": "they fly",
        }
    ],
}
MCP_USE = {
    "type": "mcp_tool_use",
    "id": "mcptoolu_1",
    "name": "add",
    "server_name": "s",
    "input": {"a": 1},
}
MCP_RESULT = {
    "type": "mcp_tool_result",
    "tool_use_id": "mcptoolu_1",
    "is_error": False,
    "content": [{"type": "text", "text": "2"}],
}


def answer(*blocks, stop="end_turn", **more):
    return {
        "id": "msg_1",
        "type": "message",
        "role": "assistant",
        "model": "claude-x",
        "content": list(blocks),
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": {"input_tokens": 10, "output_tokens": 5},
        **more,
    }


def stream(raw):
    return Reply(headers={"content-type": "text/event-stream"}, pieces=wire.events(raw))


def make(server, model="claude-x", **options):
    return AnthropicModel(
        model, base_url=server.base_url, transport=HttpTransport(timeout_seconds=5.0), **options
    )


async def ask(replies, request=QUESTION, *, is_streamed=False, **options):
    """Return the completion, and the bodies of the requests."""
    async with serve(replies) as server:
        completion = await make(server, **options).infer(
            request, Listener().watch if is_streamed else Watch()
        )
        return completion, [item.json() for item in server.requests]


SHAPES = {
    "signed": (THINKING, TEXT, USE),
    "signed, no text": (THINKING, USE),
    "hidden thinking": ({"type": "thinking", "thinking": "", "signature": "c2ln"}, TEXT),
    "redacted": (REDACTED, THINKING, TEXT, USE),
    "two thoughts": (THINKING, TEXT, THINKING, USE, {**USE, "id": "toolu_2"}),
    "text after a call": (USE, TEXT),
    "searched": (TEXT, SEARCH, FOUND, CITED, USE),
    "search failed": (SEARCH, FAILED, TEXT),
    "mcp": (MCP_USE, MCP_RESULT, TEXT),
    "unknown": ({"type": "new_thing", "x": [1]}, TEXT),
}


@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_blocks_are_sent_back_as_they_came(name, is_streamed):
    raw = answer(*SHAPES[name])
    reply = stream(raw) if is_streamed else Reply(raw)
    completion, _ = await ask([reply], is_streamed=is_streamed)
    # The opaque data survives a journal.
    message = msgspec.json.decode(msgspec.json.encode(completion.message), type=Message)
    results = [Message(Role.TOOL, "", call_id=call.call_id, name=call.name) for call in message.tool_calls]
    log = Log([USER, message, *(results or [USER])])
    _, bodies = await ask([Reply(answer(TEXT))], Request(log, (SPEC,)))
    assert bodies[0]["messages"][1] == {"role": "assistant", "content": list(SHAPES[name])}
    assert [call.call_id for call in message.tool_calls] == [
        block["id"] for block in SHAPES[name] if block["type"] == "tool_use"
    ]


async def test_nothing_is_kept_of_a_plain_answer():
    completion, _ = await ask([Reply(answer(TEXT, USE, stop="tool_use"))])
    assert completion.message == Message(
        Role.ASSISTANT, "I look.", (ToolCall("toolu_1", "look_up", '{"word": "a"}'),)
    )


def test_the_fast_way_says_what_the_other_says():
    model = AnthropicModel("m", price=Price(1, 2))
    plain = [answer(TEXT), answer(THINKING, TEXT, USE, stop="tool_use"), answer(TEXT) | {"usage": None}]
    for raw in plain:
        body = json.dumps(raw).encode()
        fast = model._read_plain(body)
        assert fast is not None
        assert fast == model.read(model._decode_answer(body))
    for raw in (answer(REDACTED, TEXT), answer(TEXT, TEXT), answer(TEXT, stop="tool_use")):
        assert model._read_plain(json.dumps(raw).encode()) is None


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_what_the_server_looked_up_is_told(is_streamed):
    raw = answer(SEARCH, FOUND, MCP_USE, MCP_RESULT, CITED)
    completion, _ = await ask([stream(raw) if is_streamed else Reply(raw)], is_streamed=is_streamed)
    search, add = completion.message.server_calls
    assert (search.name, json.loads(search.arguments), search.is_error) == (
        "web_search",
        {"query": "owls"},
        False,
    )
    assert json.loads(search.result) == FOUND["content"]
    assert add == ServerCall("mcptoolu_1", "add", '{"a":1}', "2", offset=0)
    assert completion.message.content == "Owls fly."
    completion, _ = await ask([Reply(answer(SEARCH, FAILED))])
    assert completion.message.server_calls[0].is_error


async def test_what_the_server_does_is_told_while_it_streams():
    listener = Listener()
    async with serve([stream(answer(TEXT, SEARCH, FOUND, MCP_USE, MCP_RESULT, CITED))]) as server:
        completion = await make(server).infer(QUESTION, listener.watch)
    search, add = completion.message.server_calls
    begun = [msgspec.structs.replace(call, result="") for call in (search, add)]
    kinds = [type(item).__name__ for item in listener.deltas if not isinstance(item, TextDelta)]
    assert kinds == ["ServerCallDelta"] * 4
    assert [item for item in listener.deltas if isinstance(item, ServerCallDelta)] == [
        ServerCallDelta(0, begun[0], is_done=False),
        ServerCallDelta(0, search, is_done=True),
        ServerCallDelta(1, begun[1], is_done=False),
        ServerCallDelta(1, add, is_done=True),
    ]
    assert isinstance(listener.deltas[0], TextDelta)
    assert isinstance(listener.deltas[-1], TextDelta)


async def test_an_edited_message_is_sent_as_it_now_is():
    completion, _ = await ask([Reply(answer(SEARCH, FOUND, CITED))])
    edited = msgspec.structs.replace(completion.message, content="Owls swim.")
    _, bodies = await ask([Reply(answer(TEXT))], Request(Log([USER, edited, USER])))
    assert bodies[0]["messages"][1]["content"] == [{"type": "text", "text": "Owls swim."}]


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_paused_answer_is_gone_on_with(is_streamed):
    first = answer(TEXT, SEARCH, stop="pause_turn")
    second = answer(FOUND, CITED, USE, stop="tool_use")
    replies = [stream(first), stream(second)] if is_streamed else [Reply(first), Reply(second)]
    completion, bodies = await ask(replies, is_streamed=is_streamed, price=Price(1.0, 1.0))
    assert bodies[1]["messages"] == [
        *bodies[0]["messages"],
        {"role": "assistant", "content": [TEXT, SEARCH]},
    ]
    assert completion.message.content == "I look.Owls fly."
    assert completion.usage == Usage(20, 10)
    assert completion.cost_usd == pytest.approx(30e-6)
    assert completion.finish_reason is FinishReason.TOOL_CALLS
    assert [call.is_error for call in completion.message.server_calls] == [False]
    assert completion.message.server_calls[0].result
    log = Log([USER, completion.message, Message(Role.TOOL, "x", call_id="toolu_1")])
    _, bodies = await ask([Reply(answer(TEXT))], Request(log, (SPEC,)))
    assert bodies[0]["messages"][1]["content"] == [TEXT, SEARCH, FOUND, CITED, USE]


async def test_pauses_without_end_are_an_error():
    async with serve(lambda _: Reply(answer(TEXT, stop="pause_turn"))) as server:
        with pytest.raises(ServerError, match="paused its answer"):
            await make(server).infer(QUESTION, Watch())


async def test_results_of_a_step_are_one_message():
    calls = (ToolCall("a", "look_up", "{}"), ToolCall("b", "look_up", "{}"))
    log = Log(
        [
            Message(Role.SYSTEM, "Be brief."),
            USER,
            Message(Role.ASSISTANT, "", calls),
            Message(Role.TOOL, "1", call_id="a"),
            Message(Role.TOOL, "", call_id="b", is_error=True),
            Message(Role.USER, "And?"),
        ]
    )
    _, bodies = await ask([Reply(answer(TEXT))], Request(log, (SPEC,)))
    assert bodies[0]["messages"][2] == {
        "role": "user",
        "content": [
            {"type": "tool_result", "tool_use_id": "a", "content": "1"},
            {"type": "tool_result", "tool_use_id": "b", "is_error": True},
            {"type": "text", "text": "And?"},
        ],
    }


@pytest.mark.parametrize("arguments", ["{half", "[1]", "7", '"x"', "null", '{"a": NaN}'])
async def test_arguments_that_are_no_object_are_held_by_one(arguments):
    message = Message(Role.ASSISTANT, "", (ToolCall("a", "look_up", arguments),))
    log = Log([USER, message, Message(Role.TOOL, "no JSON", call_id="a", is_error=True)])
    _, bodies = await ask([Reply(answer(TEXT))], Request(log, (SPEC,)))
    assert bodies[0]["messages"][1]["content"][0]["input"] == {"INVALID_JSON": arguments}


async def test_tools_that_were_called_are_there_when_none_may_be_called():
    """This happens when a run at its limit writes its last answer: the API refuses calls of tools that the
    request does not declare."""
    calls = (ToolCall("a", "look_up", "{}"), ToolCall("b", "other", "{}"), ToolCall("c", "look_up", "{}"))
    results = [Message(Role.TOOL, "x", call_id=call.call_id) for call in calls]
    log = Log([USER, Message(Role.ASSISTANT, "", calls), *results])
    _, (body,) = await ask([Reply(answer(TEXT))], Request(log))
    assert [tool["name"] for tool in body["tools"]] == ["look_up", "other"]
    assert body["tool_choice"] == {"type": "none"}
    quoted = Log([Message(Role.USER, json.dumps({"type": "tool_use"}, separators=(",", ":")))])
    _, (body,) = await ask([Reply(answer(TEXT))], Request(quoted))
    assert "tools" not in body


async def test_blank_instructions_are_left_out():
    _, (body,) = await ask([Reply(answer(TEXT))], Request(Log([Message(Role.SYSTEM, " "), USER])))
    assert "system" not in body


async def test_empty_answers_are_left_out():
    log = Log([USER, Message(Role.ASSISTANT, " \n"), USER])
    _, bodies = await ask([Reply(answer())], Request(log))
    assert bodies[0]["messages"] == [
        {"role": "user", "content": [{"type": "text", "text": "Hello?"}, {"type": "text", "text": "Hello?"}]}
    ]


async def test_the_prefix_is_marked_for_the_cache():
    log = Log([Message(Role.SYSTEM, "Be brief."), USER])
    mark = {"type": "ephemeral"}
    _, (body,) = await ask([Reply(answer(TEXT))], Request(log, (SPEC, SPEC)))
    assert [tool.get("cache_control") for tool in body["tools"]] == [None, mark]
    assert (body["system"][0]["cache_control"], body["cache_control"]) == (mark, mark)
    _, (body,) = await ask([Reply(answer(TEXT))], Request(log, (SPEC,)), cache=False)
    assert "cache_control" not in json.dumps(body)
    # No later request would read this from the cache.
    _, (body,) = await ask([Reply(answer(TEXT))], Request(log))
    assert "cache_control" not in json.dumps(body)
    extra = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    _, (body,) = await ask([Reply(answer(TEXT))], Request(log, (SPEC,)), settings=Settings(extra=extra))
    assert body["cache_control"] == extra["cache_control"]


async def test_cached_input_is_counted_and_priced():
    usage = {
        "input_tokens": 10,
        "cache_read_input_tokens": 100,
        "cache_creation_input_tokens": 1000,
        "output_tokens": 5,
        "output_tokens_details": {"thinking_tokens": 3},
    }
    price = Price(1.0, 10.0, 0.1, 1.25)
    for more in ({}, {"unusual": 1}):
        completion, _ = await ask([Reply(answer(TEXT, usage=usage, **more))], price=price)
        assert completion.usage == Usage(1110, 5, 100, 3, 1000)
        assert completion.cost_usd == pytest.approx((10 + 10 + 1250 + 50) / 1e6)
    completion, _ = await ask([Reply(answer(TEXT, usage={"output_tokens": 5}))], price=price)
    assert (completion.usage, completion.cost_usd) == (UNREPORTED, None)


async def test_the_servers_own_tools_are_offered_beside_ours():
    search = {"type": "web_search_20250305", "name": "web_search"}
    _, (body,) = await ask([Reply(answer(TEXT))], Request(QUESTION.messages, (SPEC,)), server_tools=[search])
    assert body["tools"][0] == search
    assert body["tools"][1]["name"] == "look_up"
    plain = AnthropicModel("m")
    assert plain.identity != AnthropicModel("m", server_tools=[search]).identity


@pytest.mark.parametrize(
    ("stop", "blocks", "reason", "opaque"),
    [
        ("end_turn", (TEXT,), FinishReason.STOP, None),
        ("stop_sequence", (TEXT,), FinishReason.STOP, {"finish_reason": "stop_sequence"}),
        ("max_tokens", (TEXT, USE), FinishReason.LENGTH, None),
        (
            "model_context_window_exceeded",
            (TEXT,),
            FinishReason.LENGTH,
            {"finish_reason": "model_context_window_exceeded"},
        ),
        ("refusal", (TEXT,), FinishReason.CONTENT_FILTER, None),
        ("tool_use", (USE,), FinishReason.TOOL_CALLS, None),
        ("end_turn", (USE,), FinishReason.TOOL_CALLS, None),
        ("brand_new", (USE,), FinishReason.TOOL_CALLS, {"finish_reason": "brand_new"}),
    ],
)
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_finish_reasons(stop, blocks, reason, opaque, is_streamed):
    raw = answer(*blocks, stop=stop)
    completion, _ = await ask([stream(raw) if is_streamed else Reply(raw)], is_streamed=is_streamed)
    assert (completion.finish_reason, completion.opaque) == (reason, opaque)


async def test_a_call_cut_by_the_output_limit_keeps_its_half():
    raw = answer({**USE, "input": msgspec.Raw(b'{"word": "lo')}, stop="max_tokens")
    completion, _ = await ask([stream(raw)], is_streamed=True)
    assert completion.message.tool_calls[0].arguments == '{"word": "lo'
    assert completion.finish_reason is FinishReason.LENGTH


@pytest.mark.parametrize(
    ("kind", "error", "status"),
    [("overloaded_error", ServerError, 529), ("rate_limit_error", RateLimitError, 429)],
)
async def test_errors_within_a_stream(kind, error, status):
    pieces = wire.events(answer(TEXT))[:4]
    pieces.append(sse({"type": "error", "error": {"type": kind, "message": "later"}}, is_done=False))
    reply = Reply(headers={"content-type": "text/event-stream"}, pieces=pieces)
    async with serve([reply]) as server:
        with pytest.raises(error, match="later") as caught:
            await make(server).infer(QUESTION, Listener().watch)
    assert caught.value.status == status


async def test_unknown_events_are_skipped():
    pieces = wire.events(answer(TEXT))
    pieces.insert(2, sse({"type": "something_new", "x": 1}, is_done=False))
    completion, _ = await ask(
        [Reply(headers={"content-type": "text/event-stream"}, pieces=pieces)], is_streamed=True
    )
    assert completion.message.content == "I look."


@pytest.mark.parametrize(
    ("model", "settings", "text"),
    [
        ("claude-opus-4-7", {"temperature": 0.0}, "takes no sampling settings: leave out temperature"),
        ("claude-fable-5-1", {"top_p": 0.5}, "takes no sampling"),
        ("claude-sonnet-4-5-20250929", {"temperature": 0.5, "top_p": 0.5}, "not both"),
        ("m", {"seed": 3}, "has no seed"),
        ("m", {"logprobs": True}, "has no logprobs"),
    ],
)
def test_settings_that_the_api_refuses_are_refused(model, settings, text):
    with pytest.raises(ConfigError, match=text):
        AnthropicModel(model, settings=Settings(**settings))


@pytest.mark.parametrize(
    ("model", "settings", "sent"),
    [
        ("claude-sonnet-4-6", {"temperature": 0.5}, {"temperature": 0.5, "max_tokens": 32_000}),
        ("claude-3-5-sonnet-20241022", {"temperature": 0.5, "top_p": 0.5}, {"max_tokens": 8192}),
        ("claude-sonnet-4-20250514", {"temperature": 0.5, "top_p": 0.5}, {"top_p": 0.5}),
        ("claude-3-haiku-20240307", {}, {"max_tokens": 4096}),
        (
            "claude-opus-4-7",
            {"max_output_tokens": 5, "extra": {"temperature": 1}},
            {"max_tokens": 5, "temperature": 1},
        ),
        ("other", {"temperature": 1.5, "top_p": 0.5, "stop": ("x",)}, {"stop_sequences": ["x"]}),
    ],
)
async def test_settings_are_sent(model, settings, sent):
    _, (body,) = await ask([Reply(answer(TEXT))], model=model, settings=Settings(**settings))
    assert {name: body[name] for name in sent} == sent


def test_a_schema_is_the_servers_where_it_takes_it():
    closed = {"type": "object", "properties": {"a": {}}, "additionalProperties": False}
    for model, schema, mode in [
        ("claude-sonnet-4-5", closed, OutputMode.NATIVE),
        ("claude-sonnet-4-5", {"type": "object"}, OutputMode.TOOL),
        ("claude-sonnet-4-20250514", closed, OutputMode.TOOL),
        ("other", closed, OutputMode.NATIVE),
    ]:
        assert output_mode_of(AnthropicModel(model), schema) is mode


async def test_a_schema_keeps_what_else_is_configured():
    schema = {"type": "object", "additionalProperties": False}
    settings = Settings(extra={"output_config": {"effort": "low"}})
    _, (body,) = await ask([Reply(answer(TEXT))], Request(QUESTION.messages, (), schema), settings=settings)
    assert body["output_config"] == {"effort": "low", "format": {"type": "json_schema", "schema": schema}}


async def test_bounds_are_checked_here_and_not_sent():
    """The API answers a schema with bounds by "For 'integer' type, property 'minimum' is not supported"."""
    whole = {
        "type": "object",
        "properties": {
            "minimum": {"type": "integer", "minimum": 1, "enum": [{"maximum": 2}, 3]},
            "names": {"type": "array", "items": {"type": "string", "minLength": 1}, "maxItems": 3},
            "one": {"anyOf": [{"type": "number", "multipleOf": 2}, {"$ref": "#/$defs/maxLength"}]},
        },
        "$defs": {"maxLength": {"type": "string", "maxLength": 9}},
        "required": ["minimum"],
        "additionalProperties": False,
    }
    _, (body,) = await ask([Reply(answer(TEXT))], Request(QUESTION.messages, (), whole))
    assert body["output_config"]["format"]["schema"] == whole | {
        "properties": {
            "minimum": {"type": "integer", "enum": [{"maximum": 2}, 3]},
            "names": {"type": "array", "items": {"type": "string"}},
            "one": {"anyOf": [{"type": "number"}, {"$ref": "#/$defs/maxLength"}]},
        },
        "$defs": {"maxLength": {"type": "string"}},
    }


async def test_the_context_length_is_found():
    async with serve([Reply({"type": "model", "id": "claude-x", "max_input_tokens": 200_000})]) as server:
        assert await make(server).find_context_tokens() == 200_000
        assert server.requests[0].path == "/v1/models/claude-x"


async def test_a_run_thinks_and_searches_and_calls():
    @tool(effect="pure")
    def look_up(word: str) -> str:
        """Looks a word up."""
        return f"{word} is a word"

    bodies = []

    async def respond(request):
        bodies.append(json.loads(request.body))
        blocks = (THINKING, SEARCH, FOUND, CITED, USE) if len(bodies) == 1 else (THINKING, TEXT)
        return HttpResponse(answer(*blocks))

    agent = Agent(AnthropicModel("claude-x", transport=InProcessTransport(respond)), tools=[look_up])
    run = await agent.run("What is a?")
    assert run.output == "I look."
    assert bodies[1]["messages"][1]["content"] == [THINKING, SEARCH, FOUND, CITED, USE]
    assert bodies[1]["messages"][2]["content"][0]["content"] == "a is a word"
