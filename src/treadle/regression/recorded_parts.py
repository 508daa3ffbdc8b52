"""The parts of an agent that a recording stands in for: model, tools, memories, judge, clock and compactions."""

from collections.abc import Awaitable, Callable, Sequence
from enum import StrEnum
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from treadle.core import events as e
from treadle.core.actions import Compact
from treadle.core.errors import ConfigError
from treadle.core.judgement import Judgement
from treadle.core.state import State
from treadle.core.types import (
    Completion,
    Effect,
    Json,
    Recalled,
    Request,
    ToolErrorKind,
    ToolResult,
    ToolSpec,
)
from treadle.journal.memory import MemoryJournal
from treadle.loop.calls.results import Blobs, Order, failed
from treadle.loop.calls.workbench import Workbench
from treadle.loop.compaction import Compaction
from treadle.loop.outbox import Outbox
from treadle.models.protocol import Model, Watch
from treadle.regression.recorded_runs import RecordedRun
from treadle.tools.context import ToolContext
from treadle.tools.protocol import Tool

_OF_MODELS = frozenset(
    (
        "can_call_tools",
        "check_part",
        "estimate_cost_usd",
        "has_price",
        "max_output_tokens",
        "output_mode",
        "takes_schema",
    )
)
"""The attributes of a model that say what it can do, without asking its server."""
_NEVER_RUN = (
    ToolErrorKind.NOT_RUN,
    ToolErrorKind.OVER_LIMIT,
    ToolErrorKind.REFUSED,
    ToolErrorKind.INVALID_ARGUMENTS,
)
"""The errors of calls that no tool has seen."""


class ToolReplay(StrEnum):
    """Which calls are made by the tools of today; the others get their recorded results."""

    RECORDED = "recorded"
    """None."""
    LIVE_READ_ONLY = "live-read-only"
    """Those of tools with the effect `pure`."""
    LIVE = "live"
    """All, except those that drove runs of their own."""

    def is_live(self, effect: Effect) -> bool:
        """Return whether calls with this effect are made."""
        return self is ToolReplay.LIVE or (self is ToolReplay.LIVE_READ_ONLY and effect is Effect.PURE)


class ReplayJournal(MemoryJournal):
    """The journal of a run of today. It has the contents of the recorded one too."""

    def __init__(self, recorded: MemoryJournal) -> None:
        super().__init__()
        self._blobs.update(recorded._blobs)


class RecordedModel:
    """A model whose answers `infer` gives. It says of itself what the model of today says."""

    def __init__(
        self,
        inner: Model,
        started: e.RunStarted,
        infer: Callable[[Request, Watch], Awaitable[Completion]],
    ) -> None:
        self._inner = inner
        self.name, self.infer = inner.name, infer
        self.context_tokens = None if started.window is None else started.window.tokens

    def __getattr__(self, name: str) -> Any:
        if name not in _OF_MODELS:
            raise AttributeError(name)
        return getattr(self._inner, name)


class RecordedCompaction(Compaction):
    """The compactions of a run, as they were recorded. Further ones are made without a summary."""

    def __init__(self, model: Model, bench: Workbench, recorded: RecordedRun) -> None:
        super().__init__(model, bench)
        self._left = recorded.bodies_of(e.ContextCompacted)

    async def make(self, state: State, action: Compact) -> e.ContextCompacted | None:
        if not self._left:
            return await super().make(state, action)
        event = self._left.pop(0)
        if event.tools:
            self._bench.offer_reading()
        return replace(event, at=0.0, inbox=None)


class StandingClock:
    """A clock that stands where `now` says, so that no time limit ends a replay."""

    def __init__(self, now: Callable[[], float]) -> None:
        self.time = now

    def monotonic(self) -> float:
        """Return the seconds of a clock that stands."""
        return 0.0


class RecordedKnowledge:
    """What an agent knows, with the recorded memories. A replay never writes back."""

    def __init__(self, known: Any, turns: Sequence[e.TurnStarted]) -> None:
        self._known, self._recalled = known, {turn.turn: turn.recalled for turn in turns}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._known, name)

    async def recall(self, text: str, *, turn_key: str, **_: object) -> Recalled | None:
        return self._recalled.get(int(turn_key.rpartition("/")[2]))


class RecordedJudge:
    """A judge of messages that says what was recorded."""

    def __init__(self, turns: Sequence[e.TurnStarted]) -> None:
        self._judgements = {turn.message.content: turn.judgement for turn in turns}

    async def judge(self, message: str, facts: object = None) -> Judgement:
        if (judgement := self._judgements.get(message)) is None:
            raise ConfigError("the recording has no judgement of this message")
        return judgement


class DescribedTool:
    """A tool that can be described and checks arguments, and cannot be called."""

    def __init__(self, tool: Tool) -> None:
        self.spec, self.find_fault = tool.spec, tool.find_fault

    async def call(self, arguments: dict[str, Json], context: ToolContext) -> str:
        """Raises: `ConfigError`."""
        raise ConfigError(f"the recording has no result of {self.spec.name}")


class RecordedCall(Struct):
    """The events of one recorded call, in order; the last one has its result."""

    name: str = ""
    arguments: Json = None
    bodies: list[e.DurableBody] = []
    is_driver: bool = False
    """True if the call drove a run of its own."""


def read_calls(recorded: RecordedRun) -> dict[str, RecordedCall]:
    """Return the recorded calls of the model, by id."""
    found: dict[str, RecordedCall] = {}
    asking: dict[str, RecordedCall] = {}
    snapshots: list[e.DurableBody] = []
    for event in recorded.events:
        body = event.body
        if isinstance(body, e.InferenceCompleted):
            for call in body.completion.message.tool_calls:
                found[call.call_id] = RecordedCall(call.name, call.parsed_or(call.arguments), [])
        elif isinstance(body, e.SnapshotTaken):
            snapshots = [body]
        elif isinstance(body, e.ToolStarted | e.ToolCompleted):
            own = found.get(body.parent_call_id or body.call_id)
            if own is None:
                continue
            if isinstance(body, e.ToolCompleted):
                own.bodies += snapshots
                own.is_driver = own.is_driver or body.child is not None
                snapshots = []
            elif body.parent_call_id is None:
                own.bodies.clear()  # an earlier attempt was lost
                body = replace(body, attempt=1)
            own.bodies.append(body)
        elif isinstance(body, e.QuestionAsked) and body.call_id in found:
            asking[body.question_id] = found[body.call_id]
            asking[body.question_id].bodies.append(body)
        elif isinstance(body, e.QuestionAnswered) and body.question_id in asking:
            asking[body.question_id].bodies.append(body)
    return found


class RecordedTools:
    """What answers the calls of a run of today; see `Workbench.stand_in`."""

    def __init__(self, recorded: RecordedRun, tools: ToolReplay, bench: Workbench, *, by_id: bool) -> None:
        """Make a stand-in. Without `by_id`, a call gets the result of a recorded one with the same arguments."""
        self._recorded, self._tools, self._bench, self._by_id = recorded, tools, bench, by_id
        self._calls = read_calls(recorded)

    async def answer(self, order: Order, spec: ToolSpec, outbox: Outbox) -> ToolResult | None:
        """Put the recorded events of a call into the outbox, and return its result; `None` if the call is made."""
        known = self._find(order)
        if (
            self._tools.is_live(spec.effect)
            and not spec.is_external
            and not (known is not None and known.is_driver)
        ):
            return None
        bodies = [] if known is None else known.bodies
        done = bodies[-1] if bodies else None
        if not isinstance(done, e.ToolCompleted) or done.result.error_kind in _NEVER_RUN:
            text = "The recording has no result of this call, so it was not run."
            result = failed(order.call, ToolErrorKind.NOT_RUN, text)
            outbox.put(e.ToolCompleted(step=order.step, result=result))
            return result
        if done.call_id != order.call.call_id:
            own = (e.ToolStarted, e.ToolCompleted, e.SnapshotTaken)
            bodies = [
                body for body in bodies if isinstance(body, own) and not getattr(body, "parent_call_id", None)
            ]
        for body in bodies:
            if isinstance(body, e.SnapshotTaken):
                snapshot, files = self.restore([body])
                outbox.put(*snapshot, blobs=files)
                continue
            body = replace(body, at=0.0, worked_seconds=None, inbox=None)
            if isinstance(body, e.ToolStarted | e.ToolCompleted):
                body = replace(body, step=order.step)
            if isinstance(body, e.ToolStarted) and body.parent_call_id is None:
                body = replace(body, call_id=order.call.call_id)
            elif isinstance(body, e.ToolCompleted) and body.parent_call_id is None:
                done = body = replace(body, result=replace(body.result, call_id=order.call.call_id))
            outbox.put(body)
        return done.result

    def _find(self, order: Order) -> RecordedCall | None:
        if self._by_id:
            return self._calls.get(order.call.call_id)
        asked = order.call.name, order.call.parsed_or(order.call.arguments)
        return next((own for own in self._calls.values() if (own.name, own.arguments) == asked), None)

    def restore(self, bodies: Sequence[e.SnapshotTaken]) -> tuple[tuple[e.SnapshotTaken, ...], Blobs | None]:
        """Make the changes of recorded snapshots in the sandbox, for the calls that run after them. Return the
        event and the contents of the changes."""
        sandbox, read = self._bench.sandbox, self._recorded.journal.read_blob
        assert sandbox is not None
        for delta in [body.delta for body in bodies]:
            for path in {*delta.deleted} & {*sandbox.paths()}:
                sandbox.delete(path)
            for path, digest in delta.changed.items():
                sandbox.write(path, read(digest))
            for name, digest in delta.states.items():
                sandbox.write_state(name, read(digest))
        return self._bench.take_snapshot()
