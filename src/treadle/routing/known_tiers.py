"""The tiers of treadle.toml, with what is known about their models and what is missing."""

from collections.abc import Iterator

from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.core.types import Usage
from treadle.models.config.recipe import Config
from treadle.models.protocol import estimate_cost_usd
from treadle.models.wrappers.tiered import QUALITY, find_nearest, window_of
from treadle.routing import LATENCIES


class ListedTier(Struct, frozen=True, omit_defaults=True):
    """One tier. `None` means that something is not known."""

    tier: str
    models: tuple[str, ...] = ()
    """The model, and its fallbacks."""
    context_tokens: int | None = None
    input_usd_per_million: float | None = None
    output_usd_per_million: float | None = None
    sees_images: bool | None = None
    tool_strength: str | None = None
    first_token_seconds: float | None = None
    """The measured time until an answer begins."""
    total_seconds: float | None = None
    """The measured time until an answer is complete."""
    samples: int = 0
    """How many answers were measured."""
    missing: str | None = None
    """Why the tier cannot be used; `None` if it can be used."""


def list_tiers(config: Config) -> Iterator[ListedTier]:
    """Yield all tiers, the best first, with what is known about their models and what is missing."""
    for name in QUALITY:
        table = config.file.tiers.get(name)  # type: ignore[call-overload]
        if table is None:
            try:
                instead, _ = find_nearest(
                    name, config.file.tiers, allows_weaker=config.file.router.allows_weaker
                )
                missing = f"not configured; {instead} takes its place"
            except ConfigError:
                missing = "not configured, and there is no better tier"
            yield ListedTier(name, missing=missing)
            continue
        models = (table.model, *table.fallback)
        try:
            tier = config.tier(name)
        except ConfigError as error:
            yield ListedTier(name, models, missing=str(error))
            continue
        measured = LATENCIES.get(tier.model.name)
        prices = [
            None if (cost := estimate_cost_usd(tier.model, usage)) is None else round(1000 * cost, 6)
            for usage in (Usage(1000, 0), Usage(0, 1000))
        ]
        yield ListedTier(
            name,
            models,
            window_of(tier),
            prices[0],
            prices[1],
            tier.sees_images,
            tier.tool_strength,
            measured.first_token_seconds,
            measured.total_seconds,
            measured.samples,
        )
