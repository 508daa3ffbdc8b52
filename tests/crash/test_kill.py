"""A process is killed with SIGKILL at every boundary of a run, and the run is resumed until it is done."""

import asyncio
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.crash.scenario import JUDGED, MESSAGES, RUN_ID, SCENARIOS, SESSIONS, TURNS, address_of
from tests.forks.process import FORKS, ROOT
from tests.postgres.server import Server

from treadle import Agent, InDoubt, ScriptedModel, open_journal
from treadle.core.events import (
    ContextCompacted,
    DurableBody,
    InferenceCompleted,
    InferenceFailed,
    InferenceStarted,
    MessageInjected,
    QuestionAnswered,
    QuestionAsked,
    ToolCompleted,
    ToolStarted,
    TurnStarted,
)
from treadle.core.state import fold
from treadle.core.types import Message, ToolErrorKind
from treadle.knowledge.memory import Store, open_memory

IS_FULL = bool(os.environ.get("TREADLE_FULL"))
SLOW = ("python", "shell", "mcp", "parked", "marked", "agents_asking")
"""Scenarios that are not tested with a listener: their tools start processes, or others show the same."""
HEARD = ("parallel", "approved", "inner")
"""The scenarios that the short form tests with a listener."""
CASES = [
    pytest.param(
        (name, listens),
        id=f"{name}{'-heard' * listens}",
        marks=[pytest.mark.full] if listens and name not in HEARD else [],
    )
    for name in SCENARIOS
    for listens in (False, True)
    if name not in SESSIONS and not (name in SLOW and listens)
]


# A fork of this process could not use tools with threads of their own that other tests have used in it.
DRIVE = "from tests.crash.scenario import main; main()"


def run_once(
    path: Path,
    name: str,
    level: str,
    crash_at: int | None,
    listens: bool,
    in_doubt: InDoubt = InDoubt.TELL,
    server: str | None = None,
) -> int:
    """Drive a run in its own process. Return its exit code, or minus the number of the signal that ended it."""
    order = {
        "path": str(path),
        "scenario": name,
        "level": level,
        "crash_at": crash_at,
        "listens": listens,
        "in_doubt": in_doubt,
        "server": server,
    }
    return FORKS.start("-c", DRIVE, json.dumps(order), cwd=ROOT).wait()


def read(path: Path) -> list[DurableBody]:
    """Return the kept events, or an empty list if there is no run. No writer thread is left behind."""
    with open_journal(address_of(path)) as journal:
        if not journal.runs():
            return []
        return [event.body for event in journal.read(RUN_ID)]


def read_all(path: Path) -> dict[str, list[DurableBody]]:
    """Return the kept events of all runs by run id: of the run, and of the agents that it calls."""
    with open_journal(address_of(path)) as journal:
        return {info.run_id: [event.body for event in journal.read(info.run_id)] for info in journal.runs()}


def witnessed(path: Path, kind: str) -> list[str]:
    file = path.with_suffix(".witness")
    lines = file.read_text().splitlines() if file.exists() else []
    return [line.split(" ", 1)[1] for line in lines if line.startswith(f"{kind} ")]


def check_kept(path: Path, asked_before: list[str]) -> None:
    """Check, after a kill, that everything that was acknowledged was kept."""
    runs = read_all(path)
    bodies = runs.get(RUN_ID, [])
    heard = [int(seq) for seq in witnessed(path, "heard")]
    assert max(heard, default=0) <= len(bodies)
    started = {
        f"{run_id}/{body.call_id}"
        for run_id, kept in runs.items()
        for body in kept
        if isinstance(body, ToolStarted)
    }
    for line in witnessed(path, "effect"):
        effect, key = line.split(" ")
        assert effect == "pure" or key in started, f"{key} acted before it was kept"
    answered = {body.step for body in bodies if isinstance(body, InferenceCompleted)}
    put = set(witnessed(path, "put"))
    assert put <= {body.question_id for body in bodies if isinstance(body, QuestionAsked)}
    asked = [int(step) for step in witnessed(path, "asked")]
    assert set(range(1, max(asked, default=1))) <= answered, "asked again before the last answer was kept"


def check_end(
    path: Path,
    expected: list[Message],
    bodies_after_kill: list[DurableBody],
    asked_until: int,
    put_until: int,
) -> None:
    """Check, after the resume, that nothing was repeated that must not be, and that the run ended as expected."""
    effects = [line for line in witnessed(path, "effect") if line.startswith("once")]
    assert len(effects) == len(set(effects)), f"a once tool acted twice: {effects}"
    paid = {str(body.step) for body in bodies_after_kill if isinstance(body, InferenceCompleted)}
    assert not paid & set(witnessed(path, "asked")[asked_until:]), "a kept answer was paid for again"
    answered = {body.question_id for body in bodies_after_kill if isinstance(body, QuestionAnswered)}
    assert not answered & set(witnessed(path, "put")[put_until:]), "a question with an answer was put again"
    check_children(path)
    check_replays(path)
    end = read(path)
    told = [body.question_id for body in end if isinstance(body, QuestionAnswered) and not body.is_withdrawn]
    assert len(told) == len(set(told)), "a question was answered twice"
    state = fold(end)
    assert (state.status, state.ending.stop_reason) == ("finished", "completed")
    assert [blur(message) for message in state.transcript] == [
        blur(message, like) for message, like in zip(expected, state.transcript, strict=True)
    ]


def check_replays(path: Path) -> None:
    """Check that the run, and each run of an agent that it called, is replayed exactly."""
    with open_journal(address_of(path)) as journal:
        for info in journal.runs():
            found = asyncio.run(Agent(ScriptedModel([]), journal=journal).replay(info.run_id))
            assert found.is_exact, found.divergence


def check_children(path: Path) -> None:
    """Check that each agent that was called ended, was asked no more than necessary, and counts once."""
    runs = read_all(path)
    done = [body.child for body in runs[RUN_ID] if isinstance(body, ToolCompleted) and body.child]
    assert sorted(child.run_id for child in done) == sorted(runs.keys() - {RUN_ID})
    for child in done:
        state = fold(runs[child.run_id])
        assert (state.status, child.usage) == ("finished", state.usage)
        answers = [body for body in runs[child.run_id] if isinstance(body, InferenceCompleted)]
        assert [body.step for body in answers] == list(range(1, len(answers) + 1))
    asked = witnessed(path, "child")
    assert len(asked) <= len(set(asked)) + 1, f"an answer that was kept was paid for again: {asked}"


def blur(message: Message, like: Message | None = None) -> Message:
    """Return the message with a fixed text if its result, or that of `like`, is in doubt."""
    other = like or message
    if (
        message.name in ("program", "python", "ask_around")
        and "outcome of this call is unknown" in other.content
    ):
        return replace(message, content="a call within it in doubt", is_error=True)
    if other.is_error and "outcome of this call is unknown" in other.content:
        assert message.name is not None
        assert message.name.startswith(("once", "mcp_once"))
        return replace(message, content="in doubt", is_error=True)
    return message


def crash_and_resume(
    path: Path, case: tuple[str, bool], level: str, points: list[int], expected: list[Message]
) -> None:
    """Kill at each of `points` in turn, the later ones during a resume, then let the run end."""
    name, listens = case
    for point in points:
        asked_before = witnessed(path, "asked")
        code = run_once(path, name, level, point, listens)
        if code == 0:
            break
        assert code == -signal.SIGKILL
        check_kept(path, asked_before)
    kept, asked_until, put_until = read(path), len(witnessed(path, "asked")), len(witnessed(path, "put"))
    assert run_once(path, name, level, None, listens) == 0
    kept_summaries = [body for body in read(path) if isinstance(body, ContextCompacted) and body.model]
    lost = len(witnessed(path, "summary")) - len(kept_summaries)
    assert 0 <= lost <= len(points), "a kept summary was paid for again"
    check_end(path, expected, kept, asked_until, put_until)


def dry_run(
    folder: Path, case: tuple[str, bool], level: str, server: Server | None = None
) -> tuple[int, list[Message]]:
    """Return the number of boundaries, and the transcript of a run without a crash."""
    path = choose(folder / "dry.db", server)
    assert run_once(path, case[0], level, None, case[1]) == 0
    return int(path.with_suffix(".count").read_text()), list(fold(read(path)).transcript)


def choose(path: Path, server: Server | None) -> Path:
    """Let the scenario at `path` have its journal in a new database of `server`, if there is one."""
    if server is not None:
        path.with_suffix(".url").write_text(server.make_database())
    return path


def enumerate_points(
    folder: Path, case: tuple[str, bool], level: str, stride: int, server: Server | None = None
) -> int:
    total, expected = dry_run(folder, case, level, server)
    # With a listener, the short form takes points between those that it takes without.
    points = range(stride // 2 if case[1] else 0, total, stride)
    for point in points:
        path = choose(folder / f"{point}.db", server)
        crash_and_resume(path, case, level, [point], expected)
        for file in folder.glob(f"{point}.*"):
            file.unlink()
    return len(points)


@pytest.mark.sets(13)
@pytest.mark.parametrize("case", CASES)
def test_killed_at_boundaries(
    case: tuple[str, bool], tmp_path: Path, record_property: Callable[..., None]
) -> None:
    """The short form tests every 32nd boundary, fewer of a long scenario and with a listener; the full form tests
    every one."""
    stride = 1 if IS_FULL else 32 * (1 + 2 * (case[0] == "agents") + case[1])
    count = enumerate_points(tmp_path, case, "process", stride)
    record_property("crash_points", count)
    assert count >= 40 // stride


@pytest.mark.full
@pytest.mark.parametrize("case", CASES)
def test_killed_at_every_boundary_at_power(case: tuple[str, bool], tmp_path: Path) -> None:
    assert enumerate_points(tmp_path, case, "power", 1) >= 40


@pytest.mark.parametrize("name", ["parallel", "files"])
def test_killed_again_while_resuming(name: str, tmp_path: Path) -> None:
    """Three kills, each later than the one before; the full form tests many more combinations."""
    case = (name, False)
    total, expected = dry_run(tmp_path, case, "process")
    firsts = range(3, total, 2 if IS_FULL else total // 2)
    for first in firsts:
        for second in range(2, total, 5 if IS_FULL else total // 2):
            path = tmp_path / f"{first}-{second}.db"
            crash_and_resume(path, case, "process", [first, second, second + 4], expected)


def test_the_user_is_asked_about_a_call_in_doubt(tmp_path: Path) -> None:
    """At some points a kill leaves the `once` tool in doubt. The user's answer then becomes its result."""
    case = ("async", False)
    total, _ = dry_run(tmp_path, case, "process")
    asked = 0
    for point in range(0, total, 1 if IS_FULL else 7):
        path = tmp_path / f"{point}.db"
        assert run_once(path, "async", "process", point, False, InDoubt.ASK) == -signal.SIGKILL
        assert run_once(path, "async", "process", None, False, InDoubt.ASK) == 0
        state = fold(read(path))
        assert state.ending.stop_reason == "completed"
        asked += any(message.content == "unknown, says the user" for message in state.messages)
        effects = [line for line in witnessed(path, "effect") if line.startswith("once")]
        assert len(effects) == len(set(effects))
    assert asked >= (3 if IS_FULL else 1)


def test_a_run_that_was_killed_keeps_its_route_and_pays_for_no_answer_again(tmp_path: Path) -> None:
    """A kill between the choice of a tier and its answer, or after an answer was thrown away."""
    total, _ = dry_run(tmp_path, ("routed", False), "process")
    seen = set()
    for point in range(0, total, 1 if IS_FULL else 6):
        path = tmp_path / f"{point}.db"
        assert run_once(path, "routed", "process", point, False) == -signal.SIGKILL
        kept, before = read(path), len(witnessed(path, "hesitated"))
        assert run_once(path, "routed", "process", None, False) == 0
        bodies = read(path)
        check_replays(path)
        routes = [body.route.tier for body in bodies if isinstance(body, InferenceStarted) and body.route]
        assert routes == ["small", "mid"]
        failed = [body.step for body in bodies if isinstance(body, InferenceFailed)]
        assert failed == [3]
        answered = {body.step for body in kept if isinstance(body, InferenceCompleted | InferenceFailed)}
        assert not answered & {int(step) for step in witnessed(path, "hesitated")[before:]}
        state = fold(kept)
        seen.add(
            (
                state.turn.route.tier if state.turn.route else None,
                state.turn.asked is not None,
                bool(state.turn.untold),
            )
        )
    assert {("small", True, False), ("mid", True, False), ("small", False, False)} <= seen


@pytest.mark.parametrize("name", ["messages", "routed_messages"])
def test_messages_of_a_session_that_was_killed(name: str, tmp_path: Path) -> None:
    """No message that was sent during a turn is lost or answered twice, wherever the process is killed, also while
    a cascade throws answers away."""
    total, _ = dry_run(tmp_path, (name, False), "process")
    for point in range(1, total, 1 if IS_FULL else 13 if name == "messages" else 23):
        path = tmp_path / f"{point}.db"
        ended = run_once(path, name, "process", point, False)
        # Messages that arrive together are taken in at once, so that a run has a few boundaries less than another.
        assert ended == -signal.SIGKILL or (ended == 0 and point > 0.9 * total), (ended, point, total)
        kept = [sent_text(body) for body in read(path) if isinstance(body, MessageInjected) and body.delivery]
        assert run_once(path, name, "process", None, False) == 0
        bodies = read(path)
        state = fold(bodies)
        own = [body.message for body in bodies if isinstance(body, MessageInjected) and not body.delivery]
        users = [item for item in state.messages if item.role == "user" and item not in own]
        told = [message.content for message in users]
        assert sorted(told) == sorted(["go", *MESSAGES])
        assert set(kept) <= set(told)
        assert not state.queued
        assert not state.turn.is_open
        begun = [body.queued_seq for body in bodies if isinstance(body, TurnStarted) if body.queued_seq]
        assert len(begun) == len(set(begun))
        effects = [line for line in witnessed(path, "effect") if line.startswith("once")]
        assert len(effects) == len(set(effects))
        check_replays(path)


def sent_text(body: MessageInjected) -> str:
    return body.message.content


def test_a_session_with_a_memory_that_was_killed(tmp_path: Path) -> None:
    """Each turn is remembered once, and each fact that the model remembers is written once, wherever the process is
    killed: within a turn, a compaction, a summary, or between the end of a turn and its write-back."""
    total, _ = dry_run(tmp_path, ("remembering", False), "process")
    for point in range(1, total, 1 if IS_FULL else 60):
        path = tmp_path / f"{point}.db"
        assert run_once(path, "remembering", "process", point, False) == -signal.SIGKILL
        kept, asked_until = read(path), len(witnessed(path, "asked"))
        assert run_once(path, "remembering", "process", None, False) == 0
        bodies = read(path)
        state = fold(bodies)
        assert (state.turn.number, state.turn.is_open, state.ending.stop_reason) == (
            TURNS,
            False,
            "completed",
        )
        summaries = [body for body in bodies if isinstance(body, ContextCompacted) and body.model]
        assert state.shown.compactions
        assert len(summaries) <= len(witnessed(path, "summary")) <= len(summaries) + 1
        effects = [line for line in witnessed(path, "effect") if line.startswith("once")]
        assert len(effects) == len(set(effects))
        answers = [body for body in bodies if isinstance(body, InferenceCompleted)]
        paid_before = [body for body in kept if isinstance(body, InferenceCompleted)]
        assert answers[: len(paid_before)] == paid_before
        assert len(witnessed(path, "asked")) - asked_until == len(answers) - len(paid_before)
        with open_journal(address_of(path)) as journal:
            store = open_memory(journal, "p", "u").store
            episodes = [entry.text for entry in store.entries([Store.EPISODIC])]
            facts = [entry.text for entry in store.entries([Store.SELF_FACTS])]
        assert [text.partition("\n")[0] for text in episodes] == [
            f"The user: Message {number}" for number in range(TURNS)
        ]
        assert len(facts) == TURNS
        check_replays(path)


def test_judged_messages_of_a_session_that_was_killed(tmp_path: Path) -> None:
    """A message is kept while it is judged, and has one judgement; a refused tool is called once."""
    total, _ = dry_run(tmp_path, ("judged", False), "process")
    seen, wanted = set(), {(0, 1), (1, 1), (1, 2), (2, 2)}
    # Which state a point finds depends on what the judge has done by then; so more points are tried if need be.
    for point in range(1, total) if IS_FULL else [*range(1, total, 7), *range(4, total, 7)]:
        if not IS_FULL and point % 7 == 4 and wanted <= seen:
            break
        path = tmp_path / f"{point}.db"
        assert run_once(path, "judged", "process", point, False) == -signal.SIGKILL
        kept, judged_until = read(path), len(witnessed(path, "judged"))
        begun = [body for body in kept if isinstance(body, TurnStarted)]
        waiting = [
            body.message.content for body in kept if isinstance(body, MessageInjected) and body.delivery
        ]
        assert run_once(path, "judged", "process", None, False) == 0
        bodies = read(path)
        turns = [body for body in bodies if isinstance(body, TurnStarted)]
        assert [body.message.content for body in turns] == list(JUDGED)
        assert turns[: len(begun)] == begun
        assert all(body.judgement is not None and body.hint is not None for body in turns)
        again = witnessed(path, "judged")[judged_until:]
        assert not {body.message.content for body in begun} & set(again), "a kept judgement was made again"
        assert len(again) == len(turns) - len(begun)
        nudges = [body for body in bodies if isinstance(body, MessageInjected) and body.is_nudge]
        effects = witnessed(path, "effect")
        assert len(nudges) == 2
        assert len(effects) == len(set(effects))
        check_replays(path)
        seen.add((len(begun), len(waiting)))
    assert wanted <= seen


def test_in_doubt_is_the_kind_of_the_result() -> None:
    """`blur` finds results in doubt by their text, so this test ties the text to the error kind."""
    from treadle.core.calls import unknown_outcome
    from treadle.core.types import ToolCall

    result = unknown_outcome(ToolCall("c", "once", "{}"))
    assert result.error_kind is ToolErrorKind.IN_DOUBT
    assert "outcome of this call is unknown" in result.content
