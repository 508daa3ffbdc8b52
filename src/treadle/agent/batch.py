"""The runs of a batch. Each task becomes a run, or continues the run that an earlier batch began for it."""

import asyncio
from collections.abc import Mapping
from typing import Any, Generic, TypeVar

from treadle.core.errors import ConfigError, LeaseHeldError, RunExistsError, RunNotFoundError
from treadle.core.state import Status
from treadle.core.types import Fault, Json, Role, StopReason
from treadle.journal.protocol import RunFilter
from treadle.runs.agent_parts import AgentParts
from treadle.runs.answer_type import AnswerType
from treadle.runs.begin import run_task
from treadle.runs.options import Given, StreamOptions
from treadle.runs.resume import resume_run
from treadle.runs.run import Run
from treadle.runs.task import Task

T = TypeVar("T")


class BatchWork(Generic[T]):
    """The function that returns the run for each task of a batch.

    A finished run is read from the journal, unless it ended with an infrastructure fault. Other runs are
    continued. A run that another process drives is returned in its current state.
    """

    def __init__(
        self,
        agent: AgentParts,
        given: Given,
        answer: AnswerType[T],
        batch_id: str | None,
        options: StreamOptions,
    ) -> None:
        self._agent = agent
        self._given = given
        self._answer = answer
        self._batch_id = batch_id
        self._options = options
        self._looking: asyncio.Future[bool] | None = None
        """Whether the journal has runs of the batch."""

    async def __call__(self, number: int, task: str | Task) -> Run[T]:
        """Return the run of the task with this number, counted from 1."""
        metadata: dict[str, Json] = {**(self._options.get("metadata") or {}), "number": number}
        if self._batch_id is None:
            return await run_task(self._agent, task, self._given, {**self._options, "metadata": metadata})
        run_id = f"{self._batch_id}-{number}"
        if self._looking is None:
            self._looking = asyncio.ensure_future(asyncio.to_thread(self._has_runs))
        found = await self._take_up(run_id, task) if await asyncio.shield(self._looking) else None
        if found is not None:
            return found
        metadata["batch"] = self._batch_id
        options: StreamOptions = {**self._options, "metadata": metadata, "run_id": run_id}
        try:
            return await run_task(self._agent, task, self._given, options)
        except RunExistsError:
            # Another process works on the same batch.
            found = await self._take_up(run_id, task)
            if found is None:
                raise
            return found

    def _has_runs(self) -> bool:
        return bool(self._agent.journal.runs(RunFilter(id_prefix=f"{self._batch_id}-"), limit=1))

    async def _take_up(self, run_id: str, task: str | Task) -> Run[T] | None:
        try:
            run = await asyncio.to_thread(self._load, run_id)
        except RunNotFoundError:
            return None
        text = task if isinstance(task, str) else task.input
        asked = next((item.content for item in run.messages if item.role is Role.USER), text)
        if asked != text:
            raise ConfigError(
                f"run {run_id!r} of the batch {self._batch_id!r} has another task ({asked!r:.80}, and not "
                f"{text!r:.80}); give the same tasks in the same order, or another batch_id"
            )
        has_broken = run.stop_reason is StopReason.ERROR and run.fault is Fault.INFRASTRUCTURE
        if run.status is Status.FINISHED and not has_broken:
            return run
        try:
            return await resume_run(self._agent, run_id, self._given)
        except LeaseHeldError:
            return run

    def _load(self, run_id: str) -> Run[T]:
        run: Run[Any] = Run.load(run_id, self._agent.journal)
        return Run(run_id, run.state, self._agent.journal, self._answer)


def check_batch_id(batch_id: object) -> None:
    """Check the name of a batch. Raises: `ConfigError`."""
    if batch_id is not None and not (isinstance(batch_id, str) and batch_id):
        raise ConfigError(f"batch_id is {batch_id!r}; give a text that is not empty, or leave it out")


def split_options(options: Mapping[str, Any]) -> StreamOptions:
    """Return the options that a batch passes to each of its runs."""
    kept: StreamOptions = {}
    if "files" in options:
        kept["files"] = options["files"]
    if "metadata" in options:
        kept["metadata"] = options["metadata"]
    return kept
