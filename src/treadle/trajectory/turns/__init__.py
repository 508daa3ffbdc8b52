"""The turns and steps of runs, as a stream for interfaces."""

from treadle.trajectory.turns import shapes
from treadle.trajectory.turns.shapes import InferenceStepResult as InferenceStepResult
from treadle.trajectory.turns.shapes import InputReceived as InputReceived
from treadle.trajectory.turns.shapes import InputRequested as InputRequested
from treadle.trajectory.turns.shapes import RetryDelta as RetryDelta
from treadle.trajectory.turns.shapes import StepCompleted as StepCompleted
from treadle.trajectory.turns.shapes import StepFailed as StepFailed
from treadle.trajectory.turns.shapes import StepProgress as StepProgress
from treadle.trajectory.turns.shapes import StepStarted as StepStarted
from treadle.trajectory.turns.shapes import ToolCallCompletedDelta as ToolCallCompletedDelta
from treadle.trajectory.turns.shapes import ToolCallIssuedDelta as ToolCallIssuedDelta
from treadle.trajectory.turns.shapes import ToolExecutionStepResult as ToolExecutionStepResult
from treadle.trajectory.turns.shapes import ToolProgressDelta as ToolProgressDelta
from treadle.trajectory.turns.shapes import TurnEvent as TurnEvent
from treadle.trajectory.turns.shapes import TurnFailed as TurnFailed
from treadle.trajectory.turns.shapes import TurnPaused as TurnPaused
from treadle.trajectory.turns.shapes import TurnResumed as TurnResumed
from treadle.trajectory.turns.turn_stream import EventLogger as EventLogger
from treadle.trajectory.turns.turn_stream import turns as turns

ReasoningDelta = shapes.StepReasoningDelta
TextDelta = shapes.StepTextDelta
ToolCall = shapes.StepToolCall
ToolCallDelta = shapes.StepToolCallDelta
TurnCompleted = shapes.TurnCompletedEvent
TurnStarted = shapes.TurnStartedEvent
AgentEventLogger = EventLogger
"""Another name of `EventLogger`."""
