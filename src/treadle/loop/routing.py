"""The choice of a tier for the inferences of one run, whose model consists of tiers."""

from msgspec.structs import replace

from treadle.context.routing import (
    LATENCIES,
    Checker,
    choose,
    facts_of_state,
    make_router,
    replace_tier,
    split,
)
from treadle.core import events as e
from treadle.core.errors import (
    AuthenticationError,
    ConfigError,
    ContextOverflowError,
    RateLimitError,
    ServerError,
    TransportError,
    UnsupportedPartError,
)
from treadle.core.state import ESCALATED, State
from treadle.core.types import Completion, Fault, Request, Route, StopReason, Usage, Verdict
from treadle.models.protocol import Model
from treadle.models.wrappers.fallback import DEFAULT_ERRORS
from treadle.models.wrappers.tiered import TieredModel


class Routing:
    """The choice of tiers for one run. What was chosen is read from the state, so that a resumed run goes on with
    it."""

    def __init__(self, model: TieredModel) -> None:
        self._model = model
        self._router = make_router(model)

    def choose(self, state: State, *, has_tools: bool) -> tuple[Model, Route | None]:
        """Return the model for the next inference, and the choice if it is new; `None` if the turn's still holds.

        Raises: `ConfigError` that names each tier and why it cannot be used, if none can.
        """
        facts = facts_of_state(state, self._model, has_tools=has_tools)
        route, known = state.route, self._model.tiers
        if route is not None and route.tier in known:
            fitting, rejected = split(facts)
            if route.tier not in rejected:
                return known[route.tier].model, None
            route = replace_tier(
                facts, route, rejected[route.tier], allows_weaker=self._model.allows_weaker
            )
        else:
            route = choose(self._router, facts)
        return known[route.tier].model, route

    def next_tier(self, state: State, why: str, *, has_tools: bool) -> str | None:
        """Return the tier that takes the place of the one that was asked; `None` if there is none."""
        if state.route is None:
            return None
        tried = {**state.tried, state.route.tier: why}
        facts = replace(facts_of_state(state, self._model, has_tools=has_tools), tried=tried)
        try:
            return replace_tier(facts, state.route, why, allows_weaker=self._model.allows_weaker).tier
        except ConfigError:
            return None

    async def check(
        self, state: State, request: Request, completion: Completion, *, has_tools: bool
    ) -> tuple[e.InferenceFailed | None, Verdict | None]:
        """Check an answer if the router does so.

        Return the event that takes the place of an answer which is not used, and what a second model said.
        """
        if not isinstance(self._router, Checker):
            return None, None
        # Only a better tier can do better than the one that answered.
        assert state.route is not None
        tried = {**state.tried, state.route.tier: ""}
        facts = replace(facts_of_state(state, self._model, has_tools=has_tools), tried=tried)
        try:
            following = replace_tier(facts, state.route, "", allows_weaker=False).tier
        except ConfigError:
            return None, None
        checked = await self._router.check(request, completion)
        if checked.fault is None:
            return None, checked.verdict
        asked, verdict = completion.usage or Usage(), checked.verdict or Verdict("")
        is_priced = completion.cost_usd is not None and verdict.cost_usd is not None
        return (
            e.InferenceFailed(
                step=state.step + 1,
                error=checked.fault,
                error_type=ESCALATED,
                fault=Fault.MODEL,
                stop_reason=StopReason.ERROR,
                usage=asked + verdict.usage,
                cost_usd=(completion.cost_usd or 0.0) + (verdict.cost_usd or 0.0) if is_priced else None,
                next_tier=following,
            ),
            checked.verdict,
        )

    def measure(self, body: e.DurableBody, asked: e.InferenceStarted | None) -> None:
        """Count the outcome of an inference for later choices."""
        LATENCIES.add_event(body, asked)


def may_be_replaced(error: Exception) -> bool:
    """Return whether another model may succeed where one failed with `error`."""
    return isinstance(error, DEFAULT_ERRORS)
