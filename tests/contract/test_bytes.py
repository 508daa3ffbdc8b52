"""The contract of every dialect for the bytes of answers: what is plain is read, however it is packed and cut."""

import gzip
import json
import zlib

import pytest
from tests.contract.test_dialect import QUESTION, WIRES, connect, encode
from tests.models.answers import Listener
from tests.models.server import End, Reply, serve

from treadle import Agent
from treadle.core.events import ReasoningDelta, TextDelta, ToolCallDelta
from treadle.core.types import FinishReason, Message, Role, StopReason
from treadle.models import Watch

BOM = b"\xef\xbb\xbf"
TEXT = "Sunny — ü 🌞."
CONTENT_TYPES = (
    "text/plain",
    "application/x-ndjson",
    "application/json",
    "application/json; charset=utf-8",
    "text/event-stream; charset=UTF-8",
    "text/html",
    "application/octet-stream",
    "",
)


@pytest.fixture(params=WIRES)
def wire(request):
    return WIRES[request.param]


def is_lines(wire):
    return wire.CONTENT_TYPE == "application/x-ndjson"


def good(wire):
    return wire.answer(Message(Role.ASSISTANT, TEXT))


def events(wire):
    """Return the data of each event of a good stream."""
    found = [event.strip() for event in wire.events(good(wire))]
    return found if is_lines(wire) else [event.partition(b"data: ")[2] for event in found]


def packed(wire):
    """Yield the name of each way to send an answer, and the bytes of its body."""
    whole = encode(good(wire))
    yield "whole", whole
    yield "indented", json.dumps(json.loads(whole), indent=2).encode()
    yield (
        "indented, with carriage returns",
        json.dumps(json.loads(whole), indent=2).replace("\n", "\r\n").encode(),
    )
    yield "escaped", json.dumps(json.loads(whole)).encode()
    yield "whole, behind blanks", b"\r\n  " + whole + b"\r\n"
    stream = b"".join(wire.events(good(wire)))
    yield "a stream", stream
    for name, end in (("\\n", b"\n"), ("\\r", b"\r"), ("\\r\\n", b"\r\n")):
        yield f"lines with {name}", stream.replace(b"\r\n", b"\n").replace(b"\n", end)
    yield "behind empty lines", b"\n\r\n\n" + stream
    pieces = events(wire)
    yield "lines of JSON", b"".join(piece + b"\n" for piece in pieces)
    yield "lines of JSON, without the last line end", b"\n".join(pieces)
    if is_lines(wire):
        return
    mixed = [
        b"data: %s%s%s" % (piece, *[(b"\n", b"\r", b"\r\n")[(at + shift) % 3] for shift in (0, 0)])
        for at, piece in enumerate(pieces)
    ]
    yield "mixed line ends", b"".join(mixed)
    yield "without blanks", b"".join(b"data:%s\n\n" % piece for piece in pieces)
    yield "with blanks", b"".join(b"data:  %s \n\n" % piece for piece in pieces)
    yield "with all fields", b"".join(b"event: x\nid: 1\nretry: 5\ndata: %s\n\n" % piece for piece in pieces)
    yield (
        "with comments",
        b": hello\n\n" + b"".join(b": ping\n\ndata: %s\n\n:\n\n" % piece for piece in pieces),
    )
    yield "with empty events", b"".join(b"data:\n\ndata: %s\n\ndata: \n\n" % piece for piece in pieces)
    yield "without empty lines", b"".join(b"data: %s\n" % piece for piece in pieces)
    yield "without the last line end", b"\n\n".join(b"data: %s" % piece for piece in pieces)
    yield (
        "in data of several lines",
        b"".join(b"data: %s\n\n" % piece.replace(b', "', b',\ndata: "', 1) for piece in pieces),
    )
    yield "a list", b"[" + b",\n".join(piece for piece in pieces if piece != b"[DONE]") + b"]"
    if pieces[-1] == b"[DONE]":
        for mark in (b"[DONE] ", b" [DONE]", b"[DONE]\t"):
            marked = b"".join(b"data: %s\n\n" % piece for piece in [*pieces[:-1], mark])
            yield f"with {mark!r}", marked


async def ask(wire, replies, *, is_streamed):
    """Return the completion and the joined text of the deltas, for each of the replies."""
    found = []
    async with serve(replies) as server:
        model = connect(wire, server)
        for _ in replies:
            listener = Listener()
            completion = await model.infer(QUESTION, listener.watch if is_streamed else Watch())
            found.append((completion, "".join(d.text for d in listener.deltas if isinstance(d, TextDelta))))
    return found


def check(found, names, *, is_streamed, text=TEXT):
    """Check that all completions say `text`, and are those of an answer that is whole."""
    for (completion, told), name in zip(found, names, strict=True):
        assert completion.message.content == text, name
        assert completion.finish_reason is FinishReason.STOP, name
        assert completion.usage == found[0][0].usage, name
        assert told == (text if is_streamed else ""), name


STREAMED = pytest.mark.parametrize("is_streamed", [False, True], ids=["whole", "streamed"])


@STREAMED
async def test_every_packing_is_read_whatever_was_asked_for(wire, is_streamed):
    table = {
        f"{name}{more}": begin + body
        for name, body in packed(wire)
        for more, begin in (("", b""), (" behind a mark", BOM))
    }
    head = {"content-type": "text/plain"}
    replies = [Reply(body, headers=head) for body in table.values()]
    check(await ask(wire, replies, is_streamed=is_streamed), table, is_streamed=is_streamed)


@STREAMED
async def test_the_content_type_and_any_status_of_success_make_no_difference(wire, is_streamed):
    bodies = [encode(good(wire)), b"".join(wire.events(good(wire)))]
    replies = [
        Reply(body, status=status, headers={"content-type": kind})
        for body in bodies
        for kind in CONTENT_TYPES
        for status in (200, 201, 203)
    ]
    found = await ask(wire, replies, is_streamed=is_streamed)
    check(found, [(reply.status, reply.headers) for reply in replies], is_streamed=is_streamed)


@pytest.mark.parametrize("step", [1, 2, 3, 7])
async def test_where_the_bytes_are_cut_makes_no_difference(wire, step):
    table = {
        name: BOM + body
        for name, body in packed(wire)
        if step > 2 or name in ("a stream", "whole", "mixed line ends", "lines with \\r\\n", "indented")
    }
    replies = [
        Reply(pieces=[body[at : at + step] for at in range(0, len(body), step)]) for body in table.values()
    ]
    check(await ask(wire, replies, is_streamed=True), table, is_streamed=True)


def raw_replies(body):
    """Yield the name of each way to frame a body in HTTP, and its bytes."""
    ok = b"HTTP/1.1 200 OK\r\n"
    chunked = b"".join(b"%x\r\n%b\r\n" % (len(piece), piece) for piece in (body[:9], body[9:]))
    yield "without a length", ok + b"connection: close\r\n\r\n" + body
    yield "HTTP/1.0", b"HTTP/1.0 200 OK\r\n\r\n" + body
    yield (
        "trailers",
        ok + b"transfer-encoding: chunked\r\ntrailer: x\r\n\r\n" + chunked + b"0\r\nx: y\r\nz: 1\r\n\r\n",
    )
    yield (
        "an extension",
        ok
        + b"transfer-encoding: chunked\r\n\r\n"
        + chunked.replace(b"9\r\n", b"9;a=b\r\n", 1)
        + b"0\r\n\r\n",
    )
    deflate = zlib.compressobj(wbits=-15)
    for name, data in (
        ("gzip", gzip.compress(body)),
        ("x-gzip", gzip.compress(body[:20]) + gzip.compress(body[20:])),
        ("deflate", zlib.compress(body)),
        ("Deflate", deflate.compress(body) + deflate.flush()),
        ("identity", body),
    ):
        yield (
            name,
            ok + b"content-encoding: %b\r\ncontent-length: %d\r\n\r\n" % (name.encode(), len(data)) + data,
        )


@STREAMED
async def test_every_framing_is_read(wire, is_streamed):
    body = b"".join(wire.events(good(wire))) if is_streamed else encode(good(wire))
    table = dict(raw_replies(body))
    replies = [Reply(raw=raw, end=End.CLOSE) for raw in table.values()]
    for name, reply in zip(table, replies, strict=True):
        check(await ask(wire, [reply], is_streamed=is_streamed), [name], is_streamed=is_streamed)


HALVES = {
    # The text of the pieces as JSON, and what they say.
    "split": (rb"ab\ud83d", rb"\ude00cd", "ab😀cd"),
    "split in capitals": (rb"ab\uD83D", rb"\uDE00cd", "ab😀cd"),
    "a first half alone": (rb"ab\ud83d", rb"cd", "ab\ufffdcd"),
    "a second half alone": (rb"ab", rb"\ude00cd", "ab\ufffdcd"),
    "a first half at the end": (rb"ab", rb"cd\ud83d", "abcd\ufffd"),
    "halves in the wrong order": (rb"ab\ude00", rb"\ud83dcd", "ab\ufffd\ufffdcd"),
    "only a half, and only the other": (rb"\ud83d", rb"\ude00", "😀"),
    "a half within": (rb"a\ud83db", rb"cd", "a\ufffdbcd"),
    "a pair and a half": (rb"\ud83d\ude00\ud83d", rb"\ude00", "😀😀"),
    "an escaped backslash": (rb"a\\ud83d", rb"cd", r"a\ud83dcd"),
    "bytes that are not UTF-8": (b"a\xff", b"\xc3cd", "a\ufffd\ufffdcd"),
}
FIRST, SECOND = "first", "other"
"""Two pieces of a text, as the servers of the tests cut it, to be replaced by the halves."""


@pytest.mark.parametrize("name", HALVES)
async def test_halves_of_characters_are_joined_or_replaced(wire, name):
    one, two, text = HALVES[name]
    raw = wire.answer(Message(Role.ASSISTANT, FIRST + SECOND))
    stream = b"".join(wire.events(raw))
    # A message that holds the whole text again, as the Responses API ends with, holds the halves too.
    for old, new in ((FIRST + SECOND, one + two), (FIRST, one), (SECOND, two)):
        stream = stream.replace(b'"%b"' % old.encode(), b'"%b"' % new)
    whole = encode(raw).replace((FIRST + SECOND).encode(), one + two)
    for is_streamed, body in ((True, stream), (False, whole), (False, stream), (True, whole)):
        found = await ask(wire, [Reply(body)], is_streamed=is_streamed)
        check(found, [name], is_streamed=is_streamed, text=text)


async def test_what_is_kept_and_sent_back_is_valid(wire):
    stream = b"".join(wire.events(wire.answer(Message(Role.ASSISTANT, FIRST + SECOND))))
    stream = stream.replace(FIRST.encode(), rb"ab\ud83d")
    async with serve([Reply(stream), Reply(encode(good(wire)))]) as server:
        async with Agent(connect(wire, server), journal="memory:").session() as session:
            turn = await session.send("Hello?", on_event=lambda _: None)
            assert turn.stop_reason is StopReason.COMPLETED, turn.error
            again = await session.send("And now?")
            assert again.stop_reason is StopReason.COMPLETED, again.error
        assert "ab\ufffdother" in server.requests[1].body.decode()
        for event in turn.events:
            event.to_json().decode()


async def test_halves_in_reasoning_and_arguments_are_joined():
    wire = WIRES["openai_chat"]
    deltas = [
        b'{"reasoning_content": "Hm \\ud83d"}',
        b'{"reasoning_content": "\\ude00"}',
        b'{"tool_calls": [{"index": 0, "id": "c", "function": {"name": "f", "arguments": "{\\"a\\": "}}]}',
        b'{"tool_calls": [{"index": 0, "function": {"arguments": "\\"\\ud83d"}}]}',
        b'{"tool_calls": [{"index": 1, "id": "d", "function": {"name": "g", "arguments": "{}"}}]}',
        b'{"tool_calls": [{"index": 0, "function": {"arguments": "\\ude00\\"}"}}]}',
    ]
    stream = b"".join(b'data: {"choices": [{"delta": %b}]}\n\n' % delta for delta in deltas)
    stream += b'data: {"choices": [{"delta": {}, "finish_reason": "tool_calls"}]}\n\ndata: [DONE]\n\n'
    listener = Listener()
    async with serve([Reply(stream)]) as server:
        completion = await connect(wire, server).infer(QUESTION, listener.watch)
    assert completion.message.reasoning == "Hm 😀"
    assert [call.arguments for call in completion.message.tool_calls] == ['{"a": "😀"}', "{}"]
    assert "".join(d.text for d in listener.deltas if isinstance(d, ReasoningDelta)) == "Hm 😀"
    pieces = [d.arguments for d in listener.deltas if isinstance(d, ToolCallDelta) and d.index == 0]
    assert "".join(pieces) == '{"a": "😀"}'
