"""The routers by name, and the choice of a tier: hard filters that no router can overrule, and then the router."""

from collections.abc import Callable
from typing import TypeAlias, cast

from msgspec.structs import replace

from treadle.core.errors import ConfigError
from treadle.core.registry import Registry
from treadle.core.types import Route
from treadle.models.wrappers.tiered import TieredModel, ToolStrength, find_nearest
from treadle.routing.protocol import Router, RoutingFacts, TierCandidate, Unroutable
from treadle.routing.routers import RulesRouter

MANY_TOOLS = 24
"""From so many tools on, only models that are strong with tools, or of unknown strength, are chosen."""


def choose(router: Router, facts: RoutingFacts) -> Route:
    """Return the tier that `router` chooses among those that can do the work.

    If the router fails or chooses a tier that cannot do the work, the router `rules` chooses, and the reasons say
    so. Raises: `ConfigError` that names each tier and why it cannot be used, if none can.
    """
    fitting, rejected = split(facts)
    if not fitting:
        raise ConfigError(f"no tier can do this: {_list(rejected)}")
    facts = replace(facts, candidates=fitting)
    try:
        route = router.route(facts)
        known = {item.tier for item in fitting}
        if route.tier not in known:
            raise ConfigError(f"it chose {route.tier!r}, which is not among {', '.join(sorted(known))}")
    except Unroutable as error:
        raise ConfigError(f"{error}; {_list(rejected)}" if rejected else str(error)) from None
    except Exception as error:
        route = RulesRouter().route(facts)
        name = type(router).__name__
        route = replace(route, reasons=(f"{name} failed ({type(error).__name__}: {error})", *route.reasons))
    return replace(route, rejected={**rejected, **route.rejected}) if rejected else route


def replace_tier(facts: RoutingFacts, route: Route, why: str, *, allows_weaker: bool) -> Route:
    """Return the route that follows `route`, whose tier is in `facts.tried` or can no longer do the work.

    It leads to the nearest better tier that can. Raises: `ConfigError` if there is no such tier.
    """
    fitting, rejected = split(facts)
    known = {item.tier: item for item in fitting if item.tier != route.tier}
    try:
        tier, how = find_nearest(route.tier, known, allows_weaker=allows_weaker)
    except ConfigError:
        raise ConfigError(f"{route.tier}: {why}, and no other tier can do this: {_list(rejected)}") from None
    return Route(tier, known[tier].model, (f"{route.tier}: {why}", str(how)), route.scores, rejected)


def split(facts: RoutingFacts) -> tuple[tuple[TierCandidate, ...], dict[str, str]]:
    """Return the candidates that can do the work, and why each other one cannot. A tier that rests is left out if
    another one can take its place."""
    is_known_to_see = any(item.sees_images for item in facts.candidates)
    rejected = {
        item.tier: why
        for item in facts.candidates
        if (why := _find_obstacle(item, facts, is_known_to_see=is_known_to_see)) is not None
    }
    fitting = [item for item in facts.candidates if item.tier not in rejected]
    for place, item in enumerate(fitting):
        others = fitting if facts.allows_weaker else fitting[:place]
        if item.rests_seconds and not all([other.rests_seconds for other in others]):
            rejected[item.tier] = f"{item.model} failed and rests for {item.rests_seconds:.0f} s"
    return tuple([item for item in fitting if item.tier not in rejected]), rejected


def _find_obstacle(item: TierCandidate, facts: RoutingFacts, *, is_known_to_see: bool) -> str | None:
    if item.tier in facts.tried:
        return facts.tried[item.tier]
    if item.refusal is not None:
        return item.refusal
    if facts.images and item.sees_images is False:
        return f"{item.model} cannot see images"
    if facts.images and item.sees_images is None and is_known_to_see:
        return f"it is not known whether {item.model} sees images"
    if item.context_tokens is not None:
        needed = facts.prompt_tokens + min(facts.output_tokens, item.context_tokens // 4)
        if needed > item.context_tokens:
            return (
                f"the context of {item.model} has {item.context_tokens:,} tokens, and {needed:,} are needed"
            )
    if facts.tools and item.tool_strength == ToolStrength.WEAK:
        return f"{item.model} is weak with tools, and there are {facts.tools}"
    if facts.tools >= MANY_TOOLS and item.tool_strength == ToolStrength.MEDIUM:
        return f"{item.model} is not strong with tools, and there are {facts.tools}"
    return None


def _list(rejected: dict[str, str]) -> str:
    return "; ".join(f"{tier}: {why}" for tier, why in rejected.items())


Maker: TypeAlias = Callable[..., Router]
"""A class of routers, or a function that returns one. It takes the router's options as keyword arguments."""

ROUTERS: Registry[Maker] = Registry(
    "router",
    "treadle.routers",
    {
        "rules": "treadle.routing.routers:RulesRouter",
        "scored": "treadle.routing.routers:ScoredRouter",
        "cascade": "treadle.routing.cascade:CascadeRouter",
        "fixed": "treadle.routing.routers:FixedRouter",
    },
)
"""The routers; those of other packages are entry points of the group `treadle.routers`."""


def make_router(model: TieredModel) -> Router:
    """Return the router of a model, which is made once.

    Raises: `ConfigError` for an unknown router, or an option that it refuses.
    """
    if model.made_router is None:
        model.made_router = _make(model) if isinstance(model.router, str) else model.router
    return cast("Router", model.made_router)


def _make(model: TieredModel) -> Router:
    name, options = str(model.router), dict(model.options)
    if name == "fixed":
        options.setdefault("allows_weaker", model.allows_weaker)
    try:
        return ROUTERS.load(name)(**options)
    except TypeError as error:
        raise ConfigError(f"the router {name!r} refuses its options {options!r}: {error}") from None
