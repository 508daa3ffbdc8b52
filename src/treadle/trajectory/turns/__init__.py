"""The turns and steps of runs, as a stream for interfaces."""

from treadle.trajectory.turns.logger import EventLogger
from treadle.trajectory.turns.reader import turns
from treadle.trajectory.turns.shapes import (
    InferenceStepResult,
    InputReceived,
    InputRequested,
    ReasoningDelta,
    RetryDelta,
    StepCompleted,
    StepFailed,
    StepProgress,
    StepStarted,
    TextDelta,
    ToolCall,
    ToolCallCompletedDelta,
    ToolCallDelta,
    ToolCallIssuedDelta,
    ToolExecutionStepResult,
    ToolProgressDelta,
    TurnCompleted,
    TurnEvent,
    TurnFailed,
    TurnPaused,
    TurnResumed,
    TurnStarted,
)

AgentEventLogger = EventLogger
"""Another name of `EventLogger`."""

__all__ = [
    "AgentEventLogger",
    "EventLogger",
    "InferenceStepResult",
    "InputReceived",
    "InputRequested",
    "ReasoningDelta",
    "RetryDelta",
    "StepCompleted",
    "StepFailed",
    "StepProgress",
    "StepStarted",
    "TextDelta",
    "ToolCall",
    "ToolCallCompletedDelta",
    "ToolCallDelta",
    "ToolCallIssuedDelta",
    "ToolExecutionStepResult",
    "ToolProgressDelta",
    "TurnCompleted",
    "TurnEvent",
    "TurnFailed",
    "TurnPaused",
    "TurnResumed",
    "TurnStarted",
    "turns",
]
