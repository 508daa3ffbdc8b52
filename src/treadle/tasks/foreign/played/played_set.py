"""The task sets `verifiers:NAME`, `inspect:FILE` and `openenv:FOLDER`, whose tasks are played by their own code.

`played_program` loads and plays them in a process of its own, with the Python that has the package: the one that a
variable such as `TREADLE_VERIFIERS_PYTHON` names, or that of Treadle.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, partial
from pathlib import Path

from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.runs.task import Grade, TaskSet, get_task

_PROGRAM = Path(__file__).with_name("played_program.py")


class _Kind(Struct, frozen=True):
    """A kind of tasks that play themselves."""

    packages: str
    """What pip installs for it."""
    example: str


KINDS = {
    "verifiers": _Kind("verifiers", "the name of an environment, as in verifiers:gsm8k"),
    "inspect": _Kind("inspect_ai openai", "a file with tasks, as in inspect:arc.py@easy"),
    "openenv": _Kind(
        "openenv-core", "the folder or the address of an environment, as in openenv:envs/echo_env"
    ),
}


def _variable(kind: str) -> str:
    """Return the name of the variable with the Python of a kind."""
    return f"TREADLE_{kind.upper()}_PYTHON"


@cache
def _open(kind: str, reference: str) -> TaskSet:
    """Return the tasks of a reference. Raises: `ConfigError` if it cannot be loaded."""
    if not reference:
        raise ConfigError(f"give {KINDS[kind].example}")
    program = (os.environ.get(_variable(kind), sys.executable), str(_PROGRAM))
    return PlayedSet(f"{kind}:{reference}", program, reference, kind)


open_verifiers = partial(_open, "verifiers")
open_inspect = partial(_open, "inspect")
open_openenv = partial(_open, "openenv")


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
            f"the environment of the task {self.task_set}:{self.task_id} grades only what it has played itself, so "
            "its runs cannot be graded again; `treadle rollout` and `treadle eval` play it"
        )


class PlayedSet:
    """The tasks of an environment that plays them itself."""

    def __init__(self, name: str, program: Sequence[str], reference: str, kind: str = "") -> None:
        """Read the tasks with `PROGRAM list KIND REFERENCE`. Raises: `ConfigError`."""
        self.name = name
        named = (kind, reference) if kind else (reference,)
        try:
            done = subprocess.run([*program, "list", *named], capture_output=True, text=True, check=False)
        except OSError as error:
            place = _variable(kind) if kind else "the program"
            raise ConfigError(
                f"{place} is {program[0]!r}, which cannot be started: {error.strerror}"
            ) from error
        try:
            told = json.loads(done.stdout)
        except ValueError:
            told = {"error": " ".join(done.stderr.split())[-500:]}
        if (why := told.get("error")) is not None:
            raise ConfigError(
                f"the environment {name} cannot be loaded: {why.rstrip('.')}{_advise(why, kind)}"
            )
        play = (*program, "play", *named)
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
        return get_task(self.name, self._tasks, task_id)


def _advise(why: str, kind: str) -> str:
    """Return the end of an error that says what to do about it."""
    missing = re.search(r"(?:No module named|tried to import) '([\w.]+)'", why)
    if missing is None or not kind:
        return ""
    packages, variable = KINDS[kind].packages, _variable(kind)
    if missing[1].partition(".")[0] in packages.replace("-core", "").split():
        return f"; pip install {packages}, or name the Python that has it in {variable}"
    return f"; install the package of the environment beside {packages}, and name its Python in {variable}"
