"""No result of a tool brings a secret of this process to the model or into the journal."""

import json

import pytest

from treadle import Agent, RetryWithMessage, ScriptedModel, tool
from treadle.core import events as e
from treadle.core.texts.masking import forms_of
from treadle.journal.memory import MemoryJournal
from treadle.models import call
from treadle.tools.protocol import Attachment, ToolOutput

KEY = 'sk-"planted"-0123456789'
PASSWORD = "p@ss-0123/4567"


@tool(effect="pure")
async def answer() -> str:
    """Answer."""
    return f"Authorization: {KEY} for postgres"


@tool(effect="pure")
async def answer_long() -> str:
    """Answer at length."""
    return f"{KEY} {'words ' * 20_000} {KEY}"


@tool(effect="pure")
async def answer_parts() -> ToolOutput:
    """Answer in parts."""
    attachment = Attachment("document", f"key={KEY}".encode(), "text/plain", name="key.txt")
    return ToolOutput(json.dumps({"key": KEY}), structured={"key": [KEY]}, attachments=(attachment,))


@tool(effect="pure")
async def fail() -> str:
    """Fail."""
    raise ValueError(f"401 for postgres://app:{PASSWORD}@db/app")


@tool(effect="pure")
async def ask_again() -> str:
    """Ask for another call."""
    raise RetryWithMessage(f"{KEY} has expired.")


@pytest.mark.parametrize(
    "asked", [answer, answer_long, answer_parts, fail, ask_again], ids=lambda t: t.spec.name
)
async def test_a_secret_of_the_environment_stays_out(asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHOP_API_KEY", KEY)
    monkeypatch.setenv(
        "DATABASE_URL", f"postgres://app:{PASSWORD.replace('/', '%2F').replace('@', '%40')}@db/app"
    )
    monkeypatch.setenv("POSTGRES_PASSWORD", "postgres")
    model = ScriptedModel([[call(asked.spec.name)], "Done."])
    agent = Agent(model, tools=[asked], journal=MemoryJournal())
    run = await agent.run("Go.")
    events = agent.journal.read(run.run_id)
    written = "\n".join(event.to_json().decode() for event in events)
    [result] = [event.body.result for event in events if isinstance(event.body, e.ToolCompleted)]
    contents = [agent.journal.read_blob(part.digest).decode() for part in result.artifacts]
    shown = "\n".join([written, *contents, *map(str, model.requests[1].messages)])
    assert "***" in result.content
    assert bool(contents) == (asked in (answer_long, answer_parts))
    for secret in (KEY, PASSWORD):
        assert not [form for form in forms_of(secret) if form in shown]
    assert ("postgres" in result.content) == (asked in (answer, fail))  # an ordinary word stays
