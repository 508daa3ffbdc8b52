"""A model that tries again when a server fails, slows down or does not answer."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from treadle.core.errors import ConfigError, ProviderError, ProviderTimeoutError, RateLimitError
from treadle.core.types import Completion, Request
from treadle.models.protocol import Model, Watch
from treadle.models.wrappers.fallback import PATIENCE_SECONDS
from treadle.models.wrappers.wrapper import Wrapper

if TYPE_CHECKING:
    from tenacity import RetryCallState


class RetryModel(Wrapper):
    """A model that tries again after errors that are `is_retryable`, until attempts or time run out.

    Refusals that ask to slow down and other failures are counted separately, each up to `max_attempts`. The
    wait that a server asks for with Retry-After is kept, also after a run was resumed. If it is longer than the
    time that is left, the error is raised at once. Without Retry-After, delays are random and grow, so that
    many runs do not try again at the same moment. If another model can be asked, a longer wait than that model
    usually takes ends the attempts.
    """

    CHANGES_ANSWERS = False

    def __init__(
        self,
        inner: Model,
        *,
        max_attempts: int = 6,
        total_timeout_seconds: float = 1800.0,
        min_delay_seconds: float = 0.25,
        max_delay_seconds: float = 60.0,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        if max_attempts < 1:
            raise ConfigError(f"max_attempts is {max_attempts!r}; give at least 1")
        if not total_timeout_seconds > 0:
            raise ConfigError(f"total_timeout_seconds is {total_timeout_seconds!r}; give a positive number")
        if not 0 <= min_delay_seconds <= max_delay_seconds:
            raise ConfigError(
                f"min_delay_seconds is {min_delay_seconds!r}; give 0 to max_delay_seconds ({max_delay_seconds!r})"
            )
        super().__init__(inner)
        self._max_attempts = max_attempts
        self._total_timeout_seconds = total_timeout_seconds
        self._min_delay_seconds = min_delay_seconds
        self._max_delay_seconds = max_delay_seconds
        self._sleep = sleep

    async def infer(self, request: Request, watch: Watch) -> Completion:
        """Return the inner model's answer; see `Model.infer`.

        Raises: the last attempt's error, which says how many attempts there were.
        """
        started, left = time.monotonic(), watch.left_seconds
        total = self._total_timeout_seconds
        if left is None or left > total:
            watch.left_seconds = total
        try:
            if watch.held is None or (first := self._take_hold(watch)) is None:
                try:
                    return await self.inner.infer(request, watch)
                except ProviderError as error:
                    if not error.is_retryable:
                        raise
                    first = error
            limit = f"the {total:g} s that total_timeout_seconds allows"
            if left is not None and left < total:
                total, limit = left, f"the run's deadline, which is in {left:.0f} s"
            return await self._retry(request, watch, first, started + total, limit)
        finally:
            watch.left_seconds = left

    def _take_hold(self, watch: Watch) -> ProviderError | None:
        """Return an error for the wait that the server asked for before the run was resumed; `None` if another
        model was asked to wait."""
        held = watch.held
        if held is None or held.model not in (None, self.name):
            return None
        watch.held = None
        return RateLimitError(
            f"not sent: before the run was resumed, the server of {self.name} asked to wait, and "
            f"{held.seconds:.0f} s of the wait are left",
            retry_after_seconds=held.seconds,
        )

    async def _retry(
        self, request: Request, watch: Watch, first: ProviderError, end: float, limit: str
    ) -> Completion:
        """Make all attempts after the first, whose error is `first`, until `end` by the monotonic clock.

        `limit` names that limit in words.
        """
        # Imported here, so that only a failure pays for it.
        import tenacity

        growing = tenacity.wait_exponential(multiplier=self._min_delay_seconds, max=self._max_delay_seconds)
        exponential = growing + tenacity.wait_random(0, self._min_delay_seconds)

        def wait(state: tenacity.RetryCallState) -> float:
            return _error_of(state).retry_after_seconds or exponential(state)

        failures: dict[bool, int] = {}
        patience = watch.patience_seconds

        def is_over(state: tenacity.RetryCallState) -> bool:
            # A busy server and a failing one are counted separately.
            kind = isinstance(_error_of(state), RateLimitError)
            failures[kind] = failures.get(kind, 0) + 1
            if patience is not None:
                asked = _error_of(state).retry_after_seconds
                # A short fault must not send all work to a dearer model, however quick that one is.
                spent = state.idle_for + state.upcoming_sleep
                if asked > patience if asked else spent > max(patience, PATIENCE_SECONDS):
                    return True
            return failures[kind] >= self._max_attempts or time.monotonic() + state.upcoming_sleep >= end

        def report(state: tenacity.RetryCallState) -> None:
            if watch.on_failure is not None:
                watch.on_failure(_error_of(state), state.attempt_number, state.upcoming_sleep)

        def give_up(state: tenacity.RetryCallState) -> Completion:
            is_late = max(failures.values()) < self._max_attempts
            why = limit
            if patience is not None and time.monotonic() + state.upcoming_sleep < end:
                why = f"the {patience:g} s after which another model is asked"
            raise _explain(state, why if is_late else None) from _error_of(state)

        pending = [first]

        async def attempt() -> Completion:
            if pending:
                raise pending.pop()
            return await self._infer_until(request, watch, end)

        retrying = tenacity.AsyncRetrying(
            sleep=self._sleep,
            stop=is_over,
            wait=wait,
            retry=tenacity.retry_if_exception(_is_retryable),
            before_sleep=report,
            retry_error_callback=give_up,
        )
        return await retrying(attempt)

    async def _infer_until(self, request: Request, watch: Watch, end: float) -> Completion:
        watch.left_seconds = end - time.monotonic()
        scope = asyncio.timeout(watch.left_seconds)
        try:
            async with scope:
                return await self.inner.infer(request, watch)
        except TimeoutError:
            if not scope.expired():
                raise
            raise ProviderTimeoutError(
                f"{self.name} did not answer within the time for all attempts"
            ) from None


def _explain(state: "RetryCallState", limit: str | None) -> ProviderError:
    """Return the last error, with the number of attempts and the limit that was reached."""
    error = _error_of(state)
    said = f"{error} (gave up after {state.attempt_number} attempt{'s' * (state.attempt_number > 1)}"
    if limit is not None:
        who = "the server asks to wait" if error.retry_after_seconds else "the next would be in"
        said += f": {who} {state.upcoming_sleep:.0f} s, past {limit}"
    told = type(error)(said + ")", status=error.status, retry_after_seconds=error.retry_after_seconds)
    told.model, told.was_sent = error.model, error.was_sent
    return told


def _is_retryable(error: BaseException) -> bool:
    return isinstance(error, ProviderError) and error.is_retryable


def _error_of(state: "RetryCallState") -> ProviderError:
    error = state.outcome.exception() if state.outcome is not None else None
    assert isinstance(error, ProviderError)
    return error
