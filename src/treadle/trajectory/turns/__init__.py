"""The turns and steps of runs, as a stream for interfaces."""

from treadle.trajectory.turns.shapes import (
    InferenceStepResult,
    InputReceived,
    InputRequested,
    RetryDelta,
    StepCompleted,
    StepFailed,
    StepProgress,
    StepStarted,
    ToolCallCompletedDelta,
    ToolCallIssuedDelta,
    ToolExecutionStepResult,
    ToolProgressDelta,
    TurnEvent,
    TurnFailed,
    TurnPaused,
    TurnResumed,
)
from treadle.trajectory.turns.shapes import StepReasoningDelta as ReasoningDelta
from treadle.trajectory.turns.shapes import StepTextDelta as TextDelta
from treadle.trajectory.turns.shapes import StepToolCall as ToolCall
from treadle.trajectory.turns.shapes import StepToolCallDelta as ToolCallDelta
from treadle.trajectory.turns.shapes import TurnCompletedEvent as TurnCompleted
from treadle.trajectory.turns.shapes import TurnStartedEvent as TurnStarted
from treadle.trajectory.turns.turn_stream import EventLogger, turns

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
