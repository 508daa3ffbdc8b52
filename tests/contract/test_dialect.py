"""The contract of every dialect, tested over real sockets against servers that speak its wire format.

For each dialect, a module in `tests/models/wire` says how a server answers.
"""

import asyncio
import importlib
import json
import pkgutil

import msgspec
import pytest
import tests.models.wire as wires
from tests.models.answers import Listener
from tests.models.server import RESET, STALL, End, Reply, serve

from treadle import Agent, tool
from treadle.core.errors import (
    AuthenticationError,
    ContextOverflowError,
    ProviderError,
    RateLimitError,
    RequestError,
    ServerError,
    TransportError,
    UnavailableError,
)
from treadle.core.events import ReasoningDelta, TextDelta, ToolCallDelta, decode_body, encode_body
from treadle.core.log import Log
from treadle.core.types import (
    UNREPORTED,
    FinishReason,
    Message,
    Request,
    Role,
    StopReason,
    ToolCall,
    ToolSpec,
)
from treadle.journal.memory import MemoryJournal
from treadle.models import HttpTransport, RetryModel, Watch
from treadle.models.config.presets import DIALECTS

WIRES = {
    item.name: importlib.import_module(f"tests.models.wire.{item.name}")
    for item in pkgutil.iter_modules(wires.__path__)
}
KEY = "planted-key-0123456789"
SPEC = ToolSpec(
    "look_up",
    "Looks a word up.",
    {
        "type": "object",
        "properties": {
            "word": {"type": "string", "enum": ["a", "ü"]},
            "depth": {"type": ["integer", "null"]},
        },
        "required": ["word"],
        "additionalProperties": False,
    },
)
CALLS = (
    ToolCall("call_1", "look_up", '{"word": "ü", "depth": 1.50}'),
    ToolCall("call_2", "look_up", '{"word":"a\\n\\u00fc","z":{"b":[1,2,{"c":null}]},"a":true}'),
)
TRANSCRIPT = (
    Message(Role.SYSTEM, 'Be "brief" — ü.'),
    Message(Role.USER, "Look up.\nTwice."),
    Message(Role.ASSISTANT, "I look.", CALLS),
    Message(Role.TOOL, "first", call_id="call_1", name="look_up"),
    Message(Role.TOOL, "second\n{}", call_id="call_2", name="look_up"),
    Message(Role.ASSISTANT, "Found."),
    Message(Role.USER, "And now?"),
)
SPOKEN = tuple(Message(m.role, m.content) for m in TRANSCRIPT if m.role is not Role.TOOL)
QUESTION = Request(Log([Message(Role.USER, "Hello?")]))


def has_calls(wire):
    return getattr(wire, "HAS_CALLS", True)


@pytest.fixture(params=WIRES)
def wire(request):
    return WIRES[request.param]


@pytest.fixture
def speaking(wire):
    if not has_calls(wire):
        pytest.skip("it speaks no tool calls")
    return wire


def connect(wire, server, **options):
    transport = HttpTransport(timeout_seconds=5.0)
    return wire.MODEL("m", base_url=server.base_url, api_key=KEY, transport=transport, **options)


def whole(wire, message, **options):
    return Reply(encode(wire.answer(message, **options)), headers={"content-type": "application/json"})


def encode(raw):
    """Return the arguments as JSON values. Where a dialect sends them as text, `msgspec.Raw` preserves the text."""
    return msgspec.json.encode(raw)


def streamed(wire, message, *, step=None, **options):
    pieces = wire.events(wire.answer(message, **options))
    if step is not None:
        body = b"".join(pieces)
        pieces = [body[at : at + step] for at in range(0, len(body), step)]
    return Reply(headers={"content-type": wire.CONTENT_TYPE}, pieces=pieces)


def plain(message):
    """Return the parts of a message that every dialect can express: arguments as values, calls without ids."""
    calls = [(call.name, json.loads(call.arguments or "{}")) for call in message.tool_calls]
    return message.role, message.content, calls


def said(**more):
    return Message(Role.ASSISTANT, "Sunny — ü.", **more)


def test_every_dialect_is_tested():
    assert set(WIRES) == set(DIALECTS.names())


async def test_a_transcript_is_sent_as_it_is(wire):
    transcript = TRANSCRIPT if has_calls(wire) else SPOKEN
    tools = (SPEC,) if has_calls(wire) else ()
    async with serve([whole(wire, said())]) as server:
        await connect(wire, server).infer(Request(Log(transcript), tools), Watch())
        body = server.requests[0].json()
    assert [plain(message) for message in wire.messages(body)] == [plain(message) for message in transcript]
    assert wire.tools(body) == [(item.name, item.description, item.parameters) for item in tools]
    results = [message for message in wire.messages(body) if message.role is Role.TOOL]
    calls = [call for message in wire.messages(body) for call in message.tool_calls]
    if calls and calls[0].call_id:
        assert [message.call_id for message in results] == [call.call_id for call in calls]


async def test_growing_histories_are_sent_whole(wire):
    log = Log([Message(Role.USER, "1")])
    async with serve(lambda _: whole(wire, said())) as server:
        model = connect(wire, server)
        for number in range(3):
            completion = await model.infer(Request(log), Watch())
            log = log.extend([completion.message, Message(Role.USER, str(number))])
        fork = Log(list(log)[:3]).append(Message(Role.USER, "other"))
        await model.infer(Request(fork), Watch())
        sent = [[message.content for message in wire.messages(item.json())] for item in server.requests]
    text = said().content
    assert sent == [["1"], ["1", text, "0"], ["1", text, "0", text, "1"], ["1", text, "0", "other"]]


@pytest.mark.parametrize("step", [None, 1, 13])
async def test_a_stream_says_what_the_whole_says(wire, step):
    more = {"reasoning": "I think.\nÜ.", "tool_calls": CALLS} if has_calls(wire) else {}
    message = said(**more)
    async with serve([whole(wire, message), streamed(wire, message, step=step)]) as server:
        model = connect(wire, server)
        first = await model.infer(QUESTION, Watch())
        listener = Listener()
        second = await model.infer(QUESTION, listener.watch)
    assert first.message.content == message.content
    assert (first.message.reasoning or None) == message.reasoning
    assert [plain(first.message)] == [plain(message)]
    assert first.finish_reason is (FinishReason.TOOL_CALLS if more else FinishReason.STOP)
    assert first.usage == wire.USAGE
    assert [plain(second.message), second.message.reasoning] == [
        plain(first.message),
        first.message.reasoning,
    ]
    assert (second.finish_reason, second.usage) == (first.finish_reason, first.usage)
    deltas = listener.deltas
    assert "".join(item.text for item in deltas if isinstance(item, TextDelta)) == message.content
    assert "".join(item.text for item in deltas if isinstance(item, ReasoningDelta)) == (
        message.reasoning or ""
    )
    for index, call in enumerate(second.message.tool_calls):
        pieces = [item for item in deltas if isinstance(item, ToolCallDelta) and item.index == index]
        assert "".join(item.arguments for item in pieces) == call.arguments
        assert pieces[-1].name == call.name


async def test_arguments_are_the_exact_text(speaking):
    async with serve(
        [whole(speaking, said(tool_calls=CALLS)), streamed(speaking, said(tool_calls=CALLS))]
    ) as server:
        model = connect(speaking, server)
        for watch in (Watch(), Listener().watch):
            completion = await model.infer(QUESTION, watch)
            for call, wanted in zip(completion.message.tool_calls, CALLS, strict=True):
                # If the wire format has an object instead of text, the white space is the server's.
                assert json.loads(call.arguments) == json.loads(wanted.arguments)
                assert "1.50" in call.arguments or call.name != wanted.name or "1.50" not in wanted.arguments


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_an_answer_cut_by_the_output_limit_says_so(wire, is_streamed):
    make = streamed if is_streamed else whole
    async with serve([make(wire, said(), finish=FinishReason.LENGTH)]) as server:
        watch = Listener().watch if is_streamed else Watch()
        completion = await connect(wire, server).infer(QUESTION, watch)
    assert (completion.finish_reason, completion.message.content) == (FinishReason.LENGTH, said().content)


async def test_what_is_not_told_is_not_known(wire):
    async with serve([whole(wire, said(), usage=None), streamed(wire, said(), usage=None)]) as server:
        model = connect(wire, server)
        for watch in (Watch(), Listener().watch):
            completion = await model.infer(QUESTION, watch)
            assert (completion.usage, completion.cost_usd) == (UNREPORTED, None)


@pytest.mark.parametrize(
    ("status", "text", "kind"),
    [
        (400, "bad temperature", RequestError),
        (400, "prompt is too long: 9 tokens > 8 maximum", ContextOverflowError),
        (401, "wrong key", AuthenticationError),
        (403, "not for you", AuthenticationError),
        (404, "no such model", UnavailableError),
        (429, "slow down", RateLimitError),
        (500, "oops", ServerError),
        (503, "down", ServerError),
        (529, "overloaded", ServerError),
    ],
)
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_errors_are_typed_and_hold_no_key(wire, status, text, kind, is_streamed):
    reply = Reply(wire.error(status, f"{text} {KEY}"), status, {"retry-after": "3"})
    async with serve([reply]) as server:
        model = connect(wire, server)
        with pytest.raises(ProviderError) as caught:
            await model.infer(QUESTION, Listener().watch if is_streamed else Watch())
    error = caught.value
    assert type(error) is kind, error
    assert text in str(error)
    assert error.status == status
    assert error.retry_after_seconds == 3.0
    for shown in (str(error), repr(error), repr(model), repr(model.server), model.identity):
        assert KEY not in shown


DEEP = b'{"more": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"


def faults(wire, *, is_streamed):
    body = b"".join(wire.events(wire.answer(said())))
    shared = {
        "reset": RESET,
        "closed": Reply(raw=b"", end=End.CLOSE),
        "no HTTP": Reply(raw=b"hello\n", end=End.CLOSE),
        "not JSON": Reply(b"<html>"),
        "nested too deeply": Reply(DEEP),
        "an empty answer": Reply({}),
        "a list": Reply([]),
        "a number": Reply(b"7", headers={"content-type": "application/json"}),
        "null": Reply(b"null", headers={"content-type": "application/json"}),
    }
    if not is_streamed:
        raw = encode(wire.answer(said()))
        return shared | {"cut": Reply(raw, cut_at=len(raw) // 2), "half": Reply(raw[: len(raw) // 2])}
    head = {"content-type": wire.CONTENT_TYPE}
    hurt = body.index(b"{") + 10
    return shared | {
        "cut": Reply(headers=head, pieces=[body[: len(body) // 2]]),
        "reset in the middle": Reply(headers=head, pieces=[body[: len(body) // 3]], end=End.RESET),
        "damaged": Reply(headers=head, pieces=[body[:hurt], b"}{\n\n", body[hurt:]]),
        "an event that is nested too deeply": Reply(
            headers=head, pieces=[body[: hurt - 10], DEEP, b"\n\n", body]
        ),
        "nothing": Reply(headers=head, pieces=[]),
    }


FAULTS = sorted(
    {*faults(WIRES["openai_chat"], is_streamed=True), *faults(WIRES["openai_chat"], is_streamed=False)}
)


@pytest.mark.parametrize("name", FAULTS)
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_every_fault_is_survived_by_trying_again(wire, name, is_streamed):
    fault = faults(wire, is_streamed=is_streamed).get(name)
    if fault is None:
        pytest.skip("a fault of the other kind")
    good = streamed(wire, said()) if is_streamed else whole(wire, said())
    async with serve([fault, fault, good]) as server:
        listener = Listener()
        if not is_streamed:
            listener.watch.on_delta = None
        model = RetryModel(connect(wire, server), min_delay_seconds=0.001)
        completion = await model.infer(QUESTION, listener.watch)
        assert completion.message.content == said().content
        assert len(listener.failures) == 2
        # The request is the same each time.
        assert len({request.body for request in server.requests}) == 1


async def test_every_way_of_cutting_a_stream_is_an_error_or_the_whole(wire):
    message = said(tool_calls=CALLS) if has_calls(wire) else said()
    body = b"".join(wire.events(wire.answer(message)))
    cuts = sorted({*range(0, len(body), max(1, len(body) // 40)), len(body)})
    head = {"content-type": wire.CONTENT_TYPE}
    async with serve([Reply(headers=head, pieces=[body[:cut]]) for cut in cuts]) as server:
        model = connect(wire, server)
        for _ in cuts:
            try:
                completion = await model.infer(QUESTION, Listener().watch)
            except (TransportError, ServerError):
                continue
            assert plain(completion.message) == plain(message)


async def test_a_cancelled_stream_closes_its_connection(wire):
    first = wire.events(wire.answer(said()))[:2]
    reply = Reply(headers={"content-type": wire.CONTENT_TYPE}, pieces=first, end=End.STALL)
    async with serve([reply]) as server:
        task = asyncio.create_task(connect(wire, server).infer(QUESTION, Listener().watch))
        await asyncio.wait_for(server.asked.wait(), 5)
        await asyncio.sleep(0.05)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await asyncio.wait_for(server.gone.wait(), 5)


async def test_a_server_that_stalls_runs_into_the_time_out(wire):
    async with serve([STALL]) as server:
        model = wire.MODEL("m", base_url=server.base_url, transport=HttpTransport(timeout_seconds=0.2))
        with pytest.raises(TransportError, match="raise timeout_seconds"):
            await model.infer(QUESTION, Watch())


@tool(effect="pure")
def look_up(word: str) -> str:
    """Looks a word up."""
    return f"{word} is a word"


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_run_with_parallel_calls_and_faults(speaking, is_streamed):
    make = streamed if is_streamed else whole
    calls = (ToolCall("c1", "look_up", '{"word": "a"}'), ToolCall("c2", "look_up", '{"word": 7}'))
    bad = Reply(speaking.error(503, "down"), 503)
    replies = [bad, make(speaking, Message(Role.ASSISTANT, "", calls)), bad, make(speaking, said())]
    async with serve(replies) as server:
        model = RetryModel(connect(speaking, server), min_delay_seconds=0.001)
        agent = Agent(model, tools=[look_up], journal=MemoryJournal())
        events = []
        run = await agent.run("Look.", on_event=events.append if is_streamed else None)
        assert (run.stop_reason, run.output) == (StopReason.COMPLETED, said().content), run.error
        first, second = (
            [result for result in run.results if not result.is_error],
            [result for result in run.results if result.is_error],
        )
        assert first[0].content == "a is a word"
        assert second[0].error_kind == "invalid_arguments"
        told = speaking.messages(server.requests[-1].json())
        assert [message.content for message in told if message.role is Role.TOOL] == [
            message.content for message in run.state.messages if message.role is Role.TOOL
        ]
        replay = await agent.replay(run.run_id)
        assert replay.is_exact, replay.divergence
        for event in run.events:
            assert KEY.encode() not in event.to_json()
            # Opaque data survives the journal.
            assert decode_body(encode_body(event.body)) == event.body


@pytest.mark.parametrize("content", ["", " \n"])
async def test_an_answer_without_content_is_followed_by_a_request_that_servers_accept(speaking, content):
    """Some servers refuse an empty message, thoughts that nothing follows, or a transcript that ends with the
    model's own message, as the reference sent it."""
    thought = Message(Role.ASSISTANT, content, reasoning="I could look.")
    answers = iter([whole(speaking, thought), whole(speaking, said())])
    async with serve(lambda _: next(answers)) as server:
        run = await Agent(connect(speaking, server), journal=MemoryJournal()).run("Look.")
        bodies = [request.json() for request in server.requests]
    assert (run.output, len(bodies)) == (said().content, 2)
    told = speaking.messages(bodies[1])
    assert told[-1].role is Role.USER
    assert all(message.content.strip() for message in told)
    text = json.dumps(bodies[1])
    assert "I could look." not in text or speaking.MODEL.DIALECT == "completions"


async def test_messages_of_other_dialects_are_sent_too(speaking):
    odd = Message(
        Role.ASSISTANT,
        "I look.",
        (
            ToolCall("toolu/ü:1", "look_up", '{"word": "a"}', {"elsewhere": {"signature": "s"}}),
            ToolCall("call 2", "look_up", "", {"gemini": {"thoughtSignature": "s"}}),
        ),
        reasoning="thoughts",
        opaque={
            name: {"anything": [1]}
            for name in DIALECTS.names()
            if name not in ("openai_chat", speaking.MODEL.DIALECT)
        },
    )
    results = [
        Message(Role.TOOL, "one", call_id="toolu/ü:1", name="look_up"),
        Message(Role.TOOL, "two", call_id="call 2", name="look_up", is_error=True),
    ]
    log = Log([Message(Role.USER, "Look."), odd, *results])
    async with serve([whole(speaking, said())]) as server:
        await connect(speaking, server).infer(Request(log, (SPEC,)), Watch())
        body = server.requests[0]
        told = speaking.messages(body.json())
    assert [plain(message)[0] for message in told] == ["user", "assistant", "tool", "tool"]
    assert [call.name for call in told[1].tool_calls] == ["look_up", "look_up"]
    assert [message.content for message in told[2:]] == ["one", "two"]
    assert b"anything" not in body.body
    ids = [call.call_id for call in told[1].tool_calls]
    if ids[0]:
        assert [message.call_id for message in told[2:]] == ids


async def test_a_key_is_sent_and_shown_nowhere(wire):
    async with serve([whole(wire, said())]) as server:
        model = connect(wire, server)
        await model.infer(QUESTION, Watch())
        assert any(KEY in value for value in server.requests[0].headers.values())
        assert KEY not in server.requests[0].path
    for shown in (
        repr(model),
        str(vars(model.server)) if hasattr(model.server, "__dict__") else repr(model.server),
    ):
        assert KEY not in shown


async def test_a_schema_and_a_tool_that_must_be_called_reach_the_server(speaking):
    schema = {
        "type": "object",
        "properties": {"unusual_name": {"type": "integer"}},
        "required": ["unusual_name"],
    }
    async with serve(lambda _: whole(speaking, said())) as server:
        model = connect(speaking, server)
        await model.infer(Request(QUESTION.messages, (), schema), Watch())
        tools = (SPEC, ToolSpec("other", "Another.", {"type": "object"}))
        await model.infer(Request(QUESTION.messages, tools, None, "look_up"), Watch())
        await model.infer(Request(QUESTION.messages, tools), Watch())
        bodies = [request.body for request in server.requests]
    assert b"unusual_name" in bodies[0]
    # The tool is named again, or is the only one that is offered.
    named = [(body.count(b"look_up"), b'"other"' in body) for body in bodies[1:]]
    assert named in ([(2, True), (1, True)], [(1, False), (1, True)])
