"""Routers, which choose a tier of models for each turn."""

from treadle.routing.choose import choose, replace_tier, split
from treadle.routing.facts import facts_of, facts_of_state
from treadle.routing.latency import LATENCIES, Latencies, Latency
from treadle.routing.protocol import Candidate, Checked, Checker, Router, RoutingFacts
from treadle.routing.registry import ROUTERS, make_router

__all__ = [
    "LATENCIES",
    "ROUTERS",
    "Candidate",
    "Checked",
    "Checker",
    "Latencies",
    "Latency",
    "Router",
    "RoutingFacts",
    "choose",
    "facts_of",
    "facts_of_state",
    "make_router",
    "replace_tier",
    "split",
]
