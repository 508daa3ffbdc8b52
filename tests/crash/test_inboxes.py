"""Messages to a run whose driver is killed: each is taken in once, in order, wherever the process dies."""

import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.crash.inboxed import FIRST, POSTED
from tests.crash.scenario import RUN_ID, address_of
from tests.crash.test_kill import choose
from tests.forks.process import FORKS, ROOT

from treadle import Agent, ScriptedModel, open_journal
from treadle.core.events import MessageInjected, Noted, QuestionAnswered, encode_body
from treadle.core.state import fold

IS_FULL = bool(os.environ.get("TREADLE_FULL"))
DRIVE = "from tests.crash.inboxed import main; main()"


def drive(path: Path, crash_at: int | None, level: str = "process") -> int:
    order = {"path": str(path), "crash_at": crash_at, "level": level}
    return FORKS.start("-c", DRIVE, json.dumps(order), cwd=ROOT).wait()


def check(path: Path) -> None:
    """Check that each message was taken in once and in order, and that nothing is left to do."""
    witness = path.with_suffix(".witness").read_text().splitlines()
    posted = {int(line.split()[1]): line.split()[2] for line in witness if line.startswith("posted ")}
    with open_journal(address_of(path)) as journal:
        bodies = [event.body for event in journal.read(RUN_ID)]
        taken = [body.inbox for body in bodies if body.inbox is not None]
        assert taken == list(range(1, len(taken) + 1))
        assert set(posted) <= set(taken)
        assert not journal.inbox(RUN_ID, max(taken))
        state = fold(bodies)
        assert not state.turn.is_open
        assert not state.queued
        raws = [encode_body(body).decode() for body in bodies]
        for text in POSTED:
            assert any(text in raw for raw in raws), text
        said = [body.message.content for body in bodies if isinstance(body, MessageInjected)]
        assert sorted(said) == ["interrupt-1", "queue-1", "steer-1"]
        users = [item.content for item in state.transcript if item.role == "user"]
        assert sorted(users) == sorted([FIRST, "pay", *said])
        refused = [body.refused for body in bodies if isinstance(body, Noted) and body.refused]
        assert set(refused) <= {"cancel"}, refused
        answers = [body.text for body in bodies if isinstance(body, QuestionAnswered) and body.text]
        assert answers in (["answer-1"], [])
        effects = [line for line in witness if line.startswith("effect ")]
        assert len(effects) == len(set(effects))
        assert journal.runs()[0].labels == {"a": "note-1"}
        found = asyncio.run(Agent(ScriptedModel([]), journal=journal).replay(RUN_ID))
        assert found.is_exact, found.divergence


@pytest.fixture(params=["sqlite", "postgres"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Path]:
    """A function that returns the path of a new journal in each kind of database."""
    server = request.getfixturevalue("postgres_server") if request.param == "postgres" else None
    return lambda name: choose(tmp_path / name, server)


def test_killed_at_boundaries_while_messages_arrive(place: Callable[[str], Path]) -> None:
    """The short form tests every 29th boundary, and few of PostgreSQL; the full form tests every one."""
    path = place("dry.db")
    assert drive(path, None) == 0
    check(path)
    total = int(path.with_suffix(".count").read_text())
    assert total >= 60
    short = 29 if address_of(path) is path else 41
    for point in range(1, total, 1 if IS_FULL else short):
        path = place(f"{point}.db")
        # How many boundaries there are before the end depends on when messages arrive.
        if drive(path, point) != 0:
            assert drive(path, None) == 0, point
        check(path)


@pytest.mark.parametrize("first", [20, 45])
def test_killed_again_while_resuming(first: int, tmp_path: Path) -> None:
    path = tmp_path / "runs.db"
    assert drive(path, first) == -signal.SIGKILL
    for point in (4, 9, 15):
        if drive(path, point) == 0:
            break
    assert drive(path, None) == 0
    check(path)
