"""Streams of the dialect `openai_chat`: the pieces that are passed on, and the completion."""

import asyncio
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.conftest import IS_FULL
from tests.models.answers import REQUEST, USAGE, Listener, answer, chunk, error, usage_chunk
from tests.models.server import End, Reply, serve, sse, stream

from treadle.core.errors import ProviderError, RateLimitError, ServerError, TransportError
from treadle.core.events import ReasoningDelta, TextDelta, ToolCallDelta
from treadle.core.tokens.token_record import TokenRecord
from treadle.core.types import Completion, FinishReason, Message, Role, ToolCall, Usage
from treadle.models import HttpResponse, HttpTransport, InProcessTransport, OpenAIChatModel, Watch, model

SSE = {"content-type": "text/event-stream; charset=utf-8"}


async def ask(*pieces: bytes, headers=SSE) -> tuple[Completion, list]:
    """Return the completion of a stream that arrives in `pieces`, and the deltas that were passed on."""
    listener = Listener()
    transport = InProcessTransport(lambda _: HttpResponse(list(pieces), headers=headers))
    completion = await OpenAIChatModel("m", transport=transport).infer(REQUEST, listener.watch)
    return completion, listener.deltas


async def read(*chunks, **options) -> tuple[Message, list]:
    completion, deltas = await ask(sse(*chunks, chunk("stop"), **options))
    return completion.message, deltas


def call(index: int | None, arguments=None, **fields):
    function = {key: fields.pop(key) for key in ("name",) if key in fields}
    if arguments is not None:
        function["arguments"] = arguments
    piece = {"function": function, **fields}
    return chunk(tool_calls=[piece if index is None else {"index": index, **piece}])


async def test_the_request_asks_for_a_stream_with_usage():
    transport = InProcessTransport(lambda _: HttpResponse([sse(chunk("stop", content="x"))], headers=SSE))
    await OpenAIChatModel("m", transport=transport).infer(REQUEST, Listener().watch)
    body = transport.requests[0].json()
    assert body["stream"] is True
    assert body["stream_options"] == {"include_usage": True}


async def test_text_and_reasoning_are_passed_on_as_they_come():
    completion, deltas = await ask(
        sse(
            chunk(role="assistant", content=""),
            chunk(reasoning_content="Hm"),
            chunk(reasoning_content="."),
            chunk(content="Sun"),
            chunk(content="ny."),
            chunk("stop"),
            usage_chunk(),
        )
    )
    assert deltas == [ReasoningDelta("Hm"), ReasoningDelta("."), TextDelta("Sun"), TextDelta("ny.")]
    assert completion.message == Message(Role.ASSISTANT, "Sunny.", reasoning="Hm.")
    assert completion.finish_reason is FinishReason.STOP
    assert completion.usage == Usage(12, 5)
    assert (completion.model, completion.response_id) == ("m-1", "chatcmpl-1")
    assert completion.opaque is None


async def test_parallel_calls_interleaved_by_index():
    message, deltas = await read(
        call(0, "", id="a", type="function", name="f"),
        call(1, "", id="b", type="function", name="g"),
        call(0, '{"x"'),
        call(1, "{}"),
        call(0, ": 1}"),
    )
    assert message.tool_calls == (ToolCall("a", "f", '{"x": 1}'), ToolCall("b", "g", "{}"))
    assert deltas == [
        ToolCallDelta(0, "a", "f", ""),
        ToolCallDelta(1, "b", "g", ""),
        ToolCallDelta(0, "a", "f", '{"x"'),
        ToolCallDelta(1, "b", "g", "{}"),
        ToolCallDelta(0, "a", "f", ": 1}"),
    ]


TWO = (ToolCall("a", "f", '{"x":1}'), ToolCall("b", "g", "{}"))


@pytest.mark.parametrize(
    "chunks",
    [
        [call(None, '{"x":', id="a", name="f"), call(None, "1}"), call(None, "{}", id="b", name="g")],
        [
            call(None, '{"x":', id="a", name="f"),
            call(None, "{}", id="b", name="g"),
            call(None, "1}", id="a", name="f"),
        ],
        [
            call(0, '{"x":', id="a", name="f"),
            call(0, "1}", id="a", name="f"),
            call(1, "{}", id="b", name="g"),
        ],
        [call(0, '{"x":', id="a", name="f"), call(0, "1}", id="other"), call(1, "{}", id="b", name="g")],
        [call(0, '{"x":1}', id="a", name="f"), call(0, "{}", id="b", name="g")],
        [call(0, {"x": 1}, id="a", name="f"), call(1, {}, id="b", name="g")],
        [call(0, '{"x":1}', id="a", name="f"), call(1, None, id="b"), call(1, "{}", name="g")],
    ],
    ids=[
        "no index, id first",
        "no index, id always",
        "id and name always",
        "a new id with each piece",
        "all of index 0",
        "whole calls as objects",
        "name after id",
    ],
)
async def test_calls_as_servers_really_send_them(chunks):
    message, deltas = await read(*chunks)
    assert message.tool_calls == TWO
    for position, whole in enumerate(TWO):
        assert "".join(d.arguments for d in deltas if d.index == position) == whole.arguments


async def test_calls_with_neither_index_nor_id_are_told_apart_by_name():
    message, _ = await read(call(None, "{}", name="f"), call(None, "{}", name="f"))
    assert message.tool_calls == (ToolCall("", "f", "{}"), ToolCall("", "f", "{}"))


async def test_a_call_without_arguments():
    message, _ = await read(call(0, id="a", name="f"))
    assert message.tool_calls == (ToolCall("a", "f", ""),)


async def test_what_is_not_modelled_is_kept():
    signature = {"google": {"thought_signature": "s"}}
    details = [
        chunk(reasoning_details=[{"type": "reasoning.text", "index": 0, "text": "a", "format": "x"}]),
        chunk(reasoning_details=[{"type": "reasoning.text", "index": 0, "text": "b", "signature": "s"}]),
        chunk(reasoning_details=[{"type": "reasoning.encrypted", "index": 1, "data": "d"}]),
    ]
    message, _ = await read(
        *details, call(0, "{}", id="a", name="f", extra_content=signature), chunk(vendor={"a": 1})
    )
    assert message.opaque == {
        "reasoning_details": [
            {"type": "reasoning.text", "index": 0, "text": "ab", "format": "x", "signature": "s"},
            {"type": "reasoning.encrypted", "index": 1, "data": "d"},
        ],
        "vendor": {"a": 1},
    }
    assert message.tool_calls[0].opaque == {"extra_content": signature}


async def test_tokens_are_collected():
    def tokens(ids, **delta):
        raw = chunk(**delta)
        logprobs = [{"token": str(i), "logprob": -float(i)} for i in ids]
        raw["choices"][0] |= {"token_ids": ids, "logprobs": {"content": logprobs}}
        return raw

    first = chunk(role="assistant") | {"prompt_token_ids": [1, 2, 3]}
    completion, _ = await ask(
        sse(first, tokens([4], content="a"), tokens([5, 6], content="b"), chunk("stop"))
    )
    assert completion.tokens == TokenRecord.of(
        prompt=(1, 2, 3), output=(4, 5, 6), logprobs=(-4.0, -5.0, -6.0)
    )


async def test_the_same_reasoning_under_two_names_is_passed_on_once():
    message, deltas = await read(chunk(reasoning_content="Hm.", reasoning="Hm."))
    assert message.reasoning == "Hm."
    assert deltas == [ReasoningDelta("Hm.")]


async def test_content_in_parts():
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}
    message, deltas = await read(
        chunk(content=[thinking]), chunk(content=[{"type": "text", "text": "Sunny."}])
    )
    assert (message.content, message.reasoning) == ("Sunny.", "Hm.")
    assert deltas == [ReasoningDelta("Hm."), TextDelta("Sunny.")]


async def test_other_choices_are_not_mixed_in():
    other = chunk(content="no")
    other["choices"][0]["index"] = 1
    message, _ = await read(chunk(content="yes"), other)
    assert message.content == "yes"


async def test_the_newest_usage_counts():
    early = chunk(content="x") | {"usage": {"prompt_tokens": 12, "completion_tokens": 1}}
    completion, _ = await ask(sse(early, usage_chunk(), chunk("stop") | {"usage": None}))
    assert completion.usage == Usage(12, 5)


async def test_a_server_that_does_not_stream_is_understood():
    pieces = b'{"choices": [{"message": {"content": "Sunn', b'y."}, "finish_reason": "stop"}]}'
    completion, deltas = await ask(*pieces, headers={"content-type": "application/json"})
    assert completion.message.content == "Sunny."
    assert deltas == [TextDelta("Sunny.")]


@pytest.mark.parametrize("is_done", [True, False])
async def test_a_stream_may_end_without_done_once_it_has_said_why(is_done):
    completion, _ = await ask(sse(chunk(content="x"), chunk("length"), is_done=is_done))
    assert completion.finish_reason is FinishReason.LENGTH


async def test_what_comes_after_done_is_ignored():
    message, deltas = await read(chunk(content="x"), b"[DONE]", chunk(content="y"))
    assert message.content == "x"
    assert deltas == [TextDelta("x")]


async def test_an_error_is_told_even_if_it_ends_the_stream():
    with pytest.raises(ServerError, match="boom"):
        await ask(sse(chunk(content="x"), is_done=False) + b'data: {"error": {"message": "boom"}}')


async def test_done_without_a_finish_reason_is_an_end():
    completion, _ = await ask(sse(chunk(content="x")))
    assert completion.finish_reason is FinishReason.STOP


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b": ping\n\n",
        sse(chunk(content="x"), is_done=False),
        sse(chunk(content="x"), chunk("stop"))[:-40],
        sse(call(0, '{"a": ', id="a", name="f"), is_done=False),
    ],
)
async def test_a_stream_that_ends_too_early_is_a_transport_error(raw):
    for end in range(len(raw), max(len(raw) - 30, -1), -1):
        if b'"stop"}]}' in raw[:end]:
            continue
        with pytest.raises(TransportError, match="ended before it was complete"):
            await ask(raw[:end])


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        (error("slow down", code=429), RateLimitError),
        (error("overloaded", type="server_error"), ServerError),
        ({"error": "it broke"}, ServerError),
        ({"object": "error", "message": "it broke", "code": 500}, ServerError),
        (b"{broken", ServerError),
        (b"[1]", ServerError),
        ({"choices": [{"delta": {}, "error": {"message": "m", "code": 429}}]}, RateLimitError),
        (b'{"choices": [7]}', ServerError),
        (b'{"choices": [{"delta": {"tool_calls": 7}}]}', ServerError),
        (
            {"choices": [{"delta": {}, "finish_reason": "error", "error": {"message": "m", "code": 502}}]},
            ServerError,
        ),
    ],
)
async def test_an_error_within_a_stream_is_typed(event, kind):
    with pytest.raises(kind) as caught:
        await ask(sse(chunk(content="x"), event, is_done=False))
    assert type(caught.value) is kind


RICH = sse(
    chunk(role="assistant", content=""),
    chunk(reasoning_content="Zürich 🌞?"),
    chunk(content="Grüezi "),
    b'{"choices":\n[]}'.replace(b"\n", b"\ndata: "),
    call(0, "", id="a", name="f"),
    call(1, '{"y": "é"}', id="b", name="g"),
    call(0, '{"x": "日本"}'),
    chunk("tool_calls"),
    usage_chunk(),
)


def test_the_example_is_the_same_with_crlf_as_with_lf():
    lf, _ = asyncio.run(ask(RICH))
    crlf, _ = asyncio.run(ask(RICH.replace(b"\n", b"\r\n")))
    assert lf == crlf
    assert lf.usage == Usage(USAGE["prompt_tokens"], USAGE["completion_tokens"])


def test_split_after_every_byte():
    """In two pieces, which the short form cuts at every fifth byte, and at all bytes at once."""
    whole, deltas = asyncio.run(ask(RICH))
    for cut in range(0, len(RICH), 1 if IS_FULL else 5):
        assert asyncio.run(ask(RICH[:cut], RICH[cut:])) == (whole, deltas)
    single = [RICH[i : i + 1] for i in range(len(RICH))]
    assert asyncio.run(ask(*single)) == (whole, deltas)


TEXTS = st.text(max_size=6)
NAMES = st.sampled_from(["f", "g_2", "get.weather"])
CALLS = st.lists(st.tuples(NAMES, st.lists(TEXTS, max_size=3)), max_size=3)


@given(st.lists(TEXTS, max_size=4), st.lists(TEXTS, max_size=3), CALLS, st.data())
async def test_a_stream_makes_the_completion_of_the_whole_answer(texts, thoughts, calls, data):
    raw_calls = [
        {"id": f"c{i}", "type": "function", "function": {"name": name, "arguments": "".join(pieces)}}
        for i, (name, pieces) in enumerate(calls)
    ]
    message = {"reasoning_content": "".join(thoughts)}
    if raw_calls:
        message["tool_calls"] = raw_calls
    raw = answer("".join(texts), finish="stop", **message)

    chunks = [chunk(reasoning_content=text) for text in thoughts] + [chunk(content=text) for text in texts]
    chunks += [call(i, "", id=f"c{i}", type="function", name=name) for i, (name, _) in enumerate(calls)]
    queues = [[call(i, piece) for piece in pieces] for i, (_, pieces) in enumerate(calls)]
    while any(queues):
        queue = data.draw(st.sampled_from([queue for queue in queues if queue]))
        chunks.append(queue.pop(0))
    body = sse(*chunks, chunk("stop"), usage_chunk())
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=8)))
    pieces = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]

    transport = InProcessTransport(lambda _: HttpResponse(raw))
    whole = await OpenAIChatModel("m", transport=transport).infer(REQUEST, Watch())
    streamed, deltas = await ask(*pieces)
    assert streamed == whole
    assert "".join(d.text for d in deltas if isinstance(d, TextDelta)) == whole.message.content


@given(
    st.lists(
        st.binary(max_size=20) | st.sampled_from([b"data: ", b"\n\n", b"[DONE]", b'{"choices":[', b"]}"])
    )
)
async def test_any_bytes_are_a_completion_or_a_provider_error(pieces):
    with suppress(ProviderError):
        await ask(b"".join(pieces), b"")


# ---- over a real socket


@pytest.mark.parametrize("step", [1, 7, 100_000])
async def test_a_stream_over_a_socket_in_pieces(step):
    expected, _ = await ask(RICH)
    async with serve([stream(RICH, step=step)]) as server:
        listener = Listener()
        model = OpenAIChatModel("m", base_url=server.base_url)
        assert await model.infer(REQUEST, listener.watch) == expected
        assert listener.deltas[0] == ReasoningDelta("Zürich 🌞?")


async def test_streams_use_their_connection_again():
    reply = stream(RICH, step=50)
    reply.tail_seconds = 0.01
    async with serve([reply]) as server:
        model = OpenAIChatModel("m", base_url=server.base_url)
        for _ in range(10):
            await model.infer(REQUEST, Listener().watch)
        # Some requests may start before the last connection is back in the pool.
        assert server.connections <= 5


async def test_deltas_come_before_the_stream_ends():
    first = asyncio.Event()
    async with serve([stream(sse(chunk(content="Sun"), is_done=False), end=End.STALL)]) as server:
        model = OpenAIChatModel("m", base_url=server.base_url)
        task = asyncio.create_task(model.infer(REQUEST, Watch(lambda delta: first.set())))
        await asyncio.wait_for(first.wait(), 5)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(server.gone.wait(), 5)


@pytest.mark.parametrize("end", [End.CLOSE, End.RESET])
async def test_a_stream_cut_by_the_network_is_a_transport_error(end):
    async with serve([stream(sse(chunk(content="Sun"), is_done=False), end=end)]) as server:
        with pytest.raises(TransportError, match="broke before"):
            await OpenAIChatModel("m", base_url=server.base_url).infer(REQUEST, Listener().watch)


@pytest.mark.parametrize("end", [End.CLOSE, End.RESET, End.STALL])
@pytest.mark.parametrize("is_done", [True, False])
async def test_a_cut_after_the_finish_reason_does_no_harm(end, is_done):
    body = sse(chunk(content="Sunny."), chunk("stop"), is_done=is_done)
    async with serve([stream(body, end=end)]) as server:
        transport = HttpTransport(timeout_seconds=60 if is_done else 0.5)
        model = OpenAIChatModel("m", base_url=server.base_url, transport=transport)
        completion = await asyncio.wait_for(model.infer(REQUEST, Listener().watch), 10)
    assert completion.message.content == "Sunny."


async def test_an_error_status_of_a_streamed_request_is_typed():
    async with serve([Reply(error("slow"), status=429, headers={"retry-after": "3"})]) as server:
        with pytest.raises(RateLimitError, match="slow") as caught:
            await OpenAIChatModel("m", base_url=server.base_url).infer(REQUEST, Listener().watch)
    assert caught.value.retry_after_seconds == 3


THOUGHTS = {
    "<think>\nHm, 1 < 2.\n</think>\n\nSunny.": ("Hm, 1 < 2.", "Sunny."),
    "\n<think>Hm.</think>Sunny.\n": ("Hm.", "Sunny.\n"),
    "<think>\n\n</think>\n\nSunny.": (None, "Sunny."),
    "<think>a</think>b<think>c</think>": ("a", "b<think>c</think>"),
    "<think>never\n</thi": ("never\n</thi", ""),
    "Sunny, says <think>.": (None, "Sunny, says <think>."),
    "<thin": (None, "<thin"),
    "": (None, ""),
}


@pytest.mark.parametrize("size", [1, 2, 7, 100])
@pytest.mark.parametrize("text", THOUGHTS)
async def test_thoughts_in_the_text_are_reasoning_whole_and_streamed(text, size):
    reasoning, content = THOUGHTS[text]
    pieces = [chunk(content=text[at : at + size]) for at in range(0, len(text), size)]
    body = sse(*pieces, chunk("stop"))
    for provider in ("groq", "huggingface", "openai"):
        replies = [HttpResponse(answer(content=text)), HttpResponse([body], headers=SSE)]
        transport = InProcessTransport(lambda _, left=replies: left.pop(0))
        asked = model(f"{provider}:m", api_key="k", transport=transport)
        listener = Listener()
        whole, streamed = await asked.infer(REQUEST, Watch()), await asked.infer(REQUEST, listener.watch)
        wanted = (None, text) if provider == "openai" else (reasoning, content)
        assert (whole.message.reasoning, whole.message.content) == wanted
        assert (streamed.message.reasoning, streamed.message.content) == wanted
        told = [item.text for item in listener.deltas if isinstance(item, TextDelta)]
        thought = [item.text for item in listener.deltas if isinstance(item, ReasoningDelta)]
        assert ("".join(thought) or None, "".join(told)) == wanted
