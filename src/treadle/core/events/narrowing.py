"""The types `Event` and `Ephemeral` as type checkers see them: unions that narrow by `type` and by class.

An event forwards the attributes of its body and is an instance of its body's type. Type checkers learn this here:
each class below is an event with one type of body. At run time there are only `core.events.Event` and `Ephemeral`.
"""

from typing import TYPE_CHECKING, ClassVar, Generic, Literal, TypeAlias, TypeVar

from treadle.core import events as e

if TYPE_CHECKING:
    B = TypeVar("B")

    class _Event(e.Event, Generic[B]):  # type: ignore[misc]
        @property  # type: ignore[misc]
        def body(self) -> B: ...  # type: ignore[override]

    class _Ephemeral(e.Ephemeral, Generic[B]):  # type: ignore[misc]
        @property  # type: ignore[misc]
        def body(self) -> B: ...  # type: ignore[override]

    class RunStarted(e.RunStarted, _Event[e.RunStarted]):  # type: ignore[misc]
        type: ClassVar[Literal["run_started"]]

    class TurnStarted(e.TurnStarted, _Event[e.TurnStarted]):  # type: ignore[misc]
        type: ClassVar[Literal["turn_started"]]

    class InferenceStarted(e.InferenceStarted, _Event[e.InferenceStarted]):  # type: ignore[misc]
        type: ClassVar[Literal["inference_started"]]

    class InferenceCompleted(e.InferenceCompleted, _Event[e.InferenceCompleted]):  # type: ignore[misc]
        type: ClassVar[Literal["inference_completed"]]

    class InferenceFailed(e.InferenceFailed, _Event[e.InferenceFailed]):  # type: ignore[misc]
        type: ClassVar[Literal["inference_failed"]]

    class ToolStarted(e.ToolStarted, _Event[e.ToolStarted]):  # type: ignore[misc]
        type: ClassVar[Literal["tool_started"]]

    class ToolCompleted(e.ToolCompleted, _Event[e.ToolCompleted]):  # type: ignore[misc]
        type: ClassVar[Literal["tool_completed"]]

    class ContextCompacted(e.ContextCompacted, _Event[e.ContextCompacted]):  # type: ignore[misc]
        type: ClassVar[Literal["context_compacted"]]

    class MessageInjected(e.MessageInjected, _Event[e.MessageInjected]):  # type: ignore[misc]
        type: ClassVar[Literal["message_injected"]]

    class QuestionAsked(e.QuestionAsked, _Event[e.QuestionAsked]):  # type: ignore[misc]
        type: ClassVar[Literal["question_asked"]]

    class QuestionAnswered(e.QuestionAnswered, _Event[e.QuestionAnswered]):  # type: ignore[misc]
        type: ClassVar[Literal["question_answered"]]

    class ApprovalRequested(e.ApprovalRequested, _Event[e.ApprovalRequested]):  # type: ignore[misc]
        type: ClassVar[Literal["approval_requested"]]

    class ApprovalDecided(e.ApprovalDecided, _Event[e.ApprovalDecided]):  # type: ignore[misc]
        type: ClassVar[Literal["approval_decided"]]

    class SnapshotTaken(e.SnapshotTaken, _Event[e.SnapshotTaken]):  # type: ignore[misc]
        type: ClassVar[Literal["snapshot_taken"]]

    class TurnCompleted(e.TurnCompleted, _Event[e.TurnCompleted]):  # type: ignore[misc]
        type: ClassVar[Literal["turn_completed"]]

    class RunPaused(e.RunPaused, _Event[e.RunPaused]):  # type: ignore[misc]
        type: ClassVar[Literal["run_paused"]]

    class RunResumed(e.RunResumed, _Event[e.RunResumed]):  # type: ignore[misc]
        type: ClassVar[Literal["run_resumed"]]

    class RunFinished(e.RunFinished, _Event[e.RunFinished]):  # type: ignore[misc]
        type: ClassVar[Literal["run_finished"]]

    class Noted(e.Noted, _Event[e.Noted]):  # type: ignore[misc]
        type: ClassVar[Literal["noted"]]

    class Rewarded(e.Rewarded, _Event[e.Rewarded]):  # type: ignore[misc]
        type: ClassVar[Literal["rewarded"]]

    class TextDelta(e.TextDelta, _Ephemeral[e.TextDelta]):  # type: ignore[misc]
        type: ClassVar[Literal["text_delta"]]

    class ReasoningDelta(e.ReasoningDelta, _Ephemeral[e.ReasoningDelta]):  # type: ignore[misc]
        type: ClassVar[Literal["reasoning_delta"]]

    class ToolCallDelta(e.ToolCallDelta, _Ephemeral[e.ToolCallDelta]):  # type: ignore[misc]
        type: ClassVar[Literal["tool_call_delta"]]

    class ServerCallDelta(e.ServerCallDelta, _Ephemeral[e.ServerCallDelta]):  # type: ignore[misc]
        type: ClassVar[Literal["server_call_delta"]]

    class ToolProgress(e.ToolProgress, _Ephemeral[e.ToolProgress]):  # type: ignore[misc]
        type: ClassVar[Literal["tool_progress"]]

    Event: TypeAlias = (
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
    Ephemeral: TypeAlias = TextDelta | ReasoningDelta | ToolCallDelta | ServerCallDelta | ToolProgress
else:
    from treadle.core.events import Ephemeral, Event

Item: TypeAlias = Event | Ephemeral
"""The type of the items of a listener and a stream: an event or a delta."""
