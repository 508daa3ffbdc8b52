"""The workbench: the one way to make a tool call, with the calls that the tool makes of other tools.

The loop, `verify`, the tool servers and the command line all make calls here. They differ in who reads the events
(the outbox) and in who decides about calls within calls (`decide_inner`). Whatever a tool does becomes a result;
only being cancelled raises.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Protocol, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core import events as e
from treadle.core.decide import refuse_unapproved, unknown_outcome
from treadle.core.inner import Doubt, InnerDecision, Recall, Run, Settle
from treadle.core.types import Effect, Json, ToolCall, ToolErrorKind, ToolResult
from treadle.loop.outbox import Outbox
from treadle.loop.results import Blobs, describe_exception, failed, read_call, to_result
from treadle.sandbox.protocol import Sandbox
from treadle.tools.context import NO_CONTEXT, Scope, ToolContext
from treadle.tools.protocol import ApprovalRequest, Approver, Decision, Tool, ToolOutput
from treadle.tools.toolbox import Toolbox

MAX_INNER_CHARS = 4_000_000
"""The longest result that goes to a tool and not to the model; a longer one is an error."""

DecideInner: TypeAlias = Callable[[str, int, str, str], InnerDecision]
"""Decides about a call within a call, given the outer call's id, the call's number in it (from 1), the tool's name
and the arguments as JSON."""


class Clock(Protocol):
    """The clock of a run. The module `time` is one."""

    def time(self) -> float:
        """Return the seconds since the epoch."""
        ...

    def monotonic(self) -> float:
        """Return seconds that never go backwards, for durations."""
        ...


class Order(Struct, frozen=True, gc=False):
    """A call to make, and how it came about."""

    call: ToolCall
    step: int = 1
    attempt: int = 1
    parent_call_id: str | None = None
    """The call that makes this one; `None` for a call of the model."""
    is_cut_off: bool = False
    """True if the model's output limit ended the answer that holds the call."""
    edited: str | None = None
    """The arguments that somebody gave in place of the model's; the result tells the model of them."""


class Workbench:
    """Makes calls of the tools in one toolbox, for one run."""

    def __init__(
        self,
        toolbox: Toolbox,
        *,
        run_id: str,
        sandbox: Sandbox | None = None,
        approver: Approver | None = None,
        decide_inner: DecideInner | None = None,
        clock: Clock = time,
    ) -> None:
        """`decide_inner` is asked about each call that a tool makes; without it, all of them run."""
        self.toolbox = toolbox
        self.run_id = run_id
        self.sandbox = sandbox
        self.scope = Scope()
        """What tools hold for the run, until it is closed."""
        self.approver = approver
        self.decide_inner = decide_inner or run_all
        self.report: Callable[[str, str], None] | None = None
        """Called with a call's id and a text when a tool reports progress; `None`: nobody listens."""
        self._clock = clock

    async def make(self, order: Order, outbox: Outbox) -> ToolResult:
        """Make a call of the model. The outbox has its result too, with the files that it changed."""
        call = order.call if order.edited is None else replace(order.call, arguments=order.edited)
        ready = read_call(call, self.toolbox.tools, is_cut_off=order.is_cut_off)
        if isinstance(ready, ToolResult):
            return self._complete(order, ready, outbox)
        inner = None if call.name in self.toolbox.contextless else _InnerCalls(self, order, outbox)
        max_chars = self.toolbox.by_name[call.name].max_result_chars
        result, blobs, seconds = await self._run(order, call, *ready, outbox, inner, max_chars)
        if inner is not None and inner.is_in_doubt:
            result = unknown_outcome(call)
        return self._complete(order, result, outbox, seconds, blobs, has_files=True)

    async def make_inner(self, decided: Run, order: Order, outbox: Outbox) -> ToolResult:
        """Make a call of a tool, once it is approved where that is needed."""
        call = decided.call
        ready = read_call(call, self.toolbox.tools)
        if isinstance(ready, ToolResult):
            return self._complete(order, ready, outbox)
        refused = await self._ask(call, outbox) if decided.needs_approval else None
        if refused is not None:
            return self._complete(order, refused, outbox)
        result, blobs, seconds = await self._run(order, call, *ready, outbox, None, MAX_INNER_CHARS)
        return self._complete(order, result, outbox, seconds, blobs)

    async def consult(self, call: ToolCall) -> Decision | None:
        """Ask the approver whether to run a call; `None` if there is nobody, or the decision is left for later."""
        spec = self.toolbox.by_name.get(call.name)
        if self.approver is None or spec is None:
            return None
        said = self.approver(ApprovalRequest(self.run_id, call, spec))
        if not isinstance(said, Decision | bool | None):
            said = await said
        return Decision(said) if isinstance(said, bool) else said

    def take_snapshot(self) -> tuple[tuple[e.SnapshotTaken, ...], Blobs | None]:
        """Return what changed in the sandbox since the last time, and the contents of what changed."""
        sandbox = self.sandbox
        if sandbox is None or not sandbox.has_changes or (changes := sandbox.take_delta()) is None:
            return (), None
        delta, blobs = changes
        return (e.SnapshotTaken(snapshot_id=sandbox.snapshot_id, delta=delta),), dict(blobs)

    async def _run(
        self,
        order: Order,
        call: ToolCall,
        tool: Tool,
        arguments: dict[str, Json],
        outbox: Outbox,
        inner: "_InnerCalls | None",
        max_chars: int,
    ) -> tuple[ToolResult, Blobs | None, float]:
        """Note the intent, run the tool, and return its result, the contents of its artifacts and the seconds."""
        spec, parent = tool.spec, order.parent_call_id
        outbox.put(
            e.ToolStarted(
                step=order.step,
                call_id=call.call_id,
                name=call.name,
                effect=spec.effect,
                attempt=order.attempt,
                parent_call_id=parent,
                arguments=None if parent is None else call.arguments,
            )
        )
        if spec.effect is not Effect.PURE or self.report is not None:
            await outbox.kept()
        context = NO_CONTEXT
        if call.name not in self.toolbox.contextless:
            context = ToolContext(
                self.run_id,
                call.call_id,
                order.step,
                self.sandbox,
                self.report,
                scope=self.scope,
                tools=self.toolbox.specs,
                make_caller=None if inner is None else inner.caller,
            )
        begin = self._clock.monotonic()
        timeout_seconds = spec.timeout_seconds
        timer: asyncio.Timeout | None = None
        try:
            if timeout_seconds is None:
                outcome = await tool.call(arguments, context)
            else:
                async with asyncio.timeout(timeout_seconds) as timer:
                    outcome = await tool.call(arguments, context)
            result, blobs = to_result(call, outcome, max_chars)
        except TimeoutError as error:
            kind, text = ToolErrorKind.FAILED, describe_exception(error)
            if timer is not None and timer.expired():
                kind = ToolErrorKind.TIMEOUT
                text = f"{call.name} did not finish within {timeout_seconds} s and was stopped."
            result, blobs = failed(call, kind, text), None
        except asyncio.CancelledError as error:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            # Nobody cancelled this call: something that the tool waited for was cancelled.
            result, blobs = failed(call, ToolErrorKind.FAILED, describe_exception(error)), None
        except Exception as error:
            result, blobs = failed(call, ToolErrorKind.FAILED, describe_exception(error)), None
        return result, blobs, self._clock.monotonic() - begin

    def _complete(
        self,
        order: Order,
        result: ToolResult,
        outbox: Outbox,
        seconds: float = 0.0,
        blobs: Blobs | None = None,
        *,
        has_files: bool = False,
    ) -> ToolResult:
        """Put the result in the outbox, with the files that the call changed, and return it."""
        if order.edited is not None:
            told = f"The user changed the arguments to {order.edited}\n{result.content}"
            result = replace(result, content=told)
        done = e.ToolCompleted(
            step=order.step, result=result, duration_seconds=seconds, parent_call_id=order.parent_call_id
        )
        snapshot, files = self.take_snapshot() if has_files else ((), None)
        if files:
            blobs = {**blobs, **files} if blobs else files
        outbox.put(*snapshot, done, blobs=blobs)
        return result

    async def _ask(self, call: ToolCall, outbox: Outbox) -> ToolResult | None:
        """Ask for the approval of a call that a tool makes; return the result of a refused one."""
        decision = None
        if self.approver is not None:
            outbox.put(e.ApprovalRequested(call_id=call.call_id))
            await outbox.kept()
            decision = await self.consult(call)
        if decision is None or decision.arguments is not None:
            text = "Not run: somebody must approve it first, which they can only if you call it directly."
            return failed(call, ToolErrorKind.REFUSED, text)
        decided = to_decided(call.call_id, decision)
        outbox.put(decided)
        return None if decision.is_approved else refuse_unapproved(call, decided)


def run_all(parent_id: str, number: int, name: str, arguments: str) -> InnerDecision:
    """Decide to run every call that a tool makes."""
    return Run(ToolCall(f"{parent_id}/{number}", name, arguments), 1)


def to_decided(call_id: str, decision: Decision) -> e.ApprovalDecided:
    """Return the event for a decision about a call."""
    return e.ApprovalDecided(
        call_id=call_id,
        is_approved=decision.is_approved,
        reason=decision.reason,
        arguments=decision.arguments,
    )


class _InnerCalls:
    """The calls that one running call makes of other tools, one after another."""

    __slots__ = ("_bench", "_count", "_lock", "_order", "_outbox", "is_in_doubt")

    def __init__(self, bench: Workbench, order: Order, outbox: Outbox) -> None:
        self._bench = bench
        self._order = order
        self._outbox = outbox
        self._count = 0
        self._lock: asyncio.Lock | None = None
        self.is_in_doubt = False
        """True once the tool made other calls than before it was interrupted."""

    def caller(self, call_id: str) -> "_InnerCalls":
        """Return the function that makes calls within the call `call_id`."""
        return self

    async def __call__(self, name: str, arguments: dict[str, Json]) -> ToolOutput:
        """See `ToolContext.call_tool`."""
        self._lock = self._lock or asyncio.Lock()
        async with self._lock:
            self._count += 1
            result = await self._make(name, msgspec.json.encode(arguments).decode())
        return ToolOutput(result.content, result.is_error, result.is_simulated, result.structured)

    async def _make(self, name: str, arguments: str) -> ToolResult:
        parent_id = self._order.call.call_id
        decided = self._bench.decide_inner(parent_id, self._count, name, arguments)
        if isinstance(decided, Run):
            order = Order(decided.call, self._order.step, decided.attempt, parent_id)
            return await self._bench.make_inner(decided, order, self._outbox)
        if isinstance(decided, Doubt):
            self.is_in_doubt = True
        elif isinstance(decided, Settle):
            done = e.ToolCompleted(step=self._order.step, result=decided.result, parent_call_id=parent_id)
            self._outbox.put(done)
        else:
            assert isinstance(decided, Recall)
        return decided.result
