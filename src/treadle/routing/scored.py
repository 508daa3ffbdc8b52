"""The router `scored`, which weighs what a message needs against quality, cost and latency."""

import math

from treadle.core.types import Route
from treadle.routing.protocol import Candidate, RoutingFacts

_UNKNOWN = 0.5
"""The share of the score for a cost or a latency that is not known."""


class ScoredRouter:
    """A router that chooses the tier with the highest score, from 0 to 1.

    A model that is too weak for the message loses twice the missing quality. A model that is better than needed
    loses almost nothing, because cost and latency count against it already. The more quality the message needs, the
    less cost and latency count. Both are compared with the cheapest and the fastest candidate, by their ratio, so
    that the unit of prices makes no difference. The measured latency counts; until there is one, the configured
    latency does.
    """

    def __init__(self, *, thrift: float = 0.6, haste: float = 0.15) -> None:
        """Make a router. `thrift` is the weight of cost and latency for a message that needs nothing, and `haste`
        the share of it for the latency, both from 0 to 1."""
        self._thrift = thrift
        self._haste = haste

    def route(self, facts: RoutingFacts) -> Route:
        """See `Router.route`."""
        need = _need(facts)
        scores = {item.tier: self._score(item, need, facts) for item in facts.candidates}
        # On a tie the weaker tier is chosen, which comes last.
        chosen = max(reversed(facts.candidates), key=lambda item: scores[item.tier])
        reasons = [f"the message needs a quality of {need:.2f}, and {chosen.tier} has {chosen.quality:.2f}"]
        if chosen.cost_usd is None:
            reasons.append(f"the price of {chosen.model} is not known")
        if chosen.latency_seconds is not None:
            how = "measured" if chosen.is_measured else "configured, not measured"
            reasons.append(f"{chosen.model} takes {chosen.latency_seconds:.1f} s ({how})")
        return Route(chosen.tier, chosen.model, tuple(reasons), scores)

    def _score(self, item: Candidate, need: float, facts: RoutingFacts) -> float:
        missing = need - item.quality
        fit = max(0.0, 1 - 2 * missing) if missing > 0 else 1 + 0.1 * missing
        thrift = self._thrift * (1 - need)
        cost = _compare(item.cost_usd, [other.cost_usd for other in facts.candidates], 10)
        latency = _compare(item.latency_seconds, [other.latency_seconds for other in facts.candidates], 4)
        score = (1 - thrift) * fit + thrift * ((1 - self._haste) * cost + self._haste * latency)
        return round(score * (1 - item.failure_rate), 4)


def _need(facts: RoutingFacts) -> float:
    """Return the quality that the message needs, from 0 to 1."""
    if facts.is_boilerplate:
        return 0.05
    need = 0.15 + 0.8 * facts.difficulty
    need += 0.3 * facts.is_identity_sensitive
    need += 0.05 * (facts.is_first_turn and facts.is_session)
    need += 0.1 * (facts.tools > 0) + 0.05 * (facts.images > 0)
    need += 0.1 * min(1.0, facts.prompt_tokens / 50_000)
    return min(1.0, need)


def _compare(value: float | None, values: list[float | None], factor: float) -> float:
    """Return 1 for the smallest of `values`, and 1/2, 1/3, … for one, two, … times `factor` more."""
    known = [item for item in values if item is not None]
    if value is None:
        return _UNKNOWN if known else 1.0
    least = min(known)
    if value <= least:
        return 1.0
    # Something that is free or immediate is compared as if it were a thousandth of the others.
    return 1 / (1 + math.log(value / (least or value / 1000), factor))
