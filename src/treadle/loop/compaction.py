"""The performer of compactions: it chooses the messages to remove, has them summarised, and returns the event."""

import asyncio

from msgspec.structs import replace

from treadle.context.compaction_plan import Plan, make_plan, plan_whole
from treadle.context.compaction_size import (
    Measured,
    Summarised,
    index_of,
    look_up_window,
    make_event,
    measure,
)
from treadle.context.compaction_summary import fit_summary, read_summary, request_summary
from treadle.core import events as e
from treadle.core.actions import Compact
from treadle.core.errors import ConfigError, ProviderError
from treadle.core.limits import find_exceeded, guess_cost_usd
from treadle.core.prompts.estimates import weigh, weigh_message
from treadle.core.prompts.prompting import count_prompt, guess_next_tokens, make_request, place_of
from treadle.core.state import State
from treadle.core.types import UNREPORTED, Completion, Request, Usage
from treadle.loop.calls.workbench import Workbench
from treadle.loop.outbox import Outbox
from treadle.models.protocol import Model, Watch, estimate_cost_usd, has_price

_SUMMARY_SECONDS = 120.0
"""How long a summary may take. Then old messages are dropped."""
_NOTHING_TO_CUT = "nothing in it can be cut"
_TOO_LITTLE = "by the estimate it would stay too long whatever is cut, so the server decides"
_NOT_SUMMARISED = Summarised()
_PROMPT_SHARE = 0.7
"""The share of the window that the request for a summary may fill, since its size is estimated."""


class Compaction:
    """The performer of one run's compactions. `model` is the run's own.

    A compaction that cuts something offers the tools of `bench.reading`, with which the model reads it again.
    """

    def __init__(self, model: Model, bench: Workbench) -> None:
        self._model = model
        self._bench = bench
        self._clock = bench.clock
        self._other: tuple[str | None, Model, int | None] | None = None
        """The model of the policy with its name and window; `None` until it is needed."""

    async def perform(self, state: State, action: Compact, outbox: Outbox) -> None:
        """Compact the context. If somebody asked for it and there is nothing to compact, record nothing."""
        event = await self.make(state, action)
        if event is not None:
            outbox.put(event)

    async def make(self, state: State, action: Compact) -> e.ContextCompacted | None:
        """Return the event of a compaction; `None` if somebody asked for it and there is nothing to compact."""
        begin = self._clock.monotonic()
        tokens = count_tokens(self._model, make_request(state, has_tools=state.turn.limit is None))
        is_refused = action.reason == "overflow"
        spare = self._bench.unoffered()
        known, whole = tokens or count_prompt(state), action.is_whole
        measured = measure(state, known, is_refused=is_refused, is_whole=whole, spare=spare)
        is_asked = action.reason == "asked"
        seen, sizes, turns = measured.seen, measured.sizes, state.policy.keep_turns
        if whole:
            plan = plan_whole(seen.messages)
        else:
            plan = make_plan(seen, sizes, turns, is_asked=is_asked, is_refused=is_refused)
        if plan.is_empty:
            if is_asked:
                return None
            least = make_plan(seen, sizes, turns, is_refused=True)
            return give_up(state, action, _NOTHING_TO_CUT if least.is_empty else _TOO_LITTLE)
        summarised = _NOT_SUMMARISED
        if plan.old:
            summarised = await self._summarise(state, plan, measured)
        event = make_event(measured, plan, action.reason, summarised, spare)
        why = _find_loss(event, summarised, action) if plan.old and not is_refused else None
        if why is not None:
            event = give_up(state, action, why, summarised)
        if event.tools:
            self._bench.offer_reading()
        return replace(event, duration_seconds=self._clock.monotonic() - begin)

    async def _summarise(self, state: State, plan: Plan, measured: Measured) -> Summarised:
        """Ask a model for the summary. Whatever fails becomes an `error`."""
        try:
            model, window = await self._find_model(state)
        except (ConfigError, ProviderError) as error:
            return Summarised(error=str(error))
        index = sum([weigh(line) for line in index_of(measured, plan)])
        most = measured.sizes.summary - measured.ratio * index
        room = (window or measured.room) * _PROMPT_SHARE - most
        request, left_out = request_summary(
            read_summary(plan.earlier).text,
            plan.old,
            prompt_tokens=room / max(1.0, measured.ratio),
            summary_tokens=most,
            place=place_of(state, "summary", str(state.step)),
        )
        if left_out == len(plan.old):
            return Summarised(error="none of the old messages fits into the request for a summary")
        expected = Usage(int(room if left_out else _estimate(request)), int(most))
        if (reason := _find_obstacle(state, model, expected)) is not None:
            return Summarised(error=reason)
        watch = Watch()
        if state.policy.deadline_seconds is not None:
            watch.left_seconds = max(0.0, state.policy.deadline_seconds - state.work_seconds)
        try:
            async with asyncio.timeout(_SUMMARY_SECONDS):
                completion = await model.infer(request, watch)
        except TimeoutError:
            return Summarised(error=f"the summary took longer than {_SUMMARY_SECONDS:g} s", model=model.name)
        except Exception as error:
            return Summarised(error=f"{type(error).__name__}: {error}", model=model.name)
        text, fault = fit_summary(completion.message.content, most)
        return Summarised(
            text,
            left_out,
            fault,
            model.name,
            completion.usage if completion.usage.is_reported else _guess_usage(request, completion),
            completion.cost_usd,
            _keep_sampled(completion),
        )

    async def _find_model(self, state: State) -> tuple[Model, int | None]:
        """Return the model for summaries, and its window; `None`: that of the run's own model. If the model is
        chosen by a router, the weakest tier writes summaries."""
        name = state.policy.summary_model
        tiers = list(getattr(self._model, "tiers", {}).values())
        if name is None and not tiers:
            return self._model, None
        if self._other is None or self._other[0] != name:
            from treadle.models.config.recipe import make_model

            model = tiers[-1].model if name is None else await asyncio.to_thread(make_model, name)
            known = await look_up_window(model)
            self._other = name, model, None if known is None else known[0]
        return self._other[1:]


def give_up(
    state: State, action: Compact, why: str, summarised: Summarised = _NOT_SUMMARISED
) -> e.ContextCompacted:
    """Return the event of a compaction that changed nothing, also if a model was asked for a summary."""
    tokens = count_prompt(state)
    return e.ContextCompacted(
        messages=0,
        replacement=(),
        usage=summarised.usage,
        reason=action.reason,
        tokens_before=tokens,
        tokens_after=tokens,
        model=summarised.model,
        cost_usd=summarised.cost_usd,
        error=why,
        sampled=summarised.sampled,
    )


def _find_loss(event: e.ContextCompacted, summarised: Summarised, action: Compact) -> str | None:
    """Return why a compaction is worse than none; `None` if it is not. Old messages are dropped without a summary
    only if the prompt has to become shorter, and not because somebody asked. A whole one may be longer."""
    if event.reason == "asked" and not summarised.text:
        return f"nothing was compacted, because {summarised.error}"
    is_longer = event.tokens_after >= event.tokens_before and not action.is_whole
    return "nothing was compacted, because the summary is as long as the messages" if is_longer else None


def count_tokens(model: Model, request: Request) -> int | None:
    """Return the number of tokens in the prompt of `request`, as the model's method `count_tokens` says; `None`
    if the model has no such method, or if it does not know."""
    count = getattr(model, "count_tokens", None)
    return None if count is None else count(request)


def _find_obstacle(state: State, model: Model, expected: Usage) -> str | None:
    """Return why the budgets allow no summary; `None` if they do. The next inference must still be possible."""
    following, cost_usd = guess_next_tokens(state), 0.0
    if state.policy.max_cost_usd is not None:
        if not has_price(model):
            return f"max_cost_usd is set, and no price of {model.name!r} is known"
        known = estimate_cost_usd(model, expected)
        cost_usd = guess_cost_usd(state, expected.total_tokens) if known is None else known
        cost_usd += guess_cost_usd(state, following)
    limit = find_exceeded(state, expected.total_tokens + following, cost_usd)
    return None if limit is None else f"{limit} leaves no room for a summary"


def _estimate(request: Request) -> float:
    return sum([weigh_message(message) for message in request.messages])


def _keep_sampled(completion: Completion) -> Completion | None:
    """Return what is recorded of the answer itself: all of it if its engine returned ids, else nothing. Usage and
    cost are in fields of their own."""
    tokens = completion.tokens
    if tokens is None or tokens.token_ids is None:
        return None
    return replace(completion, usage=UNREPORTED, cost_usd=None, opaque=None, contents=None)


def _guess_usage(request: Request, completion: Completion) -> Usage:
    """Estimate the tokens of a summary whose server did not report them."""
    return Usage(int(_estimate(request)), int(weigh_message(completion.message)), is_reported=False)
