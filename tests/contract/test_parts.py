"""What every dialect does with images, audio, documents and text files: in messages, results and answers."""

import base64
import importlib
import json
import pkgutil

import pytest
import tests.models.wire as wires
from msgspec.structs import replace
from tests.contract.test_dialect import QUESTION, SPEC, connect, said, streamed, whole
from tests.models.answers import Listener
from tests.models.server import Reply, serve

from treadle.core.errors import UnsupportedPartError
from treadle.core.events import InferenceCompleted, decode_body, encode_body
from treadle.core.log import Log
from treadle.core.parts import content_of, make_part
from treadle.core.types import Artifact, Message, Request, Role, ToolCall
from treadle.models import FallbackModel, FormatModel, Watch
from treadle.models.protocol import check_parts

pytestmark = pytest.mark.xdist_group("vendors")
WIRES = {
    item.name: importlib.import_module(f"tests.models.wire.{item.name}")
    for item in pkgutil.iter_modules(wires.__path__)
}
ACCEPTED = {
    "anthropic": {"image", "document", "text"},
    "completions": {"text"},
    "gemini": {"image", "audio", "document", "text"},
    "ollama": {"image", "text"},
    "openai_chat": {"image", "audio", "document", "text"},
    "openai_responses": {"image", "document", "text"},
}
PNG = b"\x89PNG" + bytes(range(64))
"""Small enough to be kept inline."""
BIG_PNG = b"\x89PNG" + bytes(range(256)) * 40
SAMPLES = {
    "image": (PNG, "image/png", "a.png"),
    "big image": (BIG_PNG, "image/png", "b.png"),
    "audio": (b"RIFF" + bytes(40), "audio/wav", "c.wav"),
    "document": (b"%PDF-1.7" + bytes(40), "application/pdf", "d.pdf"),
    "text": ("Grüße\n".encode(), "text/markdown", "e.md"),
}
CALLS = (ToolCall("call_1", "look_up", '{"word":"a"}'), ToolCall("call_2", "look_up", '{"word":"b"}'))


@pytest.fixture(params=WIRES)
def wire(request):
    return WIRES[request.param]


@pytest.fixture
def speaking(wire):
    if not getattr(wire, "HAS_CALLS", True):
        pytest.skip("it has no tool calls")
    return wire


def accepted(wire):
    return ACCEPTED[wire.MODEL.DIALECT]


def part_of(name):
    content, mime_type, file_name = SAMPLES[name]
    return make_part(content, mime_type, name=file_name)


def elements(body):
    """The messages, items or contents of a request."""
    return next(body[key] for key in ("messages", "input", "contents", "prompt") if key in body)


def strings(value):
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from strings(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings(item)


def places(body, content):
    """The positions of the elements that hold a content."""
    encoded = base64.b64encode(content).decode()
    return [
        index
        for index, element in enumerate(elements(body))
        if any(text == encoded or text.endswith(f";base64,{encoded}") for text in strings(element))
    ]


async def send(wire, messages, contents, *, is_streamed=False, tools=(), is_checked=True):
    """Return the body of a request, checked with the types of the vendor's package, which takes long to import."""
    make = streamed if is_streamed else whole
    async with serve([make(wire, said())]) as server:
        request = Request(Log(messages), tools, contents=contents)
        await connect(wire, server).infer(request, Listener().watch if is_streamed else Watch())
        body = server.requests[0].json()
    if is_checked and hasattr(wire, "check"):
        wire.check(body)
    return body


def test_every_dialect_is_here():
    assert set(ACCEPTED) == set(WIRES)


@pytest.mark.parametrize("name", SAMPLES)
@pytest.mark.parametrize("is_streamed", [False, True])
async def test_what_a_user_attaches_is_sent_or_refused(wire, name, is_streamed):
    content = SAMPLES[name][0]
    part, contents = part_of(name)
    messages = [Message(Role.SYSTEM, "Be brief."), Message(Role.USER, "Look at this.", parts=(part,))]
    if part.kind not in accepted(wire):
        async with serve([whole(wire, said())]) as server:
            model = connect(wire, server)
            with pytest.raises(UnsupportedPartError) as caught:
                await model.infer(Request(Log(messages), contents=contents), Watch())
            assert not server.requests
        for words in (f"the dialect {wire.MODEL.DIALECT}", repr(SAMPLES[name][2]), "leave the part out"):
            assert words in str(caught.value)
        with pytest.raises(UnsupportedPartError):
            check_parts(model, [part])
        return
    body = await send(wire, messages, contents, is_streamed=is_streamed)
    assert any("Look at this." in text for text in strings(elements(body)))
    if part.kind == "text":
        assert any("Grüße\n" in text for text in strings(elements(body)))
        assert any("e.md" in text for text in strings(elements(body)))
    else:
        assert places(body, content) == [len(elements(body)) - 1]


async def test_a_part_alone_is_a_message(wire):
    name = "image" if "image" in accepted(wire) else "text"
    part, contents = part_of(name)
    body = await send(wire, [Message(Role.USER, parts=(part,))], contents)
    # An empty text beside an image is an error to most servers; Ollama's messages always have a text.
    assert "" not in list(strings(elements(body))) or wire.MODEL.DIALECT == "ollama"


WHERE = {"openai_chat": [4], "ollama": [4], "anthropic": [2], "gemini": [3], "openai_responses": [4]}
"""Where the image of the first of two results stands: in the result, or in a message after both.

The items of Responses are: user, text, call, call, result, result."""


@pytest.mark.parametrize("name", ["image", "big image"])
async def test_an_image_of_a_tool_reaches_the_model(speaking, name):
    content = SAMPLES[name][0]
    part, contents = part_of(name)
    messages = [
        Message(Role.USER, "Look."),
        Message(Role.ASSISTANT, "I look.", CALLS),
        Message(Role.TOOL, "[image]", call_id="call_1", name="look_up", parts=(part,)),
        Message(Role.TOOL, "nothing", call_id="call_2", name="look_up"),
    ]
    dialect = speaking.MODEL.DIALECT
    body = await send(speaking, messages, contents, tools=(SPEC,))
    assert places(body, content) == WHERE[dialect]
    # Nothing comes between the results of a step.
    assert len(elements(body)) == WHERE[dialect][0] + (2 if dialect == "openai_responses" else 1)
    longer = [*messages, Message(Role.ASSISTANT, "Seen."), Message(Role.USER, "And?")]
    body = await send(speaking, longer, contents, tools=(SPEC,))
    assert places(body, content) == WHERE[dialect]
    if dialect in ("openai_chat", "ollama"):
        roles = ["user", "assistant", "tool", "tool", "user", "assistant", "user"]
        assert [item["role"] for item in body["messages"]] == roles
        assert any("the result of look_up, call call_1" in text for text in strings(body["messages"][4]))


async def test_gemini_3_takes_images_within_results():
    part, contents = part_of("image")
    wire = WIRES["gemini"]
    messages = [
        Message(Role.USER, "Look."),
        Message(Role.ASSISTANT, "", CALLS[:1]),
        Message(Role.TOOL, "[image]", call_id="call_1", name="look_up", parts=(part,)),
    ]
    async with serve([whole(wire, said())]) as server:
        model = wire.MODEL("gemini-3-pro", base_url=server.base_url)
        await model.infer(Request(Log(messages), (SPEC,), contents=contents), Watch())
        body = server.requests[0].json()
    wire.check(body)
    (result,) = body["contents"][2]["parts"]
    assert result["functionResponse"]["parts"][0]["inlineData"]["mimeType"] == "image/png"


async def test_what_a_tool_gives_and_the_dialect_cannot_send_is_refused(speaking):
    if "audio" in accepted(speaking):
        pytest.skip("it accepts all")
    part, contents = part_of("audio")
    messages = [
        Message(Role.USER, "Listen."),
        Message(Role.ASSISTANT, "", CALLS[:1]),
        Message(Role.TOOL, "[audio]", call_id="call_1", name="look_up", parts=(part,)),
    ]
    async with serve([whole(speaking, said())]) as server:
        with pytest.raises(UnsupportedPartError, match=r"cannot send audio 'c.wav' \(audio/wav\)"):
            await connect(speaking, server).infer(Request(Log(messages), (SPEC,), contents=contents), Watch())
        assert not server.requests


class Looking(dict):
    """Contents that count how often they are looked up."""

    lookups = 0

    def __getitem__(self, key):
        self.lookups += 1
        return super().__getitem__(key)


async def test_a_content_is_looked_up_once_per_history(wire):
    name = "big image" if "image" in accepted(wire) else "text"
    part, contents = part_of(name)
    if name == "text":
        part, contents = make_part(b"text " * 2000, "text/plain")
    contents = Looking(contents)
    log = Log([Message(Role.USER, "Look.", parts=(part,))])
    async with serve(lambda _: whole(wire, said())) as server:
        model = connect(wire, server)
        for _ in range(3):
            completion = await model.infer(Request(log, contents=contents), Watch())
            log = log.extend([completion.message, Message(Role.USER, "Again.")])
        first = elements(server.requests[0].json())
        assert elements(server.requests[2].json())[: len(first)] == first or isinstance(first, str)
    assert contents.lookups == 1


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_images_in_answers_are_parts(wire, is_streamed):
    if not hasattr(wire, "with_image"):
        pytest.skip("its models answer with text alone")
    raw = wire.with_image(wire.answer(said()), base64.b64encode(BIG_PNG).decode())
    make = streamed if is_streamed else whole
    async with serve([make(Told(wire, raw), said()), whole(wire, said())]) as server:
        model = connect(wire, server)
        completion = await model.infer(QUESTION, Listener().watch if is_streamed else Watch())
        (part,) = completion.message.parts
        assert completion.message.content == said().content
        assert (part.kind, part.mime_type, part.data) == ("image", "image/png", None)
        assert content_of(part, completion.contents) == BIG_PNG
        log = Log([*QUESTION.messages, completion.message, Message(Role.USER, "Make it blue.")])
        await model.infer(Request(log, contents=completion.contents), Watch())
        body = server.requests[1].json()
    wire.check(body)
    assert len(places(body, BIG_PNG)) == 1
    # Neither in the opaque part nor anywhere else does the event hold the content.
    kept = InferenceCompleted(at=0.0, step=1, completion=replace(completion, contents=None))
    assert base64.b64encode(BIG_PNG) not in encode_body(kept)
    assert decode_body(encode_body(kept)) == kept


class Told:
    """A wire whose answer is given."""

    def __init__(self, wire, raw):
        self.answer = lambda message: raw
        self.events = wire.events
        self.CONTENT_TYPE = wire.CONTENT_TYPE


async def test_an_image_of_another_models_answer_is_sent_too(wire):
    if "image" not in accepted(wire):
        pytest.skip("it accepts no images")
    part, contents = part_of("image")
    messages = [
        Message(Role.USER, "Draw."),
        Message(Role.ASSISTANT, "Here.", parts=(part,)),
        Message(Role.USER, "Make it blue."),
    ]
    body = await send(wire, messages, contents)
    assert len(places(body, PNG)) == 1


@pytest.mark.parametrize("dialect", ["openai_chat", "anthropic", "gemini", "openai_responses"])
async def test_an_image_may_be_a_link(dialect):
    wire = WIRES[dialect]
    link = Artifact("image", mime_type="image/png", uri="https://example.org/a.png")
    body = await send(wire, [Message(Role.USER, "Look.", parts=(link,))], {})
    assert any(text == link.uri for text in strings(elements(body)))


@pytest.mark.parametrize(
    ("dialect", "kind"), [("ollama", "image"), ("openai_chat", "document"), ("openai_chat", "audio")]
)
async def test_a_link_that_the_api_cannot_take_is_refused(dialect, kind):
    link = Artifact(kind, mime_type="audio/wav", uri="https://example.org/a.wav", name="a.wav")
    with pytest.raises(
        UnsupportedPartError, match=rf"{dialect} cannot send {kind} 'a.wav'.* as a link: give its"
    ):
        await send(WIRES[dialect], [Message(Role.USER, "Look.", parts=(link,))], {})


async def test_a_type_that_the_api_does_not_know_is_refused():
    for dialect, mime_type, kind in (
        ("anthropic", "image/tiff", "image"),
        ("anthropic", "application/msword", "document"),
        ("openai_chat", "audio/flac", "audio"),
    ):
        wire = WIRES[dialect]
        part, _ = make_part(PNG, mime_type)
        assert part.kind == kind
        with pytest.raises(UnsupportedPartError, match=f"of {kind} parts it accepts only .*convert the part"):
            await send(wire, [Message(Role.USER, "Look.", parts=(part,))], {})


async def test_parts_pass_through_a_format():
    wire = WIRES["openai_chat"]
    image, contents = part_of("big image")
    messages = [
        Message(Role.USER, "Look.", parts=(image,)),
        Message(Role.ASSISTANT, "", CALLS),
        Message(Role.TOOL, "[image]", call_id="call_1", name="look_up", parts=(image,)),
        Message(Role.TOOL, "nothing", call_id="call_2", name="look_up"),
    ]
    async with serve([whole(wire, said())]) as server:
        model = FormatModel(connect(wire, server), "hermes")
        await model.infer(Request(Log(messages), (SPEC,), contents=contents), Watch())
        body = server.requests[0].json()
    assert places(body, BIG_PNG) == [1, 3]
    wire.check(body)


async def test_spoken_answers_of_chat_completions_are_audio():
    wire = WIRES["openai_chat"]
    sound = bytes(range(200)) * 50
    raw = wire.answer(said())
    encoded = base64.b64encode(sound).decode()
    audio = {"id": "audio_1", "expires_at": 9, "data": encoded, "transcript": "Sunny."}
    raw["choices"][0]["message"] |= {"content": None, "audio": audio}
    pieces = [
        {"id": "audio_1"},
        {"transcript": "Sun"},
        {"data": base64.b64encode(sound[:7]).decode()},
        {"transcript": "ny."},
        {"data": base64.b64encode(sound[7:]).decode()},
        {"expires_at": 9},
    ]
    chunks = [{"choices": [{"index": 0, "delta": {"audio": piece}}]} for piece in pieces]
    chunks.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    events = [b"data: %s\n\n" % json.dumps(chunk).encode() for chunk in chunks] + [b"data: [DONE]\n\n"]
    replies = [
        whole(Told(wire, raw), said()),
        Reply(headers={"content-type": "text/event-stream"}, pieces=events),
        whole(wire, said()),
    ]
    async with serve(replies) as server:
        model = connect(wire, server)
        first = await model.infer(QUESTION, Watch())
        listener = Listener()
        second = await model.infer(QUESTION, listener.watch)
        assert first.message == second.message
        assert first.message.content == "Sunny."
        (part,) = first.message.parts
        assert (part.kind, part.mime_type) == ("audio", "audio/wav")
        assert content_of(part, first.contents) == content_of(part, second.contents) == sound
        assert "".join(delta.text for delta in listener.deltas) == "Sunny."
        log = Log([*QUESTION.messages, first.message, Message(Role.USER, "Again?")])
        await model.infer(Request(log, contents=first.contents), Watch())
        body = server.requests[2].json()
    wire.check(body)
    # The server has its own audio.
    assert body["messages"][1]["audio"] == {"id": "audio_1"}
    assert len(body["messages"]) == 3


async def test_a_fallback_asks_the_next_model_if_the_first_cannot_be_sent_a_part():
    part, contents = part_of("big image")
    request = Request(Log([Message(Role.USER, "Look.", parts=(part,))]), contents=contents)
    text, chat = WIRES["completions"], WIRES["openai_chat"]
    async with serve([whole(chat, said()), whole(chat, said())]) as server:
        model = FallbackModel([connect(text, server), connect(chat, server)])
        check_parts(model, [part])
        for _ in range(2):
            assert (await model.infer(request, Watch())).message == said()
        assert len(server.requests) == 2
    with pytest.raises(UnsupportedPartError):
        check_parts(FallbackModel([connect(text, server)]), [part])
