"""What a task is: work with an input, files, and a check that grades what came of it."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from treadle.models.protocol import Model


class Grade(Struct, frozen=True):
    """What a check found."""

    reward: float
    """From 0 to 1."""
    detail: str
    """What was right or wrong, in a sentence."""


class Task(Protocol):
    """One piece of work."""

    @property
    def task_set(self) -> str:
        """The name of the set it belongs to."""
        ...

    @property
    def task_id(self) -> str:
        """Unique in the set, and enough to make the task again."""
        ...

    @property
    def seed(self) -> int | None:
        """What its parameters were drawn from."""
        ...

    @property
    def input(self) -> str:
        """The user's message."""
        ...

    @property
    def instructions(self) -> str | None:
        """The system message, if the task has one."""
        ...

    @property
    def tools(self) -> Sequence[str]:
        """Names of the toolsets it needs, as `files`."""
        ...

    @property
    def files(self) -> Mapping[str, bytes]:
        """The initial files of its sandbox."""
        ...

    def check(self, output: str, files: Mapping[str, bytes]) -> Grade:
        """Grade the final answer and the final files."""
        ...

    def oracle(self, *, mistake_rate: float = 0.0) -> Model | None:
        """A model that solves the task by acting on what it observes; `None` if there is none.

        `mistake_rate` is the chance, at each step, of a mistake that it then recovers from.
        """
        ...


class TaskSet(Protocol):
    """Many tasks under one name."""

    @property
    def name(self) -> str: ...

    def __len__(self) -> int:
        """How many distinct tasks there are."""
        ...

    def __iter__(self) -> Iterator[Task]:
        """All of them, in a fixed order that mixes the kinds."""
        ...

    def get(self, task_id: str) -> Task:
        """Raises: `ConfigError` that names near ids if there is no such task."""
        ...
