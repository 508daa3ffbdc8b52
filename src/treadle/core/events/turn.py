"""The events of a turn: its start and its end, and the changes of the transcript between them."""

from msgspec import field
from msgspec.structs import force_setattr, replace

from treadle.core.events.body import Body, BodyWithContents
from treadle.core.judgement import Judgement
from treadle.core.types import Completion, Delivery, Fault, Message, Recalled, StopReason, ToolSpec, Usage


class TurnStarted(BodyWithContents, frozen=True, gc=False, tag="turn_started"):
    """The start of a turn, with the user's message."""

    turn: int
    """The number of the turn, from 1."""
    message: Message
    """The user's message, or Treadle's own request to answer again."""
    recalled: Recalled | None = None
    """What the model is told before the text of the message; `None`: nothing was recalled."""
    judgement: Judgement | None = None
    """What the message is and needs; `None`: the agent has no judge."""
    hint: str | None = None
    """What the model is told after the text of the message, because of the judgement; `None`: nothing."""
    queued_seq: int | None = None
    """The number of the `message_injected` event that holds the same message; `None` if it was not queued."""
    trace_parent: str | None = None
    """The turn's span as W3C's `traceparent`, for links of its later parts and forks; `None`: no trace."""


class MessageInjected(BodyWithContents, frozen=True, gc=False, tag="message_injected"):
    """A message that Treadle itself added to the transcript, or that the user sent during a turn."""

    message: Message
    limit: StopReason | None = None
    """The limit that the message announces to the model; one inference without tools follows. `None`: no limit."""
    output_fault: str | None = None
    """What in the model's answer does not fit the schema; `None` if the message is about something else."""
    tells_schema: bool = False
    """True if the message tells the schema of answers to a model that took the run over."""
    delivery: Delivery | None = None
    """How a message of the user that came during a turn reaches the model; `None` for Treadle's own messages."""
    is_nudge: bool = False
    """True if the message asks the model to act, after an answer that had no content, or that says that an
    existing tool cannot be used."""

    def __post_init__(self) -> None:
        if self.delivery is None and not self.message.is_own:
            force_setattr(self, "message", replace(self.message, is_own=True))


class ContextCompacted(BodyWithContents, frozen=True, gc=False, tag="context_compacted"):
    """A change of the part of the transcript that the model sees, so that it fits into the context again."""

    messages: int
    """How many messages, from the first, are replaced. They are counted in the transcript that the model saw."""
    replacement: tuple[Message, ...]
    """The messages that take their place."""
    usage: Usage | None = None
    """The tokens that the summary took; `None` if they are not known, or no model was asked."""
    shortened: dict[str, str] = field(default_factory=dict)
    """The results, after the replaced messages, that the model sees from now on as one line, by call id."""
    excerpts: dict[int, str] = field(default_factory=dict)
    """The messages that are too long to be shown whole: by position, counted as in `messages`, the text that the
    model sees from now on. A replaced message stands in `replacement` with this text."""
    kept_parts: dict[int, int] = field(default_factory=dict)
    """For messages in `excerpts` whose text names files that are not shown any longer: by position, how many of the
    message's parts, from the first, are still shown."""
    forgotten: tuple[int, ...] = ()
    """The positions of messages from which the memories recalled for their turn are removed from now on. They
    come after the replaced messages, and are counted as in `messages`."""
    dropped: int = 0
    """How many of the replaced messages are in no summary."""
    reason: str = "budget"
    """Why the context was compacted: `budget`, `overflow` (the server refused the prompt) or `asked`."""
    tokens_before: int = 0
    """The estimated tokens of the prompt before the compaction."""
    tokens_after: int = 0
    """The estimated tokens of the prompt after the compaction."""
    model: str | None = None
    """The name of the model that wrote the summary; `None` if no model was asked."""
    cost_usd: float | None = 0.0
    """The cost of the summary; `None` if it is not known."""
    error: str | None = None
    """Why there is no new summary, or what was wrong with the one that the model wrote; `None` if neither was."""
    duration_seconds: float = 0.0
    """How long the compaction took."""
    sampled: Completion | None = None
    """The answer that the summary was made from, with its exact tokens; `None` if its engine returned no ids."""
    tools: tuple[ToolSpec, ...] = ()
    """The tools that are offered to the model besides, from here on: they read again what the compaction cut."""

    @property
    def is_empty(self) -> bool:
        """True if nothing was changed, because nothing can be cut or the compaction was stopped."""
        return not (self.messages or self.shortened or self.forgotten or self.excerpts)


class TurnCompleted(Body, frozen=True, gc=False, tag="turn_completed"):
    """The end of a turn, successful or not."""

    turn: int
    """The number of the turn."""
    stop_reason: StopReason
    """The reason why the turn ended."""
    output: str = ""
    """The final answer, or the model's last text if the turn ended without an answer."""
    error: str | None = None
    """What went wrong; `None` if nothing did."""
    fault: Fault | None = None
    """The party responsible for `error`; `None` if nobody is."""
