"""Replaying: the one loop in a world that answers from the journal.

Every decision is made again; the journal says what came of it. The first decision that differs from the
one in the journal is the divergence.
"""

from collections.abc import Mapping, Sequence

from msgspec import Struct
from msgspec.structs import replace

from treadle.core import events as e
from treadle.core.decide import (
    Action,
    Append,
    Ask,
    CheckAnswer,
    Infer,
    RequestApprovals,
    RunCalls,
    abandon_turn,
    judge_answer,
    stop_calls,
)
from treadle.core.errors import ReplayDivergence
from treadle.core.policy import Policy
from treadle.core.state import State
from treadle.core.types import Completion, Request, StopReason
from treadle.loop.answers import check_answer
from treadle.loop.driver import Driver
from treadle.models.protocol import Watch
from treadle.tools.toolbox import Toolbox


def _is_input(body: e.DurableBody) -> bool:
    """Whether `body` came from outside the loop. Pauses and ends of turns do when somebody cancelled."""
    if isinstance(body, e.TurnCompleted):
        return body.stop_reason is StopReason.CANCELLED
    return isinstance(
        body,
        e.RunStarted
        | e.TurnStarted
        | e.RunPaused
        | e.RunResumed
        | e.QuestionAnswered
        | e.Rewarded
        | e.ApprovalDecided
        | e.ContextCompacted,
    )


_OF_A_CALL = (e.ToolStarted, e.ToolCompleted, e.SnapshotTaken, e.ApprovalRequested, e.ApprovalDecided)


class Replay(Struct, frozen=True):
    """What came of replaying a run."""

    run_id: str
    events: int
    """How many were decided again and found the same."""
    state: State
    """As of the last of them."""
    divergence: ReplayDivergence | None = None

    @property
    def is_exact(self) -> bool:
        """Every decision was the same."""
        return self.divergence is None


class _EndOfJournal(Exception):  # noqa: N818
    """The journal stops where the run was interrupted."""


class _Unwritten:
    """A `RunWriter` that keeps nothing: what it is given is in the journal already."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id

    def append(self, bodies: Sequence[e.DurableBody], blobs: Mapping[str, bytes] | None = None) -> None: ...

    def append_events(self, events: Sequence[e.Event], blobs: Mapping[str, bytes] | None = None) -> None: ...

    async def sync(self) -> None: ...

    async def release(self) -> None: ...


class Replayer(Driver):
    """Drives a run whose world is its journal."""

    def __init__(self, events: Sequence[e.Event], policy: Policy | None = None) -> None:
        run_id = events[0].run_id if events else ""
        super().__init__(State(), _Unwritten(run_id), _NoModel(), Toolbox({}))
        self._bodies = [event.body for event in events]
        self._policy = policy
        started = self._bodies[0] if self._bodies else None
        parent = started.parent if isinstance(started, e.RunStarted) else None
        self._copied = 0 if parent is None else parent.seq
        """How many events a fork began with: what was decided there, its own policy had no part in."""

    @property
    def _next(self) -> e.DurableBody | None:
        return self._bodies[self.state.seq] if self.state.seq < len(self._bodies) else None

    async def replay(self) -> Replay:
        """Decide the whole journal again. `policy`, if given, takes the place of the recorded one."""
        divergence: ReplayDivergence | None = None
        try:
            for copied in self._bodies[: self._copied]:
                self._take(copied)
            while (body := self._next) is not None:
                # The files that a run begins with are an input too.
                if not _is_input(body) and not isinstance(body, e.SnapshotTaken):
                    raise ReplayDivergence(self.state.seq + 1, _describe(body), "nothing more to do")
                self._take(body)
                await self.drive()
        except _EndOfJournal:
            pass
        except ReplayDivergence as found:
            divergence = found
        return Replay(self._writer.run_id, self.state.seq, self.state, divergence)

    async def _perform(self, action: Action) -> None:
        if isinstance(action, Append):
            for body in action.bodies:
                if not self._expect(body):
                    return
        elif isinstance(action, Infer):
            started = e.InferenceStarted(
                at=0.0, step=action.step, messages=len(self.state.messages), has_tools=action.has_tools
            )
            if self._expect(started):
                while self.state.is_inferring and self._observe(
                    (e.InferenceCompleted, e.InferenceFailed), action
                ):
                    pass
        elif isinstance(action, CheckAnswer):
            for body in self._judge(action):
                if not self._expect(body):
                    return
        elif isinstance(action, Ask):
            self._observe((e.ApprovalDecided, e.RunPaused), action)
        elif isinstance(action, RequestApprovals):
            for _ in action.calls:
                if not self._observe((e.ApprovalRequested, e.ToolCompleted), action):
                    return
        else:
            ids = {item.call.call_id for item in action.calls}
            while any(item.result is None and item.call.call_id in ids for item in self.state.calls):
                if not self._observe(_OF_A_CALL, action):
                    return

    def _judge(self, action: CheckAnswer) -> Sequence[e.DurableBody]:
        """What follows from an answer. How a fault is worded is the validator's, which may be another by now."""
        told = self._next
        if isinstance(told, e.MessageInjected) and told.output_fault is not None:
            return judge_answer(self.state, action.text, told.output_fault).bodies
        return check_answer(self.state, action)

    def _expect(self, wanted: e.DurableBody) -> bool:
        """Take the next event, which must be `wanted` but for the clock; False if the run was interrupted."""
        body = self._next
        if body is None:
            raise _EndOfJournal
        if replace(body, at=0.0) != replace(wanted, at=0.0):
            return self._interrupt(body, _describe(wanted))
        self._take(body)
        return True

    def _observe(self, outcomes: tuple[type, ...], action: Action) -> bool:
        """Take the next event, which must be an outcome of `action`; False if the run was interrupted."""
        body = self._next
        if body is None:
            raise _EndOfJournal
        if not isinstance(body, outcomes) or not _belongs(body, action):
            return self._interrupt(body, _describe(action))
        self._take(body)
        return True

    def _interrupt(self, body: e.DurableBody, decided: str) -> bool:
        stopped = self._stopped()
        if not stopped and not _is_input(body):
            raise ReplayDivergence(self.state.seq + 1, _describe(body), decided)
        for item in stopped or [body]:
            self._take(item)
        return False

    def _stopped(self) -> Sequence[e.DurableBody]:
        """The events to come, if they settle the open calls as being cancelled or the deadline does."""
        if not self.state.is_turn_open:
            return ()
        start = self.state.seq
        skipped = isinstance(self._bodies[start], e.SnapshotTaken)
        for wanted in (abandon_turn(self.state), stop_calls(self.state)):
            found = self._bodies[start : start + skipped + len(wanted)]
            if wanted and [replace(item, at=0.0) for item in found[skipped:]] == list(wanted):
                return found
        return ()

    def _take(self, body: e.DurableBody) -> None:
        if isinstance(body, e.RunStarted) and self._policy is not None:
            body = replace(body, policy=self._policy)
        self.record(body)


def _belongs(body: e.DurableBody, action: Action) -> bool:
    if isinstance(action, Infer | Append | CheckAnswer) or isinstance(body, e.SnapshotTaken | e.RunPaused):
        return True
    calls = {item.call.call_id: item for item in action.calls}
    if isinstance(body, e.ToolStarted) and body.parent_call_id is None:
        return body.call_id in calls and calls[body.call_id].attempt + 1 == body.attempt
    if isinstance(body, e.ToolStarted | e.ToolCompleted):
        own = body.call_id if isinstance(body, e.ToolStarted) else body.result.call_id
        return (body.parent_call_id or own) in calls
    if isinstance(body, e.ApprovalRequested | e.ApprovalDecided):
        # Of a call that one of these makes, the id begins with its own.
        return body.call_id in calls or (
            isinstance(action, RunCalls) and body.call_id.rpartition("/")[0] in calls
        )
    return False


def _describe(what: e.DurableBody | Action) -> str:
    """A short text for a message: the type, and the fields but for the clock."""
    if isinstance(what, RunCalls | RequestApprovals | Ask):
        first = "tool_started" if isinstance(what, RunCalls) else "an approval"
        return f"{first} for {', '.join(item.call.call_id for item in what.calls)}"
    fields = {name: getattr(what, name) for name in what.__struct_fields__ if name != "at"}
    kind = what.__struct_config__.tag or type(what).__name__
    text = ", ".join(f"{name}={value!r}" for name, value in fields.items() if value is not None)
    return f"{kind}({text[:200]})"


class _NoModel:
    """Never asked: the journal has the answers."""

    name = "journal"

    async def infer(self, request: Request, watch: Watch) -> Completion:
        raise AssertionError("a replay asks no model")
