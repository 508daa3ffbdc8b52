"""Runs with fixed ids. When work is repeated after a crash, its runs are continued and nothing is paid for
twice."""

from typing import Any, Unpack

from treadle.agent.agent import Agent
from treadle.agent.options import StreamOptions
from treadle.agent.run import Run
from treadle.agent.task import Task
from treadle.engines.runners import HereRunner


async def run_once(
    agent: Agent[Any], run_id: str, task: str | Task, /, **options: Unpack[StreamOptions]
) -> Run[Any]:
    """Return the run `run_id` of a task, driven in this process; see `Runner.run`."""
    return await HereRunner().run(agent, run_id, task, **options)
