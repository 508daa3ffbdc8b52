"""A process is killed with SIGKILL at every boundary of a run, and the run is resumed until it is done."""

import asyncio
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.crash.scenario import RUN_ID, SCENARIOS
from tests.forks.process import FORKS, ROOT

from treadle import Agent, InDoubt, ScriptedModel, open_journal
from treadle.core.events import ContextCompacted, DurableBody, InferenceCompleted, ToolStarted
from treadle.core.state import fold
from treadle.core.types import Message, ToolErrorKind

IS_FULL = bool(os.environ.get("TREADLE_FULL"))
SLOW = ("python", "shell", "mcp")
"""Scenarios whose tools start processes. These are not tested with a listener."""
CASES = [(name, listens) for name in SCENARIOS for listens in (False, True) if not (name in SLOW and listens)]


def in_child(work: Callable[[], None]) -> int:
    """Run `work` in a forked process, and return its wait status."""
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    return os.waitpid(pid, 0)[1]


# A fork of this process could not use tools with threads of their own that other tests have used in it.
DRIVE = "from tests.crash.scenario import main; main()"


def run_once(
    path: Path, name: str, level: str, crash_at: int | None, listens: bool, in_doubt: InDoubt = InDoubt.TELL
) -> int:
    """Drive a run in its own process. Return its exit code, or minus the number of the signal that ended it."""
    order = {
        "path": str(path),
        "scenario": name,
        "level": level,
        "crash_at": crash_at,
        "listens": listens,
        "in_doubt": in_doubt,
    }
    return FORKS.start("-c", DRIVE, json.dumps(order), cwd=ROOT).wait()


def read(path: Path) -> list[DurableBody]:
    """Return the kept events, or an empty list if there is no run. No writer thread is left behind."""
    with open_journal(path) as journal:
        if not journal.runs():
            return []
        return [event.body for event in journal.read(RUN_ID)]


def witnessed(path: Path, kind: str) -> list[str]:
    file = path.with_suffix(".witness")
    lines = file.read_text().splitlines() if file.exists() else []
    return [line.split(" ", 1)[1] for line in lines if line.startswith(f"{kind} ")]


def check_kept(path: Path, asked_before: list[str]) -> None:
    """Check, after a kill, that everything that was acknowledged was kept."""
    bodies = read(path)
    heard = [int(seq) for seq in witnessed(path, "heard")]
    assert max(heard, default=0) <= len(bodies)
    started = {body.call_id for body in bodies if isinstance(body, ToolStarted)}
    for line in witnessed(path, "effect"):
        effect, key = line.split(" ")
        assert effect == "pure" or key.split("/", 1)[1] in started, f"{key} acted before it was kept"
    answered = {body.step for body in bodies if isinstance(body, InferenceCompleted)}
    asked = [int(step) for step in witnessed(path, "asked")]
    assert set(range(1, max(asked, default=1))) <= answered, "asked again before the last answer was kept"


def check_end(
    path: Path, expected: list[Message], bodies_after_kill: list[DurableBody], asked_until: int
) -> None:
    """Check, after the resume, that nothing was repeated that must not be, and that the run ended as expected."""
    effects = [line for line in witnessed(path, "effect") if line.startswith("once")]
    assert len(effects) == len(set(effects)), f"a once tool acted twice: {effects}"
    paid = {str(body.step) for body in bodies_after_kill if isinstance(body, InferenceCompleted)}
    assert not paid & set(witnessed(path, "asked")[asked_until:]), "a kept answer was paid for again"
    state = fold(read(path))
    assert (state.status, state.stop_reason) == ("finished", "completed")
    assert [blur(message) for message in state.transcript] == [
        blur(message, like) for message, like in zip(expected, state.transcript, strict=True)
    ]


def blur(message: Message, like: Message | None = None) -> Message:
    """Return the message with a fixed text if its result, or that of `like`, is in doubt."""
    other = like or message
    if message.name in ("program", "python") and "outcome of this call is unknown" in other.content:
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
    kept, asked_until = read(path), len(witnessed(path, "asked"))
    assert run_once(path, name, level, None, listens) == 0
    check_end(path, expected, kept, asked_until)
    kept_summaries = [body for body in read(path) if isinstance(body, ContextCompacted) and body.model]
    lost = len(witnessed(path, "summary")) - len(kept_summaries)
    assert 0 <= lost <= len(points), "a kept summary was paid for again"


def dry_run(folder: Path, case: tuple[str, bool], level: str) -> tuple[int, list[Message]]:
    """Return the number of boundaries, and the transcript of a run without a crash."""
    path = folder / "dry.db"
    assert run_once(path, case[0], level, None, case[1]) == 0
    return int(path.with_suffix(".count").read_text()), list(fold(read(path)).transcript)


def enumerate_points(folder: Path, case: tuple[str, bool], level: str, stride: int) -> int:
    total, expected = dry_run(folder, case, level)
    # With a listener, the short form takes points between those that it takes without.
    points = range(stride // 2 if case[1] else 0, total, stride)
    for point in points:
        path = folder / f"{point}.db"
        crash_and_resume(path, case, level, [point], expected)
        for file in folder.glob(f"{point}.*"):
            file.unlink()
    return len(points)


@pytest.mark.parametrize("case", CASES, ids=[f"{name}{'-heard' * heard}" for name, heard in CASES])
def test_killed_at_boundaries(
    case: tuple[str, bool], tmp_path: Path, record_property: Callable[..., None]
) -> None:
    """The short form tests every fifth boundary; the full form tests every one, at both levels."""
    stride = 1 if IS_FULL else 5
    count = enumerate_points(tmp_path, case, "process", stride)
    record_property("crash_points", count)
    assert count >= 40 // stride


@pytest.mark.full
@pytest.mark.skipif(not IS_FULL, reason="the long form; set TREADLE_FULL=1")
@pytest.mark.parametrize("case", CASES, ids=[f"{name}{'-heard' * heard}" for name, heard in CASES])
def test_killed_at_every_boundary_at_power(case: tuple[str, bool], tmp_path: Path) -> None:
    assert enumerate_points(tmp_path, case, "power", 1) >= 40


@pytest.mark.parametrize("name", ["parallel", "files"])
def test_killed_again_while_resuming(name: str, tmp_path: Path) -> None:
    """Three kills, each later than the one before; the full form tests many more combinations."""
    case = (name, False)
    total, expected = dry_run(tmp_path, case, "process")
    firsts = range(3, total, 2 if IS_FULL else total // 4)
    for first in firsts:
        for second in range(2, total, 5 if IS_FULL else total // 2):
            path = tmp_path / f"{first}-{second}.db"
            crash_and_resume(path, case, "process", [first, second, second + 4], expected)


def test_the_user_is_asked_about_a_call_in_doubt(tmp_path: Path) -> None:
    """At some points a kill leaves the `once` tool in doubt. The user's answer then becomes its result."""
    case = ("async", False)
    total, _ = dry_run(tmp_path, case, "process")
    asked = 0
    for point in range(0, total, 1 if IS_FULL else 3):
        path = tmp_path / f"{point}.db"
        assert run_once(path, "async", "process", point, False, InDoubt.ASK) == -signal.SIGKILL
        assert run_once(path, "async", "process", None, False, InDoubt.ASK) == 0
        state = fold(read(path))
        assert state.stop_reason == "completed"
        asked += any(message.content == "unknown, says the user" for message in state.messages)
        effects = [line for line in witnessed(path, "effect") if line.startswith("once")]
        assert len(effects) == len(set(effects))
    assert asked >= (3 if IS_FULL else 1)


def test_replay_of_a_run_that_was_killed_is_exact(tmp_path: Path) -> None:
    total, _ = dry_run(tmp_path, ("parallel", False), "process")
    for point in range(1, total, 4 if IS_FULL else 7):
        path = tmp_path / f"{point}.db"
        run_once(path, "parallel", "process", point, False)
        run_once(path, "parallel", "process", None, False)

        def replay(path: Path = path) -> None:
            with open_journal(path) as journal:
                found = asyncio.run(Agent(ScriptedModel([]), journal=journal).replay(RUN_ID))
            assert found.is_exact, found.divergence

        assert in_child(replay) == 0


def test_in_doubt_is_the_kind_of_the_result() -> None:
    """`blur` finds results in doubt by their text, so this test ties the text to the error kind."""
    from treadle.core.decide import unknown_outcome
    from treadle.core.types import ToolCall

    result = unknown_outcome(ToolCall("c", "once", "{}"))
    assert result.error_kind is ToolErrorKind.IN_DOUBT
    assert "outcome of this call is unknown" in result.content
