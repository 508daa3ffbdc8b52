"""Parts of messages: made from content, read again, and named by the events that hold them."""

import hashlib

import pytest

from treadle import Agent, ScriptedModel
from treadle.core import events as e
from treadle.core.calls import to_message
from treadle.core.errors import ConfigError
from treadle.core.log import Log
from treadle.core.parts import (
    MAX_INLINE_BYTES,
    base64_of,
    content_of,
    describe,
    digests_of_parts,
    kind_of,
    make_part,
)
from treadle.core.policy import Policy
from treadle.core.state import fold
from treadle.core.types import (
    Artifact,
    Completion,
    Effect,
    FinishReason,
    Json,
    Message,
    Role,
    ToolCall,
    ToolResult,
    ToolSpec,
)
from treadle.journal.jsonl import export_run, import_lines
from treadle.journal.memory import MemoryJournal
from treadle.tools.protocol import Attachment, ToolOutput

BIG = bytes(range(256)) * 32
SMALL = b"\x89PNG"


@pytest.mark.parametrize(
    ("mime_type", "kind"),
    [
        ("image/png", "image"),
        ("audio/wav", "audio"),
        ("application/pdf", "document"),
        ("text/csv", "text"),
        ("application/json; charset=utf-8", "text"),
        ("video/mp4", "document"),
    ],
)
def test_the_kind_follows_the_mime_type(mime_type: str, kind: str) -> None:
    assert kind_of(mime_type) == kind


def test_small_content_is_inline_and_large_content_is_for_the_store() -> None:
    part, blobs = make_part(SMALL, "image/png", name="a.png")
    assert (part.data, blobs) == ("iVBORw==", {})
    assert content_of(part, {}) == SMALL
    assert describe(part) == "image 'a.png' (image/png)"
    edge, blobs = make_part(bytes(MAX_INLINE_BYTES), "image/png")
    assert edge.data is not None
    assert not blobs
    part, blobs = make_part(BIG, "image/png")
    assert part.data is None
    assert part.digest == hashlib.sha256(BIG).hexdigest()
    assert blobs == {part.digest: BIG}
    assert content_of(part, blobs) == BIG
    assert len(base64_of(part, blobs)) == 10924


def test_content_that_is_missing_or_damaged_is_told() -> None:
    part, _ = make_part(BIG, "audio/wav", name="b.wav")
    with pytest.raises(ConfigError, match=r"the content of audio 'b.wav' \(audio/wav\) is missing"):
        content_of(part, {})
    with pytest.raises(ConfigError, match="not base64"):
        content_of(Artifact("image", data="%"), {})


def test_the_model_is_shown_what_a_tool_result_came_with() -> None:
    image = Artifact("image", "d1", 3, "image/png")
    artifacts = (
        Artifact("text", "d0", 9, "text/plain"),
        image,
        Artifact("structured", "d2"),
        Artifact("link", uri="https://example.org"),
        Artifact("resource", "d3", 3, "application/pdf"),
        Artifact("resource", "d4", 3, "application/zip"),
    )
    message = to_message(ToolResult("c", "t", "text", artifacts=artifacts))
    assert message.parts == (image, Artifact("document", "d3", 3, "application/pdf"))
    assert to_message(ToolResult("c", "t", "text")).parts == ()


def test_events_name_the_contents_of_their_parts() -> None:
    kept = Artifact("image", "d1", 3, "image/png")
    inline, _ = make_part(SMALL, "image/png")
    message = Message(Role.USER, "look", parts=(kept, inline))
    completion = Completion(Message(Role.ASSISTANT, "", parts=(kept,)), FinishReason.STOP)
    for body in (
        e.TurnStarted(at=1.0, turn=1, message=message),
        e.MessageInjected(at=1.0, message=message),
        e.ContextCompacted(at=1.0, messages=1, replacement=(message,)),
        e.InferenceCompleted(at=1.0, step=1, completion=completion),
        e.ToolCompleted(at=1.0, step=1, result=ToolResult("c", "t", "", artifacts=(kept,))),
    ):
        assert e.digests_of(body) == ("d1",)
        assert e.decode_body(e.encode_body(body)) == body
    assert list(digests_of_parts(Log([message, message]))) == ["d1", "d1"]


async def test_the_contents_of_parts_travel_with_an_exported_run() -> None:
    part, blobs = make_part(BIG, "image/png")
    inline, _ = make_part(SMALL, "image/png")
    bodies = [
        e.RunStarted(at=1.0, version=e.VERSION, policy=Policy()),
        e.TurnStarted(at=1.0, turn=1, message=Message(Role.USER, "look", parts=(part, inline))),
    ]
    first, second = MemoryJournal(), MemoryJournal()
    writer = first.create("r")
    writer.append_events([e.Event("r", seq, body) for seq, body in enumerate(bodies, 1)], blobs)
    await writer.sync()
    await writer.release()
    lines = list(export_run(first, "r"))
    await import_lines(second, lines)
    assert list(export_run(second, "r")) == lines
    assert part.digest is not None
    assert second.read_blob(part.digest) == BIG
    state = fold([event.body for event in second.read("r")])
    assert state.messages[0].parts == (part, inline)


class Camera:
    """A tool whose result comes with an image."""

    spec = ToolSpec("look", "Look.", {"type": "object"}, Effect.PURE)

    def find_fault(self, arguments: Json) -> str | None:
        return None

    async def call(self, arguments: dict[str, Json], context: object) -> ToolOutput:
        return ToolOutput("[image]", attachments=(Attachment("image", SMALL, "image/png"),))


async def test_an_image_of_a_tool_is_in_the_next_request() -> None:
    model = ScriptedModel([[ToolCall("c", "look", "{}")], "seen"])
    run = await Agent(model, tools=[Camera()], journal="memory:").run("look")
    assert run.output == "seen"
    assert [part.kind for part in model.requests[1].messages[-1].parts] == ["image"]


@pytest.mark.parametrize("arguments", ['{"a": ', '{"a": "\ud800"}', "[" * 100_000])
def test_arguments_that_cannot_be_decoded(arguments: str) -> None:
    assert ToolCall("1", "add", arguments).parsed_or("nothing") == "nothing"
