"""A model that tries again when a server fails, slows down or does not answer."""

import asyncio
import random
import time
from collections import Counter
from collections.abc import Awaitable, Callable

from treadle.core.errors import ConfigError, ProviderError, ProviderTimeoutError, RateLimitError, retold
from treadle.core.types import Completion, Request
from treadle.models.protocol import Model, Watch
from treadle.models.wrappers.fallback import PATIENCE_SECONDS
from treadle.models.wrappers.wrapper import Wrapper


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
        self, request: Request, watch: Watch, error: ProviderError, end: float, limit: str
    ) -> Completion:
        """Make all attempts after the first, which failed with `error`, until `end` by the monotonic clock. `limit`
        names that limit in words."""
        # A busy server and a failing one are counted separately.
        failures: Counter[bool] = Counter()
        patience, waited_seconds = watch.patience_seconds, 0.0
        attempts = pieces = 0
        while True:
            is_busy, asked = isinstance(error, RateLimitError), error.retry_after_seconds
            if (begun := sum(map(len, watch.begun.values()))) > pieces:
                # An engine that goes on with its answer between two failures is not dead.
                failures.clear()
                pieces = begun
            failures[is_busy] += 1
            attempts += 1
            delay = asked or self._draw_delay(failures.total())
            is_late, why = time.monotonic() + delay >= end, limit
            # A short fault must not send all work to a dearer model, however quick that one is.
            is_slow = patience is not None and (
                asked > patience if asked else waited_seconds + delay > max(patience, PATIENCE_SECONDS)
            )
            if is_slow or is_late or failures[is_busy] >= self._max_attempts:
                if patience is not None and not is_late:
                    why = f"the {patience:.2g} s after which another model is asked"
                is_spent = max(failures.values()) >= self._max_attempts
                raise _explain(error, attempts, delay, None if is_spent else why) from error
            if watch.on_failure is not None:
                watch.on_failure(error, attempts, delay)
            await self._sleep(delay)
            waited_seconds += delay
            try:
                return await self._infer_until(request, watch, end)
            except ProviderError as failure:
                if not failure.is_retryable:
                    raise
                error = failure

    def _draw_delay(self, attempts: int) -> float:
        """Return a delay in seconds that doubles with each attempt, with a random part."""
        least, most = self._min_delay_seconds, self._max_delay_seconds
        # No server is asked often enough for a larger exponent to matter.
        return min(most, least * 2.0 ** min(attempts - 1, 64)) + random.uniform(0, least)

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


def _explain(error: ProviderError, attempts: int, delay: float, limit: str | None) -> ProviderError:
    """Return the last error, with the number of attempts and the limit that was reached."""
    said = f"{error} (gave up after {attempts} attempt{'s' * (attempts > 1)}"
    if limit is not None:
        who = "the server asks to wait" if error.retry_after_seconds else "the next would be in"
        said += f": {who} {delay:.0f} s, past {limit}"
    return retold(error, said + ")")
