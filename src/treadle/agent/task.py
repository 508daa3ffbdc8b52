"""Tasks: pieces of work with an input, files and a check, which are found by the name of their task set.

Task sets are entry points of the group `treadle.tasks`, including those of Treadle itself.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.core.registry import Registry


class Grade(Struct, frozen=True):
    """The verdict of a task's check."""

    reward: float
    """A number from 0 to 1."""
    detail: str
    """One sentence that says what was right or wrong."""


class Task(Protocol):
    """A task for an agent: its input, its files, and a check of the outcome."""

    @property
    def task_set(self) -> str:
        """The name of the task set that the task belongs to."""
        ...

    @property
    def task_id(self) -> str:
        """The task's id, unique in its set; the set can make the task again from it."""
        ...

    @property
    def seed(self) -> int | None:
        """The seed that the task's parameters were drawn from; `None` if they were not drawn."""
        ...

    @property
    def input(self) -> str:
        """The user's message."""
        ...

    @property
    def instructions(self) -> str | None:
        """The system message, or `None` if the task has none."""
        ...

    @property
    def tools(self) -> Sequence[str]:
        """The names of the toolsets that the task needs, such as `files`."""
        ...

    @property
    def files(self) -> Mapping[str, bytes]:
        """The initial files of the sandbox: path to content."""
        ...

    def check(self, output: str, files: Mapping[str, bytes]) -> Grade:
        """Grade the final answer `output` and the sandbox's final `files`."""
        ...


class TaskSet(Protocol):
    """A collection of tasks under one name."""

    @property
    def name(self) -> str:
        """The name of the set, which references to its tasks begin with."""
        ...

    def __len__(self) -> int:
        """Return the number of distinct tasks."""
        ...

    def __iter__(self) -> Iterator[Task]:
        """Iterate over all tasks in a fixed order that mixes the kinds."""
        ...

    def get(self, task_id: str) -> Task:
        """Return the task with this id.

        Raises: `ConfigError` that names similar ids if there is no such task.
        """
        ...


TASK_SETS: Registry[object] = Registry("task set", "treadle.tasks", {})
"""The installed task sets. An entry is a `TaskSet`, or a function without arguments that returns one."""


def task_set(name: str) -> TaskSet:
    """Return the task set with this name.

    Raises: `ConfigError` that names similar task sets if there is no such set, or if it cannot be loaded.
    """
    found = TASK_SETS.load(name)
    if not callable(found):
        made: TaskSet = found  # type: ignore[assignment]
        return made
    try:
        made = found()
    except Exception as error:
        raise ConfigError(f"the task set {name!r} cannot be loaded: {error!r}") from error
    return made


def load_task(reference: str) -> Task:
    """Return the task with the reference `SET:ID`, such as `files:csv_sum-0042`.

    Raises: `ConfigError` that names similar sets or ids if there is no such task.
    """
    name, _, task_id = reference.partition(":")
    if not name or not task_id:
        raise ConfigError(f"{reference!r} is not a task; write SET:ID, such as 'files:csv_sum-0042'")
    return task_set(name).get(task_id)
