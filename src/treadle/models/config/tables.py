"""The tables of treadle.toml that other modules need besides `file`."""

from typing import Annotated, Any, Literal, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]


class Table(BaseModel):
    """The base of all tables."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class PriceTable(Table):
    """A price in USD per million tokens, for models that genai-prices does not know."""

    input_usd_per_million: Annotated[float, Field(ge=0)]
    output_usd_per_million: Annotated[float, Field(ge=0)]
    cached_input_usd_per_million: Annotated[float, Field(ge=0)] | None = None
    cache_write_usd_per_million: Annotated[float, Field(ge=0)] | None = None


class TierTable(Table):
    """The models of a tier, and what a router needs to know about them. The settings hold for each model."""

    model: str
    """A model of this file, or `provider:name`."""
    fallback: list[str] = []
    """Other models, which are asked in this order if the model fails."""
    quality: Annotated[float, Field(ge=0, le=1)] | None = None
    """The quality of the answers, from 0 to 1. Default: 1 for `frontier`, 0.6 for `mid`, 0.25 for `small`."""
    price: PriceTable | None = None
    """The price of the tier's models, if it is not known."""
    tool_strength: Literal["weak", "medium", "strong"] | None = None
    """How well the models call tools. A `weak` one is not chosen if the agent has tools, and only a `strong` one if
    it has many."""
    context_tokens: Count | None = None
    """How many tokens the prompt and the answer may have together. Default: what is known about the model."""
    sees_images: bool | None = None
    """Whether the models accept images."""
    first_token_seconds: Positive | None = None
    """The expected time until an answer begins. It counts until the time was measured."""
    temperature: Annotated[float, Field(ge=0)] | None = None
    max_output_tokens: Count | None = None
    extra: dict[str, Any] | None = None
    """Additional fields of the request body."""


class RouterTable(Table):
    """A router with its settings."""

    name: str = "rules"
    """`rules`, `scored`, `cascade`, `fixed`, or a router of another package."""
    allows_weaker: bool = False
    """True if a weaker tier may take the place of one that fails or is missing, if there is no better one."""
    options: dict[str, Any] = {}
    """The settings of this router, such as `judge` of `cascade`."""


def _as_tier(value: object) -> object:
    return {"model": value} if isinstance(value, str) else value


def _as_router(value: object) -> object:
    return {"name": value} if isinstance(value, str) else value


TierValue: TypeAlias = Annotated[
    TierTable, BeforeValidator(_as_tier, json_schema_input_type=TierTable | str)
]
"""A tier as it is written: a table, or the name of its model."""
RouterValue: TypeAlias = Annotated[
    RouterTable, BeforeValidator(_as_router, json_schema_input_type=RouterTable | str)
]
"""A router as it is written: a table, or its name."""
