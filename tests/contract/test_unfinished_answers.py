"""The contract of every dialect for answers that are not whole, whole and streamed, over real sockets.

Nothing is an answer that the server did not say to be whole. Everything else is an error that is tried again, and
whose message shows what came. For each dialect, a module in `tests/models/wire` says what such answers look like.
"""

import json

import pytest
from tests.conftest import IS_FULL
from tests.contract.test_dialect import KEY, QUESTION, WIRES, connect, encode, said, streamed, whole
from tests.models.answers import Listener
from tests.models.server import End, Reply, serve

from treadle import Agent
from treadle.core.errors import ServerError, TransportError
from treadle.core.types import UNREPORTED, Fault, FinishReason, Message, Role, StopReason
from treadle.models import CacheModel, FallbackModel, HttpResponse, InProcessTransport, RetryModel, Watch

FOREIGN = {
    "nothing": b"",
    "blanks": b" \r\n\n",
    "a byte order mark": b"\xef\xbb\xbf",
    "HTML": b"<!DOCTYPE html>\n<html><title>Bad gateway</title></html>",
    "text": b"upstream connect error",
    "binary": bytes(range(256)),
    "null": b"null",
    "true": b"true",
    "a number": b"7",
    "a string": b'"Sunny."',
    "an empty list": b"[]",
    "a list in a list": b"[[]]",
    "a list of a number": b"[7]",
    "an empty object": b"{}",
    "an unknown object": b'{"id": "1", "status_text": "ok"}',
    "half an object": b'{"choices": [{"mess',
    "two objects": b"{}\n{}\n",
    "pings": b": ping\n\n: ping\n\n",
    "an end mark": b"data: [DONE]\n\n",
    "an empty event and an end mark": b"data: {}\n\ndata: [DONE]\n\n",
    "blank events": b"data:\n\ndata: \n\ndata: [DONE]\n\n",
    "events without data": b"event: message_stop\n\nevent: done\n\n",
    "null events": b"data: null\n\ndata: [DONE]\n\n",
    "events that are text": b"data: Sunny.\n\ndata: [DONE]\n\n",
    "events that are lists": b"data: [7]\n\ndata: [DONE]\n\n",
}
"""Bodies that are an answer in no dialect, whatever was asked for."""
ERRORS = {
    "an object": {"error": {"message": "it broke", "type": "some_error"}},
    "text": {"error": "it broke"},
    "beside nulls": {"error": {"message": "it broke", "code": None}, "choices": None, "object": "error"},
    "a list": [{"error": {"code": 500, "message": "it broke", "status": "INTERNAL"}}],
    "vLLM": {"object": "error", "message": "it broke", "type": "InternalServerError", "code": 500},
    "Anthropic": {"type": "error", "error": {"type": "api_error", "message": "it broke"}},
    "Responses": {"type": "error", "code": "server_error", "message": "it broke", "param": None},
    "FastAPI": {"detail": "it broke"},
    "Cloudflare": {"success": False, "errors": [{"code": 7000, "message": "it broke"}]},
    "unknown": {"code": 1234, "msg": "it broke", "success": False},
}
ODD = ("binary", "a byte order mark")
"""Bodies whose beginning cannot be printed as it is."""
PLAIN_ERRORS = ("an object", "text", "beside nulls", "a list", "vLLM", "Anthropic", "Responses")
"""Errors that every dialect recognises in the middle of a stream."""


@pytest.fixture(params=WIRES)
def wire(request):
    return WIRES[request.param]


def event(wire, raw):
    encoded = json.dumps(raw).encode()
    return encoded + b"\n" if wire.CONTENT_TYPE == "application/x-ndjson" else b"data: %s\n\n" % encoded


def with_errors(wire, good):
    """Yield streams with an error at their beginning, in their middle and at their end."""
    for name, raw in ERRORS.items():
        # The end of a stream is said by its last event, or by an end mark after it.
        end = len(good) - 1 if good[-1].startswith(b"data: [DONE]") else len(good)
        yield f"only an error: {name}", [event(wire, raw)]
        yield f"only an error and an end mark: {name}", [event(wire, raw), b"data: [DONE]\n\n"]
        if name in PLAIN_ERRORS:
            for at in range(end):
                yield f"an error at event {at}: {name}", [*good[:at], event(wire, raw), *good[at:]]
            yield f"an error instead of the end: {name}", [*good[: end - 1], event(wire, raw), *good[end:]]


def cases(wire, *, is_streamed):
    """Yield the name of each answer that is not whole, and its body."""
    yield from FOREIGN.items()
    yield from ((f"an error: {name}", encode(raw)) for name, raw in ERRORS.items())
    yield "a key that is sent back", b"<html>your key is " + KEY.encode()
    good = wire.answer(said())
    bad = wire.unfinished(good)
    if not is_streamed:
        yield from ((name, encode(raw)) for name, raw in bad.items())
        body = encode(good)
        yield from ((f"cut at byte {at}", body[:at]) for at in range(0, len(body), 7))
        return
    marks = {"": b"", " and an end mark": b"data: [DONE]\n\n"}
    for name, raw in bad.items():
        yield from ((name + after, b"".join(wire.at_once(raw)) + mark) for after, mark in marks.items())
    pieces = wire.events(good)
    yield from ((name, b"".join(found)) for name, found in with_errors(wire, pieces))
    yield "cut before the reason", b"".join(wire.at_once(wire.without_reason(good))[:1])
    if wire.CONTENT_TYPE == "text/event-stream":
        yield "an error event that is text", pieces[0] + b"event: error\ndata: it broke\n\n"
    unknown = pieces[0] + event(wire, ERRORS["unknown"])
    yield "an unknown error in the middle and an end mark", unknown + b"data: [DONE]\n\n"
    damaged = b'{"broken\n' if pieces[0].startswith(b"{") else b"data: {broken\n\n"
    yield "a damaged event", b"".join([pieces[0], damaged, *pieces[1:]])


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
async def test_an_answer_that_is_not_whole_is_tried_again(wire, is_streamed):
    table = dict(cases(wire, is_streamed=is_streamed))
    good = streamed(wire, said()) if is_streamed else whole(wire, said())
    replies = [reply for body in table.values() for reply in (Reply(body, headers=HEAD), good)]
    wrong = {}
    async with serve(replies) as server:
        model = RetryModel(connect(wire, server), min_delay_seconds=0.0001)
        for name, body in table.items():
            listener = Listener()
            errors = []
            listener.watch.on_failure = lambda error, *_, errors=errors: errors.append(error)
            if not is_streamed:
                listener.watch.on_delta = None
            completion = await model.infer(QUESTION, listener.watch)
            assert completion.message.content == said().content, name
            if len(errors) != 1:
                wrong[name] = completion
                break
            text = str(errors[0])
            assert isinstance(errors[0], ServerError | TransportError), (name, errors)
            assert KEY not in text
            assert text.isprintable(), name
            assert len(text) < 1000, name
            words = body.decode(errors="replace").split()[:2] or ["it is empty"]
            shown = (
                ["it broke"] if b"it broke" in body else [*[word[:8] for word in words], "{broken", "[DONE]"]
            )
            assert name in ODD or any(word in text for word in shown), (name, text)
    assert not wrong


HEAD = {"content-type": "application/octet-stream"}


async def test_every_cut_of_a_stream_is_an_error_or_the_whole(wire):
    body = b"".join(wire.events(wire.answer(said())))
    near = len(body) - 80  # where the last event is
    cuts = [cut for cut in range(len(body) + 1) if IS_FULL or cut > near or cut % 4 == 0]
    # Without a length, only the answer itself says whether it is whole.
    head = b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n"
    replies = [Reply(raw=head + body[:cut], end=End.CLOSE) for cut in cuts]
    whole_at = None
    async with serve(replies) as server:
        model = connect(wire, server)
        for cut in cuts:
            try:
                completion = await model.infer(QUESTION, Listener().watch)
            except (ServerError, TransportError) as error:
                assert whole_at is None, cut
                shown = "it is empty" if not body[:cut].strip() else body[: min(cut, 6)].decode().strip()
                assert shown in str(error), cut  # noqa: PT017
            else:
                whole_at = cut if whole_at is None else whole_at
                assert completion.message.content == said().content
                assert completion.finish_reason is FinishReason.STOP
    assert whole_at is not None


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
async def test_a_server_that_stays_broken_is_at_fault(wire, is_streamed, tmp_path):
    body = b"<html>\x1b[31mBad gateway " + KEY.encode()
    async with serve([Reply(body, headers={"content-type": "text/html"})]) as server:
        model = RetryModel(connect(wire, server), max_attempts=2, min_delay_seconds=0.001)
        agent = Agent(CacheModel(FallbackModel([model]), tmp_path), journal="memory:")
        run = await agent.run("Hello?", on_event=(lambda _: None) if is_streamed else None)
    assert (run.stop_reason, run.fault) == (StopReason.ERROR, Fault.INFRASTRUCTURE)
    assert "<html>\\x1b[31mBad gateway ***" in run.error
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
async def test_what_servers_leave_out_does_no_harm(wire, is_streamed):
    """Token counts, ids and models are missing in the answers of many servers."""
    keep = ("choices", "candidates", "content", "stop_reason", "output", "status", "message", "done")
    full = wire.answer(said(), usage=None)
    raw = {key: value for key, value in full.items() if key in keep}
    body = b"".join(wire.at_once(raw)) if is_streamed else encode(raw)
    async with serve([Reply(body)]) as server:
        completion = await connect(wire, server).infer(QUESTION, Listener().watch if is_streamed else Watch())
    assert (completion.message.content, completion.finish_reason) == (said().content, FinishReason.STOP)
    assert (completion.usage, completion.model) == (UNREPORTED, None)


@pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])
async def test_an_empty_answer_that_is_said_to_be_whole_is_an_answer(wire, is_streamed):
    raw = wire.answer(Message(Role.ASSISTANT, ""))
    body = b"".join(wire.events(raw)) if is_streamed else encode(raw)
    async with serve([Reply(body)]) as server:
        completion = await connect(wire, server).infer(QUESTION, Listener().watch if is_streamed else Watch())
    assert (completion.message.content, completion.finish_reason) == ("", FinishReason.STOP)


@pytest.mark.parametrize("written", ["null", "None", "FINISH_REASON_UNSPECIFIED"])
@pytest.mark.parametrize("name", ["openai_chat", "completions", "gemini"])
async def test_no_reason_in_words_is_not_the_end(name, written):
    wire, field = WIRES[name], "finishReason" if name == "gemini" else "finish_reason"
    events = []
    for item in wire.events(wire.answer(said())):
        raw = json.loads(item.removeprefix(b"data:")) if b"[DONE]" not in item else {}
        for choice in raw.get("choices", raw.get("candidates", ())):
            choice[field] = choice.get(field) or written
        events.append((b"data: %s\n\n" % json.dumps(raw).encode()) if raw else item)
    model = wire.MODEL("m", transport=InProcessTransport(lambda _: HttpResponse(events)), api_key="k")
    assert (await model.infer(QUESTION, Listener().watch)).message.content == said().content
    end = next(index for index, item in enumerate(events) if written.encode() not in item)
    del events[end:]
    with pytest.raises(TransportError, match="ended before it was complete"):
        await model.infer(QUESTION, Listener().watch)
