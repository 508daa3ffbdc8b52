"""The limiter, which sends requests as fast as the server can handle them.

A `Limiter` is shared by all models and runs that have a limit in common; a `LimitModel` asks it before each
request. A retry wrapper must be outside: `RetryModel(LimitModel(model, limiter=limiter))`.
"""

import asyncio
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from treadle.core.errors import ConfigError, RateLimitError, ServerError
from treadle.core.prompts.estimates import CHARS_PER_TOKEN
from treadle.core.types import Completion, Message, Request, Usage
from treadle.http.locks import new_lock, new_reentrant_lock, renew_in_child
from treadle.models.protocol import Model, RateLimits, Watch
from treadle.models.wrappers.limit_rules import Bucket, Concurrency, RequestPace, follow
from treadle.models.wrappers.wrapper import Wrapper

START_CONCURRENCY = 8
MOST_CONCURRENCY = 4096
_OVERLOADED = frozenset((502, 503, 504, 529))
_OUTCOMES = 40
"""The number of requests over which the share of refusals is counted."""
_FIRST_OUTPUT_TOKENS = 500
"""The expected tokens of an answer, as long as there was no answer."""


class LimiterStats(Struct, frozen=True):
    """The counts of a limiter, and its current limits."""

    admitted: int
    waiting: int
    """How many requests wait now."""
    waited_seconds: float
    """How long all requests together have waited."""
    refused: int
    """How many requests the server refused with 429."""
    in_flight: int
    concurrency: int | None
    """How many requests may be in flight now; `None`: any number."""
    requests_per_minute: float | None
    """The rate as configured, or as learned from the server; `None`: no limit is known yet."""
    held_seconds: float
    """How long nothing is sent because the server asked for a pause."""


class Permit(Struct, frozen=True, eq=False):
    """A permission to send one request."""

    sent_at: float
    tokens: float
    """The tokens that are reserved for the request."""


class _Waiter(Struct, eq=False):
    loop: asyncio.AbstractEventLoop
    future: asyncio.Future[Permit]
    tokens: float
    begin: float
    end: float
    """The time at which its caller gives up, by the monotonic clock; infinite if it never does."""
    permit: Permit | None = None


class Limiter:
    """A gate that admits requests in the order in which they arrive. Threads and event loops may share it.

    Without configured limits it learns those of the server: from headers that report them, from the number of
    requests that succeed between two refusals, and, unless `is_adaptive` is false, from the effect of more
    requests in flight on the rate of answers. After a refusal nothing is sent until the time that the server
    named; then requests are sent at even intervals.
    """

    _shared: "dict[str, tuple[dict[str, Any], Limiter]]" = {}  # noqa: RUF012
    _shared_lock = new_lock()

    def __init__(
        self,
        *,
        requests_per_minute: float | None = None,
        tokens_per_minute: float | None = None,
        max_concurrency: int | None = None,
        is_adaptive: bool = True,
        learn_at_share: float = 0.0,
        name: str = "default",
    ) -> None:
        """Make a limiter.

        All numbers are for this process alone. A refusal only delays the next requests, for as long as the server
        asked, until `learn_at_share` of the last 40 requests were refused; then a rate is learned. In this way a
        server that refuses a few requests by accident, and not because of a limit, is not asked more slowly.
        Raises: `ConfigError` for numbers out of range.
        """
        for what, value in (
            ("requests_per_minute", requests_per_minute),
            ("tokens_per_minute", tokens_per_minute),
            ("max_concurrency", max_concurrency),
        ):
            if value is not None and not 0 < value < float("inf"):
                raise ConfigError(f"{what} is {value!r}; give a positive number")
        given = {"requests": requests_per_minute, "tokens": tokens_per_minute}
        self._per_minute = {kind: float(count) for kind, count in given.items() if count is not None}
        # Reentrant, since a waiting request that is garbage collected gives up its place at any moment.
        self._lock = new_reentrant_lock()
        self.name = name
        self._max_concurrency = max_concurrency
        self._is_adaptive = is_adaptive
        self._learn_at_share = learn_at_share
        self._begin()
        # In a forked child, the requests and the threads belong to the parent.
        renew_in_child(self, Limiter._begin)

    @classmethod
    def shared(cls, name: str, **options: Any) -> "Limiter":
        """Return the limiter with this name; a process has only one of each name.

        Raises: `ConfigError` if the limiter exists with other options.
        """
        with cls._shared_lock:
            known = cls._shared.get(name)
            if known is None:
                known = cls._shared[name] = (options, cls(name=name, **options))
            elif known[0] != options:
                raise ConfigError(f"the limiter {name!r} was made with {known[0]}, not with {options}")
            return known[1]

    def _begin(self) -> None:
        """Set the state of a new limiter; called again in a process that was forked."""
        now = time.monotonic()
        self._waiters: deque[_Waiter] = deque()
        self._timer: tuple[asyncio.AbstractEventLoop, asyncio.TimerHandle, float] | None = None
        self._in_flight = 0
        self._pace = RequestPace(now)
        self._outcomes: deque[bool] = deque(maxlen=_OUTCOMES)
        """Whether each of the last requests was refused; filled until a rate is learned."""
        self._learns = self._learn_at_share == 0
        self._next_at = now
        """The time before which the first request in the queue is not sent."""
        self._buckets = {kind: Bucket.per_minute(count, now) for kind, count in self._per_minute.items()}
        self._told_tokens: Bucket | None = None
        self._reserved = 0.0
        """The tokens of all requests in flight."""
        self._mean_output = float(_FIRST_OUTPUT_TOKENS)
        self._overload_at = now
        most = self._max_concurrency or MOST_CONCURRENCY
        self._concurrency = Concurrency(limit=START_CONCURRENCY, maximum=most) if self._is_adaptive else None
        self._is_full = False
        """True if the first request in the queue waits only for another request to finish."""
        self._admitted = self._refused = 0
        self._waited_seconds = 0.0

    @property
    def counts_tokens(self) -> bool:
        """True if tokens are limited, so that the length of a request matters."""
        return "tokens" in self._per_minute or self._told_tokens is not None

    def stats(self) -> LimiterStats:
        """Return the counts so far and the current limits."""
        with self._lock:
            rate = self._pace.rate
            told = None if rate is None else rate * 60
            return LimiterStats(
                self._admitted,
                len(self._waiters),
                self._waited_seconds,
                self._refused,
                self._in_flight,
                self._limit(),
                min(
                    [value for value in (told, self._per_minute.get("requests")) if value is not None],
                    default=None,
                ),
                self.held_seconds,
            )

    @property
    def held_seconds(self) -> float:
        """The rest of a pause that the server asked for; 0 if there is none."""
        return max(0.0, self._pace.not_before - time.monotonic())

    def explain_wait(self, seconds: float) -> RateLimitError:
        """Return the error for a request that can be sent only in `seconds`."""
        if self.held_seconds:
            why = f"the server asked, in its answer to another request, to send nothing for {seconds:.0f} s"
        else:
            why = f"the limits of requests and tokens allow the next request only in {seconds:.0f} s"
        return RateLimitError(f"not sent: {why} (limiter {self.name!r})", retry_after_seconds=seconds)

    async def admit(self, input_tokens: int = 0, max_wait_seconds: float | None = None) -> Permit:
        """Wait until a request with `input_tokens` tokens may be sent, and return a permit, for which `finish` must
        be called.

        Raises: `RateLimitError` as soon as it is known that this takes longer than `max_wait_seconds`.
        """
        tokens = input_tokens + self._mean_output if self.counts_tokens else 0.0
        with self._lock:
            now = time.monotonic()
            if not self._waiters and self._wait(tokens, now) == 0.0:
                return self._grant(tokens, now)
            end = float("inf") if max_wait_seconds is None else now + max_wait_seconds
            if self._waiters and now < end < self._next_at:
                raise self.explain_wait(self._next_at - now)
            loop = asyncio.get_running_loop()
            waiter = _Waiter(loop, loop.create_future(), tokens, now, end)
            self._waiters.append(waiter)
        self._pump()
        try:
            return await waiter.future
        except asyncio.CancelledError:
            with self._lock:
                permit = waiter.permit
                if permit is None and waiter in self._waiters:
                    self._waiters.remove(waiter)
            if permit is not None:
                self.finish(permit)
            else:
                self._pump()
            raise

    def finish(
        self,
        permit: Permit,
        *,
        usage: Usage | None = None,
        error: BaseException | None = None,
        is_answered: bool = False,
    ) -> None:
        """Record the end of a request, whether it was answered, refused or given up, or failed."""
        with self._lock:
            now = time.monotonic()
            self._in_flight -= 1
            self._reserved -= permit.tokens
            if isinstance(error, RateLimitError):
                self._refused += 1
                if self._note_outcome(is_refused=True):
                    self._pace.refuse(permit.sent_at, now, error.retry_after_seconds)
                else:
                    self._pace.hold(now, error.retry_after_seconds or 0.0)
            elif is_answered:
                self._note_outcome(is_refused=False)
                self._pace.succeed()
                if self._concurrency is not None:
                    self._concurrency.answer(
                        now, self._in_flight + 1, is_full=bool(self._waiters) and self._is_full
                    )
            elif isinstance(error, ServerError) and error.status in _OVERLOADED:
                self._overload(permit, now, error.retry_after_seconds)
            if usage is not None and usage.is_reported:
                self._settle(permit, usage)
            is_alone = not self._waiters
        if not is_alone:
            self._pump()

    def _note_outcome(self, *, is_refused: bool) -> bool:
        """Note whether a request was refused, and return whether so many were that a limit is the reason."""
        if not self._learns:
            self._outcomes.append(is_refused)
            self._learns = sum(self._outcomes) >= self._learn_at_share * _OUTCOMES
        return self._learns

    def hear(self, limits: RateLimits) -> None:
        """Learn from the limits that a server reported with an answer."""
        with self._lock:
            now = time.monotonic()
            told = (limits.requests, limits.requests_left, limits.requests_reset_seconds)
            if told[0] is not None and told[1] is not None and told[2] is not None:
                # The server's numbers already include the request that it is answering.
                self._pace.hear(told[0], told[1], told[2], max(0, self._in_flight - 1), now)
            total, left, reset = limits.tokens, limits.tokens_left, limits.tokens_reset_seconds
            if total is not None and left is not None and reset is not None and left < total and reset > 0:
                self._told_tokens = follow(self._told_tokens, total, left, reset, self._reserved, now)

    # The following methods are called with the lock held, except `_pump`.

    def _limit(self) -> int | None:
        return self._concurrency.limit if self._concurrency is not None else self._max_concurrency

    def _wait(self, tokens: float, now: float) -> float:
        """Return the seconds until a request can be sent; infinite if it waits for something other than time."""
        self._is_full = False
        wait = self._pace.wait(now)
        if self._told_tokens is not None:
            wait = max(wait, self._told_tokens.wait(tokens, now))
        for kind, bucket in self._buckets.items():
            wait = max(wait, bucket.wait(1.0 if kind == "requests" else tokens, now))
        if wait > 0.0:
            return wait
        limit = self._limit()
        if limit is not None and self._in_flight >= limit:
            self._is_full = True
            return float("inf")
        return 0.0

    def _grant(self, tokens: float, now: float) -> Permit:
        self._pace.admit(now)
        if self._told_tokens is not None:
            self._told_tokens.take(tokens)
        for kind, bucket in self._buckets.items():
            bucket.take(1.0 if kind == "requests" else tokens)
        self._in_flight += 1
        self._reserved += tokens
        self._admitted += 1
        return Permit(now, tokens)

    def _settle(self, permit: Permit, usage: Usage) -> None:
        """Replace the reserved tokens of a request by the tokens that it used."""
        self._mean_output += 0.1 * (usage.output_tokens - self._mean_output)
        more = usage.total_tokens - permit.tokens
        if not permit.tokens:
            return
        if self._told_tokens is not None:
            self._told_tokens.take(more)
        if "tokens" in self._buckets:
            self._buckets["tokens"].take(more)

    def _overload(self, permit: Permit, now: float, retry_after: float | None) -> None:
        if retry_after is not None:
            self._pace.not_before = max(self._pace.not_before, now + retry_after)
        if self._concurrency is not None and permit.sent_at >= self._overload_at:
            # Counted once for all requests that were in flight together.
            self._overload_at = now
            self._concurrency.overload()

    # The queue.

    def _pump(self) -> None:
        """Admit the waiting requests that can be sent. Called from any thread."""
        try:
            here: asyncio.AbstractEventLoop | None = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        with self._lock:
            while self._waiters:
                waiter = self._waiters[0]
                if waiter.loop.is_closed():
                    self._waiters.popleft()
                    continue
                now = time.monotonic()
                wait = self._wait(waiter.tokens, now)
                if wait < float("inf") and now + wait > min(waiter.end, self._next_at + 1.0):
                    self._next_at = now + wait
                    self._drop_late(wait, here)
                    continue
                if wait > 0.0:
                    self._next_at = now + (wait if wait < float("inf") else 0.0)
                    self._arm(waiter.loop, wait, here)
                    return
                self._waiters.popleft()
                waiter.permit = self._grant(waiter.tokens, now)
                self._waited_seconds += now - waiter.begin
                self._tell(waiter, here, waiter.future.set_result, waiter.permit)

    def _drop_late(self, wait: float, here: asyncio.AbstractEventLoop | None) -> None:
        """Fail the requests whose callers give up before the next one can be sent, in `wait` seconds."""
        late = [waiter for waiter in self._waiters if waiter.end < self._next_at]
        self._waiters = deque([waiter for waiter in self._waiters if waiter.end >= self._next_at])
        for waiter in late:
            self._tell(waiter, here, waiter.future.set_exception, self.explain_wait(wait))

    def _tell(
        self,
        waiter: _Waiter,
        here: asyncio.AbstractEventLoop | None,
        tell: Callable[[Any], None],
        what: Permit | Exception,
    ) -> None:
        def deliver() -> None:
            if not waiter.future.done():
                tell(what)

        if waiter.loop is here:
            deliver()
        else:
            waiter.loop.call_soon_threadsafe(deliver)

    def _arm(
        self, loop: asyncio.AbstractEventLoop, wait: float, here: asyncio.AbstractEventLoop | None
    ) -> None:
        """Call `_pump` again in `wait` seconds. There is one timer for the whole queue."""
        if wait == float("inf"):
            return
        if loop is not here:
            loop.call_soon_threadsafe(self._pump)
            return
        when = loop.time() + wait
        if self._timer is not None and self._timer[0] is loop:
            _, timer, then = self._timer
            if then <= when:
                return
            timer.cancel()
        self._timer = (loop, loop.call_later(wait, self._ring), when)

    def _ring(self) -> None:
        with self._lock:
            # Some event loops call a little too early; then another timer is set.
            self._timer = None
        self._pump()

    def __repr__(self) -> str:
        return f"Limiter({self.name!r})"


_LEAST_SECONDS = 1.0
"""The shortest wait that is reported."""


class LimitModel(Wrapper):
    """A model whose requests wait for a limiter."""

    CHANGES_ANSWERS = False

    def __init__(self, inner: Model, *, limiter: Limiter) -> None:
        super().__init__(inner)
        self.limiter = limiter

    async def infer(self, request: Request, watch: Watch) -> Completion:
        """Return the inner model's answer, once the limiter admits the request; see `Model.infer`."""
        limiter = self.limiter
        if (held_seconds := limiter.held_seconds) >= _LEAST_SECONDS:
            if watch.patience_seconds is not None and held_seconds > watch.patience_seconds:
                raise limiter.explain_wait(held_seconds)
            self._tell(held_seconds, watch)
        permit = await limiter.admit(_count(request) if limiter.counts_tokens else 0, watch.left_seconds)

        def hear(limits: RateLimits) -> None:
            limiter.hear(limits)
            if watch.on_rate_limits is not None:
                watch.on_rate_limits(limits)

        try:
            completion = await self.inner.infer(
                request,
                replace(watch, on_rate_limits=hear),
            )
        except BaseException as error:
            limiter.finish(permit, error=error)
            raise
        limiter.finish(permit, usage=completion.usage, is_answered=True)
        return completion

    def _tell(self, held_seconds: float, watch: Watch) -> None:
        """Report that the request waits because the server asked for it. Too long a wait fails in `admit`."""
        is_late = watch.left_seconds is not None and held_seconds > watch.left_seconds
        if watch.on_failure is not None and not is_late:
            watch.on_failure(self.limiter.explain_wait(held_seconds), 0, held_seconds)


def _count(request: Request) -> int:
    """Return an estimate of the tokens of a request."""
    _, chars = request.messages.scan(_add_chars, 0)
    return (chars + sum(len(str(tool.parameters)) for tool in request.tools)) // CHARS_PER_TOKEN + 1


def _add_chars(chars: int, message: Message) -> tuple[int, None]:
    calls = sum(len(call.name) + len(call.arguments) for call in message.tool_calls)
    return chars + len(message.content) + len(message.reasoning or "") + calls + 16, None
