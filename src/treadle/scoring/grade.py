"""The grading of finished runs. Verdicts become `rewarded` events, and their weighted sum is the reward."""

import asyncio
import math
from collections.abc import Mapping, Sequence
from typing import Any

from msgspec import Struct

from treadle.core import events as e
from treadle.core.errors import ScoringError, TreadleError, UntrustedError
from treadle.core.spec import PartSpec
from treadle.core.state import Status
from treadle.core.types import Fault
from treadle.journal.protocol import Journal
from treadle.runs.agent_parts import settle_trust
from treadle.runs.recording import record
from treadle.runs.resume import load_task_of
from treadle.runs.run import Run
from treadle.runs.task import Task, keep_finite
from treadle.scoring.protocol import Score, Scorer, Subject
from treadle.tools.user_code import blame, describe_error


class Graded(Struct, frozen=True, kw_only=True):
    run_id: str
    rewards: dict[str, float]
    """The valid grade of each name, including those that were recorded before under other names."""
    details: dict[str, str] = {}
    """The sentences that explain the new grades."""
    changed: tuple[str, ...] = ()
    """The names whose grade was recorded now, because it is new or differs from the earlier grade."""
    without_verdict: tuple[str, ...] = ()
    """The names of the scorers that had nothing to say about the run. An earlier grade of theirs stays."""


class NotGradableError(ScoringError):
    """Raised if a run cannot have a grade: it is not finished, or failed through no fault of its model."""


async def grade(journal: Journal, run_id: str, scorers: Sequence[Scorer], *, trust: bool = False) -> Graded:
    """Grade a finished run, and record each grade that is new or differs from the recorded one.

    Raises: `NotGradableError` if the run is not finished, or failed because of a fault of the infrastructure or of
    the configuration; `ScoringError` if a scorer fails, and `UserCodeError` if its code has a mistake, after which
    nothing is recorded; `RunNotFoundError`; `LeaseHeldError`; `UntrustedError` if the run comes from elsewhere,
    unless `trust` is true.
    """
    run = await asyncio.to_thread(Run.load, run_id, journal)
    _check_gradable(run)
    started = run.state.started
    ref = None if started is None else started.task
    if ref is not None and not await asyncio.to_thread(settle_trust, journal, run_id, trust=trust):
        demand = f"load the task set {ref.task_set!r} and use its check"
        raise UntrustedError(f"run {run_id!r}", (demand,))
    subject = await asyncio.to_thread(read_subject, run, load_task_of(started), journal)
    scores: dict[str, Score] = {}
    for scorer in scorers:
        try:
            score = await scorer.score(subject)
            is_number = score is None or math.isfinite(score.reward)
        except Exception as error:
            told = f"the reward {scorer.name!r} of run {run_id!r} cannot be computed"
            is_told = isinstance(error, TreadleError)
            said = str(error) if is_told else describe_error(error)
            raise blame(error, told) or ScoringError(f"{told}: {said}") from error
        if score is not None:
            if not is_number:
                raise ScoringError(
                    f"the reward {scorer.name!r} of run {run_id!r} is {score.reward!r}, which is not a number"
                )
            scores[scorer.name] = score
    known = {
        body.name: (body.reward, body.detail, body.metrics)
        for body in subject.bodies
        if isinstance(body, e.Rewarded)
    }
    changed = {
        name: item
        for name, item in scores.items()
        if known.get(name) != (item.reward, item.detail or None, keep_finite(item.metrics))
    }
    parts = {scorer.name: getattr(scorer, "part", None) for scorer in scorers}
    if changed:
        await record(journal, run_id, lambda state: _events(changed, parts))
    return Graded(
        run_id=run_id,
        rewards={**run.state.turn.rewards, **{name: item.reward for name, item in scores.items()}},
        details={name: item.detail for name, item in scores.items()},
        changed=tuple(changed),
        without_verdict=tuple([scorer.name for scorer in scorers if scorer.name not in scores]),
    )


def read_subject(run: Run[Any], task: Task | None, journal: Journal) -> Subject:
    """Return a finished run as scorers get it. Blocks."""
    found: list[e.DurableBody] = []
    conversations: list[Run[Any]] = []
    for body in [event.body for event in run.events]:
        run_ids = body.completion.run_ids if isinstance(body, e.InferenceCompleted) else ()
        loaded = [Run.load(run_id, journal) for run_id in run_ids]
        conversations += loaded
        for conversation in loaded:
            begun = conversation.state.started
            copied = 1 if begun is None or begun.parent is None else begun.parent.seq
            found += [event.body for event in conversation.events if event.seq > copied]
        if not loaded:
            found.append(body)
    return Subject(run, task, found, journal, tuple(conversations))


def _check_gradable(run: Run[object]) -> None:
    if run.status is not Status.FINISHED:
        raise NotGradableError(
            f"run {run.run_id!r} is not finished; resume it first: treadle resume {run.run_id}"
        )
    if run.fault in (Fault.INFRASTRUCTURE, Fault.USER):
        raise NotGradableError(
            f"run {run.run_id!r} failed through no fault of its model, so it has no reward: {run.error}"
        )


def _events(scores: Mapping[str, Score], parts: Mapping[str, PartSpec | None]) -> list[e.DurableBody]:
    return [
        e.Rewarded(
            reward=score.reward,
            name=name,
            detail=score.detail or None,
            metrics=keep_finite(score.metrics),
            scorer=parts.get(name),
        )
        for name, score in scores.items()
    ]
