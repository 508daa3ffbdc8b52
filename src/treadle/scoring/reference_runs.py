"""Runs of a reference model, such as the oracle, on the tasks of the runs that are graded, and what they needed."""

from collections import OrderedDict

from msgspec import Struct

from treadle.agent.agent import Agent
from treadle.core.errors import ConfigError
from treadle.journal.memory import MemoryJournal
from treadle.models.config.recipe import load_config
from treadle.runs.task import Task
from treadle.scoring.call_matching import ExpectedCall
from treadle.scoring.expectations import find_made_calls
from treadle.scoring.protocol import Subject

_KEPT = 512


class ReferenceRun(Struct, frozen=True):
    """What the reference needed for a task."""

    calls: list[ExpectedCall]
    steps: int
    tokens: int
    cost_usd: float | None
    seconds: float


_runs: OrderedDict[tuple[str, str], ReferenceRun] = OrderedDict()
"""The newest references, by model and task: a task is graded once for each epoch and model."""


async def find_reference(model: str, subject: Subject) -> ReferenceRun | None:
    """Return the run of `model` on the task of the run that is graded; `None` if there is no task, or if the
    model is the oracle and cannot solve it."""
    task = subject.task
    if task is None:
        return None
    key = model, f"{task.task_set}:{task.task_id}"
    if key not in _runs:
        try:
            _runs[key] = await _make(model, task)
        except ConfigError:
            if model.partition(":")[0] != "oracle":
                raise
            return None
        while len(_runs) > _KEPT:
            _runs.popitem(last=False)
    return _runs[key]


async def _make(model: str, task: Task) -> ReferenceRun:
    journal = MemoryJournal()
    run = await Agent(load_config().model(model, task=task), journal=journal).run(task)
    calls = []
    for made in find_made_calls([event.body for event in run.events]):
        arguments = made.arguments
        calls.append(ExpectedCall(made.call.name, arguments if isinstance(arguments, dict) else {}))
    tokens = run.usage.input_tokens + run.usage.output_tokens
    return ReferenceRun(calls, run.steps, tokens, run.cost_usd, run.state.work_seconds)
