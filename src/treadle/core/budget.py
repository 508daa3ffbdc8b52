"""What is left of a turn's budgets, for the runs that its calls start."""

from msgspec import Struct

from treadle.core.state import State, guess_next_tokens


class Allowance(Struct, frozen=True):
    """What a run may use of the budgets of the run that called it. `None` means that there is no limit."""

    max_tokens: int | None = None
    max_cost_usd: float | None = None
    deadline_seconds: float | None = None


def allow(state: State, shares: int = 1) -> Allowance:
    """Return what one of `shares` runs may use that open calls of `state` start at the same time.

    Tokens for the next inference of the calling run are kept back, so that it can tell the outcome.
    """
    policy, spent = state.policy, state.spent
    tokens, cost, deadline = policy.max_tokens, policy.max_cost_usd, policy.deadline_seconds
    next_tokens = guess_next_tokens(state)
    if tokens is not None:
        tokens = max(0, int(tokens) - spent.tokens - next_tokens) // shares
    if cost is not None:
        next_cost = spent.cost_usd / spent.tokens * next_tokens if spent.tokens else 0.0
        cost = max(0.0, cost - spent.cost_usd - next_cost) / shares
    if deadline is not None:
        deadline = max(0.0, deadline - state.work_seconds)
    return Allowance(tokens, cost, deadline)
