"""Models for tests of rollouts: the oracle, which errs on purpose for some seeds."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from treadle.core.types import Completion, FinishReason, Message, Request, Role, Usage
from treadle.models.protocol import Model, Watch
from treadle.runs.task import Task
from treadle.tasks.draws import fraction
from treadle.testbed import OracleModel, named_oracle


class School(Struct, kw_only=True):
    """What all students of a test share."""

    wrong_share: float = 0.0
    """The share of seeds for which a student gives a wrong answer at once."""
    pause: Callable[[int], Awaitable[Any]] = lambda seed: asyncio.sleep(0)
    """Awaited before each answer, with the student's seed."""
    version: str | None = None
    """The version of the weights of the next answers."""
    asked: int = 0
    """How many requests there were."""
    seeds: set[int] = set()
    in_flight: int = 0
    most: int = 0
    """The most requests that were in flight at the same time."""

    def make(self, task: Task, seed: int) -> Model:
        """Return the model of one rollout."""
        self.seeds.add(seed)
        model = named_oracle("oracle", task)
        assert isinstance(model, OracleModel)
        return Student(self, model, seed)


class Student:
    """A model that solves its task, or gives a wrong answer, as its seed says."""

    name = "student"

    def __init__(self, school: School, oracle: OracleModel, seed: int) -> None:
        self._school = school
        self._oracle = oracle
        self._seed = seed

    async def infer(self, request: Request, watch: Watch) -> Completion:
        """Return the next answer."""
        school = self._school
        school.asked += 1
        school.in_flight += 1
        school.most = max(school.most, school.in_flight)
        try:
            await school.pause(self._seed)
        finally:
            school.in_flight -= 1
        if fraction(self._seed, "wrong") < school.wrong_share:
            message = Message(Role.ASSISTANT, "Answer: I do not know")
            answer = Completion(message, FinishReason.STOP, Usage(10, 5))
        else:
            answer = await self._oracle.infer(request, watch)
        return replace(answer, weight_version=school.version)
