"""The price of tokens, for servers that do not report what an answer cost."""

from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.core.types import Usage


class Price(Struct, frozen=True):
    """A model's price in USD per million tokens."""

    input_usd_per_million: float
    output_usd_per_million: float
    cached_input_usd_per_million: float | None = None
    """`None`: cached input costs the same as other input."""
    cache_write_usd_per_million: float | None = None
    """`None`: writing to the cache costs the same as other input."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise ConfigError(f"Price.{name} is {value!r}; give a number of at least 0")

    def cost_usd(self, usage: Usage) -> float:
        """Return what `usage` costs."""
        cached_price = self.cached_input_usd_per_million
        if cached_price is None:
            cached_price = self.input_usd_per_million
        write_price = self.cache_write_usd_per_million
        if write_price is None:
            write_price = self.input_usd_per_million
        fresh_tokens = usage.input_tokens - usage.cached_input_tokens - usage.cache_write_tokens
        return (
            fresh_tokens * self.input_usd_per_million
            + usage.cached_input_tokens * cached_price
            + usage.cache_write_tokens * write_price
            + usage.output_tokens * self.output_usd_per_million
        ) / 1e6


def cost_of(usage: Usage | None, price: Price | None) -> float | None:
    """Return the cost of an answer in USD, or `None` if its tokens or their price are unknown."""
    return None if usage is None or price is None else price.cost_usd(usage)
