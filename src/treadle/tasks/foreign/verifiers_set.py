"""The task sets `verifiers:NAME`: environments of the package verifiers, which play their tasks themselves.

`verifiers_program` loads and plays them in a process of its own, with the Python that has verifiers: the one of
`TREADLE_VERIFIERS_PYTHON`, or that of Treadle.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path

from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.core.registry import did_you_mean
from treadle.runs.task import Grade, TaskSet

PYTHON = "TREADLE_VERIFIERS_PYTHON"
_PROGRAM = Path(__file__).with_name("verifiers_program.py")


@cache
def open_verifiers(name: str) -> TaskSet:
    """Return the tasks of the environment `name`. Raises: `ConfigError` if it cannot be loaded."""
    if not name:
        raise ConfigError("give the name of an environment, as in verifiers:gsm8k")
    python = os.environ.get(PYTHON, sys.executable)
    return PlayedSet(f"verifiers:{name}", (python, str(_PROGRAM)), name)


class PlayedTask(Struct, frozen=True, kw_only=True):
    """A task that its environment plays: see `treadle.runs.task.Task`."""

    task_set: str
    task_id: str
    input: str
    instructions: str | None
    environment: Sequence[str]
    """The command of the program that plays the task."""
    seed: int | None = None
    tools: Sequence[str] = ()
    files: Mapping[str, bytes] = {}

    def check(self, output: str, files: Mapping[str, bytes]) -> Grade:
        """See `Task.check`. Raises: `ConfigError`, because the environment grades only what it has played."""
        raise ConfigError(
            f"the environment of the task {self.task_set}:{self.task_id} grades only what it has played itself; "
            "use treadle rollout or treadle eval"
        )


class PlayedSet:
    """The tasks of an environment that plays them itself."""

    def __init__(self, name: str, program: Sequence[str], reference: str) -> None:
        """Read the tasks with `program list REFERENCE`. Raises: `ConfigError`."""
        self.name = name
        done = subprocess.run([*program, "list", reference], capture_output=True, text=True, check=False)
        try:
            told = json.loads(done.stdout)
        except ValueError:
            told = {"error": " ".join(done.stderr.split())[-500:]}
        if (why := told.get("error")) is not None:
            raise ConfigError(f"the environment {name} cannot be loaded: {why}{_advise(why)}")
        play = (*program, "play", reference)
        self._tasks = {
            item["id"]: PlayedTask(
                task_set=name,
                task_id=item["id"],
                input=item["input"],
                instructions=item["instructions"],
                environment=play,
            )
            for item in told["tasks"]
        }

    def __len__(self) -> int:
        return len(self._tasks)

    def __iter__(self) -> Iterator[PlayedTask]:
        return iter(self._tasks.values())

    def get(self, task_id: str) -> PlayedTask:
        """See `TaskSet.get`."""
        found = self._tasks.get(task_id)
        if found is None:
            hint = did_you_mean(task_id, list(self._tasks)[:100])
            raise ConfigError(
                f"{self.name} has no task {task_id!r}{hint}; ids are such as {next(iter(self._tasks), 'none')!r}"
            )
        return found


def _advise(why: str) -> str:
    """Return the end of an error that says what to do about it."""
    if "No module named 'verifiers'" in why:
        return f"; pip install verifiers, or name the Python that has it in {PYTHON}"
    if "ModuleNotFoundError" in why:
        return f"; install the package of the environment beside verifiers, and name its Python in {PYTHON}"
    return ""
