"""The requests and complete responses of the dialect `openai_chat`, field by field."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.models.answers import REQUEST, USAGE, WEATHER_CALL, answer

from treadle.core.errors import ConfigError, ProviderError, RateLimitError, ServerError
from treadle.core.log import Log
from treadle.core.tokens.token_record import TokenRecord
from treadle.core.types import (
    Completion,
    FinishReason,
    Message,
    Request,
    Role,
    Settings,
    ToolCall,
    ToolSpec,
    Usage,
)
from treadle.models import HttpResponse, InProcessTransport, OpenAIChatModel, Price, Watch
from treadle.models.dialects.openai_chat.request import encode_message

SCHEMA = {"type": "object", "properties": {"city": {"type": "string", "enum": ["Zürich", "Bern"]}}}
TOOLS = (ToolSpec("weather", "Tells the weather.", SCHEMA),)


async def ask(raw, request=REQUEST, **options) -> Completion:
    """Return the completion for a server's response `raw`."""
    transport = InProcessTransport(lambda _: HttpResponse(raw))
    return await OpenAIChatModel("m", transport=transport, **options).infer(request, Watch())


async def sent(request=REQUEST, *, base_url="http://localhost/v1", **options):
    """Return the body of the request that is sent."""
    transport = InProcessTransport(lambda _: HttpResponse(answer()))
    await OpenAIChatModel("m", base_url=base_url, transport=transport, **options).infer(request, Watch())
    return transport.requests[0]


async def read(**message) -> Message:
    return (await ask(answer(**message))).message


# ---- the request


async def test_the_smallest_body():
    request = await sent()
    assert request.json() == {
        "model": "m",
        "messages": [{"role": "user", "content": "What is the weather in Zürich?"}],
    }
    assert request.url == "http://localhost/v1/chat/completions"
    assert request.headers == {"content-type": "application/json"}


async def test_settings_about_tools_are_not_sent_without_tools():
    """A summary, or the last answer of a run, has no tools, and servers refuse the settings there."""
    settings = Settings(extra={"tool_choice": "required", "parallel_tool_calls": False, "top_k": 5})
    with_tools = Request(REQUEST.messages, TOOLS)
    told = (await sent(with_tools, settings=settings)).json()
    assert (told["tool_choice"], told["parallel_tool_calls"], told["top_k"]) == ("required", False, 5)
    told = (await sent(settings=settings)).json()
    assert "tool_choice" not in told
    assert "parallel_tool_calls" not in told
    assert told["top_k"] == 5


async def test_every_role_as_it_goes_out():
    messages = [
        Message(Role.SYSTEM, "Be brief."),
        Message(Role.USER, "Hi"),
        Message(
            Role.ASSISTANT, "", (ToolCall("c1", "weather", '{"city" :  "Zürich"}'),), reasoning="Look it up."
        ),
        Message(Role.TOOL, "sunny", call_id="c1", name="weather"),
        Message(Role.ASSISTANT, "Sunny.", reasoning="I know it now."),
    ]
    body = (await sent(Request(Log(messages)))).json()
    call = {
        "id": "c1",
        "type": "function",
        "function": {"name": "weather", "arguments": '{"city" :  "Zürich"}'},
    }
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi"},
        {"role": "assistant", "content": None, "reasoning_content": "Look it up.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
        {"role": "assistant", "content": "Sunny."},
    ]


async def test_a_tools_schema_goes_out_whole_and_no_tools_as_nothing():
    body = (await sent(Request(REQUEST.messages, TOOLS))).json()
    function = {"name": "weather", "description": "Tells the weather.", "parameters": SCHEMA}
    assert body["tools"] == [{"type": "function", "function": function}]
    assert "tools" not in (await sent()).json()


async def test_tools_are_strict_if_the_user_says_so():
    """vLLM decodes the arguments of a call within their schema only then."""
    body = (await sent(Request(REQUEST.messages, TOOLS), strict_tools=True)).json()
    assert [tool["function"]["strict"] for tool in body["tools"]] == [True]


async def test_settings_as_they_go_out():
    settings = Settings(
        temperature=0.0,
        top_p=0.5,
        max_output_tokens=7,
        seed=0,
        stop=("END",),
        logprobs=True,
        return_token_ids=True,
        extra={"top_k": 5, "seed": 9},
    )
    body = (await sent(settings=settings)).json()
    del body["messages"]
    assert body == {
        "model": "m",
        "temperature": 0.0,
        "top_p": 0.5,
        "max_tokens": 7,
        "seed": 9,
        "stop": ["END"],
        "logprobs": True,
        "return_token_ids": True,
        "top_k": 5,
    }
    assert (await ask(answer(), settings=settings)).settings == settings


async def test_only_openai_is_sent_the_new_name_of_the_limit():
    settings = Settings(max_output_tokens=7)
    body = (await sent(base_url="https://api.openai.com/v1", api_key="k", settings=settings)).json()
    assert body["max_completion_tokens"] == 7
    assert "max_tokens" not in body


@pytest.mark.parametrize("name", ["messages", "stream", "tools", "model"])
def test_extra_may_not_break_the_request(name):
    with pytest.raises(ConfigError, match=name):
        OpenAIChatModel("m", settings=Settings(extra={name: 1}))


async def test_the_key_and_headers_go_out():
    request = await sent(api_key=" k \n", headers={"X-Mine": "1", "Content-Type": "application/json; v=2"})
    assert request.headers == {
        "content-type": "application/json; v=2",
        "authorization": "Bearer k",
        "x-mine": "1",
    }


@pytest.mark.parametrize("bad", ["sk-a\nb", "sk-ö"])
def test_a_key_that_http_forbids_is_told_without_it(bad):
    with pytest.raises(ConfigError) as caught:
        OpenAIChatModel("m", api_key=bad)
    assert bad not in str(caught.value)


@pytest.mark.parametrize(
    ("base_url", "url"),
    [
        ("http://h/v1", "http://h/v1/chat/completions"),
        ("http://h/v1/", "http://h/v1/chat/completions"),
        ("http://h", "http://h/chat/completions"),
        (
            "https://h/openai/deployments/d?api-version=1",
            "https://h/openai/deployments/d/chat/completions?api-version=1",
        ),
    ],
)
async def test_the_path_is_appended(base_url, url):
    assert (await sent(base_url=base_url)).url == url


@pytest.mark.parametrize("base_url", ["", "localhost:8000/v1", "ftp://h/v1", "http://"])
def test_a_base_url_that_is_none_is_refused(base_url):
    with pytest.raises(ConfigError, match="base_url"):
        OpenAIChatModel("m", base_url=base_url)


async def test_a_history_is_encoded_once_and_a_changed_toolset_is_noticed():
    transport = InProcessTransport(lambda _: HttpResponse(answer()))
    model = OpenAIChatModel("m", transport=transport)
    log = Log([Message(Role.USER, "one")])
    await model.infer(Request(log, TOOLS), Watch())
    pieces, _ = log.join(model._step, None, {})
    longer = log.append(Message(Role.USER, "two"))
    await model.infer(Request(longer, TOOLS), Watch())
    await model.infer(Request(log), Watch())
    assert longer.join(model._step, None, {})[0][0] is pieces[0]
    bodies = [request.json() for request in transport.requests]
    assert [[m["content"] for m in body["messages"]] for body in bodies] == [["one"], ["one", "two"], ["one"]]
    assert ["tools" in body for body in bodies] == [True, True, False]


async def test_many_toolsets_are_never_mixed_up():
    transport = InProcessTransport(lambda _: HttpResponse(answer()))
    model = OpenAIChatModel("m", transport=transport)
    for number in range(1100):
        tools = (ToolSpec(f"tool_{number}", "", {}),)
        await model.infer(Request(REQUEST.messages, tools), Watch())
        assert transport.requests[-1].json()["tools"][0]["function"]["name"] == f"tool_{number}"
    assert len(model._prefixes) <= 1024


async def test_whole_and_streamed_requests_are_never_mixed_up():
    transport = InProcessTransport(
        lambda _: HttpResponse(answer(), headers={"content-type": "application/json"})
    )
    model = OpenAIChatModel("m", transport=transport)
    for on_delta in (None, print, None):
        await model.infer(REQUEST, Watch(on_delta and (lambda delta: None)))
    assert ["stream" in request.json() for request in transport.requests] == [False, True, False]


def test_a_repr_shows_no_key():
    model = OpenAIChatModel(
        "m", base_url="http://me:pw@h/v1", api_key="sk-secret", headers={"api-key": "sk-2"}
    )
    assert repr(model) == "OpenAIChatModel('m', base_url='http://h')"


# ---- the answer


async def test_a_final_answer():
    completion = await ask(answer())
    assert completion == Completion(
        Message(Role.ASSISTANT, "Sunny."),
        FinishReason.STOP,
        Usage(12, 5),
        None,
        "m-1",
        "chatcmpl-1",
        Settings(),
    )


async def test_tool_calls_keep_the_exact_text():
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"a" : 1,}'}}
    completion = await ask(answer(None, finish="tool_calls", tool_calls=[WEATHER_CALL, call]))
    assert completion.message.content == ""
    assert completion.message.tool_calls == (
        ToolCall("call_1", "weather", '{"city": "Zürich"}'),
        ToolCall("c", "f", '{"a" : 1,}'),
    )
    assert completion.finish_reason is FinishReason.TOOL_CALLS


@pytest.mark.parametrize(
    ("function", "text"),
    [
        ({"name": "f", "arguments": {"a": [1, "ü"]}}, '{"a":[1,"ü"]}'),
        ({"name": "f"}, ""),
        ({"name": "f", "arguments": None}, ""),
        ({"name": "f", "arguments": ""}, ""),
        ({"name": "f", "arguments": '{"cut": '}, '{"cut": '),
    ],
)
async def test_arguments_that_are_no_text_become_one(function, text):
    message = await read(tool_calls=[{"id": "c", "function": function}])
    assert message.tool_calls[0].arguments == text


async def test_missing_and_duplicate_ids_stay():
    def call(**fields):
        return {"function": {"name": "f", "arguments": "{}"}, **fields}

    message = await read(tool_calls=[call(), call(id=None), call(id="x"), call(id="x")])
    assert [item.call_id for item in message.tool_calls] == ["", "", "x", "x"]


async def test_the_old_function_call_is_a_tool_call():
    completion = await ask(
        answer(None, finish="function_call", function_call={"name": "f", "arguments": "{}"})
    )
    assert completion.message.tool_calls == (ToolCall("", "f", "{}"),)
    assert completion.finish_reason is FinishReason.TOOL_CALLS


CALLS = {"tool_calls": [WEATHER_CALL]}


@pytest.mark.parametrize(
    ("finish", "message", "expected"),
    [
        ("stop", {}, FinishReason.STOP),
        ("stop", CALLS, FinishReason.TOOL_CALLS),
        ("length", {}, FinishReason.LENGTH),
        ("length", CALLS, FinishReason.LENGTH),
        ("max_tokens", {}, FinishReason.LENGTH),
        ("content_filter", {}, FinishReason.CONTENT_FILTER),
        ("eos", {}, FinishReason.STOP),
        ("eos", CALLS, FinishReason.TOOL_CALLS),
        ("something_new", {}, FinishReason.STOP),
        ("something_new", CALLS, FinishReason.TOOL_CALLS),
        (None, {}, FinishReason.STOP),
        (None, CALLS, FinishReason.TOOL_CALLS),
    ],
)
async def test_finish_reasons(finish, message, expected):
    completion = await ask(answer(finish=finish, **message))
    assert completion.finish_reason is expected
    told = (completion.opaque or {}).get("finish_reason")
    assert told == (None if finish in (None, expected, "max_tokens") else finish)


async def test_a_missing_finish_reason():
    raw = answer()
    del raw["choices"][0]["finish_reason"]
    assert (await ask(raw)).finish_reason is FinishReason.STOP


@pytest.mark.parametrize("finish", ["error", "abort", "insufficient_system_resource"])
async def test_an_engine_that_gave_up_is_a_server_error(finish):
    with pytest.raises(ServerError):
        await ask(answer("Half an", finish=finish))


async def test_a_refusal_is_the_content():
    completion = await ask(answer(None, refusal="I will not."))
    assert completion.message == Message(Role.ASSISTANT, "I will not.")
    assert completion.finish_reason is FinishReason.CONTENT_FILTER


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning"])
async def test_reasoning_goes_back_only_beside_calls(name):
    message = await read(**{name: "Hm."}, tool_calls=[WEATHER_CALL])
    assert message.reasoning == "Hm."
    assert msgspec.json.decode(encode_message(message, {}))["reasoning_content"] == "Hm."
    message = await read(**{name: "Hm."})
    assert message.reasoning == "Hm."
    assert b"Hm." not in encode_message(message, {})


async def test_what_is_not_modelled_comes_back_as_it_came():
    details = [{"type": "reasoning.encrypted", "data": "xyz"}]
    call = {**WEATHER_CALL, "extra_content": {"google": {"thought_signature": "s"}}}
    call["function"] = {**call["function"], "strict": True}
    message = await read(content=None, tool_calls=[call], reasoning_details=details, vendor={"a": 1})
    assert message.opaque == {"reasoning_details": details, "vendor": {"a": 1}}
    assert message.tool_calls[0].opaque == {
        "extra_content": {"google": {"thought_signature": "s"}},
        "function": {"strict": True},
    }
    back = msgspec.json.decode(encode_message(message, {}))
    assert back == {
        "role": "assistant",
        "content": None,
        "tool_calls": [call],
        "reasoning_details": details,
        "vendor": {"a": 1},
    }


async def test_noise_is_dropped():
    message = await read(refusal=None, annotations=[], audio=None, function_call=None, tool_calls=[])
    assert message == Message(Role.ASSISTANT, "Sunny.")
    raw = answer() | {
        "object": "chat.completion",
        "created": 1,
        "service_tier": None,
        "kv_transfer_params": None,
    }
    raw["choices"][0] |= {"logprobs": None, "stop_reason": None, "token_ids": None}
    assert (await ask(raw)).opaque is None
    assert (await ask(raw)).tokens is None


async def test_an_error_beside_an_answer_is_an_error():
    with pytest.raises(RateLimitError):
        await ask(answer() | {"error": {"message": "slow", "code": 429}})
    raw = answer()
    raw["choices"][0]["error"] = None
    assert (await ask(raw)).message.content == "Sunny."
    raw["choices"][0]["error"] = {"message": "slow", "code": 429}
    with pytest.raises(RateLimitError):
        await ask(raw)


async def test_both_an_answer_and_a_refusal_are_kept():
    completion = await ask(answer("Well.", refusal="No more."))
    assert completion.message == Message(Role.ASSISTANT, "Well.", opaque={"refusal": "No more."})
    assert completion.finish_reason is FinishReason.CONTENT_FILTER


async def test_unknown_fields_of_the_response_are_kept():
    raw = answer() | {"system_fingerprint": "fp", "provider": "X"}
    raw["choices"][0]["stop_reason"] = 128009
    completion = await ask(raw)
    assert completion.opaque == {
        "system_fingerprint": "fp",
        "provider": "X",
        "choices": [{"stop_reason": 128009}],
    }


async def test_content_in_parts():
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
    parts = [thinking, {"type": "text", "text": "Sun"}, {"type": "text", "text": "ny."}]
    message = await read(content=parts)
    assert (message.content, message.reasoning) == ("Sunny.", "Hm.")
    assert msgspec.json.decode(encode_message(message, {}, ("content",)))["content"] == parts
    # A server of another kind cannot read them, and an edited message no longer has them.
    assert msgspec.json.decode(encode_message(message, {}))["content"] == "Sunny."
    edited = replace(message, content="Rainy.")
    assert msgspec.json.decode(encode_message(edited, {}, ("content",)))["content"] == "Rainy."
    assert await read(content=parts[1:]) == Message(Role.ASSISTANT, "Sunny.")


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        (USAGE, Usage(12, 5)),
        (
            {
                "prompt_tokens": 12,
                "completion_tokens": 5,
                "prompt_tokens_details": {"cached_tokens": 8},
                "completion_tokens_details": {"reasoning_tokens": 3},
            },
            Usage(12, 5, 8, 3),
        ),
        (
            {
                "prompt_tokens": 12,
                "completion_tokens": 5,
                "prompt_cache_hit_tokens": 8,
                "prompt_tokens_details": None,
            },
            Usage(12, 5, 8, 0),
        ),
        ({"prompt_tokens": 12, "completion_tokens": None, "prompt_tokens_details": {}}, Usage(12, 0)),
        ({"prompt_tokens": "many"}, Usage(is_reported=False)),
        (None, Usage(is_reported=False)),
        ({}, Usage(is_reported=False)),
    ],
)
async def test_usage(usage, expected):
    assert (await ask(answer() | {"usage": usage})).usage == expected


PRICE = Price(1.0, 10.0, 0.1)


@pytest.mark.parametrize(
    ("usage", "price", "cost"),
    [
        ({"prompt_tokens": 1_000_000, "completion_tokens": 100_000}, None, None),
        ({"prompt_tokens": 1_000_000, "completion_tokens": 100_000}, PRICE, 2.0),
        ({"prompt_tokens": 1, "completion_tokens": 1, "cost": 0.25}, PRICE, 0.25),
        ({"prompt_tokens": 1, "completion_tokens": 1, "cost": 0}, None, 0.0),
        (
            {
                "prompt_tokens": 1_000_000,
                "completion_tokens": 0,
                "prompt_tokens_details": {"cached_tokens": 500_000},
            },
            PRICE,
            0.55,
        ),
        (
            {
                "prompt_tokens": 1_000_000,
                "completion_tokens": 0,
                "prompt_tokens_details": {"cached_tokens": 500_000},
            },
            Price(1.0, 10.0),
            1.0,
        ),
        (None, PRICE, None),
    ],
)
async def test_cost(usage, price, cost):
    assert (await ask(answer() | {"usage": usage}, price=price)).cost_usd == (
        cost if cost is None else pytest.approx(cost)
    )


def test_a_price_is_not_negative():
    with pytest.raises(ConfigError, match="output_usd_per_million"):
        Price(1.0, -1.0)


LOGPROBS = {"content": [{"token": "Sun", "logprob": -0.1, "bytes": [1]}, {"token": "ny", "logprob": -2}]}


@pytest.mark.parametrize(
    ("top", "choice", "expected"),
    [
        ({}, {"logprobs": LOGPROBS}, TokenRecord.of(logprobs=(-0.1, -2.0), tokens=("Sun", "ny"))),
        (
            {"prompt_token_ids": [1, 2]},
            {"logprobs": LOGPROBS, "token_ids": [7, 8]},
            TokenRecord.of(prompt=(1, 2), output=(7, 8), logprobs=(-0.1, -2.0)),
        ),
        (
            {},
            {"logprobs": {"content": [{"token": "token_id:7", "logprob": -1.0}]}},
            TokenRecord.of(output=(7,), logprobs=(-1.0,)),
        ),
        ({}, {"token_ids": []}, TokenRecord.of(output=())),
        ({"prompt_token_ids": "12"}, {"token_ids": [1, "2"]}, None),
        ({"prompt_token_ids": None}, {"token_ids": None, "logprobs": {"content": None}}, None),
        ({}, {"logprobs": {"content": [{"token": "x"}]}}, None),
    ],
)
async def test_tokens(top, choice, expected):
    raw = answer() | top | {"usage": None}
    raw["choices"][0] |= choice
    assert (await ask(raw)).tokens == expected


@pytest.mark.parametrize(
    "raw",
    [
        {},
        [],
        None,
        "text",
        {"choices": []},
        {"choices": None},
        {"choices": [None]},
        {"choices": [{}]},
        {"choices": [{"message": None, "finish_reason": "stop"}]},
        {"choices": [{"message": "text"}]},
        answer(content=7),
        answer(tool_calls=[{"id": "c"}]),
        answer(tool_calls=[None]),
        answer(tool_calls=7),
        b"<html>Bad Gateway</html>",
        b'{"choices": [{"message": {"content": "cut o',
        b"",
        b'{"choices": "\xff"}',
    ],
)
async def test_an_answer_that_makes_no_sense_is_a_server_error(raw):
    with pytest.raises(ServerError) as caught:
        await ask(raw)
    assert caught.value.is_retryable
    assert len(str(caught.value)) < 1000


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=2)
        | st.dictionaries(
            st.sampled_from(
                [
                    "content",
                    "tool_calls",
                    "function",
                    "name",
                    "id",
                    "arguments",
                    "text",
                    "type",
                    "logprob",
                    "x",
                ]
            ),
            inner,
            max_size=3,
        )
    ),
    max_leaves=8,
)
PATHS = st.sampled_from(
    [
        ("id",), ("model",), ("usage",), ("choices",), ("error",), ("prompt_token_ids",), ("x",),
        ("usage", "prompt_tokens"), ("usage", "cost"), ("usage", "prompt_tokens_details"),
        ("choices", 0, "finish_reason"), ("choices", 0, "logprobs"), ("choices", 0, "token_ids"),
        ("choices", 0, "x"), ("choices", 0, "message"), ("choices", 0, "message", "content"),
        ("choices", 0, "message", "reasoning"), ("choices", 0, "message", "refusal"),
        ("choices", 0, "message", "tool_calls"), ("choices", 0, "message", "x"),
        ("choices", 0, "message", "tool_calls", 0), ("choices", 0, "message", "tool_calls", 0, "function"),
        ("choices", 0, "message", "tool_calls", 0, "function", "name"),
        ("choices", 0, "message", "tool_calls", 0, "function", "arguments"),
        ("choices", 0, "message", "tool_calls", 0, "id"),
    ]
)  # fmt: skip


@given(st.lists(st.tuples(PATHS, JSON), min_size=1, max_size=2))
async def test_whatever_a_server_sends_is_a_completion_or_a_provider_error(changes):
    raw = msgspec.json.decode(msgspec.json.encode(answer(tool_calls=[WEATHER_CALL])))
    for path, value in changes:
        place = raw
        try:
            for key in path[:-1]:
                place = place[key]
            place[path[-1]] = value
        except (KeyError, IndexError, TypeError):
            continue
    try:
        completion = await ask(raw)
    except ProviderError:
        return
    # A completion with wrong types could not be read back from a journal.
    assert msgspec.json.decode(msgspec.json.encode(completion), type=Completion) == completion
    encode_message(completion.message, {})
