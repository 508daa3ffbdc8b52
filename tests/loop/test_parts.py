"""Parts of messages that a model cannot be sent: a tool's are told in words, the user's end the turn."""

import pytest

from treadle import Agent, Fault, ScriptedModel, StopReason, tool
from treadle.core.errors import UnsupportedPartError
from treadle.core.types import Artifact, Completion, Message, Request, Role
from treadle.journal.memory import MemoryJournal
from treadle.models import call
from treadle.models.protocol import Watch
from treadle.tools.protocol import Attachment, ToolOutput


class Blind(ScriptedModel):
    """A model that can be sent audio, but no images."""

    def check_part(self, part: Artifact) -> None:
        if part.kind == "image":
            raise UnsupportedPartError("no images")

    async def infer(self, request: Request, watch: Watch) -> Completion:
        for message in request.messages:
            for part in message.parts:
                self.check_part(part)
        return await super().infer(request, watch)


class Silent(Blind):
    """A model that does not say in advance what it can be sent."""

    check_part = None  # type: ignore[assignment]

    async def infer(self, request: Request, watch: Watch) -> Completion:
        if any(message.parts for message in request.messages):
            raise UnsupportedPartError("no parts")
        return await ScriptedModel.infer(self, request, watch)


@tool(effect="pure")
def look() -> ToolOutput:
    """Return a picture and a sound."""
    picture = Attachment("image", b"\x89PNG", "image/png", name="a.png")
    return ToolOutput("two things", attachments=(picture, Attachment("audio", b"RIFF", "audio/wav")))


@pytest.mark.parametrize("kind", [Blind, Silent])
async def test_a_model_is_told_of_a_picture_that_it_cannot_be_shown(kind: type[Blind]) -> None:
    model = kind([[call("look")], [call("look")], "done"])
    run = await Agent(model, tools=[look], journal=MemoryJournal()).run("go")
    assert (run.stop_reason, run.output) == (StopReason.COMPLETED, "done")
    asked = list(model.requests[-1].messages)
    told = [message for message in asked if message.role is Role.TOOL]
    assert len(told) == 2
    for message in told:
        assert message.content.startswith("two things\n[image 'a.png' (image/png) cannot be shown to you]")
        assert [part.kind for part in message.parts] == (["audio"] if kind is Blind else [])
    kept = [message for message in run.messages if message.role is Role.TOOL]
    assert [[part.kind for part in message.parts] for message in kept] == [["image", "audio"]] * 2


async def test_a_picture_of_the_user_that_cannot_be_sent_ends_the_turn() -> None:
    model = Blind(["done"])
    part = Artifact("image", mime_type="image/png", data="iVBORw==")
    run = await Agent(model, journal=MemoryJournal()).run("go", attach=[part])
    assert (run.stop_reason, run.fault) == (StopReason.ERROR, Fault.USER)
    assert run.messages[0] == Message(Role.USER, "go", parts=(part,))
