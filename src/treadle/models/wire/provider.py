"""The known facts about a provider: address, key, peculiarities, prices. Also the token counts of answers."""

from collections.abc import Mapping
from typing import Literal

import msgspec
from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.core.registry import NamedFields
from treadle.core.types import UNREPORTED, Json, OutputMode, Settings, Usage


class Quirks(Struct, frozen=True, omit_defaults=True):
    """The differences between a chat-completions server and OpenAI's."""

    renamed: Mapping[str, str] = {}
    """Fields of `Settings` that have another name at this server, or none, which is an empty one."""
    reasoning: Literal["never", "calls", "always"] = "calls"
    """The answers whose reasoning is sent back: `calls` are those with calls. With `always`, an answer without
    reasoning is sent with an empty one, which servers require whose models think."""
    message_fields: tuple[str, ...] | None = None
    """The fields without a place in Treadle's messages that the server accepts in them. `None`: it ignores those
    that it does not know."""
    forces_calls: Literal["by_name", "required", "never"] = "by_name"
    """How the server is told to have a tool called. Without its name, no other tool is offered."""
    asks_usage: bool = True
    """True if the server reports the token counts of a stream only on request. Others may refuse the request."""
    answers_results: bool = False
    """True if the server refuses a user's message right after results, so that an empty answer is put between."""
    reports_cost: bool = False
    """True if the server's answers say what they cost."""
    id_fields: tuple[str, ...] = ()
    """Fields of the request body that are true if token ids are asked for, beside `return_token_ids`."""
    streams_ids: bool = True
    """True if the server can stream an answer with token ids."""
    thinks_in_text: bool = False
    """True if the server leaves a model's reasoning in the text, between `<think>` and `</think>`."""
    has_short_ids: bool = False
    """True if the ids of calls must consist of nine letters and digits."""


class Preset(Struct, frozen=True, kw_only=True):
    """The settings of a provider."""

    dialect: str
    base_url: str | None = None
    """The base URL of the provider's server. `None`: the one of the dialect."""
    key_variable: str | None = None
    """The environment variable that holds the API key."""
    needs_key: bool = True
    """True if the server at `base_url` needs a key. A server at another address may work without one."""
    base_url_variable: str | None = None
    """The environment variable that may hold another base URL."""
    header_variables: Mapping[str, str] = {}
    """Headers that are read from environment variables, if these are set."""
    output_mode: OutputMode = OutputMode.NATIVE
    """How the provider's models are made to give answers that fit a schema."""
    decodes_beside_tools: bool = True
    """True if the server accepts a schema for the answer in a request that has tools."""
    tells_window: bool = False
    """True if the server is asked for the context window of its model when a run begins."""
    quirks: Quirks = Quirks()
    price_provider: str | None = None
    """The provider's name in genai-prices. `None`: the models are free, or their prices are not known."""


class Price(Struct, frozen=True, metaclass=NamedFields):
    """A model's price in USD per million tokens."""

    input_usd_per_million: float
    output_usd_per_million: float
    cached_input_usd_per_million: float | None = None
    """The price of cached input; `None`: it costs the same as other input."""
    cache_write_usd_per_million: float | None = None
    """The price of writing to the cache; `None`: it costs the same as other input."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and not value >= 0:
                raise ConfigError(f"Price.{name} is {value!r}; give a number of at least 0")

    def cost_usd(self, usage: Usage) -> float:
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


def cost_of(usage: Usage, price: Price | None) -> float | None:
    """Return the cost of an answer in USD, or `None` if its tokens or their price are unknown."""
    return None if price is None or not usage.is_reported else price.cost_usd(usage)


class PricedModel:
    """The part of a model that its settings and its price say."""

    settings: Settings
    _price: Price | None

    @property
    def max_output_tokens(self) -> int | None:
        """The longest answer that requests allow; `None` if that is left to the server."""
        return self.settings.max_output_tokens

    @property
    def has_price(self) -> bool:
        """True if the user gave a price, or the server reports the cost."""
        return self._price is not None

    def estimate_cost_usd(self, usage: Usage) -> float | None:
        """Return what `usage` would cost; `None` if the model has no price."""
        return cost_of(usage, self._price)


class TokenCounts(Struct, gc=False):
    """The token counts of an answer as the API writes them."""

    def read(self) -> Usage:
        """Return the counts in Treadle's type."""
        raise NotImplementedError


def read_usage(raw: Json, kind: type[TokenCounts]) -> Usage:
    """Return the token counts in a raw answer, which `kind` reads; `UNREPORTED` if there are none."""
    try:
        counts = {name: value for name, value in raw.items() if value not in ("", [], {}, None)}
        return msgspec.convert(counts, kind, strict=False).read() if counts else UNREPORTED
    except (AttributeError, msgspec.ValidationError):
        return UNREPORTED
