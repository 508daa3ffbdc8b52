"""Replay: make every decision of a run again from its journal, which holds the outcome of each.

`replay` is a pure function of the events: it asks no model, runs no tool and writes nothing. The first decision
that differs from the recorded one is the divergence.
"""

from collections.abc import Sequence
from enum import Enum

from msgspec import Struct
from msgspec.structs import replace

from treadle.core import events as e
from treadle.core.actions import (
    Action,
    Append,
    AskApprover,
    AskUser,
    CheckAnswer,
    Compact,
    Infer,
    RequestApprovals,
    RunCalls,
)
from treadle.core.answering import check_answer, judge_answer, recorded_fault
from treadle.core.asking import FindFault, open_questions
from treadle.core.calls import CallState, abandon_turn, external_calls, refuse_unapproved, stop_calls
from treadle.core.decide import decide
from treadle.core.errors import ReplayDivergence
from treadle.core.policy import Policy
from treadle.core.state import State, advance
from treadle.core.steering import count_messages
from treadle.core.types import Message, StopReason, ToolResult

_OF_A_CALL = (
    e.ToolStarted,
    e.ToolCompleted,
    e.SnapshotTaken,
    e.ApprovalRequested,
    e.ApprovalDecided,
    e.QuestionAsked,
    e.QuestionAnswered,
)
_OF_THE_WORLD = ("at", "worked_seconds", "inbox", "model", "reserved_cost_usd", "route")
"""The fields that replay does not compute: times, the model and its choice, and what an inference may cost."""


class Replay(Struct, frozen=True):
    """The outcome of a replay."""

    run_id: str
    events: int
    """How many events replay reproduced."""
    state: State
    """The state after the last event that replay reproduced."""
    divergence: ReplayDivergence | None = None
    """The first decision that differs from the journal; `None` if all are equal."""

    @property
    def is_exact(self) -> bool:
        """True if every decision is the same as in the journal."""
        return self.divergence is None

    def __repr__(self) -> str:
        return f"Replay({self.run_id!r}, {self.events} events, {self.divergence or 'exact'})"


def replay(events: Sequence[e.Event], find_fault: FindFault, policy: Policy | None = None) -> Replay:
    """Make all decisions of a run again and compare them with its events.

    `find_fault` checks answers against the run's schema. `policy`, if given, replaces the recorded policies.
    """
    run_id = events[0].run_id if events else ""
    replayer = _Replayer([event.body for event in events], find_fault, policy)
    divergence: ReplayDivergence | None = None
    try:
        replayer.run()
    except _EndOfJournal:
        pass
    except ReplayDivergence as found:
        divergence = found
    return Replay(run_id, replayer.state.seq, replayer.state, divergence)


class _EndOfJournal(Exception):  # noqa: N818
    """The signal that the journal ends in the middle of an action, because the run was interrupted."""


class _Replayer:
    """A loop over recorded events: it calls `decide`, and takes the next events as the action's outcome."""

    def __init__(self, bodies: Sequence[e.DurableBody], find_fault: FindFault, policy: Policy | None) -> None:
        self.state = State()
        self._bodies = bodies
        self._find_fault = find_fault
        self._policy = policy
        started = bodies[0] if bodies else None
        parent = started.parent if isinstance(started, e.RunStarted) else None
        self._copied = 0 if parent is None else parent.seq
        """How many events a fork copied. They were decided under another policy, so they are not compared."""

    @property
    def _next(self) -> e.DurableBody | None:
        return self._bodies[self.state.seq] if self.state.seq < len(self._bodies) else None

    def run(self) -> None:
        """Take all events. Raises: `ReplayDivergence`; `_EndOfJournal` if the journal ends within an action."""
        while self.state.seq < min(self._copied, len(self._bodies)):
            self._take(self._bodies[self.state.seq])
        while (body := self._next) is not None:
            # The initial files of a run are an input too.
            if not _is_input(body, self.state) and not isinstance(body, e.SnapshotTaken):
                raise ReplayDivergence(self.state.seq + 1, _describe(body), "nothing more to do")
            self._take_input(body)
            while (action := decide(self.state)) is not None:
                self._perform(action)

    def _perform(self, action: Action) -> None:
        if isinstance(action, Append):
            self._expect_all(action.bodies)
        elif isinstance(action, CheckAnswer):
            self._expect_all(self._judge(action))
        elif isinstance(action, Infer):
            messages = count_messages(self.state, has_tools=action.has_tools)
            started = e.InferenceStarted(step=action.step, messages=messages, has_tools=action.has_tools)
            # A program that answers in the place of a model changes files, and may grade itself.
            outcomes = (e.InferenceCompleted, e.InferenceFailed, e.SnapshotTaken, e.Rewarded)
            if self._expect(started):
                while self.state.turn.asked is not None and self._observe(outcomes, action):
                    pass
        elif isinstance(action, Compact):
            self._observe((e.ContextCompacted,), action)
        elif isinstance(action, RequestApprovals):
            for _ in action.calls:
                if not self._observe((e.ApprovalRequested, e.ToolCompleted), action):
                    return
        elif isinstance(action, AskApprover):
            self._observe_decisions(action)
        elif isinstance(action, AskUser):
            self._observe_answers(action)
        else:
            self._observe_calls(action)

    def _observe_calls(self, action: RunCalls) -> None:
        open_ids = {item.call.call_id for item in action.calls}
        while open_ids:
            body = self._next
            is_of_call = isinstance(body, _OF_A_CALL) and self._belongs(body, action)
            waiting = {asked.call_id for asked in open_questions(self.state)}
            waiting |= {item.call.call_id for item in external_calls(self.state)}
            if not is_of_call and open_ids <= waiting:
                return  # the calls that are left wait for answers or results
            if not self._observe(_OF_A_CALL, action):
                return
            if isinstance(body, e.ToolCompleted) and body.parent_call_id is None:
                open_ids.discard(body.result.call_id)

    def _observe_decisions(self, action: AskApprover) -> None:
        for _ in action.calls:
            if not self._observe((e.ApprovalDecided, e.RunPaused), action):
                return
            decided = self._bodies[self.state.seq - 1]
            if not isinstance(decided, e.ApprovalDecided):
                return
            if not decided.is_approved:
                result = refuse_unapproved(self.state.turn.calls[decided.call_id].call, decided)
                refused = e.ToolCompleted(step=self.state.step, result=result)
                if self._next is not None and _is_same(self._next, refused):
                    self._take(self._next)
            if not isinstance(self._next, e.ApprovalDecided | e.RunPaused):
                return  # what follows is decided anew

    def _observe_answers(self, action: AskUser) -> None:
        for number, _ in enumerate(action.questions):
            body = self._next
            if number and not isinstance(body, e.QuestionAnswered):
                return  # what follows is decided anew
            if not self._observe((e.QuestionAnswered, e.RunPaused), action) or isinstance(body, e.RunPaused):
                return

    def _judge(self, action: CheckAnswer) -> Sequence[e.DurableBody]:
        """Return the action that follows an answer. A recorded fault is used again, because another validator may
        word it differently, and the journal does not have the validators of the caller's type."""
        fault = recorded_fault(self._next)
        if fault is not None:
            return judge_answer(self.state, action.text, fault).bodies
        return check_answer(self.state, action, self._find_fault)

    def _expect_all(self, bodies: Sequence[e.DurableBody]) -> None:
        for body in bodies:
            if not self._expect(body):
                return

    def _expect(self, wanted: e.DurableBody) -> bool:
        """Take the next event, which must equal `wanted`; return false if the run was interrupted there."""
        body = self._next
        if body is None:
            raise _EndOfJournal
        if not _is_same(body, wanted):
            return self._interrupt(body, _describe(wanted))
        self._take(body)
        return True

    def _observe(self, outcomes: tuple[type, ...], action: Action) -> bool:
        """Take the next event, which must be an outcome of `action`; return false if the run was interrupted."""
        body = self._next
        if body is None:
            raise _EndOfJournal
        if not isinstance(body, outcomes) or not self._belongs(body, action):
            return self._interrupt(body, _describe(action))
        self._take(body)
        return True

    def _belongs(self, body: e.DurableBody, action: Action) -> bool:
        """Return whether `body` can be an outcome of `action`: for actions about calls, one of an open call."""
        if isinstance(action, Infer | Compact | Append | CheckAnswer) or isinstance(
            body, e.SnapshotTaken | e.RunPaused
        ):
            return True
        if isinstance(body, e.ToolStarted) and body.parent_call_id is None:
            item = self._open(body.call_id)
            return item is not None and item.attempt + 1 == body.attempt
        if isinstance(body, e.ToolStarted | e.ToolCompleted):
            own = body.call_id if isinstance(body, e.ToolStarted) else body.result.call_id
            return self._open(body.parent_call_id or own) is not None
        if isinstance(body, e.QuestionAsked):
            return self._open(body.call_id or "") is not None
        if isinstance(body, e.QuestionAnswered):
            return body.question_id in [asked.question_id for asked in open_questions(self.state)]
        if isinstance(body, e.ApprovalRequested | e.ApprovalDecided):
            # The id of a call that a tool made begins with the id of the tool's own call.
            outer = body.call_id.rpartition("/")[0] if isinstance(action, RunCalls) else ""
            return self._open(body.call_id) is not None or self._open(outer) is not None
        return False

    def _open(self, call_id: str) -> CallState | None:
        item = self.state.turn.calls.get(call_id)
        return item if item is not None and item.result is None else None

    def _interrupt(self, body: e.DurableBody, decided: str) -> bool:
        stopped = self._stopped()
        if not stopped and not _is_input(body, self.state):
            raise ReplayDivergence(self.state.seq + 1, _describe(body), decided)
        for item in stopped:
            self._take(item)
        if not stopped:
            self._take_input(body)
        return False

    def _stopped(self) -> Sequence[e.DurableBody]:
        """Return the next events if they end the open calls as a cancellation or a deadline does; else nothing."""
        start = self.state.seq
        if not self.state.turn.is_open or start == len(self._bodies):
            return ()
        skipped = isinstance(self._bodies[start], e.SnapshotTaken)
        for wanted in (abandon_turn(self.state), stop_calls(self.state)):
            found = self._bodies[start : start + skipped + len(wanted)]
            rest = found[skipped:]
            if wanted and len(rest) == len(wanted) and all(map(_is_same, rest, wanted)):
                return found
        return ()

    def _take_input(self, body: e.DurableBody) -> None:
        """Take an input, and the end of the turn, or the answers and decisions, that came with it."""
        self._take(body)
        for item in self._stopped():
            self._take(item)
        while isinstance(answer := self._next, e.QuestionAnswered | e.ApprovalDecided):
            self._take(answer)

    def _take(self, body: e.DurableBody) -> None:
        """Take an event, and the messages and notes that came before the next one."""
        self._advance(body)
        while (sent := self._next) is not None and _is_sent(sent, self.state):
            self._advance(sent)

    def _advance(self, body: e.DurableBody) -> None:
        if self._policy is not None:
            body = _with_policy(body, self._policy)
        advance(self.state, body)


def _with_policy(body: e.DurableBody, policy: Policy) -> e.DurableBody:
    if isinstance(body, e.RunStarted):
        return replace(body, agent=replace(body.spec, policy=policy), instructions=body.system_message)
    if isinstance(body, e.RunResumed) and body.agent is not None:
        return replace(body, agent=replace(body.agent, policy=policy))
    return body


def _is_sent(body: e.DurableBody, state: State) -> bool:
    """Return whether `body` is a waiting message of the user, an external result or a note, which come any time."""
    if isinstance(body, e.ToolCompleted):
        return body.inbox is not None or state.is_relayed
    return isinstance(body, e.Noted) or (isinstance(body, e.MessageInjected) and body.delivery is not None)


def _is_input(body: e.DurableBody, state: State) -> bool:
    """Return whether `body` came from outside the loop, as a pause does, the end of a cancelled turn, or the end of
    a run whose simulated user has no more to say."""
    if isinstance(body, e.TurnCompleted):
        return body.stop_reason is StopReason.CANCELLED
    if isinstance(body, e.RunFinished):
        return state.stays_open and not state.is_session and not state.turn.is_open
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


def _is_same(body: e.DurableBody, wanted: e.DurableBody) -> bool:
    if type(body) is not type(wanted):
        return False
    names = [name for name in wanted.__struct_fields__ if name not in _OF_THE_WORLD]
    return all(
        [_unworded(name, getattr(body, name)) == _unworded(name, getattr(wanted, name)) for name in names]
    )


def _unworded(name: str, value: object) -> object:
    """Return a field's value without the words in which Treadle tells of an error or a limit. Another version may
    choose others; the kind says what happened."""
    if name == "error":
        return value is not None
    if isinstance(value, ToolResult) and value.is_error:
        return replace(value, content="")
    return replace(value, content="", own_chars=0) if isinstance(value, Message) and value.is_own else value


def _describe(what: e.DurableBody | Action) -> str:
    if isinstance(what, RunCalls | RequestApprovals | AskApprover):
        first = "tool_started" if isinstance(what, RunCalls) else "an approval"
        return f"{first} for {', '.join(item.call.call_id for item in what.calls)}"
    fields = {name: getattr(what, name) for name in what.__struct_fields__ if name not in _OF_THE_WORLD}
    kind = what.__struct_config__.tag or type(what).__name__
    text = ", ".join(f"{name}={_write(value)}" for name, value in fields.items() if value is not None)
    return f"{kind}({text[:200]})"


def _write(value: object) -> str:
    """Return a field's value for a message: a message as its role and text, an enumeration as its value."""
    if isinstance(value, Message):
        return f"{value.role}: {value.content!r}"
    return repr(value.value) if isinstance(value, Enum) else repr(value)
