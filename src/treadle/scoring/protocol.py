"""The protocol of scorers."""

from collections.abc import Sequence
from typing import Any, Protocol

from msgspec import Struct

from treadle.core.events import DurableBody
from treadle.journal.protocol import Journal
from treadle.runs.run import Run
from treadle.runs.task import Task


class Subject(Struct, frozen=True):
    """A finished run that is graded."""

    run: Run[Any]
    task: Task | None
    """The run's task; `None` if the run was given only a text."""
    bodies: Sequence[DurableBody]
    """The run's events."""
    journal: Journal
    """The journal of the run."""


class Score(Struct, frozen=True):
    """The verdict of one scorer."""

    reward: float
    """A number, usually from 0 to 1."""
    detail: str = ""
    """One sentence that explains the reward."""
    metrics: dict[str, float] = {}
    """Further numbers by name, such as precision and recall."""


class Scorer(Protocol):
    """A named part of the reward."""

    @property
    def name(self) -> str:
        """The name under which the reward is recorded."""
        ...

    async def score(self, subject: Subject) -> Score | None:
        """Return the verdict; `None` if the scorer has nothing to say about the run.

        An exception is never a reward of 0. It is a mistake in the code or, if another attempt may succeed, as
        after an `OSError`, a fault of the infrastructure.
        """
        ...
