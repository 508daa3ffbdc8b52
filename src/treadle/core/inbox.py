"""The messages that others send to a run, whoever drives it, and what each of them means.

A message is stored in the run's inbox. The driver of the run, or the next one, takes it in: it appends the
events that the message means (`events_of`), and the last of them has the message's number. So `State.taken`
says which messages were taken in, and each is taken in once. A message that has no effect is answered with a
`noted` event that says why.
"""

from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import force_setattr

from treadle.core import events as e
from treadle.core.actions import Append
from treadle.core.asking import Answer, FindFault, open_questions, read_answer
from treadle.core.calls import abandon_turn, external_calls, waiting_calls
from treadle.core.decide import decide
from treadle.core.errors import ConfigError
from treadle.core.state import State, Status
from treadle.core.texts.documents import UNREADABLE
from treadle.core.texts.json_text import MAX_DEPTH, is_deep
from treadle.core.types import Artifact, Delivery, Message, ToolErrorKind, ToolResult

RESERVED = "treadle."
"""The beginning of the names of labels that only Treadle sets."""


class Steer(Struct, frozen=True, gc=False, tag_field="type", tag="steer"):
    """A message of the user that the model sees at its next step, or in the next turn if this one ends before."""

    message: Message


class Enqueue(Struct, frozen=True, gc=False, tag_field="type", tag="queue"):
    """A message of the user that begins a turn of its own, after the open turn and the waiting messages."""

    message: Message


class Interrupt(Struct, frozen=True, gc=False, tag_field="type", tag="interrupt"):
    """A message of the user that ends the open turn at once, and begins the next one."""

    message: Message


class Withdraw(Struct, frozen=True, gc=False, tag_field="type", tag="withdraw"):
    """The order to take back a message that waits for its turn, the newest one if there are several like it."""

    message: Message


class GiveAnswer(Struct, frozen=True, gc=False, omit_defaults=True, tag_field="type", tag="answer"):
    """The answer to a question of the run."""

    question_id: str
    text: str = ""
    """The answer: a text, the label or number of an option, or JSON if the question has a schema."""
    is_declined: bool = False
    """True if the user does not want to answer."""


class DecideCall(Struct, frozen=True, gc=False, omit_defaults=True, tag_field="type", tag="decide"):
    """The decision about a call that waits for approval."""

    call_id: str
    is_approved: bool
    reason: str | None = None
    """The reason that the model is told if the call was refused."""
    arguments: str | None = None
    """JSON arguments that replace the model's; `None`: the model's."""


class GiveResult(Struct, frozen=True, gc=False, omit_defaults=True, tag_field="type", tag="result"):
    """The result of a call of an external tool."""

    call_id: str
    content: str
    """The text that the model reads."""
    is_error: bool = False
    """True if the call failed."""
    artifacts: tuple[Artifact, ...] = ()
    """The images and files that came with the result."""


class Cancel(Struct, frozen=True, gc=False, omit_defaults=True, tag_field="type", tag="cancel"):
    """The order to stop at once. A run pauses until somebody resumes it; a session ends its open turn."""

    reason: str | None = None
    """Why the run is cancelled, in words; `None` if nothing was said."""


class Note(Struct, frozen=True, gc=False, omit_defaults=True, tag_field="type", tag="note"):
    """Labels or a remark that somebody adds to a run. They can be added at any time, also after the run's end."""

    labels: dict[str, str | None] = {}
    """The labels to set; `None` removes a label."""
    remark: str | None = None
    """A text for people who read the run."""
    by: str | None = None
    """Who or what adds the labels or the remark; `None` if unknown."""

    def __post_init__(self) -> None:
        force_setattr(self, "labels", check_labels(self.labels))
        if not self.labels and not (self.remark or "").strip():
            raise ConfigError("the note says nothing; give it a label or a remark")


InboxMessage: TypeAlias = (
    Steer | Enqueue | Interrupt | Withdraw | GiveAnswer | DecideCall | GiveResult | Cancel | Note
)
"""What can be sent to a run."""


class Posted(Struct, frozen=True, gc=False):
    """A message in the inbox of a run."""

    number: int
    """The number of the message in its run. Numbers grow in the order of arrival."""
    message: InboxMessage | None
    """The message; `None` if it cannot be read."""
    fault: str | None = None
    """Why the message cannot be read; `None` if it can be."""


_AROUND = 4
"""How many levels stand around the deepest values of a message, which are those of a call."""
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(InboxMessage).decode


def encode_message(message: InboxMessage) -> bytes:
    """Return a message as JSON. Raises: `ConfigError` if it is nested too deeply to be read again."""
    try:
        raw = _encode(message)
    except RecursionError:
        raw = b""
    if not raw or is_deep(raw, around=_AROUND):
        raise ConfigError(f"the message has data that is nested more than {MAX_DEPTH} levels deep")
    return raw


def decode_message(number: int, raw: bytes) -> Posted:
    """Return the message with this number whose JSON is `raw`. One that cannot be read gets a fault."""
    try:
        if is_deep(raw, around=_AROUND):
            raise RecursionError(f"it is nested more than {MAX_DEPTH} levels deep")
        return Posted(number, _decode(raw))
    except (*UNREADABLE, ConfigError) as error:
        return Posted(number, None, f"it is damaged, or of a kind that this Treadle does not know ({error})")


def kind_of(message: InboxMessage) -> str:
    """Return the tag of a message, such as `steer`."""
    return str(message.__struct_config__.tag)


def check_labels(labels: object) -> dict[str, str | None]:
    """Return labels that were given for a note. Raises: `ConfigError` for impossible names and values."""
    if not isinstance(labels, Mapping):
        raise ConfigError(f"the labels are {labels!r:.200}; give a mapping of names to texts")
    for name, value in labels.items():
        if not isinstance(name, str) or not name.strip() or not isinstance(value, str | None):
            raise ConfigError(f"the label {name!r:.100} = {value!r:.100} is not a name and a text")
        if name.startswith(RESERVED):
            raise ConfigError(f"the label {name!r} is Treadle's own; take a name without {RESERVED!r}")
    return dict(labels)


def last_taken(events: Iterable[e.Event]) -> int:
    """Return the number of the newest message that `events` took in; 0 if they took in none."""
    return max([event.body.inbox or 0 for event in events], default=0)


def stops(state: State, kind: str) -> bool:
    """Return whether a message with the tag `kind` stops the work that is under way."""
    if not state.turn.is_open or state.status is not Status.RUNNING:
        return False
    return kind == Cancel.__struct_config__.tag or (
        kind == Interrupt.__struct_config__.tag and state.is_session
    )


def events_of(state: State, posted: Posted, find_fault: FindFault) -> tuple[e.DurableBody, ...]:
    """Return the events that a message means in `state`, in which no inference runs. The last one has its number.

    `find_fault` checks answers against the schema of their question.
    """
    message = posted.message
    bodies: tuple[e.DurableBody, ...]
    if message is None:
        bodies = (_refuse("unreadable", posted.fault or "it cannot be read"),)
    elif isinstance(message, Note):
        bodies = (e.Noted(labels=message.labels, remark=message.remark, by=message.by),)
    elif isinstance(message, Cancel):
        bodies = _cancel(state, message)
    elif isinstance(message, Withdraw):
        found = [seq for seq, waiting in state.queued if waiting == message.message]
        refused = _refuse("withdraw", "no such message waits")
        bodies = (e.Noted(withdrawn_seq=found[-1]) if found else refused,)
    elif isinstance(message, GiveAnswer):
        bodies = (_answer(state, message, find_fault),)
    elif isinstance(message, DecideCall):
        bodies = (_decide(state, message),)
    elif isinstance(message, GiveResult):
        bodies = (_complete(state, message),)
    else:
        bodies = _receive(state, message)
    force_setattr(bodies[-1], "inbox", posted.number)
    return bodies


def _refuse(kind: str, why: str) -> e.Noted:
    return e.Noted(remark=f"The message ({kind}) has no effect: {why}.", refused=kind)


def _cancel(state: State, message: Cancel) -> tuple[e.DurableBody, ...]:
    if not state.turn.is_open:
        return (_refuse("cancel", "no turn is open"),)
    if state.is_session:
        said = () if message.reason is None else (e.Noted(remark=message.reason),)
        return (*said, *_end_turn(state))
    return (e.RunPaused(reason="cancelled", remark=message.reason),)


def _end_turn(state: State) -> tuple[e.DurableBody, ...]:
    if state.status is Status.PAUSED:
        return (e.RunResumed(), *abandon_turn(state))
    if state.turn.failure is not None and isinstance(action := decide(state), Append):
        return action.bodies  # its inference was stopped
    return abandon_turn(state)


def _answer(state: State, message: GiveAnswer, find_fault: FindFault) -> e.DurableBody:
    known = {body.question_id: body for body in open_questions(state)}
    asked = known.get(message.question_id)
    if asked is None:
        return _refuse("answer", f"the question {message.question_id!r:.100} is not open")
    if message.is_declined:
        return e.QuestionAnswered(question_id=asked.question_id, text="")
    try:
        answer: Answer = read_answer(asked, message.text, find_fault)
    except ConfigError as error:
        return _refuse("answer", str(error))
    return e.QuestionAnswered(question_id=asked.question_id, text=answer.text)


def _decide(state: State, message: DecideCall) -> e.DurableBody:
    if message.call_id not in {item.call.call_id for item in waiting_calls(state)}:
        return _refuse("decide", f"the call {message.call_id!r:.100} does not wait for a decision")
    return e.ApprovalDecided(
        call_id=message.call_id,
        is_approved=message.is_approved,
        reason=message.reason,
        arguments=message.arguments,
    )


def _complete(state: State, message: GiveResult) -> e.DurableBody:
    found = [item.call for item in external_calls(state) if item.call.call_id == message.call_id]
    if not found:
        return _refuse("result", f"the call {message.call_id!r:.100} does not wait for a result")
    kind = ToolErrorKind.FAILED if message.is_error else None
    result = ToolResult(
        message.call_id,
        found[0].name,
        message.content,
        is_error=message.is_error,
        error_kind=kind,
        artifacts=message.artifacts,
    )
    return e.ToolCompleted(step=state.step, result=result)


def _receive(state: State, message: Steer | Enqueue | Interrupt) -> tuple[e.DurableBody, ...]:
    """Return the events of a user's message. Only a session has a next turn that can answer it."""
    kind, is_open = kind_of(message), state.turn.is_open
    if state.status is Status.FINISHED or (not is_open and not state.is_session):
        return (_refuse(kind, "the run is over"),)
    if not state.is_session and not isinstance(message, Steer):
        return (_refuse(kind, "the run is no session, so it has no next turn"),)
    said = e.MessageInjected(message=message.message, delivery=Delivery(kind))
    if not isinstance(message, Interrupt) or not is_open:
        return (said,)
    return (said, *_end_turn(state))
