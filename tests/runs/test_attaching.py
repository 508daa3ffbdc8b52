"""Files that go to the model with a message."""

from pathlib import Path

import pytest

from treadle import Agent, ConfigError, Run, ScriptedModel, ToolOutput, tool
from treadle.core.parts import MAX_INLINE_BYTES, content_of
from treadle.core.types import Request
from treadle.journal.memory import MemoryJournal
from treadle.models import call
from treadle.tools.protocol import Attachment

LARGE = b"\x89PNG" + bytes(MAX_INLINE_BYTES)


def sees(request: Request) -> list[bytes]:
    """Return the contents of all parts that a request has."""
    return [content_of(part, request.contents) for message in request.messages for part in message.parts]


async def test_content_in_memory_is_attached() -> None:
    seen: list[list[bytes]] = []

    def answer(request: Request) -> str:
        seen.append(sees(request))
        return "I see"

    agent = Agent(ScriptedModel(answer), journal=MemoryJournal())
    attach = [Attachment("image", LARGE, "image/png"), Attachment("text", b"notes", name="a.txt")]
    run = await agent.run("Look.", attach=attach)
    assert seen == [[LARGE, b"notes"]]
    large, notes = run.messages[0].parts
    assert (large.kind, large.mime_type, large.data, notes.mime_type) == (
        "image",
        "image/png",
        None,
        "text/plain",
    )
    assert large.digest is not None
    assert run.read_artifact(large.digest) == LARGE
    for wrong in (
        Attachment("link", uri="http://x"),
        Attachment("image", b"x"),
        Attachment("image", b"", "a/b"),
    ):
        with pytest.raises(ConfigError, match="needs content, a mime_type, and the kind"):
            await agent.run("Look.", attach=[wrong])


async def test_attached_files_reach_the_model_and_the_journal(tmp_path: Path) -> None:
    (tmp_path / "large.png").write_bytes(LARGE)
    (tmp_path / "notes").write_text("some notes")
    seen: list[list[bytes]] = []

    def answer(request: Request) -> str:
        seen.append(sees(request))
        return "I see"

    journal = MemoryJournal()
    agent = Agent(ScriptedModel(answer), journal=journal)
    run = await agent.run("Look.", attach=[tmp_path / "large.png", str(tmp_path / "notes")])
    assert run.output == "I see", run.error
    assert seen == [[LARGE, b"some notes"]]
    large, notes = run.messages[0].parts
    assert (large.kind, large.mime_type, large.name, large.data) == ("image", "image/png", "large.png", None)
    assert (notes.kind, notes.mime_type) == ("text", "text/plain")
    assert large.digest is not None
    assert run.read_artifact(large.digest) == LARGE
    fork = await agent.fork(run.run_id, text="Again.")
    assert seen[1] == [LARGE, b"some notes"]
    assert fork.output == "I see"


async def test_each_turn_of_a_session_may_have_its_own(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(LARGE)
    seen: list[int] = []

    def answer(request: Request) -> str:
        seen.append(len(sees(request)))
        return "yes"

    async with Agent(ScriptedModel(answer), journal=MemoryJournal()).session() as session:
        await session.send("one")
        await session.send("two", attach=[tmp_path / "a.png"])
    assert seen == [0, 1]


async def test_an_image_that_a_tool_gives_reaches_the_model() -> None:
    seen: list[list[bytes]] = []

    @tool(effect="pure")
    async def shot() -> ToolOutput:
        """Take a picture."""
        return ToolOutput("a picture", attachments=(Attachment("image", LARGE, "image/png"),))

    def answer(request: Request) -> object:
        seen.append(sees(request))
        return "done" if seen[-1] else [call("shot")]

    journal = MemoryJournal()
    run: Run = await Agent(ScriptedModel(answer), tools=[shot], journal=journal).run("go")  # type: ignore[arg-type]
    assert run.output == "done"
    assert seen == [[], [LARGE]]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [("absent.png", None, "No such file"), ("what", b"\xff\xfe\x00", "does not tell its type")],
)
async def test_what_cannot_be_attached_is_told(
    tmp_path: Path, name: str, content: bytes | None, words: str
) -> None:
    if content is not None:
        (tmp_path / name).write_bytes(content)
    journal = MemoryJournal()
    with pytest.raises(ConfigError, match=words):
        await Agent(ScriptedModel(["x"]), journal=journal).run("go", attach=[tmp_path / name])
    assert journal.runs() == []
