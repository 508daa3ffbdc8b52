"""The turns and steps of runs, as a stream for interfaces."""

from treadle.trajectory.turns.shapes import (
    InferenceStepResult,
    InputReceived,
    InputRequested,
    RetryDelta,
    StepCompleted,
    StepFailed,
    StepProgress,
    StepReasoningDelta,
    StepStarted,
    StepTextDelta,
    StepToolCall,
    StepToolCallDelta,
    ToolCallCompletedDelta,
    ToolCallIssuedDelta,
    ToolExecutionStepResult,
    ToolProgressDelta,
    TurnCompletedEvent,
    TurnEvent,
    TurnFailed,
    TurnPaused,
    TurnResumed,
    TurnStartedEvent,
)
from treadle.trajectory.turns.turn_stream import EventLogger, turns

ReasoningDelta = StepReasoningDelta
TextDelta = StepTextDelta
ToolCall = StepToolCall
ToolCallDelta = StepToolCallDelta
TurnCompleted = TurnCompletedEvent
TurnStarted = TurnStartedEvent
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
