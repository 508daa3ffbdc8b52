"""The limits of a turn: what was spent, what is reserved, and what is left.

An inference is charged when it is completed. An inference whose answer was lost is charged the tokens and the cost
that were reserved for it, because they may have been paid for. It is no step, and has an allowance of its own.
"""

from typing import TYPE_CHECKING

from msgspec import Struct

from treadle.core.actions import Append
from treadle.core.answering import announce_limit, end_turn
from treadle.core.prompts.prompting import guess_next_tokens
from treadle.core.types import Fault, StopReason, ToolCall, ToolErrorKind, ToolResult, Usage

if TYPE_CHECKING:
    from treadle.core.state import State


_LEAST_LOST = 8
"""How many answers of a turn may be lost in any case."""


class Spent(Struct, gc=False):
    """The part of its budgets that a turn has used."""

    steps: int = 0
    """Inferences that were completed. In runs from before version 2.4, also those whose answer was lost."""
    lost: int = 0
    """Inferences that may have been paid for although their answer was lost; 0 in runs from before version 2.4."""
    forgiven: int = 0
    """How many of `lost` no longer count for the allowance, because the failed turn was tried again."""
    tool_calls: int = 0
    """Tool calls with a result, except calls that were not run because of a limit or a refusal, and except those of
    external tools; in runs from before version 2.8, also those."""
    refused_calls: int = 0
    """Calls that were not run because `max_tool_calls` was reached or the turn ended."""
    refused_steps: frozenset[int] = frozenset()
    """The steps with such calls, since the program that uses the run last made a call."""
    calls_by_tool: dict[str, int] = {}
    """Calls of each tool that has a limit of calls in a turn."""
    retries_by_tool: dict[str, int] = {}
    """How often in a row each tool asked for another call; without the tools whose last call succeeded."""
    rejected_answers: int = 0
    """Answers that did not fit the schema."""
    tokens: int = 0
    """Input and output tokens; for an inference whose answer was lost, what was reserved."""
    cost_usd: float = 0.0
    """The cost of the inferences whose cost is known; for one whose answer was lost, what was reserved."""
    is_cost_known: bool = True
    """True if the cost of every inference is known."""
    questions: int = 0
    """Questions to the user, except those about calls whose outcome was lost."""
    overflows: int = 0
    """How often the context was compacted because the server refused the prompt as too long."""
    nudges: int = 0
    """How often the model was asked to act, after an answer without content or one that refused a tool."""


def charge(state: "State", usage: Usage, cost_usd: float | None) -> None:
    """Count tokens and their cost (`None`: unknown) for the turn and for the run."""
    spent = state.turn.spent
    spent.tokens += usage.input_tokens + usage.output_tokens
    state.usage = state.usage.plus(usage)
    if cost_usd is None:
        if spent.is_cost_known:
            spent.is_cost_known = False
        if state.cost_usd is not None:
            state.cost_usd = None
        return
    spent.cost_usd += cost_usd
    if state.cost_usd is not None:
        state.cost_usd += cost_usd


def charge_reserved(state: "State") -> None:
    """Count the newest inference, whose answer was lost, as reserved."""
    turn = state.turn
    # In older versions, inferences whose answers were lost did not count.
    if turn.asked is not None and state.is_since(2, 1):
        if state.is_since(2, 4):
            turn.spent.lost += 1
        else:
            turn.spent.steps += 1
        if state.policy.charges_lost:
            turn.spent.tokens += guess_next_tokens(state)
            turn.spent.cost_usd += turn.asked.reserved_cost_usd or 0.0
        turn.is_wrap_up_lost = turn.limit is not None


def count_call(state: "State", result: ToolResult) -> None:
    """Count a call with its result for the limits of the turn."""
    spent, kind = state.turn.spent, result.error_kind
    if kind is not None and kind is ToolErrorKind.NOT_RUN:
        spent.refused_calls += 1
        spent.refused_steps |= {spent.steps}
    elif kind is None or (kind is not ToolErrorKind.REFUSED and kind is not ToolErrorKind.OVER_LIMIT):
        if is_counted(state, result.name):
            spent.tool_calls += 1
        else:
            spent.refused_steps = frozenset()
        if result.name in state.call_limits:
            spent.calls_by_tool[result.name] = spent.calls_by_tool.get(result.name, 0) + 1
        if kind is not None and kind is ToolErrorKind.RETRY:
            spent.retries_by_tool[result.name] = spent.retries_by_tool.get(result.name, 0) + 1
        elif spent.retries_by_tool and not result.is_error:
            spent.retries_by_tool.pop(result.name, None)


def is_counted(state: "State", name: str) -> bool:
    """Return whether calls of the tool count for `max_tool_calls`, as those of external tools do not."""
    return name not in state.shown.external or not state.is_since(2, 8)


def is_past_deadline(state: "State") -> bool:
    """Return whether the turn has been worked on for as long as the policy allows."""
    deadline = state.policy.deadline_seconds
    return deadline is not None and state.work_seconds >= deadline


def check_limits(state: "State") -> Append | None:
    """Return the action to take instead of the next inference if a limit forbids it; else `None`."""
    policy, spent = state.policy, state.turn.spent
    if policy.deadline_seconds is not None and is_past_deadline(state):
        return end_turn(state, StopReason.DEADLINE, error=f"{float(policy.deadline_seconds)} s passed")
    limit: StopReason | None = None
    is_affordable = True
    if policy.max_cost_usd is not None:
        if not spent.is_cost_known:
            return end_turn(state, StopReason.ERROR, error=_UNKNOWN_COST, fault=Fault.USER)
        next_cost = guess_cost_usd(state, guess_next_tokens(state))
        left = policy.max_cost_usd - spent.cost_usd
        limit, is_affordable = _reserve(left, next_cost, spent.steps, StopReason.MAX_COST)
    if limit is None and policy.max_tokens is not None:
        left = policy.max_tokens - spent.tokens
        limit, is_affordable = _reserve(left, guess_next_tokens(state), spent.steps, StopReason.MAX_TOKENS)
    if limit is None and policy.max_tool_calls is not None and spent.refused_calls and not _goes_on(state):
        # A cancelled turn refuses calls too, and a fork may begin in the middle of it.
        limit = StopReason.MAX_TOOL_CALLS if spent.tool_calls >= policy.max_tool_calls else None
    if limit is None and policy.max_steps is not None and spent.steps >= policy.max_steps:
        limit = StopReason.MAX_STEPS
    if limit is None:
        return _end_lost(state) if spent.lost and _are_lost_over(state) else None
    is_told = is_affordable and not state.is_relayed
    return (
        announce_limit(state, limit) if is_told else end_turn(state, limit, error=_explain_end(state, limit))
    )


def _goes_on(state: "State") -> bool:
    """Return whether external tools may be called after calls above `max_tool_calls`. A model that makes such calls
    in two steps, and none of an external tool between them, must answer."""
    return bool(state.shown.external) and state.is_since(2, 8) and len(state.turn.spent.refused_steps) < 2


def _explain_end(state: "State", limit: StopReason) -> str | None:
    """Return why there is no room for the first inference of a turn; `None` if the turn has had inferences."""
    spent, policy = state.turn.spent, state.policy
    if spent.steps or spent.lost or not state.is_since(2, 7):
        return None
    if limit is StopReason.MAX_TOKENS:
        needed = guess_next_tokens(state)
        return f"max_tokens is {policy.max_tokens:,}, and the first inference needs about {needed:,} tokens"
    value = policy.max_cost_usd if limit is StopReason.MAX_COST else 0
    return f"{limit.value} is {value:g}, which allows no inference"


_UNKNOWN_COST = (
    "max_cost_usd is set and the cost of an inference is unknown: give the model a price, "
    "as model(..., price=Price(...)), or use no max_cost_usd"
)


def _are_lost_over(state: "State", more: int = 0) -> bool:
    """Return whether the turn has lost more answers than it may: as many as its steps, and at least 8."""
    most, spent = state.policy.max_steps, state.turn.spent
    return most is not None and spent.lost - spent.forgiven + more > max(most, _LEAST_LOST)


def _end_lost(state: "State") -> Append:
    error = f"{state.turn.spent.lost} answers were lost on the way"
    return end_turn(state, StopReason.ERROR, error=error, fault=Fault.INFRASTRUCTURE)


def _reserve(left: float, next_cost: float, steps: int, limit: StopReason) -> tuple[StopReason | None, bool]:
    """Check whether the next inference and a wrap-up after it fit in the rest of a budget. Return `limit` if they
    do not fit (`None` if they do), and whether the wrap-up alone fits. The first inference of a turn needs no room
    for a wrap-up after it, since there is nothing to wrap up yet."""
    if left <= 0 or next_cost > left:
        return limit, False
    if steps and 2 * next_cost > left:
        return limit, True
    return None, True


def find_exceeded(state: "State", tokens: int, cost_usd: float) -> StopReason | None:
    """Return the budget of the turn that has no room for `tokens` and `cost_usd` more; `None` if both have."""
    policy, spent = state.policy, state.turn.spent
    if policy.max_tokens is not None and spent.tokens + tokens > policy.max_tokens:
        return StopReason.MAX_TOKENS
    if policy.max_cost_usd is not None and spent.cost_usd + cost_usd > policy.max_cost_usd:
        return StopReason.MAX_COST
    return None


def can_ask_again(state: "State", lost: int = 0) -> bool:
    """Return whether the budgets allow the same inference again, after `lost` answers that are not counted yet.

    In a run from before version 2.4, lost answers are steps, and there may be one step more than `max_steps`.
    """
    most, asked = state.policy.max_steps, state.turn.asked
    if state.is_since(2, 4):
        if _are_lost_over(state, lost):
            return False
    elif most is not None and state.turn.spent.steps + lost > most:
        return False
    tokens = guess_next_tokens(state)
    cost_usd = None if asked is None else asked.reserved_cost_usd
    if cost_usd is None:
        cost_usd = guess_cost_usd(state, tokens)
    times = 1 + lost if state.policy.charges_lost else 1
    return find_exceeded(state, times * tokens, times * cost_usd) is None


def guess_cost_usd(state: "State", tokens: int) -> float:
    """Estimate what `tokens` cost, at the average price of the turn so far; 0 if that is not known."""
    spent = state.turn.spent
    return spent.cost_usd / spent.tokens * tokens if spent.tokens else 0.0


class Allowance(Struct, frozen=True):
    """The part of the calling run's budgets that a run may use. `None` means that there is no limit."""

    max_tokens: int | None = None
    max_cost_usd: float | None = None
    deadline_seconds: float | None = None


def allow(state: "State", shares: int = 1) -> Allowance:
    """Return what one of `shares` runs may use that open calls of `state` start at the same time.

    Tokens for the next inference of the calling run are kept back, so that it can tell the outcome.
    """
    policy, spent = state.policy, state.turn.spent
    tokens, cost, deadline = policy.max_tokens, policy.max_cost_usd, policy.deadline_seconds
    next_tokens = guess_next_tokens(state)
    if tokens is not None:
        tokens = max(0, int(tokens) - spent.tokens - next_tokens) // shares
    if cost is not None:
        cost = max(0.0, cost - spent.cost_usd - guess_cost_usd(state, next_tokens)) / shares
    if deadline is not None:
        deadline = max(0.0, deadline - state.work_seconds)
    return Allowance(tokens, cost, deadline)


def refuse_over_limit(state: "State", call: ToolCall, earlier: int = 0) -> ToolResult | None:
    """Return the result for a call of a tool that has been called as often as it may be; `None` if it may run.

    `earlier` counts the calls of the tool that are to run before this one.
    """
    limit = state.call_limits.get(call.name)
    if limit is None or state.turn.spent.calls_by_tool.get(call.name, 0) + earlier < limit:
        return None
    times = "once" if limit == 1 else f"{limit} times"
    return _over_limit(call, f"may be called {times} in one turn, and has been")


def refuse_over_retries(state: "State", call: ToolCall) -> ToolResult | None:
    """Return the result for a call of a tool that has asked for another call too often; `None` if it has not."""
    retries = state.turn.spent.retries_by_tool.get(call.name, 0)
    if retries <= next((tool.max_retries for tool in state.tools if tool.name == call.name), 0):
        return None
    return _over_limit(call, f"has failed {retries} times in a row in this turn")


def _over_limit(call: ToolCall, why: str) -> ToolResult:
    text = f"Not run: {call.name} {why}. Go on without it."
    return ToolResult(call.call_id, call.name, text, is_error=True, error_kind=ToolErrorKind.OVER_LIMIT)
