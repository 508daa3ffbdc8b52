"""Runs of all kinds for the tests of the page: with errors, questions, approvals, sub-agents and hostile texts."""

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any

from tests.forks.process import FORKS, ROOT

from treadle import Agent, Run, ScriptedModel, open_journal, tool
from treadle.core.errors import ServerError
from treadle.core.policy import Policy
from treadle.core.types import Completion, FinishReason, Message, Role, ToolCall, Usage
from treadle.journal.protocol import Journal
from treadle.models import call

_END_OF_FIRST_STEP = 9
"""The number of the event that ends the first step of the tidy run."""
EVIL = "</script><script>throw 1</script><img src=http://127.0.0.1:9/x onerror=alert(1)>"


@tool(effect="pure")
def look(path: str) -> str:
    """Look at a path."""
    return f"{path}: 12 lines, the newest from 2026-03-01"


@tool(effect="once")
def send_mail(to: str, text: str) -> str:
    """Send a mail."""
    return f"sent to {to}"


@tool(effect="pure")
def fail(why: str) -> str:
    """Fail."""
    raise ValueError(why)


def answer(text: str, *calls: ToolCall, thought: str | None = None) -> Completion:
    """Return an answer with everything that a provider reports."""
    reason = FinishReason.TOOL_CALLS if calls else FinishReason.STOP
    message = Message(Role.ASSISTANT, text, calls, reasoning=thought)
    usage = Usage(1200, 48, cached_input_tokens=1024, reasoning_tokens=12 if thought else 0)
    return Completion(message, reason, usage, 0.0031, "scripted-2026-01")


async def make_tidy(journal: Journal) -> Run[Any]:
    """Return a run that writes files, fails once, and asks a sub-agent."""
    helper = Agent(ScriptedModel([[call("look", {"path": "notes"})], "Three notes are old."]), tools=[look])
    script = [
        answer(
            "I look first.",
            call("write_file", {"file_path": "notes/a.md", "content": "# Notes\n\nold\nkept\n"}),
            call("fail", {"why": "the disk is full"}),
            thought="The folder may be large, so I begin with what is asked.",
        ),
        answer("", call("edit_file", {"file_path": "notes/a.md", "old_text": "old", "new_text": "new"})),
        answer("", call("helper", {"task": "Which notes are old?"})),
        answer("The notes are tidy: one was changed, and three are old."),
    ]
    agent = Agent(
        ScriptedModel(script, name="scripted"),
        tools=["files", fail, helper.as_tool("helper", "Answers questions about notes.")],
        instructions="You keep a folder of notes in order.",
        journal=journal,
    )
    return await agent.run("Tidy the notes, and say what is old.", metadata={"customer": "acme"})


async def make_failed(journal: Journal) -> Run[Any]:
    """Return a run whose model fails for good."""
    agent = Agent(ScriptedModel([ServerError("the server is overloaded")]), journal=journal)
    return await agent.run("Say hello.")


async def make_asking(journal: Journal) -> Run[Any]:
    """Return a run that waits for an answer."""
    asked = call(
        "ask_user", {"question": "Which report?", "options": [{"label": "March"}, {"label": "April"}]}
    )
    agent = Agent(ScriptedModel([[asked], "I send March."]), tools=["ask"], journal=journal)
    return await agent.run("Send the report.")


async def make_approving(journal: Journal) -> Run[Any]:
    """Return a run with a call that waits for approval."""
    script: list[Any] = [[call("send_mail", {"to": "kim@example.org", "text": "The report"})], "Sent."]
    policy = Policy(approve={"send_mail": "ask"})
    agent = Agent(ScriptedModel(script), tools=[send_mail], policy=policy, journal=journal)
    return await agent.run("Mail the report to Kim.")


async def make_talk(journal: Journal, turns: int = 3) -> Run[Any]:
    """Return a session of several turns."""
    script = [f"Answer {number} is that it depends on the weather." for number in range(1, turns + 1)]
    agent = Agent(ScriptedModel(script), journal=journal)
    async with agent.session() as session:
        for number in range(1, turns + 1):
            run = await session.send(f"Question {number}: what do we do tomorrow?")
    return run


async def make_repaired(journal: Journal) -> Run[Any]:
    """Return a session of two turns, whose first answer was asked for again, and whose second reached a limit."""
    script = ["It is 41.", "It is 42.", [call("look", {"path": "notes"})], "It is written in the notes."]
    agent = Agent(ScriptedModel(script), tools=[look], policy=Policy(max_steps=1), journal=journal)
    async with agent.session() as session:
        await session.send("How much is it?")
        await session.send("The number 41 does not occur before.", is_own=True)
        return await session.send("Where is it written?")


async def make_hostile(journal: Journal, text: str = EVIL) -> Run[Any]:
    """Return a run with `text` wherever a model, a tool or a user can put it."""

    @tool(effect="pure")
    def say(value: str) -> str:
        """Say a value."""
        return text

    script = [
        answer(
            text,
            call("say", {"value": text}),
            call("write_file", {"file_path": "a.html", "content": text}),
            call("fail", {"why": text}),
            thought=text,
        ),
        answer(text, ToolCall("odd", text, text)),
        answer(text),
    ]
    agent = Agent(
        ScriptedModel(script, name=text[:40]), tools=["files", say, fail], instructions=text, journal=journal
    )
    return await agent.run(text, metadata={"title": text, "label": text})


async def make_long(journal: Journal, steps: int) -> Run[Any]:
    """Return a run of many steps, with four events each."""
    made = iter(range(steps))

    def reply(_: object) -> Completion:
        number = next(made, None)
        if number is None:
            return answer("All folders are read.")
        return answer(f"Folder {number} is next.", call("look", {"path": f"folder/{number}"}))

    policy = Policy(max_steps=steps + 1, max_tool_calls=None)
    agent = Agent(ScriptedModel(reply, keeps_requests=False), tools=[look], policy=policy, journal=journal)
    return await agent.run("Read all folders.")


async def fork_tidy(journal: Journal, run_id: str) -> Run[Any]:
    """Return a fork of the tidy run that ends otherwise after its first step."""
    agent = Agent(ScriptedModel([answer("I stop here.")]), tools=["files"], journal=journal)
    return await agent.fork(run_id, at=_END_OF_FIRST_STEP)


@tool(effect="once")
def kill_own_process() -> str:
    """Kill the process that drives the run."""
    os.kill(os.getpid(), signal.SIGKILL)
    return "never returned"


def make_interrupted(path: Path) -> str:
    """Return the id of a run in a journal, whose process was killed during a call."""
    assert FORKS.run("-m", __name__, str(path), cwd=ROOT).returncode == -signal.SIGKILL
    return "interrupted"


async def _drive_until_killed(path: str) -> None:
    with open_journal(path, lease_seconds=0.2) as journal:
        agent = Agent(
            ScriptedModel([[call("kill_own_process", {})]]), tools=[kill_own_process], journal=journal
        )
        await agent.run("Do it once.", run_id="interrupted")


if __name__ == "__main__":
    asyncio.run(_drive_until_killed(sys.argv[1]))
