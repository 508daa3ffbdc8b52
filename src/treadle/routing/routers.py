"""The routers that need one look at the facts: `rules`, `scored` and `fixed`."""

import math

from treadle.core.errors import ConfigError
from treadle.core.types import Route
from treadle.models.wrappers.tiered import QUALITY, find_nearest, rank_of
from treadle.routing.protocol import RoutingFacts, TierCandidate, Unroutable

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

    def _score(self, item: TierCandidate, need: float, facts: RoutingFacts) -> float:
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


_FAILING = 0.5
"""From this share of failures on, another tier is chosen if a better one does not fail."""


class RulesRouter:
    """A router that applies fixed rules in order.

    Thanks and the like go to `small`; a hard message, one about the assistant itself, and the first message of a
    session that is not easy go to `frontier`; everything else goes to `mid`.
    """

    def __init__(self, *, hard_from: float = 0.6, easy_until: float = 0.3) -> None:
        """Make a router. `hard_from` and `easy_until` are difficulties, from 0 to 1."""
        self._hard_from = hard_from
        self._easy_until = easy_until

    def route(self, facts: RoutingFacts) -> Route:
        wanted, reason = self._want(facts)
        scores = {item.tier: _closeness(item, wanted) for item in facts.candidates}
        chosen = max(facts.candidates, key=lambda item: scores[item.tier])
        reasons = [reason]
        if chosen.tier != wanted:
            reasons.append(f"{wanted} is not available, and {chosen.tier} is the nearest tier")
        # The candidates are in order, so the last of the better ones is the nearest.
        steady = [
            item
            for item in facts.candidates
            if item.quality >= chosen.quality and item.failure_rate < _FAILING
        ]
        if chosen.failure_rate >= _FAILING and steady:
            reasons.append(f"{chosen.model} failed in {chosen.failure_rate:.0%} of its newest inferences")
            chosen = steady[-1]
        return Route(chosen.tier, chosen.model, tuple(reasons), scores)

    def _want(self, facts: RoutingFacts) -> tuple[str, str]:
        if facts.is_boilerplate:
            return "small", "the message needs no thinking"
        if facts.is_identity_sensitive:
            return "frontier", "the message is about the assistant itself"
        if facts.difficulty >= self._hard_from:
            return "frontier", f"the message is hard ({facts.difficulty:.2f})"
        if facts.is_session and facts.is_first_turn and facts.difficulty > self._easy_until:
            return "frontier", f"the first message of the session is not easy ({facts.difficulty:.2f})"
        return "mid", f"the message is neither boilerplate nor hard ({facts.difficulty:.2f})"


def _closeness(item: TierCandidate, wanted: str) -> float:
    """Return 1 for the tier that is wanted, and less for others; a better one counts more than a weaker one."""
    distance = rank_of(item.tier) - rank_of(wanted)
    steps = 2 * len(QUALITY)
    return round(1 - (distance + len(QUALITY) if distance > 0 else -distance) / steps, 3)


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
