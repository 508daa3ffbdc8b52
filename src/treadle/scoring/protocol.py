"""The protocol of scorers."""

from collections.abc import Sequence
from typing import Any, Protocol

from msgspec import Struct

from treadle.core.events import DurableBody, InferenceCompleted
from treadle.core.registry import NamedFields
from treadle.core.types import Message, ToolSpec
from treadle.journal.protocol import Journal
from treadle.runs.run import Run
from treadle.runs.task import Task


class Subject(Struct, frozen=True):
    """A finished run that is graded."""

    run: Run[Any]
    task: Task | None
    """The run's task; `None` if the run was given only a text."""
    bodies: Sequence[DurableBody]
    """The run's events. If a program was the agent, those of its conversations are in the place of its answer."""
    journal: Journal
    """The journal of the run."""
    conversations: tuple[Run[Any], ...] = ()
    """The runs with the conversations of the program that was the agent; empty for other runs."""

    @property
    def tools(self) -> tuple[ToolSpec, ...]:
        """The tools that the model had."""
        return tuple([spec for run in self.conversations or (self.run,) for spec in run.state.tools])

    @property
    def messages(self) -> list[Message]:
        """The transcript; with a program, those of its conversations, one after another."""
        return [message for run in self.conversations or (self.run,) for message in run.messages]

    @property
    def steps(self) -> int:
        """The number of answers of the model."""
        if not self.conversations:
            return self.run.steps
        return sum([isinstance(body, InferenceCompleted) for body in self.bodies])


class Score(Struct, frozen=True, metaclass=NamedFields):
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

    async def score(self, subject: Subject) -> Score | None:
        """Return the verdict; `None` if the scorer has nothing to say about the run.

        An exception is never a reward of 0. It is a mistake in the code or, if another attempt may succeed, as
        after an `OSError`, a fault of the infrastructure.
        """
