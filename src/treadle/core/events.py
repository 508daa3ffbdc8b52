"""The types of events, their codec and their version.

An `Event` is one record of a journal. Its body is one of a fixed set of structs, told apart by the field `type`.
A new version adds optional fields to bodies. An event keeps the bytes that it was read from, so that fields of a
newer minor version are passed on unchanged.
"""

from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from msgspec import Struct

from treadle.core.errors import JournalError
from treadle.core.judgement import Judgement
from treadle.core.policy import Policy
from treadle.core.spec import AgentSpec, PartSpec
from treadle.core.summary import summarize
from treadle.core.types import (
    Artifact,
    Caller,
    Child,
    Completion,
    Delivery,
    Effect,
    Fault,
    FileDelta,
    Json,
    Message,
    Option,
    OutputSpec,
    Parent,
    Recalled,
    Route,
    StopReason,
    TaskRef,
    ToolResult,
    ToolSpec,
    Usage,
    Verdict,
    Window,
)

VERSION = "2.3"
"""The version of the event types, `major.minor`. A reader refuses a newer major version.

Before 2.1, inferences that were lost did not count for budgets. Before 2.2, contexts were not compacted, and a turn
ended with an answer that had no content. Before 2.3, token ids and log probabilities were lists of numbers.
"""


class Body(Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False, tag_field="type"):
    """The base of all bodies."""

    at: float = 0.0
    """The time in seconds since the epoch, by the clock of the process that appended the event. A new body has no
    time; the driver sets it when it appends the event."""
    worked_seconds: float | None = None
    """How long the turn had been worked on, by a monotonic clock and without pauses and waits for a decision.
    `None` if the policy has no deadline."""


class BodyWithContents(Body, frozen=True, kw_only=True, gc=False):
    """The base of the bodies that refer to contents in the store."""

    contents: dict[str, str] | None = None
    """The contents that the body refers to, by hash, in base64. Only in an exported journal; `None` elsewhere."""


class RunStarted(Body, frozen=True, gc=False, tag="run_started"):
    """The start of a run, with the agent and everything else that was given at the start."""

    version: str
    """The `VERSION` of the Treadle that wrote the event."""
    agent: AgentSpec | None = None
    """The agent that started the run; `None` only in journals of version 1, see `spec`."""
    instructions: str | None = None
    """The system message as sent; `None` if it is the same as `agent.instructions`."""
    tools: tuple[ToolSpec, ...] = ()
    """The tools that are offered to the model."""
    is_session: bool = False
    """True if the run is a session: after a turn it stays open for the next one."""
    task: TaskRef | None = None
    """The task of the run; `None` if the run was given only a text."""
    parent: Parent | None = None
    """The run that this one was forked from; the events up to `parent.seq` are copies. `None`: no fork."""
    output: OutputSpec | None = None
    """The form that final answers must have; `None`: any text."""
    metadata: dict[str, Json] | None = None
    """Data that the caller wants to keep with the run."""
    window: Window | None = None
    """The context window of the model; `None` if it is not known."""
    caller: Caller | None = None
    """The tool call that started this run as a sub-agent; `None`: no call did."""
    policy: Policy | None = None
    """Only in version 1: the policy, which is now in `agent`."""
    model: str | None = None
    """Only in version 1: the model's name."""

    @property
    def spec(self) -> AgentSpec:
        """The agent that started the run, also for journals of version 1."""
        return self.agent if self.agent is not None else read_version_1(self)

    @property
    def system_message(self) -> str | None:
        """The text of the system message; `None` if there is none."""
        if self.instructions is not None or self.agent is None:
            return self.instructions
        return self.agent.instructions


class TurnStarted(BodyWithContents, frozen=True, gc=False, tag="turn_started"):
    """The start of a turn, with the user's message."""

    turn: int
    """The number of the turn, from 1."""
    message: Message
    """The user's message."""
    recalled: Recalled | None = None
    """What the model is told before the text of the message; `None`: nothing was recalled."""
    judgement: Judgement | None = None
    """What the message is and needs; `None`: the agent has no judge."""
    hint: str | None = None
    """What the model is told after the text of the message, because of the judgement; `None`: nothing."""
    queued_seq: int | None = None
    """The number of the `message_injected` event that holds the same message; `None` if it was not queued."""


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
    """The cost that counts for the budget of the turn if the outcome is lost; `None` if the policy has no
    `max_cost_usd`, or the cost cannot be estimated."""
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
    """The name of an offered tool that the answer says cannot be used; `None` if there is none, or if nobody
    looked."""


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
    """True if the server may charge for the attempt, which then counts for the budgets as reserved, or as `usage`
    and `cost_usd` say."""
    usage: Usage | None = None
    """The tokens of an answer that was complete and thrown away; `None`: there was no such answer."""
    cost_usd: float | None = None
    """What that answer cost; `None` if it is not known, or there was none."""
    next_tier: str | None = None
    """The tier whose model is asked next in place of the one that failed, or whose answer was thrown away; `None`:
    no other tier is asked."""


class ToolStarted(Body, frozen=True, gc=False, tag="tool_started"):
    """The start of a tool call. The event is durable before a tool that has an effect runs."""

    step: int
    """The number of the step."""
    call_id: str
    """The id of the call."""
    name: str
    """The name of the tool."""
    effect: Effect
    """The effect of running the call again."""
    attempt: int = 1
    """The number of the attempt, from 1; above 1 the call runs again because its outcome was lost."""
    parent_call_id: str | None = None
    """The id of the running call that made this one; `None` for a call of the model."""
    arguments: str | None = None
    """The arguments as JSON if a tool made the call; `None` for a call of the model, whose inference has them."""


class ToolCompleted(BodyWithContents, frozen=True, gc=False, tag="tool_completed"):
    """The result of a tool call. The event is durable before the model sees the result."""

    step: int
    """The number of the step."""
    result: ToolResult
    """The result that is given to the model, or to the tool that made the call."""
    duration_seconds: float = 0.0
    """How long the tool ran; 0 if the call was not run."""
    parent_call_id: str | None = None
    """The id of the running call that made this one and got the result; `None` for a call of the model."""
    child: Child | None = None
    """The run that the call drove; `None` if it drove none."""

    @property
    def call_id(self) -> str:
        """The id of the call."""
        return self.result.call_id

    @property
    def name(self) -> str:
        """The name of the tool."""
        return self.result.name


class ContextCompacted(BodyWithContents, frozen=True, gc=False, tag="context_compacted"):
    """A change of what the model sees of the transcript, so that it fits into the model's context again."""

    messages: int
    """How many messages, from the first, are replaced. They are counted in the transcript as the model saw it."""
    replacement: tuple[Message, ...]
    """The messages that take their place."""
    usage: Usage | None = None
    """The tokens that the summary took; `None` if they are not known, or no model was asked."""
    shortened: dict[str, str] = {}
    """The results after the replaced messages of which the model sees only a line from now on: the line by call
    id."""
    forgotten: tuple[int, ...] = ()
    """The positions of the messages after the replaced ones that no longer begin with what was recalled for their
    turn. They are counted as `messages` is."""
    dropped: int = 0
    """How many of the replaced messages are in no summary."""
    reason: str = "budget"
    """Why the context was compacted: `budget`, `overflow` (the server refused the prompt) or `asked`."""
    tokens_before: int = 0
    """The estimated tokens of the prompt before."""
    tokens_after: int = 0
    """The estimated tokens of the prompt after it."""
    model: str | None = None
    """The name of the model that wrote the summary; `None` if no model was asked."""
    cost_usd: float | None = 0.0
    """The cost of the summary; `None` if it is not known."""
    error: str | None = None
    """Why there is no new summary; `None` if there is one, or none was needed."""
    duration_seconds: float = 0.0
    """How long the compaction took."""
    sampled: Completion | None = None
    """The answer that the summary was made from, with its exact tokens; `None` if its engine returned no ids."""


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
    """True if the message asks the model to act, after an answer that had no content, or that says of a tool which
    exists that it cannot be used."""


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
    """The answer: a text, the label of an option, or JSON if the question has a schema. Empty if the user declined
    to answer."""
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


class SnapshotTaken(BodyWithContents, frozen=True, gc=False, tag="snapshot_taken"):
    """A change of the sandbox's files, appended together with the result of the call that made the change."""

    snapshot_id: str
    """The id of all files, in hex; equal files have equal ids. Older versions computed it in another way."""
    delta: FileDelta
    """The changes since the previous snapshot; the store keeps the contents by hash."""


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


class RunPaused(Body, frozen=True, gc=False, tag="run_paused"):
    """The pause of a run: no process drives it until it is resumed."""

    reason: str
    """The reason for the pause: `cancelled`, `question`, `approval` or `closed`."""


class RunResumed(Body, frozen=True, gc=False, tag="run_resumed"):
    """The point at which a process drives the run again. Calls that were started and not completed are in doubt."""

    agent: AgentSpec | None = None
    """The agent from here on; `None` in journals of version 1, where the agent stays the same."""
    tools: tuple[ToolSpec, ...] = ()
    """The tools that are offered to the model from here on; ignored if `agent` is `None`."""
    output: OutputSpec | None = None
    """How the model is asked for answers that fit a schema from now on; `None`: as before."""
    window: Window | None = None
    """The context window of the model from here on; `None` if it is not known."""


class RunFinished(Body, frozen=True, gc=False, tag="run_finished"):
    """The end of a run."""

    stop_reason: StopReason
    """The reason why the run ended."""
    error: str | None = None
    """What went wrong; `None` if nothing did."""
    fault: Fault | None = None
    """The party responsible for `error`; `None` if nobody is."""


class Rewarded(Body, frozen=True, gc=False, tag="rewarded"):
    """A grade, from the task's check or from a later rescoring."""

    reward: float
    """The grade, usually from 0 to 1."""
    name: str = "check"
    """The name of the check that gave the grade. If a name has several grades, the newest one is valid."""
    detail: str | None = None
    """A sentence that explains the grade; `None` if there is none."""


DurableBody: TypeAlias = (
    RunStarted
    | TurnStarted
    | InferenceStarted
    | InferenceCompleted
    | InferenceFailed
    | ToolStarted
    | ToolCompleted
    | ContextCompacted
    | MessageInjected
    | QuestionAsked
    | QuestionAnswered
    | ApprovalRequested
    | ApprovalDecided
    | SnapshotTaken
    | TurnCompleted
    | RunPaused
    | RunResumed
    | RunFinished
    | Rewarded
)


class TextDelta(Struct, frozen=True, gc=False, tag_field="type", tag="text_delta"):
    """A piece of the answer's text."""

    text: str


class ReasoningDelta(Struct, frozen=True, gc=False, tag_field="type", tag="reasoning_delta"):
    """A piece of the model's thinking."""

    text: str


class ToolCallDelta(Struct, frozen=True, gc=False, tag_field="type", tag="tool_call_delta"):
    """A piece of a tool call's arguments."""

    index: int
    """The position of the call in the message, from 0."""
    call_id: str | None
    """The id of the call; `None` if this piece does not repeat it."""
    name: str | None
    """The name of the tool; `None` if this piece does not repeat it."""
    arguments: str
    """The piece of text."""


class ToolProgress(Struct, frozen=True, gc=False, tag_field="type", tag="tool_progress"):
    """A progress report of a running tool."""

    call_id: str
    text: str


Delta: TypeAlias = TextDelta | ReasoningDelta | ToolCallDelta | ToolProgress
"""A piece of output that is streamed to listeners and never journalled."""


class _Forwarding:
    """The attributes that events and deltas share. The attributes of the body can be read directly, without
    `.body`."""

    __slots__ = ()

    if not TYPE_CHECKING:
        # Type checkers see the classes in `core.narrowing`, which have the attributes of their bodies.

        def __getattr__(self, name):
            if name.startswith("__"):
                raise AttributeError(name)
            try:
                return getattr(self.body, name)
            except AttributeError:
                raise AttributeError(f"an event {self.type!r} has no attribute {name!r}") from None

        @property
        def __class__(self):
            # So that `isinstance` and `match` accept the type of the body.
            return type(self.body)

        def __repr__(self):
            number = "" if self.seq is None else f"{self.seq} "
            return f"<{number}{summarize(self.body)}>"


class Event(_Forwarding, Struct, frozen=True, gc=False):
    """One durable record of a run. It has the attributes of its body, and is an instance of the body's type."""

    run_id: str
    """The id of the run."""
    seq: int
    """The number of the event in its run, counted from 1 without gaps."""
    body: DurableBody
    """The content of the event."""
    raw: bytes | None = None
    """The body's JSON as it was read; `None` for an event that this process made."""

    @property
    def type(self) -> str:
        """The tag of the body's type, such as `inference_completed`."""
        return str(self.body.__struct_config__.tag)

    @property
    def at(self) -> float:
        """The time of the event in seconds since the epoch."""
        return self.body.at

    def to_json(self) -> bytes:
        """Return the event as one line of an exported journal or a stream, without the newline."""
        body = self.raw or _encoder.encode(self.body)
        return b'{"run_id":%b,"seq":%d,%b' % (_encoder.encode(self.run_id), self.seq, body[1:])


class Ephemeral(_Forwarding, Struct, frozen=True, gc=False):
    """A piece of a run's output that is streamed to listeners and never journalled."""

    run_id: str
    """The id of the run."""
    body: Delta
    """The content."""
    seq: None = None
    """Always `None`: only durable events are numbered."""

    @property
    def type(self) -> str:
        """The tag of the body's type, such as `text_delta`."""
        return str(self.body.__struct_config__.tag)

    def to_json(self) -> bytes:
        """Return the piece as one line of a stream, without the newline."""
        return b'{"run_id":%b,%b' % (_encoder.encode(self.run_id), _encoder.encode(self.body)[1:])


def read_version_1(started: RunStarted) -> AgentSpec:
    """Return the agent spec of a run whose journal is of version 1.

    For runs of the command line, `metadata["cli"]` holds the model and the tools; for other runs only their names
    are known.
    """
    kept = (started.metadata or {}).get("cli")
    given: dict[str, Json] = kept if isinstance(kept, dict) else {}
    names = ("base_url", "temperature", "max_output_tokens", "seed")
    settings = {name: given[name] for name in names if given.get(name) is not None}
    if given.get("tools"):
        tools = tuple([PartSpec(name=str(text)) for text in given["tools"]])
    elif started.task is not None:
        tools = ()
    else:
        why = "its journal is of an older version and holds only its definition"
        tools = tuple([PartSpec(name=tool.name, missing=why) for tool in started.tools])
    name = str(given.get("model") or started.model or "")
    if started.model == f"openai:{name}":
        name = started.model
    return AgentSpec(
        model=PartSpec(name=name, settings=settings or None),
        instructions=started.instructions,
        tools=tools,
        policy=started.policy or Policy(),
        schema=None if started.output is None else started.output.schema,
        task_set=None if started.task is None else started.task.task_set,
    )


def digests_of(body: Body) -> tuple[str, ...]:
    """Return the hashes of the contents in the store that `body` refers to."""
    if isinstance(body, SnapshotTaken):
        return (*body.delta.changed.values(), *body.delta.states.values())
    if isinstance(body, ToolCompleted):
        return _digests_in(body.result.artifacts)
    if isinstance(body, TurnStarted | MessageInjected):
        return _digests_in(body.message.parts)
    if isinstance(body, InferenceCompleted):
        return _digests_in(body.completion.message.parts)
    if isinstance(body, ContextCompacted):
        return tuple([digest for item in body.replacement for digest in _digests_in(item.parts)])
    return ()


def _digests_in(items: tuple[Artifact, ...]) -> tuple[str, ...]:
    return tuple([item.digest for item in items if item.digest is not None and item.data is None])


class _Probe(Struct):
    """The fields that tell whether this version can read the rest."""

    type: str | None = None
    version: str | None = None


class _Line(Struct):
    run_id: str
    seq: int


_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[DurableBody] = msgspec.json.Decoder(DurableBody)
_probe = msgspec.json.Decoder(_Probe)
_line = msgspec.json.Decoder(_Line)

UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""The exceptions of a decoder for JSON that is malformed, is not UTF-8, or is nested too deeply."""

encode_body = _encoder.encode
"""Return a body as JSON: an object whose first key is `type`."""

encode_lines = _encoder.encode_lines
"""Return several bodies as JSON, each followed by a newline."""


def decode_body(raw: bytes) -> DurableBody:
    """Return the body whose JSON is `raw`.

    Raises: `JournalError` for a newer major version, an unknown type, or data that is not a body.
    """
    try:
        body = _decoder.decode(raw)
    except UNREADABLE as error:
        raise JournalError(_explain(raw, error)) from error
    if not body.at and b'"at"' not in raw:
        raise JournalError(f"a damaged event (it has no time): {raw[:120]!r}")
    if type(body) is RunStarted:
        _refuse_newer(body.version)
    return body


def decode_line(line: bytes) -> Event:
    """Return the event in one line of an exported journal.

    Raises: `JournalError` for the same reasons as `decode_body`.
    """
    try:
        head = _line.decode(line)
        fields: dict[str, msgspec.Raw] = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except UNREADABLE as error:
        raise JournalError(f"not a line of a Treadle journal ({error}): {line[:80]!r}") from error
    raw = _encoder.encode({name: value for name, value in fields.items() if name not in ("run_id", "seq")})
    return Event(head.run_id, head.seq, decode_body(raw), raw)


@lru_cache(maxsize=64)
def is_since(version: str, major: int, minor: int) -> bool:
    """Return whether the event version of a run is `major.minor` or later."""
    parts = version.split(".")
    return all(part.isdigit() for part in parts) and [int(part) for part in parts] >= [major, minor]


def _refuse_newer(version: str | None) -> None:
    major = (version or VERSION).split(".")[0]
    if not major.isdigit() or int(major) > int(VERSION.split(".")[0]):
        raise JournalError(
            f"this run was written by a newer Treadle (event version {version!r}, this one reads up to "
            f"{VERSION!r}); upgrade treadle to read it"
        )


def _explain(raw: bytes, error: Exception) -> str:
    try:
        probe = _probe.decode(raw)
    except UNREADABLE:
        probe = _Probe()
    kind = probe.type
    if kind == RunStarted.__struct_config__.tag:
        _refuse_newer(probe.version)
    if kind is not None and kind not in EVENT_TYPES:
        return f"unknown event type {kind!r}; it may come from a newer Treadle: upgrade, or check the file"
    return f"a damaged event ({error}): {raw[:120]!r}"


EVENT_TYPES: frozenset[str] = frozenset(str(kind.__struct_config__.tag) for kind in DurableBody.__args__)
"""The tags of all types of durable events."""
