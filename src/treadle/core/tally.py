"""Sums of the tokens and the cost that a part of a run used. The cost may not be known."""

from collections.abc import Iterable
from typing import NamedTuple

from msgspec import Struct

from treadle.core import events as e
from treadle.core.types import UNREPORTED, Usage

_NOTHING = Usage()


class Charge(NamedTuple):
    """The tokens and the cost that one event records."""

    usage: Usage
    """The tokens."""
    cost_usd: float | None
    """The cost; `None` if it is not known."""


UNKNOWN = Charge(UNREPORTED, None)
"""The charge of an inference whose answer was lost, and that may have been paid for."""


def write_usd(cost_usd: float) -> str:
    """Return a cost for people, such as `$0.0123`: `<$0.0001` if it is smaller, and `$0` if there is none."""
    if cost_usd >= 0.0001:
        return f"${cost_usd:,.4f}"
    return "<$0.0001" if cost_usd else "$0"


def charge_of(body: e.DurableBody) -> Charge | None:
    """Return the use that a body records, without the runs that tool calls drove; `None` if it records none."""
    if isinstance(body, e.InferenceCompleted):
        usage, cost_usd = body.completion.usage, body.completion.cost_usd
        if body.verdict is not None:
            other = body.verdict.cost_usd
            usage += body.verdict.usage
            cost_usd = None if cost_usd is None or other is None else cost_usd + other
        return Charge(usage, cost_usd)
    if isinstance(body, e.InferenceFailed):
        is_charged = body.usage is not None or body.may_be_billed
        return Charge(body.usage or UNREPORTED, body.cost_usd) if is_charged else None
    if isinstance(body, e.TurnStarted):
        judged = body.judgement
        if judged is None or judged.model is None:
            return None
        return Charge(judged.usage or UNREPORTED, judged.cost_usd)
    if isinstance(body, e.ContextCompacted) and (body.usage is not None or body.model is not None):
        return Charge(body.usage or UNREPORTED, body.cost_usd)
    return None


def count_lost(bodies: Iterable[e.DurableBody]) -> int:
    """Return how many answers of a run were lost of which no use is recorded. Each may have been paid for."""
    lost, is_asking = 0, False
    for body in bodies:
        kind = type(body)
        if isinstance(body, e.InferenceStarted | e.RunResumed):
            lost += is_asking and not (isinstance(body, e.RunResumed) and body.begins_fork)
            is_asking = kind is e.InferenceStarted
        elif isinstance(body, e.InferenceFailed):
            lost += body.usage is None and body.may_be_billed
            is_asking = body.retry_in_seconds is not None
        elif kind is e.InferenceCompleted:
            is_asking = False
    return lost


class Tally(Struct, gc=False):
    """A sum of charges."""

    usage: Usage = _NOTHING
    """The tokens that were reported or estimated."""
    known_cost_usd: float = 0.0
    """The sum of the costs that are known."""
    unknown_costs: int = 0
    """How many charges have a cost that is not known."""
    unknown_usages: int = 0
    """How many charges have tokens that were not reported."""

    @property
    def cost_usd(self) -> float | None:
        """The cost; `None` if a part of it is not known."""
        return None if self.unknown_costs else self.known_cost_usd

    def add(self, charge: Charge) -> None:
        usage, cost_usd = charge
        self.usage += usage
        self.unknown_usages += not usage.is_reported
        if cost_usd is None:
            self.unknown_costs += 1
        else:
            self.known_cost_usd += cost_usd
