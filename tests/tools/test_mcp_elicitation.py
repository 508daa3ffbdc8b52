"""MCP servers that ask the user during a call: real processes and sockets, with both ways of the protocol."""

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.conftest import IS_FULL
from tests.forks.process import FORKS, PYTHON

from treadle import Agent, ScriptedModel
from treadle.core.asking import Answer, Question
from treadle.core.state import Status
from treadle.journal.memory import MemoryJournal
from treadle.models import call
from treadle.tools.mcp import MCPServer

SERVER = "tests.tools.mcp.elicit_server"
KINDS = [("stdio", "modern"), ("stdio", "legacy"), ("http", "modern"), ("http", "legacy")]
ENV = {"API_KEY": "planted/key-00077"}


class Place:
    """A running server, and what it noted."""

    def __init__(self, server: MCPServer, log: Path) -> None:
        self.server = server
        self._log = log

    def notes(self) -> list[str]:
        return self._log.read_text().splitlines() if self._log.exists() else []


@contextlib.contextmanager
def running(folder: Path, transport: str, era: str) -> Iterator[Place]:
    log = folder / "calls"
    env = {"CALLS": str(log), **ENV, **FORKS.variables()}
    if transport == "stdio":
        with MCPServer(PYTHON, args=["-m", SERVER, era], env=env, name="desk") as server:
            yield Place(server, log)
        return
    file = folder / "port"
    process = FORKS.start("-m", SERVER, era, str(file), env={**os.environ, **env})
    try:
        deadline = time.monotonic() + 60
        while not file.exists() or not file.read_text():
            assert time.monotonic() < deadline
            assert process.poll() is None
            time.sleep(0.02)
        with MCPServer(f"http://127.0.0.1:{file.read_text()}/mcp", name="desk") as server:
            yield Place(server, log)
    finally:
        process.kill()
        process.wait()


@pytest.fixture(params=KINDS if IS_FULL else KINDS[::3], ids="-".join)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Place]:
    with running(tmp_path, *request.param) as place:
        yield place


def agent_for(place: Place, name: str, journal: MemoryJournal, **options: Any) -> Agent:
    script = ScriptedModel([[call(name, {"day": "Monday"})], "ok"])
    return Agent(script, tools=[place.server], journal=journal, **options)


async def test_a_server_asks_and_gets_the_answer(place: Place) -> None:
    """The answer is checked against the form, and asked for again if it does not fit."""
    asked: list[Question] = []

    def answer(question: Question) -> Any:
        asked.append(question)
        return {"name": "Ada", "seats": 0 if len(asked) == 1 else 2}

    journal = MemoryJournal()
    for name in ("book", "book_once"):
        asked.clear()
        run = await agent_for(place, name, journal, asker=answer).run("go")
        assert (run.results[0].content, run.output) == ("booked 2 for Ada", "ok")
        assert asked[0].text == "desk asks: Who comes on Monday?"
        assert asked[0].schema is not None
        assert "does not fit the form" in (asked[1].fault or "")
        assert (await Agent(ScriptedModel([]), journal=journal).replay(run.run_id)).is_exact


async def test_declining_reaches_the_server(place: Place) -> None:
    run = await agent_for(place, "book_once", MemoryJournal(), asker=lambda _: Answer(is_declined=True)).run(
        "go"
    )
    assert run.results[0].content == "not booked: decline"


async def test_with_nobody_there_the_call_waits_or_the_server_is_told(place: Place) -> None:
    """A call that may run again waits for the answer; for another one, the server hears that nobody answers."""
    journal = MemoryJournal()
    agent = agent_for(place, "book", journal)
    run = await agent.run("go")
    assert (run.status, list(run.questions.values())) == (Status.PAUSED, ["desk asks: Who comes on Monday?"])
    answers = {key: {"name": "Bo", "seats": 1} for key in run.questions}
    run = await agent.resume(run.run_id, answers=answers)
    assert (run.results[0].content, run.output) == ("booked 1 for Bo", "ok")
    assert "answered accept" in place.notes()
    run = await agent_for(place, "book_once", journal).run("go")
    assert (run.results[0].content, run.output) == ("not booked: cancel", "ok")
    assert (await agent_for(place, "book", journal, asker=lambda _: "{}").run("go")).status is Status.PAUSED


@pytest.mark.parametrize(("said", "action"), [("Accept", "accept"), (2, "decline"), (None, "cancel")])
async def test_an_address_is_shown_and_consent_asked_for(tmp_path: Path, said: Any, action: str) -> None:
    asked: list[Question] = []

    def answer(question: Question) -> Any:
        asked.append(question)
        return said

    with running(tmp_path, "stdio", "legacy") as place:
        run = await agent_for(place, "pay", MemoryJournal(), asker=answer).run("go")
        assert run.results[0].content == f"payment: {action}"
        (question,) = asked
        assert question.text.startswith("desk asks: Pay here\nhttps://pay.example/1")
        assert "planted" not in question.text, "no secret of the server enters the journal"
        assert [option.label for option in question.options] == ["Accept", "Decline"]


async def test_an_address_to_open_before_the_call(tmp_path: Path) -> None:
    with running(tmp_path, "http", "legacy") as place:
        journal = MemoryJournal()
        run = await agent_for(place, "pay_first", journal, asker=lambda _: "decline").run("go")
        assert "the user did not open the address" in run.results[0].content
    with running(tmp_path, "stdio", "legacy") as place:
        run = await agent_for(place, "pay_first", journal, asker=lambda _: "accept").run("go")
        assert run.results[0].content == "paid"
