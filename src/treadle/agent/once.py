"""Runs with fixed ids. When work is repeated after a crash, its runs are continued and nothing is paid for
twice."""

from typing import Any, Unpack

from treadle.agent.agent import Agent
from treadle.core.errors import RunExistsError
from treadle.runs.begin import run_task
from treadle.runs.options import Given, StreamOptions
from treadle.runs.resume import resume_run
from treadle.runs.run import Run
from treadle.runs.task import Task


async def run_once(
    agent: Agent[Any], run_id: str, task: str | Task, /, **options: Unpack[StreamOptions]
) -> Run[Any]:
    """Return the run `run_id` of a task: the finished one if the journal has it, else begin or continue it.

    A run that ended with an error is continued. Raises: as `Agent.run` and `Agent.resume` do.
    """
    return await drive_once(agent, run_id, task, given_for(agent, options), options)


async def drive_once(
    agent: Agent[Any], run_id: str, task: str | Task, given: Given, options: StreamOptions
) -> Run[Any]:
    """Do what `run_once` does, with `given` in place of what the agent and the options give."""
    try:
        return await run_task(agent, task, given, {**options, "run_id": run_id})
    except RunExistsError:
        return await resume_run(agent, run_id, given)


def given_for(agent: Agent[Any], options: StreamOptions) -> Given:
    """Return what an agent and the options of a run give for driving it."""
    return Given(agent.answer, options.get("deps", agent.deps))
