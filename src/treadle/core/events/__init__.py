"""The events of a run, their codec and their version.

An `Event` is one record of a journal. Its body is one of a fixed set of structs, told apart by the field `type`.
There is a file for each family of bodies: `run`, `turn`, `inference`, `tool` and `asking`. `codec` reads and writes
them, `body` also has what is streamed and never journalled, and `narrowing` has the types that type checkers see.
Other code imports the package as `e`.

To add a type of event: add its struct to the file of its family, to `DurableBody` in `codec`, to `narrowing`, to
`treadle.events`, and its handler to `core.state`. A field that is added to a body must be optional.
"""

from treadle.core.events.asking import ApprovalDecided, ApprovalRequested, QuestionAnswered, QuestionAsked
from treadle.core.events.body import (
    VERSION,
    Body,
    BodyWithContents,
    Delta,
    ReasoningDelta,
    ServerCallDelta,
    TextDelta,
    ToolCallDelta,
    ToolProgress,
    is_since,
)
from treadle.core.events.codec import (
    EVENT_TYPES,
    UNREADABLE,
    DurableBody,
    Ephemeral,
    Event,
    decode_body,
    decode_line,
    digests_of,
    encode_body,
    encode_lines,
)
from treadle.core.events.inference import InferenceCompleted, InferenceFailed, InferenceStarted
from treadle.core.events.run import (
    SET_ASIDE,
    Noted,
    Rewarded,
    RunFinished,
    RunPaused,
    RunResumed,
    RunStarted,
    read_version_1,
)
from treadle.core.events.tool import SnapshotTaken, ToolCompleted, ToolStarted
from treadle.core.events.turn import ContextCompacted, MessageInjected, TurnCompleted, TurnStarted

__all__ = [
    "EVENT_TYPES",
    "SET_ASIDE",
    "UNREADABLE",
    "VERSION",
    "ApprovalDecided",
    "ApprovalRequested",
    "Body",
    "BodyWithContents",
    "ContextCompacted",
    "Delta",
    "DurableBody",
    "Ephemeral",
    "Event",
    "InferenceCompleted",
    "InferenceFailed",
    "InferenceStarted",
    "MessageInjected",
    "Noted",
    "QuestionAnswered",
    "QuestionAsked",
    "ReasoningDelta",
    "Rewarded",
    "RunFinished",
    "RunPaused",
    "RunResumed",
    "RunStarted",
    "ServerCallDelta",
    "SnapshotTaken",
    "TextDelta",
    "ToolCallDelta",
    "ToolCompleted",
    "ToolProgress",
    "ToolStarted",
    "TurnCompleted",
    "TurnStarted",
    "decode_body",
    "decode_line",
    "digests_of",
    "encode_body",
    "encode_lines",
    "is_since",
    "read_version_1",
]
