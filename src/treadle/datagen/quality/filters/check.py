"""The filter of the outcome by the check of the environment's task."""

import asyncio
from typing import Annotated

from pydantic import Field

from treadle.agent.run import Run
from treadle.agent.task import load_task
from treadle.datagen.quality.protocol import BuiltinFilter, Candidate, Settings, Verdict
from treadle.datagen.quality.transcripts import answers
from treadle.datagen.scenarios.types import Kind

_OFF_TASK = (Kind.NO_TOOL, Kind.REFUSAL)


class CheckSettings(Settings):
    """The grade that is wanted."""

    min_grade: Annotated[float, Field(ge=0, le=1)] = 1.0
    """The least grade of a good row."""


class CheckFilter(BuiltinFilter[CheckSettings]):
    """The check of the environment's task gives the last answer and the final files the best grade.
    Conversations of the kinds `no_tool` and `refusal`, in which the task is not done, and environments without a
    task pass."""

    name = "check"
    cost = 1
    settings_type = CheckSettings

    async def check(self, candidate: Candidate) -> Verdict:
        """See `Filter.check`."""
        reference = candidate.environment.task
        if reference is None:
            return self.accept("the environment has no task")
        if candidate.spec.kind in _OFF_TASK:
            return self.accept(f"the planned kind is {candidate.spec.kind.value!r}")
        task, messages = load_task(reference), candidate.row.messages
        ends = answers(messages)
        files = await asyncio.to_thread(lambda: Run.load(candidate.run_id, candidate.journal).files)
        grade = task.check(messages[ends[-1]].content if ends else "", files)
        if grade.reward < self.settings.min_grade:
            return self.reject(
                f"the grade of {reference} is {grade.reward:g}: {grade.detail}", grade=grade.reward
            )
        return self.accept(grade=grade.reward)
