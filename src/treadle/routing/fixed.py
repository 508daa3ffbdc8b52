"""The router `fixed`, which always chooses the same tier."""

from treadle.core.errors import ConfigError
from treadle.core.types import Route
from treadle.models.wrappers.tiered import find_nearest
from treadle.routing.choose import Unroutable
from treadle.routing.protocol import RoutingFacts


class FixedRouter:
    """A router that chooses one tier, or the nearest better one if that tier cannot do the work."""

    def __init__(self, *, tier: str = "frontier", allows_weaker: bool = False) -> None:
        self._tier = tier
        self._allows_weaker = allows_weaker

    def route(self, facts: RoutingFacts) -> Route:
        """See `Router.route`. Raises: `ConfigError` if there is only a weaker tier."""
        known = {item.tier: item.model for item in facts.candidates}
        try:
            tier, why = find_nearest(self._tier, known, allows_weaker=self._allows_weaker)
        except ConfigError as error:
            raise Unroutable(str(error)) from None
        reasons = (f"the tier {self._tier} was named", *([why] if why else []))
        return Route(tier, known[tier], reasons, {name: float(name == tier) for name in known})
