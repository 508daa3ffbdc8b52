"""Tree rollouts: runs that are forked from another rollout of their group, so that both share a beginning."""

import itertools
from collections.abc import Sequence
from typing import Any

from treadle.agent.agent import Agent
from treadle.core import events as e
from treadle.core.events.narrowing import Event
from treadle.core.types import Parent
from treadle.runs.ensure import ensure_run
from treadle.runs.run import Run
from treadle.tasks.draws import fraction


def find_fork_points(events: Sequence[Event]) -> list[int]:
    """Return the numbers of events after which a run can be forked: those before each inference but the first."""
    points: list[int] = []
    for before, event in itertools.pairwise(events):
        if isinstance(event.body, e.InferenceStarted) and event.body.step > 1:
            points.append(before.seq)
    return points


async def fork_once(agent: Agent[Any], root: Run[Any], run_id: str, *, seed: int) -> Run[Any]:
    """Return the run `run_id`, which is forked from `root` at a step that the seed chooses.

    The inferences before that step are neither sampled nor paid for again. A run that exists is continued. A root
    that has only one step is forked at its beginning.
    """
    points = find_fork_points(root.events) or [_first_step(root.events)]
    at = points[int(fraction(seed, run_id, "fork") * len(points))]
    return await ensure_run(agent, run_id, Parent(root.run_id, at))


def _first_step(events: Sequence[Event]) -> int:
    return next(
        before.seq
        for before, event in itertools.pairwise(events)
        if isinstance(event.body, e.InferenceStarted)
    )
