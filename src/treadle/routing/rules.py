"""The router `rules`, which knows what kinds of messages need which tier."""

from treadle.core.types import Route
from treadle.models.wrappers.tiered import QUALITY, rank_of
from treadle.routing.protocol import Candidate, RoutingFacts

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
        """See `Router.route`."""
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
        """Return the tier that the message needs, and why."""
        if facts.is_boilerplate:
            return "small", "the message needs no thinking"
        if facts.is_identity_sensitive:
            return "frontier", "the message is about the assistant itself"
        if facts.difficulty >= self._hard_from:
            return "frontier", f"the message is hard ({facts.difficulty:.2f})"
        if facts.is_session and facts.is_first_turn and facts.difficulty > self._easy_until:
            return "frontier", f"the first message of the session is not easy ({facts.difficulty:.2f})"
        return "mid", f"the message is neither boilerplate nor hard ({facts.difficulty:.2f})"


def _closeness(item: Candidate, wanted: str) -> float:
    """Return 1 for the tier that is wanted, and less for others; a better one counts more than a weaker one."""
    distance = rank_of(item.tier) - rank_of(wanted)
    steps = 2 * len(QUALITY)
    return round(1 - (distance + len(QUALITY) if distance > 0 else -distance) / steps, 3)
