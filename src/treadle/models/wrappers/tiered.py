"""A model that consists of tiers, between which a router chooses for each turn.

The loop asks the router, and passes the requests of the turn to the chosen tier's model. A caller that asks
this model directly, without the loop, gets an answer of the strongest tier.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum

from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.core.registry import name_known
from treadle.core.spec import PartSpec
from treadle.core.types import Json
from treadle.models.protocol import Model, context_tokens_of
from treadle.models.wrappers.fallback import FallbackModel


class ToolStrength(StrEnum):
    """The ability of a model to call tools."""

    WEAK = "weak"
    """The model is not trusted with tools."""
    MEDIUM = "medium"
    """The model can handle a few tools."""
    STRONG = "strong"
    """The model can handle many tools, and long chains of calls."""


QUALITY = {"frontier": 1.0, "mid": 0.6, "small": 0.25}
"""The tiers, the strongest first, with the quality of their models if the configuration does not say it."""


class Tier(Struct, frozen=True, kw_only=True):
    """A tier: its model, and what a router needs to know about it. `None` means that something is not known."""

    name: str
    """`frontier`, `mid` or `small`."""
    model: Model
    """The model with its fallbacks."""
    quality: float | None = None
    """The quality of the answers, from 0 to 1; `None`: the usual one of the tier."""
    tool_strength: ToolStrength | None = None
    context_tokens: int | None = None
    """How many tokens the prompt and the answer may have together."""
    sees_images: bool | None = None
    """True if the model accepts images; `None`: only the dialect decides."""
    first_token_seconds: float | None = None
    """The expected time until the answer begins, which counts until it was measured."""


class TieredModel(FallbackModel):
    """A model of up to three tiers. As in a `FallbackModel`, any of the models may answer, so a property such
    as `max_output_tokens` or `has_price` has a value that is right for all of them."""

    def __init__(
        self,
        tiers: Mapping[str, Model] | Iterable[Tier],
        *,
        router: object = "rules",
        options: Mapping[str, Json] | None = None,
        allows_weaker: bool = False,
        part: PartSpec | None = None,
        notices: tuple[str, ...] = (),
    ) -> None:
        """Make a model of `tiers`.

        `router` is the name of a router, for which `options` are the settings, or a router object. With
        `allows_weaker`, a weaker tier may take the place of one that fails, if there is no better one. `part` is
        the description of this model for the agent spec, and `notices` say what was left out of it.
        Raises: `ConfigError` for a tier with another name.
        """
        items = (
            [Tier(name=name, model=item) for name, item in tiers.items()]
            if isinstance(tiers, Mapping)
            else list(tiers)
        )
        for item in items:
            check_tier(item.name)
        self.tiers = {item.name: item for item in sorted(items, key=lambda item: rank_of(item.name))}
        """The tiers by name, the strongest first."""
        self.router = router
        self.made_router: object | None = None
        """The router that was made from its name and the options; `None` until it is first needed."""
        self.options = dict(options or {})
        self.allows_weaker = allows_weaker
        self.notices = notices
        if not items:
            raise ConfigError("there are no tiers; give a model for at least one of frontier, mid and small")
        missing = "the program made a TieredModel of several models"
        super().__init__(
            [item.model for item in self.tiers.values()], part=part or PartSpec(name="auto", missing=missing)
        )

    @property
    def name(self) -> str:
        """The name that the user writes: `auto`, `auto:ROUTER` or `tier:NAME`."""
        return self.part.name

    @property
    def context_tokens(self) -> int | None:
        """The largest context window of the tiers, which a long prompt goes to; `None` if none is known."""
        return max([size for tier in self.tiers.values() if (size := window_of(tier))], default=None)

    def __repr__(self) -> str:
        return f"TieredModel({', '.join(f'{name}: {tier.model!r}' for name, tier in self.tiers.items())})"


def window_of(tier: Tier) -> int | None:
    """Return the context window of a tier's model: as configured, or as the model knows it; `None` if unknown."""
    return context_tokens_of(tier.model) if tier.context_tokens is None else tier.context_tokens


def rank_of(name: str) -> int:
    """Return the place of a tier, 0 for the strongest."""
    return list(QUALITY).index(name)


def check_tier(name: str) -> None:
    """Check that `name` is the name of a tier. Raises: `ConfigError` with the nearest one."""
    if name not in QUALITY:
        raise ConfigError(f"there is no tier {name!r}{name_known(name, QUALITY, 'the tiers are')}")


def find_nearest(wanted: str, names: Iterable[str], *, allows_weaker: bool = False) -> tuple[str, str | None]:
    """Return the tier among `names` that takes the place of the tier `wanted`, and why; `None` if it is the same.

    It is the nearest better one. Without a better one it is the strongest weaker one if `allows_weaker`. An unknown
    tier may need anything, so the strongest takes its place. Raises: `ConfigError` if there is none.
    """
    known = sorted(names, key=rank_of)
    if wanted in known:
        return wanted, None
    if wanted not in QUALITY and known:
        return known[0], f"there is no tier {wanted!r}, so the strongest one takes its place"
    better = [name for name in known if rank_of(name) < rank_of(wanted)]
    if better:
        return better[-1], f"{better[-1]} is the nearest better tier than {wanted}"
    if allows_weaker and known:
        return known[0], f"there is no better tier than {wanted}, and a weaker one is allowed"
    raise ConfigError(
        f"the tier {wanted!r} is not available, and no better one is: {', '.join(known) or 'nothing'} is left, "
        "and a weaker tier is only used with `allows_weaker = true` in [router] of treadle.toml"
    )
