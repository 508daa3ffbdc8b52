"""Routers, which choose a tier of models for each turn, and judgements of messages.

`protocol` says what a router gets and returns, `choose` applies the filters that no router can overrule, and
`facts_of` collects the facts: from the state of a run, the tiers, and what `latency` measured. `routers` has the
routers that need one look at the facts; `cascade` also checks answers. `judging/` judges messages.

A router is a class with a method `route(facts) -> Route`, and a line in `ROUTERS` of `choose` or an entry point
of the group `treadle.routers`; `TestContract` in `tests/routing/test_routers.py` tests every router. It is a pure
function of its facts: the driver records the route, and a resumed run keeps it.
"""

from treadle.routing.choose import ROUTERS as ROUTERS
from treadle.routing.choose import choose as choose
from treadle.routing.choose import make_router as make_router
from treadle.routing.choose import replace_tier as replace_tier
from treadle.routing.choose import split as split
from treadle.routing.facts_of import facts_of as facts_of
from treadle.routing.facts_of import facts_of_state as facts_of_state
from treadle.routing.latency import LATENCIES as LATENCIES
from treadle.routing.latency import Latencies as Latencies
from treadle.routing.latency import Latency as Latency
from treadle.routing.protocol import CheckedAnswer as CheckedAnswer
from treadle.routing.protocol import Checker as Checker
from treadle.routing.protocol import Router as Router
from treadle.routing.protocol import RoutingFacts as RoutingFacts
from treadle.routing.protocol import TierCandidate as TierCandidate
