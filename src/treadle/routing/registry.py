"""The routers by name."""

from collections.abc import Callable
from typing import TypeAlias, cast

from treadle.core.errors import ConfigError
from treadle.core.registry import Registry
from treadle.models.wrappers.tiered import TieredModel
from treadle.routing.protocol import Router

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
