"""The types of events and deltas that listeners, streams and journals give.

An event has `run_id`, `seq`, `at` and `type`, and the attributes of its body. It is an instance of its body's
type: `if event.type == "tool_completed"` and `isinstance(event, ToolCompleted)` both tell a type checker which
attributes it has.
"""

from treadle.core.events import (
    ApprovalDecided,
    ApprovalRequested,
    ContextCompacted,
    InferenceCompleted,
    InferenceFailed,
    InferenceStarted,
    MessageInjected,
    Noted,
    QuestionAnswered,
    QuestionAsked,
    ReasoningDelta,
    Rewarded,
    RunFinished,
    RunPaused,
    RunResumed,
    RunStarted,
    ServerCallDelta,
    SnapshotTaken,
    TextDelta,
    ToolCallDelta,
    ToolCompleted,
    ToolProgress,
    ToolStarted,
    TurnCompleted,
    TurnStarted,
)
from treadle.core.events.narrowing import Ephemeral, Event, Item

__all__ = [
    "ApprovalDecided",
    "ApprovalRequested",
    "ContextCompacted",
    "Ephemeral",
    "Event",
    "InferenceCompleted",
    "InferenceFailed",
    "InferenceStarted",
    "Item",
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
]
