"""The events of an inference: its start, its answer, and its attempts that failed."""

from treadle.core.events.body import Body, BodyWithContents
from treadle.core.judgement import Verdict
from treadle.core.types import Completion, Fault, Route, StopReason, Usage


class InferenceStarted(Body, frozen=True, gc=False, tag="inference_started"):
    """The start of an inference, appended before the request is sent."""

    step: int
    """The number of the step, counted from 1 over the whole run."""
    messages: int
    """How many messages the request holds: the first `messages` of the run's transcript."""
    has_tools: bool = True
    """False at the wrap-up after a limit, which offers no tools except the one that takes the answer, if any."""
    model: str | None = None
    """The name of the model that is asked, as the user writes it."""
    reserved_cost_usd: float | None = None
    """The cost that counts for the turn if the outcome is lost; `None` without `max_cost_usd` or an estimate."""
    route: Route | None = None
    """The choice of the model, if it was made for this inference. It applies to the rest of the turn. `None`: the
    turn's earlier choice applies, or the agent has only one model."""


class InferenceCompleted(BodyWithContents, frozen=True, gc=False, tag="inference_completed"):
    """The answer of an inference: the ground truth for training."""

    step: int
    """The number of the step."""
    completion: Completion
    """What the model answered, and what it cost."""
    duration_seconds: float = 0.0
    """The time from the first request to the complete answer, retries included."""
    first_token_seconds: float | None = None
    """The time until the first piece of the answer; `None` if the answer was not streamed."""
    answered_by: str | None = None
    """The name of the model that answered, if it is not the one that was asked but one of its fallbacks."""
    verdict: Verdict | None = None
    """What a second model said about the answer before it was used; `None` if none was asked."""
    refused_tool: str | None = None
    """The name of an offered tool that the answer says cannot be used; `None`: none, or nobody looked."""


class InferenceFailed(Body, frozen=True, gc=False, tag="inference_failed"):
    """An attempt at an inference that failed or was stopped."""

    step: int
    """The number of the step."""
    error: str
    """What went wrong, in words."""
    error_type: str
    """The name of the exception's class, or `Cancelled`."""
    fault: Fault
    """The party responsible for the failure."""
    status: int | None = None
    """The HTTP status of the server's answer; `None` if there was none, or it was no error."""
    stop_reason: StopReason = StopReason.ERROR
    """The stop reason of the turn, if this failure ends it."""
    attempt: int = 1
    """The number of the attempt, from 1."""
    retry_in_seconds: float | None = None
    """How long to wait before the next attempt; `None`: this was the last attempt."""
    retry_after_seconds: float | None = None
    """How long the server asked to wait; `None`: it did not say."""
    model: str | None = None
    """The name of the model that failed; `None` if only one model was asked."""
    may_be_billed: bool = False
    """True if the server may charge for it; budgets count it as reserved, or by `usage` and `cost_usd`."""
    usage: Usage | None = None
    """The tokens of an answer that was complete and thrown away; `None`: there was no such answer."""
    cost_usd: float | None = None
    """The cost in US dollars of the answer that was thrown away; `None` if it is not known, or none was."""
    said: str = ""
    """The text of the answer that was streamed before the inference was stopped."""
    next_tier: str | None = None
    """The tier whose model is asked next in place of the one that failed, or whose answer was thrown away; `None`:
    no other tier is asked."""
