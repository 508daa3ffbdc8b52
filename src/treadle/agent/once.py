"""Runs with fixed ids. When work is repeated after a crash, its runs are continued and nothing is paid for
twice."""

from typing import Any, Unpack

from treadle.agent.agent import Agent
from treadle.agent.options import StreamOptions
from treadle.agent.run import Run
from treadle.agent.task import Task
from treadle.core.errors import RunExistsError


async def run_once(
    agent: Agent[Any], run_id: str, task: str | Task, /, **options: Unpack[StreamOptions]
) -> Run[Any]:
    """Return the run `run_id` of a task: the finished one if the journal has it, else begin or continue it.

    A run that ended with an error is continued. Raises: as `Agent.run` and `Agent.resume` do.
    """
    given: StreamOptions = {**options, "run_id": run_id}
    try:
        return await agent.run(task, **given)
    except RunExistsError:
        return await agent.resume(run_id)
