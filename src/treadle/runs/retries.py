"""The one place that decides whether work is tried again after a fault of the infrastructure, and when.

It decides about whole turns and runs. The retries of single requests to a model are `models.wrappers.retry`.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias, TypeVar

from msgspec import Struct

from treadle.core.errors import (
    ConfigError,
    JournalError,
    LeaseHeldError,
    LeaseLostError,
    LimitReachedError,
    ProviderError,
    RunExistsError,
    ScoringError,
)
from treadle.core.state import State
from treadle.core.types import Fault, ToolErrorKind
from treadle.runs.run import Run

T = TypeVar("T")
Outcome: TypeAlias = Run | State | Exception
"""The outcome of an attempt: a run or its state, or the exception that ended the attempt."""


class RetryPolicy(Struct, frozen=True, kw_only=True):
    """The number of attempts that are made if the infrastructure fails, and the pauses between them."""

    attempts: int = 3
    """How many attempts are made in all, the first one included."""
    delay_seconds: float = 1.0
    """The pause after the first attempt. Each further pause is twice as long as the one before."""
    max_delay_seconds: float = 30.0
    """The longest pause."""

    def pause_after(self, attempt: int, outcome: Outcome) -> float | None:
        """Return how many seconds to wait before the next attempt; `None` if there is no next attempt.

        `attempt` is the number of the attempt that ended with `outcome`, from 1.
        """
        if attempt >= self.attempts or find_infrastructure_fault(outcome) is None or _is_lasting(outcome):
            return None
        return min(self.max_delay_seconds, self.delay_seconds * 2.0 ** (attempt - 1))

    async def call(
        self, work: Callable[[], Awaitable[T]], on_retry: Callable[[int, str], None] = lambda *_: None
    ) -> T:
        """Return what `work` returns. After an exception that is a fault of the infrastructure, it is called again.

        `on_retry` is called before each pause with the number of the attempt and the fault. Raises: the exception
        of the last attempt.
        """
        attempt = 1
        while True:
            try:
                return await work()
            except Exception as error:
                if (pause := self.pause_after(attempt, error)) is None:
                    raise
                on_retry(attempt, _describe(error))
            await asyncio.sleep(pause)
            attempt += 1


NO_RETRIES = RetryPolicy(attempts=1)


def find_infrastructure_fault(outcome: Outcome) -> str | None:
    """Return the fault of the infrastructure with which an attempt ended; `None` if another attempt would not help.

    An exception is such a fault unless it says that the configuration is wrong, that a request cannot succeed,
    or that the store has failed. If another process drives the run, a later attempt may help.
    """
    if isinstance(outcome, Exception):
        return _describe(outcome) if _may_pass(outcome) else None
    state = outcome.state if isinstance(outcome, Run) else outcome
    return (
        (state.ending.error or "unknown")
        if state.has_failed_turn and state.ending.fault is Fault.INFRASTRUCTURE
        else None
    )


def is_cut_off(outcome: Outcome) -> bool:
    """Return whether work ended because a job sends no more requests: it is at a limit, or is to stop."""
    if isinstance(outcome, Exception):
        cause: BaseException | None = outcome
        while cause is not None and not isinstance(cause, LimitReachedError):
            cause = cause.__cause__
        return cause is not None
    failure = (outcome.state if isinstance(outcome, Run) else outcome).ending.failure
    return failure is not None and failure.error_type == LimitReachedError.__name__


def find_lost_tool(run: Run) -> str | None:
    """Return the first call of a run that has no result because what runs its tool was lost, as a text; `None` if
    all have one. What the model did afterwards is not its own work. Reads the events from the journal."""
    lost = [result for result in run.results if result.error_kind is ToolErrorKind.IN_DOUBT]
    return f"the tool {lost[0].name!r} gave no result: {lost[0].content}" if lost else None


def _may_pass(error: Exception) -> bool:
    if isinstance(error, ProviderError):
        return error.is_retryable
    if isinstance(error, LeaseHeldError | LeaseLostError | RunExistsError):
        return True
    return not isinstance(error, ConfigError | JournalError)


def _is_lasting(outcome: Outcome) -> bool:
    """Return whether the fault of an attempt comes again at each further one, as that of a scorer whose own request
    cannot succeed, or of a job that sends no more requests."""
    if is_cut_off(outcome):
        return True
    cause = outcome.__cause__ if isinstance(outcome, ScoringError) else None
    return isinstance(cause, ProviderError) and not cause.is_retryable


def _describe(error: Exception) -> str:
    if isinstance(error, JournalError):
        return str(error)
    # Graders, tools and other code of users raise anything.
    return f"{type(error).__name__}: {error}"
