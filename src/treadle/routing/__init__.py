"""Routers, which choose a tier of models for each turn."""

from treadle.routing.choose import choose, replace_tier, split
from treadle.routing.facts_of import facts_of, facts_of_state
from treadle.routing.latency import LATENCIES, Latencies, Latency
from treadle.routing.protocol import CheckedAnswer, Checker, Router, RoutingFacts, TierCandidate
from treadle.routing.registry import ROUTERS, make_router

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
