"""Routers, which choose a tier of models for each turn, and judgements of messages.

`protocol` says what a router gets and returns, `choose` applies the filters that no router can overrule, and
`facts_of` collects the facts: from the state of a run, the tiers, and what `latency` measured. `routers` has the
routers that need one look at the facts; `cascade` also checks answers. `judging/` judges messages.

A router is a class with a method `route(facts) -> Route`, and a line in `ROUTERS` of `choose` or an entry point
of the group `treadle.routers`; `TestContract` in `tests/routing/test_routers.py` tests every router. It is a pure
function of its facts: the driver records the route, and a resumed run keeps it.
"""

from treadle.routing.choose import ROUTERS, choose, make_router, replace_tier, split
from treadle.routing.facts_of import facts_of, facts_of_state
from treadle.routing.latency import LATENCIES, Latencies, Latency
from treadle.routing.protocol import CheckedAnswer, Checker, Router, RoutingFacts, TierCandidate

__all__ = [
    "LATENCIES",
    "ROUTERS",
    "CheckedAnswer",
    "Checker",
    "Latencies",
    "Latency",
    "Router",
    "RoutingFacts",
    "TierCandidate",
    "choose",
    "facts_of",
    "facts_of_state",
    "make_router",
    "replace_tier",
    "split",
]
