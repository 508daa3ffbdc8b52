"""Mistakes in the code of users stop a job at once, name the line, and once they are mended the work goes on."""

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from treadle.core.errors import ConfigError, UserCodeError
from treadle.journal.registry import open_journal
from treadle.rollout import Rollouts
from treadle.runs.run import Run
from treadle.tools.toolset_parts import load_file
from treadle.tools.user_code import FirstFailures, blame, place_of

CODE = '''
import os
from treadle import tool
from treadle.tasks import SimpleTask


def fail(kind):
    """Fail as the file `broken` says."""
    broken = os.path.exists("broken") and open("broken").read()
    if broken == kind:
        return {}["gone"]
    if broken == kind + " again":
        raise RuntimeError("not today")


def reward(subject):
    fail("reward")
    return 1.0


def check(task, output, files):
    fail("check")
    return 1.0


@tool(effect="pure")
def look() -> str:
    """Look."""
    if os.path.exists("broken") and open("broken").read() == "tool":
        return missing
    if os.path.exists("broken") and open("broken").read() == "tool again":
        return None.colour
    return "seen"


class Lazy(SimpleTask):
    @property
    def instructions(self):
        return fail("task")


TASKS = [
    Lazy(task_id=f"t-{number}", input="call look {}", tools=["mine.py"], grader=check) for number in range(2)
]
'''
LINES = {
    "reward": 11,
    "check": 11,
    "task": 11,
    "tool": 30,
    "reward again": 13,
    "check again": 13,
    "tool again": 32,
}
"""The lines of the mistakes."""


def make(**options: Any) -> Rollouts:
    given = {"rewards": {"check": 1.0, "mine.py:reward": 1.0}, "groups": 3, "group_size": 2, **options}
    return Rollouts(model="mock:echo", tasks=["mine.py:TASKS"], path="out", **given)


@pytest.mark.parametrize("kind", LINES)
@pytest.mark.parametrize("workers", ["here", pytest.param("local:2", marks=pytest.mark.full)])
def test_a_mistake_stops_the_work_at_once_and_the_work_goes_on_when_it_is_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, workers: str
) -> None:
    """Rules out that a mistake counts as a fault of the infrastructure, whose attempts are made again, and that the
    model is told of one of a tool. A failure that comes again and again is a mistake too."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(CODE)
    (tmp_path / "broken").write_text(kind)
    rollouts = make(workers=workers)
    with pytest.raises(UserCodeError, match=rf"\w+Error: .*mine.py, line {LINES[kind]}\);.* mend") as told:
        asyncio.run(rollouts.run())
    assert str(told.value).count("Error:") == 1
    assert rollouts.progress.failed == 0
    assert rollouts.progress.retried <= (6 if kind in ("reward again", "check again") else 0)
    (tmp_path / "broken").unlink()
    result = asyncio.run(make(workers=workers).run())
    assert (result.end.reason, result.progress.kept, result.progress.failed) == ("done", 3, 0)
    groups = [json.loads(line) for line in (tmp_path / "out" / "groups.jsonl").read_text().splitlines()]
    assert [rollout["rewards"] for group in groups for rollout in group["rollouts"]] == [
        {"check": 1.0, "reward": 1.0}
    ] * 6
    with open_journal(tmp_path / "out" / "runs.db") as journal:
        results = [item for info in journal.runs() for item in Run.load(info.run_id, journal).results]
    # The model was told of the first failures of a kind that its arguments can cause.
    told_of = [result.content for result in results if result.content != "seen"]
    assert len(results) == 6
    assert len(told_of) <= (2 * (1 + (workers != "here")) if kind == "tool again" else 0)


def raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


@pytest.mark.parametrize(
    "error", [OSError("busy"), ConnectionResetError("gone"), TimeoutError("late"), RuntimeError("?")]
)
def test_what_may_pass_is_no_mistake(error: Exception) -> None:
    assert blame(raised(error), "the reward") is None
    assert place_of(raised(error)).startswith(f" ({__file__}, line ")


def test_a_mistake_is_told_without_secrets(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The text of an exception may be a request with its key."""
    key = "sk-planted-0123456789"
    monkeypatch.setenv("SHOP_API_KEY", key)
    error = ValueError(f"401 for Bearer {key}")
    assert str(blame(error, "the reward")).startswith("the reward: ValueError: 401 for Bearer ***")
    failures = FirstFailures()
    try:
        exec(compile(f"raise RuntimeError({key!r})", str(tmp_path / "mine.py"), "exec"))
    except RuntimeError as raised:
        found = [failures.blame_again("x", raised) for _ in range(3)]
    assert "RuntimeError: ***" in str(found[-1])
    (tmp_path / "broken.py").write_text(f"raise ValueError({key!r})\n")
    with pytest.raises(ConfigError, match=r"broken.py': ValueError: \*\*\* \("):
        load_file(tmp_path / "broken.py")
