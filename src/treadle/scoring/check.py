"""The check of a run's task."""

import asyncio

from treadle.scoring.protocol import Score, Subject


class CheckScorer:
    """The verdict of `Task.check` on the final answer and the final files. It says nothing about runs without a
    task."""

    def __init__(self, name: str = "check") -> None:
        self.name = name

    async def score(self, subject: Subject) -> Score | None:
        """See `Scorer.score`."""
        task, run = subject.task, subject.run
        if task is None:
            return None
        files = await asyncio.to_thread(lambda: dict(run.files))
        grade = task.check(run.output, files)
        return Score(grade.reward, grade.detail)
