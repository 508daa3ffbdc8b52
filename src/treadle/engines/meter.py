"""The use of tokens, money and time by all models of a plan, and the limits on it."""

import time
from collections.abc import Callable

from msgspec import Struct

from treadle.core.errors import TransportError
from treadle.core.types import Completion, Request, Usage
from treadle.models.protocol import Model, Watch
from treadle.models.wrappers.wrapper import Wrapper


class Limits(Struct, frozen=True, kw_only=True):
    """The limits of a plan. `None` means no limit."""

    max_cost_usd: float | None = None
    max_tokens: int | None = None
    max_seconds: float | None = None
    """How long the plan may be worked on, over all processes."""


class LimitReachedError(TransportError):
    """Raised instead of sending a request that would exceed a limit of the plan."""

    is_retryable = False

    def __init__(self, limit: str) -> None:
        super().__init__(f"the limit {limit} of the plan is reached")


class Meter:
    """The use of all models of a plan, including that of earlier processes."""

    def __init__(self, limits: Limits, *, now: Callable[[], float] = time.monotonic) -> None:
        self.limits = limits
        self.input_tokens = 0
        self.output_tokens = 0
        self.cost_usd: float | None = 0.0
        """`None` if the cost of an answer is unknown."""
        self._in_flight = 0
        self._most_tokens = 0
        """The tokens of the largest request so far, its answer included."""
        self._most_usd = 0.0
        self.seconds_before = 0.0
        """How long earlier processes worked."""
        self._now = now
        self._began = now()

    @property
    def seconds(self) -> float:
        """How long this process has worked."""
        return self._now() - self._began

    @property
    def worked_seconds(self) -> float:
        """How long all processes have worked."""
        return self.seconds_before + self.seconds

    @property
    def seconds_left(self) -> float | None:
        """How long the plan may still be worked on; `None` if there is no limit."""
        limit = self.limits.max_seconds
        return None if limit is None else limit - self.worked_seconds

    def add(self, input_tokens: int, output_tokens: int, cost_usd: float | None) -> None:
        """Count tokens and their cost."""
        self.input_tokens += input_tokens
        self.output_tokens += output_tokens
        if cost_usd is None:
            self.cost_usd = None
        elif self.cost_usd is not None:
            self.cost_usd += cost_usd

    def find_limit(self) -> str | None:
        """Return the limit that the next request would reach; `None` if it may be sent.

        A request in flight is counted with the size of the largest request so far.
        """
        limits, in_flight = self.limits, self._in_flight + 1
        tokens = self.input_tokens + self.output_tokens + in_flight * self._most_tokens
        if limits.max_tokens is not None and (tokens > limits.max_tokens or not limits.max_tokens):
            return "max_tokens"
        cost = (self.cost_usd or 0.0) + in_flight * self._most_usd
        if limits.max_cost_usd is not None and (cost > limits.max_cost_usd or not limits.max_cost_usd):
            return "max_cost_usd"
        if limits.max_seconds is not None and self.worked_seconds >= limits.max_seconds:
            return "max_seconds"
        return None

    async def infer(self, model: Model, request: Request, watch: Watch) -> Completion:
        """Return the answer of `model`, and count it. Raises: `LimitReachedError` at a limit."""
        if (limit := self.find_limit()) is not None:
            raise LimitReachedError(limit)
        self._in_flight += 1
        try:
            completion = await model.infer(request, watch)
        finally:
            self._in_flight -= 1
        usage = completion.usage or Usage()
        self.add(usage.input_tokens, usage.output_tokens, completion.cost_usd)
        self._most_tokens = max(self._most_tokens, usage.total_tokens)
        self._most_usd = max(self._most_usd, completion.cost_usd or 0.0)
        return completion

    def measure(self, model: Model) -> "MeteredModel":
        """Return a model that asks `model` and counts its use here."""
        return MeteredModel(model, self)


class MeteredModel(Wrapper):
    """A model whose use is counted. It sends no request once a limit is reached."""

    CHANGES_ANSWERS = False

    def __init__(self, inner: Model, meter: Meter) -> None:
        super().__init__(inner)
        self._meter = meter

    async def infer(self, request: Request, watch: Watch) -> Completion:
        """Return the inner model's answer; see `Model.infer`. Raises: `LimitReachedError` at a limit."""
        return await self._meter.infer(self.inner, request, watch)
