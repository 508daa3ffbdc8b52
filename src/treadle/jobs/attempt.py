"""Attempts: task x model x seed, each driven to a graded run or a fault of the infrastructure.

After a fault of the infrastructure, an attempt is made again; the fault is never a grade. An attempt that cannot be
completed fails with the reason.
"""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from treadle.core.errors import ConfigError, NoResultError, ProviderError, ScoringError
from treadle.core.lineage import Parent
from treadle.core.state import Status
from treadle.core.types import Fault, Json, StopReason
from treadle.jobs.job import CutOffError, Job
from treadle.jobs.ledger import ItemOutcome, ItemStatus
from treadle.jobs.progress import JobNotice
from treadle.jobs.sections import AttemptSection
from treadle.jobs.seeded_agents import SeededAgents
from treadle.jobs.slots import Expected
from treadle.journal.run_info import RunFilter
from treadle.runs.ensure import ensure_run
from treadle.runs.retries import find_infrastructure_fault, find_lost_tool, is_cut_off
from treadle.runs.run import Run
from treadle.runs.task import Task
from treadle.sandbox.in_memory import SharedFiles
from treadle.scoring.grade import grade
from treadle.scoring.registry import RewardSpec, make_scorers, read_rewards
from treadle.scoring.scorers import JUDGE_LABELS
from treadle.tools.user_code import FirstFailures, blame, is_from_user

_ATTEMPT = "attempt"
_BUDGETS = frozenset((StopReason.MAX_TOKENS, StopReason.MAX_COST))
"""The limits that answers which were lost on the way count for."""


class Attempt(Struct, frozen=True, kw_only=True):
    """One run of a job."""

    run_id: str
    """The id of the run. The attempt is continued if the journal has it."""
    task: Task
    seed: int
    """The seed of the model's sampling."""
    model: str = ""
    """The name of the model, if the job has several."""
    files: SharedFiles | None = None
    """The files of the task, if several attempts share them."""
    metadata: Mapping[str, Json] = {}
    parent: Parent | None = None
    """The run that this one is forked from; `None` if it begins from the start."""
    drive: "DriveAttempt | None" = None
    """A function that makes and drives the run, or goes on with it, in place of the workers; `None`: they do."""


DriveAttempt: TypeAlias = Callable[[SeededAgents, Attempt], Awaitable[Run[Any]]]
"""A function of the agents of the attempt's model and of the attempt that returns the run, driven to its end."""


_MOST_RUNS = 12
"""How many runs an attempt has at most."""


def ids_of(run_id: str) -> list[str]:
    """Return the ids that the runs of an attempt may have: one that is lost is made anew under the next id."""
    return [run_id, *[f"{run_id}~{number}" for number in range(2, _MOST_RUNS + 1)]]


def judges_of(config: AttemptSection) -> RunFilter:
    """Return the runs of judges, whose use is in no outcome of the ledger."""
    return RunFilter(id_prefix=f"{config.name}-", labels=JUDGE_LABELS)


class LostRunError(NoResultError):
    """A run that ended and cannot have a grade, so that it is made anew."""

    def __init__(self, text: str, run: Run[Any]) -> None:
        super().__init__(text)
        self.run = run


class AttemptFailedError(Exception):
    """Raised if an attempt has no graded run. The text is `reason: explanation`."""

    def __init__(self, text: str, status: ItemStatus = ItemStatus.REJECTED) -> None:
        super().__init__(text)
        self.status = status
        """The status of the item that the attempt belongs to."""


class AttemptRetried(JobNotice, frozen=True, tag="attempt_retried"):
    """An attempt failed because of the infrastructure and is made again."""

    run_id: str
    attempt: int
    """How often the attempt was made, from 1."""
    error: str

    def line(self) -> str:
        return f"{self.run_id} is tried again: {self.error}"

    def key(self) -> str:
        """See `JobNotice.key`. If a server fails, all attempts in flight fail with the same text."""
        return self.error


class AttemptDriver:
    """The one way from an attempt to its graded run."""

    def __init__(
        self,
        job: Job[Any, Any],
        agents: Mapping[str, SeededAgents],
        config: AttemptSection,
        retried: type[AttemptRetried] = AttemptRetried,
        *,
        rewards: Sequence[RewardSpec] | None = None,
        is_grading_again: bool = False,
    ) -> None:
        """Make a driver of the attempts of `job`. `agents` are those of each model by the name in the attempts.

        `retried` is the class of the notices about attempts that are made again. `rewards` take the place of the
        configured ones. If `is_grading_again`, finished runs get all grades again.
        """
        self._job = job
        self._agents = agents
        self.rewards = read_rewards(config.rewards) if rewards is None else tuple(rewards)
        self._is_grading_again = is_grading_again
        self._scorers = make_scorers(self.rewards)
        for scorer in self._scorers:
            scorer.measure(job.meter.measure)
        self._retries = config.retries.policy()
        self._retried = retried
        self._failures = FirstFailures()
        self._began_at = time.time()

    async def drive(self, attempt: Attempt, expected: Expected) -> Run[Any]:
        """Return the graded run of an attempt, which is made in one of the `expected` slots.

        Raises: `AttemptFailedError` if there is none; `CutOffError`; `ProviderError` for a fault of the user;
        `ConfigError`; `JournalError`.
        """
        number, meter = 1, self._job.meter
        lost: list[Run[Any]] = []
        later = iter(ids_of(attempt.run_id)[1:])
        while True:
            async with expected.slot(is_again=number > 1 or bool(lost)):
                outcome = await self._try(attempt)
            fault = find_infrastructure_fault(outcome)
            if isinstance(outcome, Run):
                self._failures.succeed(_ATTEMPT)
                if fault is None:
                    for run in lost:
                        meter.lose(run)
                    return outcome
            elif not is_cut_off(outcome) and (
                (wrong := self._failures.blame_again(_ATTEMPT, outcome)) is not None
            ):
                raise wrong from outcome
            pause = self._retries.pause_after(number, outcome)
            is_over = self._job.stop.is_set() or (pause is not None and meter.find_limit() is not None)
            if is_cut_off(outcome) or (fault is not None and is_over):
                raise CutOffError
            if fault is None:
                raise outcome  # type: ignore[misc]
            again = attempt
            if isinstance(outcome, LostRunError):
                lost.append(outcome.run)
                if (run_id := next(later, None)) is None:
                    pause = None
                else:
                    again = replace(attempt, run_id=run_id)
                    if outcome.run.state.at < self._began_at:
                        attempt = again  # an earlier process lost it, and this one has not tried yet
                        continue
            if pause is None:
                times = "" if number == 1 else f" {number} times, at last"
                text = f"run {attempt.run_id} failed{times} with: {fault}"
                raise AttemptFailedError(f"infrastructure: {text}", ItemStatus.FAILED)
            self._job.progress.retried += 1
            self._job.tell(self._retried(run_id=attempt.run_id, attempt=number, error=fault))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await self._job.stop.wait()
                raise CutOffError
            attempt, number = again, number + 1

    async def _try(self, attempt: Attempt) -> Run[Any] | Exception:
        """Return the run, graded unless it ended with a fault of the infrastructure, or the error of the attempt.
        Raises: `AttemptFailedError` if another attempt would not help; `ProviderError` for a fault of the user."""
        run_id, agents = attempt.run_id, self._agents[attempt.model]
        try:
            if attempt.drive is not None:
                run = await attempt.drive(agents, attempt)
            elif attempt.parent is not None:
                run = await ensure_run(agents.make(attempt.task, attempt.seed), run_id, attempt.parent)
            else:
                agent = agents.make(attempt.task, attempt.seed)
                run = await self._job.workers.run(
                    agent, run_id, attempt.task, files=attempt.files, metadata=attempt.metadata
                )
        except Exception as error:
            # Checks and other code of users raise anything.
            reference = f"{attempt.task.task_set}:{attempt.task.task_id}"
            what = f"run {run_id!r} of the task {reference!r} cannot be made"
            if isinstance(error, ConfigError):
                return error if reference in str(error) else blame(error, what) or error
            return (blame(error, what) if is_from_user(error) else None) or error
        try:
            check_ended(run)
        except AttemptFailedError as failed:
            if run.status is Status.FINISHED and run.state.at < self._began_at:
                return LostRunError(str(failed), run)  # another attempt is asked for
            raise
        if (lost := await asyncio.to_thread(find_lost_tool, run)) is not None:
            return LostRunError(lost, run)
        known = () if self._is_grading_again else run.state.turn.rewards
        missing = [item for item in self._scorers if item.name not in known]
        if missing and find_infrastructure_fault(run) is None:
            try:
                await grade(self._job.journal, run_id, missing)
            except ScoringError as error:
                return error
            run = await asyncio.to_thread(Run.load, run_id, self._job.journal)
        return run


def outcome_of(result: Run[Any] | AttemptFailedError, **more: Any) -> ItemOutcome:
    """Return the outcome of an item that is one attempt: kept, with the use of its run, or failed, with the
    reason. `more` are further fields of an `ItemOutcome`."""
    if isinstance(result, AttemptFailedError):
        return ItemOutcome(status=result.status, reasons=(str(result),), **more)
    return ItemOutcome(
        status=ItemStatus.KEPT,
        input_tokens=result.usage.input_tokens,
        output_tokens=result.usage.output_tokens,
        cost_usd=result.cost_usd,
        **more,
    )


def check_ended(run: Run[Any]) -> None:
    """Check that a run can have a grade, or that another attempt may help.

    Raises: `AttemptFailedError`; `ProviderError` for a fault of the user.
    """
    if run.status is not Status.FINISHED:
        raise AttemptFailedError(f"paused: run {run.run_id} waits for somebody (`treadle show` says why)")
    if run.stop_reason is StopReason.CANCELLED:
        raise AttemptFailedError(f"cancelled: run {run.run_id} was cancelled")
    if run.stop_reason is StopReason.DEADLINE and run.error is not None:
        # A grade of the unfinished work would depend on how fast the server is.
        agent = run.state.agent
        is_program = agent is not None and "command" in (agent.model.settings or {})
        how = "'s program was killed" if is_program else " waited for an answer"
        raise AttemptFailedError(f"deadline: run {run.run_id}{how} when its deadline passed")
    turn = run.state.turn
    is_step_limit = run.stop_reason is StopReason.MAX_STEPS
    # Until version 2.3, lost answers were steps. An answer that the model's own limit cut off used up no budget.
    lost = turn.spent.steps - run.steps if is_step_limit else 0
    is_charged = run.stop_reason in _BUDGETS and run.fault is None and run.state.policy.charges_lost
    if is_charged or ((is_step_limit or turn.is_wrap_up_lost) and not turn.is_wrapped_up):
        lost += turn.spent.lost
    if run.stop_reason is not None and lost > 0:
        raise AttemptFailedError(
            f"infrastructure: run {run.run_id} ended with {run.stop_reason.value}, which counts answers that were "
            f"lost on the way, {lost} in this run"
        )
    if run.fault is Fault.USER and run.stop_reason is StopReason.CONTEXT_OVERFLOW:
        raise AttemptFailedError(f"context_overflow: run {run.run_id} had no answer: {run.error}")
    if run.fault is Fault.USER:
        ref = None if run.state.started is None else run.state.started.task
        of_task = "" if ref is None else f" of the task '{ref.task_set}:{ref.task_id}'"
        raise ProviderError(f"run {run.run_id!r}{of_task} cannot be made: {run.error}")
