"""One attempt at making recorded calls again: what was equal, and how inner calls and questions are answered."""

from collections.abc import Mapping, Sequence
from typing import Protocol

from msgspec import Struct

from treadle.core import events as e
from treadle.core.asking import AskNow, Question, QuestionDecision, RefuseToAsk, decide_question
from treadle.core.calls import InnerDecision, RunInner, SettleInner
from treadle.core.state import State
from treadle.core.types import ToolCall, ToolErrorKind, ToolResult
from treadle.loop.calls.results import failed
from treadle.loop.calls.rules import Rules
from treadle.sandbox.in_memory import MemorySandbox
from treadle.tools.protocol import Tool
from treadle.trajectory.compare import is_same, shows_clock


class Difference(Struct, frozen=True):
    """One result that differs from the recorded one."""

    seq: int
    """The number of the event that holds the recorded result."""
    call: str
    """The tool and the call's id."""
    recorded: str
    found: str

    @property
    def tool(self) -> str:
        """The name of the tool."""
        return self.call.partition(" (")[0]

    def __str__(self) -> str:
        return f"{self.call} at seq {self.seq}: recorded {self.recorded!r:.200}, now {self.found!r:.200}"


class Inner(Struct, frozen=True):
    """A recorded inner call."""

    seq: int
    """The number of the event that holds its result."""
    result: ToolResult
    started: e.ToolStarted | None
    """The event with which the call was started; `None` if the call was not run."""

    def is_call(self, name: str, arguments: str) -> bool:
        """Return whether this call is a call of the tool `name` with these arguments."""
        if self.started is None:
            return self.result.name == name
        return (self.started.name, self.started.arguments) == (name, arguments)


class Attempt(Struct):
    """The outcome of making the calls of one group again, in one order."""

    sandbox: MemorySandbox
    matched: int = 0
    skips: list[str] = []
    differences: list[Difference] = []

    def compare(
        self,
        seq: int,
        recorded: ToolResult,
        found: ToolResult | str,
        tool: Tool | None,
        span: tuple[float, float],
    ) -> bool:
        """Compare and count one result; return whether it is equal.

        `found` is a result, or a reason to skip it. `span` is the time in which the recorded call ran.
        """
        name = f"{recorded.name} ({recorded.call_id})"
        rules = () if tool is None else tool.spec.may_differ
        if (
            isinstance(found, ToolResult)
            and "timestamps" not in rules
            and is_same(recorded, found, (*rules, "timestamps"))
            and shows_clock(recorded.content, *span)
        ):
            found = "its result has the time at which it ran"
        if isinstance(found, str):
            self.skips.append(f"{name}: {found}")
            return False
        same = is_same(recorded, found, rules)
        if not same:
            self.differences.append(Difference(seq, name, recorded.content, found.content))
        self.matched += same
        return same


class Record(Protocol):
    """What the rules of an attempt read of the recorded run."""

    @property
    def state(self) -> State:
        """The state of the run after the calls."""
        ...

    def inner_of(self, call_id: str) -> Mapping[str, Inner]:
        """Return the recorded inner calls of a call, by id."""
        ...

    def span_of(self, call_id: str) -> tuple[float, float]:
        """Return when a recorded call began and ended."""
        ...

    def tool_of(self, name: str) -> Tool | None:
        """Return the implementation of a tool; `None` if it is unknown."""
        ...

    def find_reason(self, call: ToolCall, recorded: ToolResult, *, is_cut_off: bool = False) -> str | None:
        """Return why a call is not made again; `None` if it is made again or can be refused without running it."""
        ...


class RecordedRules(Rules):
    """The rules of an attempt: inner calls are made again if that is harmless, otherwise answered as recorded, and
    questions are answered from the journal."""

    def __init__(self, record: Record, attempt: Attempt) -> None:
        self._record = record
        self._attempt = attempt
        self._settled: set[str] = set()
        """The ids of calls that need no further comparison."""

    def decide_inner(self, parent_id: str, number: int, name: str, arguments: str) -> InnerDecision:
        """Decide about an inner call; see `Rules`."""
        call = ToolCall(f"{parent_id}/{number}", name, arguments)
        known = self._record.inner_of(parent_id).get(call.call_id)
        if known is None or not known.is_call(name, arguments):
            text = f"the recorded run did not call {name}({arguments}) here"
            return SettleInner(failed(call, ToolErrorKind.FAILED, text))
        reason = self._record.find_reason(call, known.result)
        if reason is None:
            return RunInner(call, 1)
        self._attempt.compare(known.seq, known.result, reason, None, (0.0, 0.0))
        self._settled.add(call.call_id)
        return SettleInner(known.result, is_recorded=True)

    def decide_question(
        self, question: Question, asker_id: str, call_id: str, number: int
    ) -> QuestionDecision:
        """Answer a question from the journal. Nobody else is asked."""
        decided = decide_question(self._record.state, question, asker_id, call_id, number)
        return RefuseToAsk("The journal has no answer.") if isinstance(decided, AskNow) else decided

    def compare(self, parent_id: str, bodies: Sequence[e.DurableBody]) -> None:
        """Compare the results of a call's inner calls. Recorded inner calls that it did not make now are
        differences."""
        found = {
            body.result.call_id: body.result
            for body in bodies
            if isinstance(body, e.ToolCompleted) and body.parent_call_id is not None
        }
        for call_id, known in self._record.inner_of(parent_id).items():
            if call_id in self._settled:
                continue
            absent = ToolResult(call_id, known.result.name, "not called", is_error=True)
            tool = self._record.tool_of(known.result.name)
            span = self._record.span_of(call_id)
            self._attempt.compare(known.seq, known.result, found.get(call_id, absent), tool, span)
