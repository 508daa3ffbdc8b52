"""The events about questions to the user, and about approvals of tool calls."""

from treadle.core.events.body import Body
from treadle.core.types import Json, Option


class QuestionAsked(Body, frozen=True, gc=False, tag="question_asked"):
    """A question to the user, whose answer the run waits for."""

    question_id: str
    """The id of the question, unique in the run."""
    text: str
    """The question."""
    call_id: str | None = None
    """The id of the tool call that the question is about, or that asked it. `None`: no call."""
    options: tuple[Option, ...] = ()
    """The answers that the question offers."""
    allows_text: bool = True
    """True if the answer may be a text other than the options."""
    schema: dict[str, Json] | None = None
    """The JSON Schema of the answer, which is then JSON; `None`: the answer is text."""


class QuestionAnswered(Body, frozen=True, gc=False, tag="question_answered"):
    """The user's answer to a question."""

    question_id: str
    """The id of the question."""
    text: str
    """The answer: a text, an option's label, or JSON if the question has a schema. Empty: the user declined."""
    is_withdrawn: bool = False
    """True if nobody answers any more, because the call that asked has ended. The question then does not count."""


class ApprovalRequested(Body, frozen=True, gc=False, tag="approval_requested"):
    """The request that somebody approves a tool call. The call waits for the decision."""

    call_id: str
    """The id of the call."""


class ApprovalDecided(Body, frozen=True, gc=False, tag="approval_decided"):
    """The decision whether a tool call may run."""

    call_id: str
    """The id of the call."""
    is_approved: bool
    """True if the call may run."""
    reason: str | None = None
    """The reason for a refusal, which the model is told; `None` if none was given."""
    arguments: str | None = None
    """Arguments as JSON that replace the model's; `None`: the call runs with the model's arguments."""
