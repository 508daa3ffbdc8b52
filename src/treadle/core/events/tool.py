"""The events of a tool call, and of the files that it changed."""

from treadle.core.events.body import Body, BodyWithContents
from treadle.core.lineage import Child
from treadle.core.types import Effect, FileDelta, ToolResult


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
        return self.result.call_id

    @property
    def name(self) -> str:
        return self.result.name


class SnapshotTaken(BodyWithContents, frozen=True, gc=False, tag="snapshot_taken"):
    """A change of the sandbox's files, appended together with the result of the call that made the change, or with
    the turn for which the task made it."""

    snapshot_id: str
    """The id of all files, in hex; equal files have equal ids. Older versions computed it in another way."""
    delta: FileDelta
    """The changes since the previous snapshot; the store keeps the contents by hash."""
