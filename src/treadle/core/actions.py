"""The actions of a run: everything that `decide` can tell the driver to do."""

from typing import TYPE_CHECKING, TypeAlias

from msgspec import Struct

from treadle.core import events as e
from treadle.core.types import Message, Role, StopReason

if TYPE_CHECKING:
    from treadle.core.calls import CallState


class Infer(Struct, frozen=True, gc=False):
    """The action to ask the model for its next message."""

    step: int
    """The number of the step that begins."""
    has_tools: bool
    """False at a wrap-up, where the model may call no tools."""


class Compact(Struct, frozen=True, gc=False):
    """The action to compact the context before the next inference."""

    reason: str
    """Why the context is compacted: `budget`, `overflow` (the server refused the prompt) or `asked`."""
    is_whole: bool = False
    """True to replace all but the messages of the user by one summary, however short they are."""


class RunCalls(Struct, frozen=True, gc=False):
    """The action to run calls of the current step, at the same time where their tools allow it."""

    calls: "tuple[CallState, ...]"


class RequestApprovals(Struct, frozen=True, gc=False):
    """The action to record that calls wait for approval, or what is wrong with calls that could not run anyway."""

    calls: "tuple[CallState, ...]"


class AskApprover(Struct, frozen=True, gc=False):
    """The action to ask about calls in turn. A refused one gets its result; an undecided one pauses the run."""

    calls: "tuple[CallState, ...]"


class AskUser(Struct, frozen=True, gc=False):
    """The action to put open questions to the user. The run pauses if the user answers no question."""

    questions: tuple[e.QuestionAsked, ...]


class CheckAnswer(Struct, frozen=True, gc=False):
    """The action to check an answer against the run's schema; `judge_answer` decides what follows."""

    text: str


class Append(Struct, frozen=True, gc=False):
    """The action to append events, with nothing else to do."""

    bodies: tuple[e.DurableBody, ...]
    """The events' bodies; the driver sets their times."""


Action: TypeAlias = (
    Infer | Compact | RunCalls | RequestApprovals | AskApprover | AskUser | CheckAnswer | Append
)


def tell(
    text: str,
    *,
    limit: StopReason | None = None,
    output_fault: str | None = None,
    tells_schema: bool = False,
    is_nudge: bool = False,
) -> Append:
    """Return the action to add a message of Treadle to the transcript; see `MessageInjected` for the arguments."""
    body = e.MessageInjected(
        message=Message(Role.USER, text),
        limit=limit,
        output_fault=output_fault,
        tells_schema=tells_schema,
        is_nudge=is_nudge,
    )
    return Append((body,))
