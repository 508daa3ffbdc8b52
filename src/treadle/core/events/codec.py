"""Events with their numbers, and how they are read and written.

An event keeps the bytes that it was read from, so that fields of a newer minor version are passed on unchanged.
"""

from enum import Enum
from typing import TYPE_CHECKING, TypeAlias

import msgspec
from msgspec import Struct, structs

from treadle.core.errors import JournalError
from treadle.core.events.asking import ApprovalDecided, ApprovalRequested, QuestionAnswered, QuestionAsked
from treadle.core.events.body import VERSION, Body, Delta
from treadle.core.events.inference import InferenceCompleted, InferenceFailed, InferenceStarted
from treadle.core.events.run import Noted, Rewarded, RunFinished, RunPaused, RunResumed, RunStarted
from treadle.core.events.tool import SnapshotTaken, ToolCompleted, ToolStarted
from treadle.core.events.turn import ContextCompacted, MessageInjected, TurnCompleted, TurnStarted
from treadle.core.texts.documents import UNREADABLE
from treadle.core.types import Artifact, Completion, Message, ToolCall, ToolResult

_LINE_CHARS = 160
_VALUE_CHARS = 60

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
    | Noted
)


class _Forwarding:
    """The attributes that events and deltas share. Those of the body can be read directly, without `.body`."""

    __slots__ = ()

    @property
    def type(self) -> str:
        """The tag of the body's type, such as `inference_completed` or `text_delta`."""
        body: Struct = self.body  # type: ignore[attr-defined]
        return str(body.__struct_config__.tag)

    if not TYPE_CHECKING:
        # Type checkers see the classes in `core.events.narrowing`, which have the attributes of their bodies.

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
    """The piece of output."""
    seq: None = None
    """Always `None`: only durable events are numbered."""

    def to_json(self) -> bytes:
        """Return the piece as one line of a stream, without the newline."""
        return b'{"run_id":%b,%b' % (_encoder.encode(self.run_id), _encoder.encode(self.body)[1:])


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
    messages: tuple[Message, ...] = ()
    if isinstance(body, RunStarted):
        messages = body.history
    elif isinstance(body, ContextCompacted):
        messages = body.replacement
    return tuple([digest for item in messages for digest in _digests_in(item.parts)])


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
        begin = line[:80].decode(errors="replace")
        shown = f": {begin!r}" if begin.isprintable() and "\ufffd" not in begin else ""
        raise JournalError(f"not a line of a Treadle journal ({error}){shown}") from error
    raw = _encoder.encode({name: value for name, value in fields.items() if name not in ("run_id", "seq")})
    return Event(head.run_id, head.seq, decode_body(raw), raw)


def _refuse_newer(version: str | None) -> None:
    major = (version or VERSION).split(".")[0]
    if not major.isdecimal() or int(major) > int(VERSION.split(".")[0]):
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


def summarize(body: Struct) -> str:
    """Return the type of a body or an action, and its fields that differ from their defaults, in one short line."""
    line = ", ".join(_fields(body))
    kind = body.__struct_config__.tag or type(body).__name__
    return f"{kind}({line if len(line) <= _LINE_CHARS else line[:_LINE_CHARS] + '…'})"


def _fields(value: Struct) -> list[str]:
    found = []
    for field in structs.fields(value):
        item = getattr(value, field.name)
        if field.name == "at" or item == field.default or item in (None, (), {}):
            continue
        if isinstance(item, Completion | Message | ToolResult | ToolCall):
            found += _fields(item)
        else:
            found.append(f"{field.name}={_write(item)}")
    return found


def _write(item: object) -> str:
    if isinstance(item, Enum):
        return str(item.value)
    if isinstance(item, str):
        return repr(item if len(item) <= _VALUE_CHARS else item[:_VALUE_CHARS] + "…")
    if isinstance(item, tuple | list):
        return f"[{', '.join(map(_write, item))}]"
    if isinstance(item, Struct):
        name = getattr(item, "name", None)
        return type(item).__name__ if name is None else str(name)
    return repr(item)
