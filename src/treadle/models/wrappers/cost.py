"""A model that adds to its answers what they cost, according to the table of genai-prices."""

import asyncio
from importlib.util import find_spec

from msgspec.structs import replace

from treadle.core.registry import require
from treadle.core.types import Completion, Request, Usage
from treadle.models.protocol import Model, Watch, context_tokens_of
from treadle.models.wrappers.wrapper import Wrapper


class CostModel(Wrapper):
    """A model that adds the cost to every answer that has none yet, from the server or from the user's own price.

    If the table has no price, the cost stays unknown, which is different from 0: a run with `max_cost_usd` then
    ends with an error. `has_price` tells in advance whether there is a price.
    """

    CHANGES_ANSWERS = False

    def __init__(self, inner: Model, *, provider: str | None = None, model: str | None = None) -> None:
        """Make a wrapper. `provider` is a name of genai-prices, `model` the server's; `None` takes it from
        `inner.name`.

        The table is loaded before the first request. Raises: `ConfigError` if genai-prices is not installed.
        """
        super().__init__(inner)
        if find_spec("genai_prices") is None:
            require("genai_prices", "cost")
        stem, _, rest = inner.name.partition(":")
        self._provider = provider or stem or None
        self._model = model or rest or inner.name
        self._unknown: set[str] = set()
        self._is_loaded = False
        self._window: int | None = None

    @property
    def has_price(self) -> bool:
        """True if the inner model has a price, or the table has a price for the model's configured name."""
        is_priced = getattr(self.inner, "has_price", False)
        return bool(is_priced) or self.cost_usd(Usage(1, 1), self._model) is not None

    @property
    def context_tokens(self) -> int | None:
        """The model's context window: as the user says, or according to the table; `None` if neither says it."""
        if (said := context_tokens_of(self.inner)) is not None:
            return said
        if self._window is None and getattr(self.inner, "has_window", True):
            self._window = self._look_up_window() or 0
        return self._window or None

    def _look_up_window(self) -> int | None:
        prices = require("genai_prices", "cost")
        try:
            found = prices.calc_price(prices.Usage(), model_ref=self._model, provider_id=self._provider)
        except LookupError:
            return None
        window: int | None = found.model.context_window
        return window

    async def infer(self, request: Request, watch: Watch) -> Completion:
        """Return the inner model's answer with its cost; see `Model.infer`."""
        if not self._is_loaded:
            # An answer must not wait for the table to be loaded.
            await asyncio.to_thread(self.cost_usd, Usage(1, 1), self._model)
            self._is_loaded = True
        completion = await self.inner.infer(request, watch)
        if completion.cost_usd is not None or not completion.usage.is_reported:
            return completion
        cost = None
        # The server's name of the model is more exact, but the table may not have it.
        for name in dict.fromkeys((completion.model or self._model, self._model)):
            cost = cost if cost is not None else self.cost_usd(completion.usage, name)
        return completion if cost is None else replace(completion, cost_usd=cost)

    def estimate_cost_usd(self, usage: Usage) -> float | None:
        return self.cost_usd(usage, self._model)

    def cost_usd(self, usage: Usage, model: str) -> float | None:
        """Return what `usage` costs; `None` if the table does not know the model or its provider."""
        if model in self._unknown:
            return None
        prices = require("genai_prices", "cost")
        counted = prices.Usage(
            input_tokens=usage.input_tokens,
            cache_read_tokens=usage.cached_input_tokens or None,
            cache_write_tokens=usage.cache_write_tokens or None,
            output_tokens=usage.output_tokens,
        )
        try:
            found = prices.calc_price(counted, model_ref=model, provider_id=self._provider)
        except LookupError:
            self._unknown.add(model)
            return None
        return float(found.total_price)
