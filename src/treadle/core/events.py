"""The event vocabulary, its codec and its version.

An `Event` is one appended record. Its body is one of a closed set of structs, told apart by `type`; bodies
grow by adding optional fields. An event that was read keeps the bytes it was read from, so that what a
newer minor version added is passed on untouched.
"""

from typing import TypeAlias

import msgspec
from msgspec import Struct

from treadle.core.errors import JournalError
from treadle.core.policy import Policy
from treadle.core.spec import AgentSpec, PartSpec
from treadle.core.types import (
    Artifact,
    Completion,
    Effect,
    Fault,
    FileDelta,
    Json,
    Message,
    OutputSpec,
    Parent,
    StopReason,
    TaskRef,
    ToolResult,
    ToolSpec,
    Usage,
)

VERSION = "2.0"
"""Version of the vocabulary, `major.minor`. A reader refuses a newer major."""


class Body(Struct, frozen=True, omit_defaults=True, kw_only=True, gc=False, tag_field="type"):
    """What every body has."""

    at: float = 0.0
    """Seconds since the epoch, by the clock of the process that appended it. Bodies are made without a time: the
    driver stamps each one as it appends it."""


class BodyWithContents(Body, frozen=True, kw_only=True, gc=False):
    """What every body that names contents of the store has."""

    contents: dict[str, str] | None = None
    """Hash to base64 of the contents that the body names, only in an exported journal."""


class RunStarted(Body, frozen=True, gc=False, tag="run_started"):
    """A run begins. Holds everything that decisions depend on and no other event says."""

    version: str
    """`VERSION` of the writer."""
    agent: AgentSpec | None = None
    """The agent that began the run; `None` only in journals of version 1, see `spec`."""
    instructions: str | None = None
    """The system message as sent, where it differs from `agent.instructions`."""
    tools: tuple[ToolSpec, ...] = ()
    """The tools as they are offered to the model."""
    is_session: bool = False
    """True if the run stays open after a turn, until it is closed."""
    task: TaskRef | None = None
    parent: Parent | None = None
    """The run that this one was forked from; the events up to `parent.seq` are copies."""
    output: OutputSpec | None = None
    """How the answers must look; `None`: they are text."""
    metadata: dict[str, Json] | None = None
    """Anything the caller wants to keep with the run."""
    policy: Policy | None = None
    """Of version 1, where `agent` has it now."""
    model: str | None = None
    """Of version 1: the model's name."""

    @property
    def spec(self) -> AgentSpec:
        """The agent that began the run, also for journals of version 1."""
        return self.agent if self.agent is not None else read_version_1(self)

    @property
    def system_message(self) -> str | None:
        """The text of the system message; `None` if there is none."""
        if self.instructions is not None or self.agent is None:
            return self.instructions
        return self.agent.instructions


class TurnStarted(BodyWithContents, frozen=True, gc=False, tag="turn_started"):
    """A user's message opens a turn."""

    turn: int
    """Counted from 1."""
    message: Message


class InferenceStarted(Body, frozen=True, gc=False, tag="inference_started"):
    """A request is about to be sent."""

    step: int
    """Counted from 1 over the whole run."""
    messages: int
    """The request is the first `messages` messages of the run's transcript."""
    has_tools: bool = True
    """False at a wrap-up, where no tools are offered but the one that takes the answer, if there is one."""
    model: str | None = None
    """The model that is asked, as the user names it."""


class InferenceCompleted(BodyWithContents, frozen=True, gc=False, tag="inference_completed"):
    """The ground truth for training."""

    step: int
    completion: Completion
    duration_seconds: float = 0.0
    """From sending to the whole answer, with retries."""


class InferenceFailed(Body, frozen=True, gc=False, tag="inference_failed"):
    """An attempt that failed or was thrown away."""

    step: int
    error: str
    error_type: str
    fault: Fault
    stop_reason: StopReason = StopReason.ERROR
    """What the turn ends with, where it does."""
    attempt: int = 1
    retry_in_seconds: float | None = None
    """Set: it is tried again after so long. `None`: this was the last attempt."""
    model: str | None = None
    """Which model failed, where several were asked."""


class ToolStarted(Body, frozen=True, gc=False, tag="tool_started"):
    """The intent to run a tool, durable before a tool with an effect runs."""

    step: int
    call_id: str
    name: str
    effect: Effect
    attempt: int = 1
    """2 and more: run again after its outcome was lost."""
    parent_call_id: str | None = None
    """Set: another tool made this call, while it ran."""
    arguments: str | None = None
    """Of a call that another tool made: its arguments as JSON, which no inference holds."""


class ToolCompleted(BodyWithContents, frozen=True, gc=False, tag="tool_completed"):
    """The result, durable before the model sees it."""

    step: int
    result: ToolResult
    duration_seconds: float = 0.0
    parent_call_id: str | None = None
    """Set: the result went to the tool that made the call, and not to the model."""


class ContextCompacted(BodyWithContents, frozen=True, gc=False, tag="context_compacted"):
    """The first `messages` messages are replaced by others."""

    messages: int
    replacement: tuple[Message, ...]
    usage: Usage | None = None


class MessageInjected(BodyWithContents, frozen=True, gc=False, tag="message_injected"):
    """A message that neither the user, the model nor a tool wrote."""

    message: Message
    limit: StopReason | None = None
    """Set: the limit that the message tells the model of; one inference without tools follows."""
    output_fault: str | None = None
    """Set: the message tells the model what in its answer breaks the schema."""


class QuestionAsked(Body, frozen=True, gc=False, tag="question_asked"):
    """The run waits for the user."""

    question_id: str
    text: str
    call_id: str | None = None
    """The tool call that the question is about, whose result the answer becomes."""


class QuestionAnswered(Body, frozen=True, gc=False, tag="question_answered"):
    """The user answered."""

    question_id: str
    text: str


class ApprovalRequested(Body, frozen=True, gc=False, tag="approval_requested"):
    """A tool call waits for a yes."""

    call_id: str


class ApprovalDecided(Body, frozen=True, gc=False, tag="approval_decided"):
    """Somebody said yes or no."""

    call_id: str
    is_approved: bool
    reason: str | None = None
    """What the model is told of a no."""
    arguments: str | None = None
    """Set: the arguments, as JSON, that the call is run with in place of the model's."""


class SnapshotTaken(BodyWithContents, frozen=True, gc=False, tag="snapshot_taken"):
    """The sandbox's files changed. Appended together with the result of the tool that changed them."""

    snapshot_id: str
    """SHA-256 over the sorted (path, content hash) pairs of all files, hex."""
    delta: FileDelta
    """Against the snapshot before; the contents are in the store, by hash."""


class TurnCompleted(Body, frozen=True, gc=False, tag="turn_completed"):
    """A turn ended, well or not."""

    turn: int
    stop_reason: StopReason
    output: str = ""
    error: str | None = None
    fault: Fault | None = None


class RunPaused(Body, frozen=True, gc=False, tag="run_paused"):
    """Nobody drives the run; it can be resumed."""

    reason: str
    """`cancelled`, `question`, `approval` or `closed`."""


class RunResumed(Body, frozen=True, gc=False, tag="run_resumed"):
    """Somebody drives the run again. Calls that were started before and not completed are in doubt."""

    agent: AgentSpec | None = None
    """The agent from now on; `None` in journals of version 1, where it stays the same."""
    tools: tuple[ToolSpec, ...] = ()
    """The tools as they are offered from now on; only counts where `agent` is set."""


class RunFinished(Body, frozen=True, gc=False, tag="run_finished"):
    """The run is over."""

    stop_reason: StopReason
    error: str | None = None
    fault: Fault | None = None


class Rewarded(Body, frozen=True, gc=False, tag="rewarded"):
    """A grade, by the task's check or a later rescoring; the newest of a name counts."""

    reward: float
    name: str = "check"
    detail: str | None = None


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
    """A piece of the answer."""

    text: str


class ReasoningDelta(Struct, frozen=True, gc=False, tag_field="type", tag="reasoning_delta"):
    """A piece of the model's thinking."""

    text: str


class ToolCallDelta(Struct, frozen=True, gc=False, tag_field="type", tag="tool_call_delta"):
    """A piece of a tool call's arguments."""

    index: int
    """Which call of the message, from 0."""
    call_id: str | None
    name: str | None
    arguments: str


class ToolProgress(Struct, frozen=True, gc=False, tag_field="type", tag="tool_progress"):
    """What a running tool reports."""

    call_id: str
    text: str


Delta: TypeAlias = TextDelta | ReasoningDelta | ToolCallDelta | ToolProgress
"""Ephemeral: streamed and never journalled."""


class Event(Struct, frozen=True, gc=False):
    """One durable record of a run."""

    run_id: str
    seq: int
    """Counted from 1 without a gap."""
    body: DurableBody
    raw: bytes | None = None
    """The body's JSON as it was read; `None` for an event made here."""

    @property
    def type(self) -> str:
        """The body's tag, as `inference_completed`."""
        return str(self.body.__struct_config__.tag)

    @property
    def at(self) -> float:
        """Seconds since the epoch."""
        return self.body.at

    def to_json(self) -> bytes:
        """One line of an exported journal, or of a stream, without the newline."""
        body = self.raw or _encoder.encode(self.body)
        return b'{"run_id":%b,"seq":%d,%b' % (_encoder.encode(self.run_id), self.seq, body[1:])


class Ephemeral(Struct, frozen=True, gc=False):
    """One streamed piece of a run, which is never journalled."""

    run_id: str
    body: Delta
    seq: None = None

    @property
    def type(self) -> str:
        """The body's tag, as `text_delta`."""
        return str(self.body.__struct_config__.tag)

    def to_json(self) -> bytes:
        """One line of a stream, without the newline."""
        return b'{"run_id":%b,%b' % (_encoder.encode(self.run_id), _encoder.encode(self.body)[1:])


def read_version_1(started: RunStarted) -> AgentSpec:
    """Return the agent spec of a run whose journal is of version 1.

    Runs of the command line have their model and tools in `metadata["cli"]`; of other runs only names are known.
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
    return AgentSpec(
        model=PartSpec(name=str(given.get("model") or started.model or ""), settings=settings or None),
        instructions=started.instructions,
        tools=tools,
        policy=started.policy or Policy(),
        schema=None if started.output is None else started.output.schema,
        task_set=None if started.task is None else started.task.task_set,
    )


def digests_of(body: Body) -> tuple[str, ...]:
    """Return the hashes of the contents that `body` names and the store keeps."""
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
    """The fields that say whether the rest can be read."""

    type: str | None = None
    version: str | None = None


class _Line(Struct):
    run_id: str
    seq: int


_encoder = msgspec.json.Encoder()
_decoder: msgspec.json.Decoder[DurableBody] = msgspec.json.Decoder(DurableBody)
_probe = msgspec.json.Decoder(_Probe)
_line = msgspec.json.Decoder(_Line)

encode_body = _encoder.encode
"""A body's JSON, an object that begins with `type`."""

encode_lines = _encoder.encode_lines
"""The JSON of several bodies, each ended by a newline."""


def decode_body(raw: bytes) -> DurableBody:
    """The body that `raw` holds.

    Raises: `JournalError` for a newer major version, an unknown type, or what is not a body at all.
    """
    try:
        body = _decoder.decode(raw)
    except msgspec.DecodeError as error:
        raise JournalError(_explain(raw, error)) from error
    if not body.at and b'"at"' not in raw:
        raise JournalError(f"a damaged event (it has no time): {raw[:120]!r}")
    if type(body) is RunStarted:
        _refuse_newer(body.version)
    return body


def decode_line(line: bytes) -> Event:
    """The event that one line of an exported journal holds.

    Raises: `JournalError` as `decode_body` does.
    """
    try:
        head = _line.decode(line)
    except msgspec.DecodeError as error:
        raise JournalError(f"not a line of a Treadle journal ({error}): {line[:80]!r}") from error
    fields: dict[str, msgspec.Raw] = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    raw = _encoder.encode({name: value for name, value in fields.items() if name not in ("run_id", "seq")})
    return Event(head.run_id, head.seq, decode_body(raw), raw)


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
    except msgspec.DecodeError:
        probe = _Probe()
    kind = probe.type
    if kind == RunStarted.__struct_config__.tag:
        _refuse_newer(probe.version)
    if kind is not None and kind not in EVENT_TYPES:
        return f"unknown event type {kind!r}; it may come from a newer Treadle: upgrade, or check the file"
    return f"a damaged event ({error}): {raw[:120]!r}"


EVENT_TYPES: frozenset[str] = frozenset(str(kind.__struct_config__.tag) for kind in DurableBody.__args__)
"""The tags of all durable events."""
