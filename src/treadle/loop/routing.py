"""The performer of inferences for a model that consists of tiers: it asks a router which of them to use.

The choice is made for a turn, and recorded at its first inference. It changes only if the tier fails, if its answer
does not pass the router's check, or if the request no longer fits it; then a better tier takes over.
"""

import time
from collections.abc import Awaitable, Callable, Mapping

from msgspec import Struct
from msgspec.structs import replace

from treadle.core import events as e
from treadle.core.actions import Infer
from treadle.core.errors import ConfigError, ProviderError
from treadle.core.prompts.prompting import make_request
from treadle.core.state import ESCALATED, State
from treadle.core.tally import UNKNOWN, charge_of
from treadle.core.types import Fault, Route, StopReason
from treadle.journal.protocol import Clock
from treadle.loop.inference import Inference, describe_failure
from treadle.loop.outbox import Outbox
from treadle.models.wrappers.fallback import (
    COOLDOWN_SECONDS,
    DEFAULT_ERRORS,
    PATIENCE_SECONDS,
    RESTS,
    FallbackModel,
)
from treadle.models.wrappers.tiered import TieredModel, window_of
from treadle.routing import (
    LATENCIES,
    Checker,
    RoutingFacts,
    choose,
    facts_of_state,
    make_router,
    replace_tier,
    split,
)


class RoutedInference(Inference):
    """The performer of one run's inferences, each with the model of the tier that the router chose.

    The choice is read from the state, so a resumed run goes on with the tier that was recorded.
    """

    def __init__(
        self, model: TieredModel, read_blob: Callable[[str], bytes] | None = None, clock: Clock = time
    ) -> None:
        """See `Inference`. Raises: `ConfigError` for an unknown router."""
        super().__init__(model, read_blob, clock)
        self._tiered = model
        self._router = make_router(model)

    async def perform(self, state: State, action: Infer, outbox: Outbox) -> None:
        """Choose the tier if the turn has none, ask its model, and check the answer if the router does so."""
        try:
            route = self._choose(state, action)
        except ConfigError as error:
            name, count = self._tiered.name, len(state.messages)
            started = e.InferenceStarted(
                step=action.step, messages=count, has_tools=action.has_tools, model=name
            )
            outbox.put(started, describe_failure(error, action.step))
            return
        caught = _Caught(outbox, route)
        other = self._next_tier(state, action, "", is_failure=True, chosen=route)
        measured = (
            None if other is None else LATENCIES.get(self._tiered.tiers[other].model.name).total_seconds
        )
        self._patience_seconds = None if other is None else measured or PATIENCE_SECONDS
        await super().perform(state, action, caught)
        outcome = caught.outcome
        assert outcome is not None
        LATENCIES.add_event(outcome, state.turn.asked)
        if isinstance(outcome, e.InferenceCompleted):
            outcome = await self._check(state, action, outcome)
            if isinstance(outcome, e.InferenceFailed):
                caught.blobs = None
        elif outcome.error_type in (ProviderError.__name__, *_names_of(DEFAULT_ERRORS)):
            if outcome.error_type not in _OF_THE_PROMPT and not isinstance(self._model, FallbackModel):
                RESTS.begin(self._model, max(COOLDOWN_SECONDS, outcome.retry_after_seconds or 0.0))
            following = self._next_tier(state, action, outcome.error, is_failure=True)
            if outcome.stop_reason is not StopReason.CONTEXT_OVERFLOW or self._may_be_larger(following):
                outcome = replace(outcome, next_tier=following)
        outbox.put(outcome, blobs=caught.blobs)

    def _choose(self, state: State, action: Infer) -> Route | None:
        """Choose the model to ask. Return the choice if it is new; `None` if the turn's earlier choice holds."""
        before, tiers = state.turn.route, self._tiered.tiers
        if before is not None and before.tier in tiers:
            facts = self._facts(state, action)
            _, rejected = split(facts)
            route = None
            if before.tier in rejected:
                why = rejected[before.tier]
                route = replace_tier(facts, before, why, allows_weaker=self._tiered.allows_weaker)
        else:
            route = choose(self._router, self._facts(state, action, is_judged=True))
        chosen = route or before
        assert chosen is not None
        model = tiers[chosen.tier].model
        if model is not self._model:
            self._model, self._name, self._hide = model, model.name, None
        return route

    def _facts(self, state: State, action: Infer, *, is_judged: bool = False) -> RoutingFacts:
        return facts_of_state(state, self._tiered, has_tools=action.has_tools, is_judged=is_judged)

    def _next_tier(
        self, state: State, action: Infer, why: str, *, is_failure: bool, chosen: Route | None = None
    ) -> str | None:
        """Return the tier that takes the place of the one that is asked; `None` if there is none. `chosen` is a new
        choice."""
        route = chosen or state.turn.route
        if route is None or len(self._tiered.tiers) == 1:
            return None
        facts = replace(self._facts(state, action), tried={**state.turn.tried, route.tier: why})
        allows_weaker = is_failure and self._tiered.allows_weaker
        try:
            return replace_tier(facts, route, why, allows_weaker=allows_weaker).tier
        except ConfigError:
            return None

    def _may_be_larger(self, tier: str | None) -> bool:
        """Return whether a tier may have a larger context than the one that was asked."""
        sizes = {id(item.model): window_of(item) for item in self._tiered.tiers.values()}
        mine = sizes.get(id(self._model))
        other = None if tier is None else sizes[id(self._tiered.tiers[tier].model)]
        return tier is not None and (mine is None or other is None or other > mine)

    async def _check(
        self, state: State, action: Infer, done: e.InferenceCompleted
    ) -> e.InferenceCompleted | e.InferenceFailed:
        """Return `done`, or the event that takes its place if the answer does not pass the router's check."""
        if not isinstance(self._router, Checker):
            return done
        following = self._next_tier(state, action, "", is_failure=False)
        if following is None:
            return done
        request = make_request(state, has_tools=action.has_tools)
        if state.shown.has_parts:
            request = replace(request, contents=self._contents)
        checked = await self._router.check(request, done.completion)
        judged = done if checked.verdict is None else replace(done, verdict=checked.verdict)
        if checked.fault is None:
            return judged
        spent = charge_of(judged) or UNKNOWN
        return e.InferenceFailed(
            step=action.step,
            error=checked.fault,
            error_type=ESCALATED,
            fault=Fault.MODEL,
            model=done.answered_by or self._model.name,
            usage=spent.usage,
            cost_usd=spent.cost_usd,
            next_tier=following,
        )


class _Caught(Struct, eq=False):
    """An outbox that adds the choice to the start of an inference, and keeps its outcome for itself."""

    _outbox: Outbox
    _route: Route | None
    outcome: e.InferenceCompleted | e.InferenceFailed | None = None
    blobs: Mapping[str, bytes] | None = None

    def put(self, *bodies: e.DurableBody, blobs: Mapping[str, bytes] | None = None) -> None:
        """See `Outbox.put`."""
        for body in bodies:
            if isinstance(body, e.InferenceStarted):
                self._outbox.put(body if self._route is None else replace(body, route=self._route))
            elif isinstance(body, e.InferenceFailed) and body.retry_in_seconds is not None:
                LATENCIES.add_event(body, None)
                self._outbox.put(body)
            elif isinstance(body, e.InferenceCompleted | e.InferenceFailed):
                self.outcome, self.blobs = body, blobs

    def kept(self) -> Awaitable[None]:
        """See `Outbox.kept`."""
        return self._outbox.kept()


_OF_THE_PROMPT = ("ContextOverflowError", "UnsupportedPartError")
"""Errors that say nothing about the next prompt."""


def _names_of(kinds: tuple[type[Exception], ...]) -> set[str]:
    """Return the names of exceptions and of all that are derived from them."""
    return {kind.__name__ for kind in kinds}.union(
        *[_names_of(tuple(kind.__subclasses__())) for kind in kinds]
    )
