"""How the driver runs the tool calls of a step: those of the model, and those that a tool makes of others.

Each is journalled: its intent before its effect, its result before anybody sees it.
"""

import asyncio
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

import msgspec
from msgspec.structs import replace

from treadle.core import events as e
from treadle.core.decide import refuse_over_limit, refuse_unapproved, unknown_outcome
from treadle.core.policy import Approval
from treadle.core.state import CallState, InnerCall
from treadle.core.types import Effect, Json, ToolCall, ToolErrorKind, ToolResult, ToolSpec
from treadle.loop.perform import Blobs, failed, read_call, run_together, run_tool
from treadle.tools.context import ToolContext
from treadle.tools.protocol import ApprovalRequest, Decision, Tool, ToolOutput

if TYPE_CHECKING:
    from treadle.loop.driver import Driver

MAX_INNER_CHARS = 4_000_000
"""Of a result that goes to a tool, and not to the model; a longer one is an error."""


async def run_calls(driver: "Driver", calls: Sequence[CallState]) -> None:
    """Run calls in order; neighbours that may run beside others run together."""
    start = 0
    while start < len(calls):
        end = start + 1
        if _is_concurrent(driver, calls[start]):
            while end < len(calls) and _is_concurrent(driver, calls[end]):
                end += 1
        if end - start == 1:
            await run_call(driver, calls[start])
        else:
            await _run_beside(driver, calls[start:end])
        start = end


def _is_concurrent(driver: "Driver", item: CallState) -> bool:
    tool = driver.toolbox.tools.get(item.call.name)
    return tool is None or tool.spec.is_concurrent


async def _run_beside(driver: "Driver", calls: Sequence[CallState]) -> None:
    slots = asyncio.Semaphore(driver.state.policy.parallel_tool_calls)
    own: dict[str, asyncio.Semaphore] = {}
    for item in calls:
        spec = driver.toolbox.by_name.get(item.call.name)
        if spec is not None and spec.max_concurrent is not None and spec.name not in own:
            own[spec.name] = asyncio.Semaphore(spec.max_concurrent)

    async def run_in_slot(item: CallState) -> None:
        narrow = own.get(item.call.name)
        if narrow is None:
            async with slots:
                await run_call(driver, item)
        else:
            # The narrow one first: who waits for it takes no slot from others.
            async with narrow, slots:
                await run_call(driver, item)

    await run_together([run_in_slot(item) for item in calls])


async def run_call(driver: "Driver", item: CallState) -> None:
    """Run one call of the model, or say what is wrong with it."""
    call, edited = item.call, None
    if type(item.approval) is e.ApprovalDecided and item.approval.arguments is not None:
        edited = item.approval.arguments
        call = replace(call, arguments=edited)
    ready = read_call(call, driver.toolbox.tools, driver.state.finish_reason)
    begin = time.time()
    blobs: Blobs | None = None
    snapshot: tuple[e.SnapshotTaken, ...] = ()
    if isinstance(ready, ToolResult):
        result = ready
    else:
        tool, arguments = ready
        context = _begin(driver, call, tool, item.attempt + 1, begin)
        if tool.spec.effect is not Effect.PURE or driver.is_heard:
            await driver.sync()
        result, blobs = await run_tool(call, tool, arguments, context, driver.toolbox.by_name[call.name])
        snapshot, files = driver.take_snapshot()
        if files:
            blobs = {**blobs, **files} if blobs else dict(files)
    if edited is not None:
        result = tell_edit(result, edited)
    now = time.time()
    done = e.ToolCompleted(at=now, step=driver.state.step, result=result, duration_seconds=now - begin)
    driver.record(*snapshot, done, blobs=blobs)
    if driver.is_heard:
        await driver.sync()


def tell_edit(result: ToolResult, arguments: str) -> ToolResult:
    """The result of a call that somebody changed before it was run."""
    return replace(result, content=f"The user changed the arguments to {arguments}\n{result.content}")


def _begin(
    driver: "Driver", call: ToolCall, tool: Tool, attempt: int, at: float, parent: str | None = None
) -> ToolContext:
    """Note the intent to run a call, which `parent` made if it is given; what the tool is to know of its run."""
    step = driver.state.step
    started = e.ToolStarted(
        at=at,
        step=step,
        call_id=call.call_id,
        name=call.name,
        effect=tool.spec.effect,
        attempt=attempt,
        parent_call_id=parent,
        arguments=call.arguments if parent is not None else None,
    )
    driver.record(started)
    return ToolContext(
        driver.run_id,
        call.call_id,
        step,
        driver.sandbox,
        driver.on_progress if driver.is_heard else None,
        scope=driver.scope,
        tools=driver.toolbox.specs,
        make_caller=partial(InnerCalls, driver) if parent is None else None,
    )


def for_code(spec: ToolSpec) -> ToolSpec:
    """`spec` with the limits of a result that goes to a tool."""
    return replace(spec, max_result_chars=MAX_INNER_CHARS)


async def request_approvals(driver: "Driver", calls: Sequence[CallState]) -> None:
    """Note which calls wait for a yes; nobody is asked about a call that could not be run."""
    now = time.time()
    bodies: list[e.DurableBody] = []
    for item in calls:
        ready = read_call(item.call, driver.toolbox.tools, driver.state.finish_reason)
        if isinstance(ready, ToolResult):
            bodies.append(e.ToolCompleted(at=now, step=driver.state.step, result=ready))
        else:
            bodies.append(e.ApprovalRequested(at=now, call_id=item.call.call_id))
    driver.record(*bodies)


async def ask(driver: "Driver", call: ToolCall) -> None:
    """Ask whether to run a call; pause the run if nobody decides."""
    await driver.sync()
    decision = await _consult(driver, call)
    if decision is None:
        driver.record(e.RunPaused(at=time.time(), reason="approval"))
    else:
        driver.record(approval_decided(call.call_id, decision))


def approval_decided(call_id: str, decision: Decision) -> e.ApprovalDecided:
    """The event that says what was decided about a call."""
    return e.ApprovalDecided(
        at=time.time(),
        call_id=call_id,
        is_approved=decision.is_approved,
        reason=decision.reason,
        arguments=decision.arguments,
    )


async def _consult(driver: "Driver", call: ToolCall) -> Decision | None:
    spec = driver.toolbox.by_name.get(call.name)
    if driver.approver is None or spec is None:
        return None
    said = driver.approver(ApprovalRequest(driver.run_id, call, spec))
    if not isinstance(said, Decision | bool | None):
        said = await said
    return Decision(said) if isinstance(said, bool) else said


class InnerCalls:
    """The calls that one running call makes of other tools, one after another.

    They are numbered in order. When the call is run again after a crash, its files are as they were before it;
    so what it calls is run again as well, but for calls of effect `once`, which answer from the journal.
    """

    __slots__ = ("_count", "_driver", "_lock", "_parent_id")

    def __init__(self, driver: "Driver", parent_id: str) -> None:
        self._driver = driver
        self._parent_id = parent_id
        self._count = 0
        self._lock: asyncio.Lock | None = None

    async def __call__(self, name: str, arguments: dict[str, Json]) -> ToolOutput:
        """See `ToolContext.call_tool`."""
        self._lock = self._lock or asyncio.Lock()
        async with self._lock:
            self._count += 1
            call = ToolCall(f"{self._parent_id}/{self._count}", name, msgspec.json.encode(arguments).decode())
            result = self._recall(call) or await self._run(call)
        return ToolOutput(result.content, result.is_error, result.is_simulated, result.structured)

    def _find(self, call: ToolCall) -> InnerCall | None:
        """The same call, made before the run was interrupted."""
        for item in self._driver.state.calls:
            if item.call.call_id == self._parent_id:
                return next((known for known in item.inner if known.call == call), None)
        return None

    def _recall(self, call: ToolCall) -> ToolResult | None:
        known = self._find(call)
        if known is None or known.effect is not Effect.ONCE:
            return None
        if known.result is None:
            return self._settle(unknown_outcome(call))
        return known.result

    async def _run(self, call: ToolCall) -> ToolResult:
        driver, known = self._driver, self._find(call)
        ready = self._refuse(call) or read_call(call, driver.toolbox.tools, None)
        if not isinstance(ready, ToolResult):
            refused = await self._ask(call)
            ready = refused or ready
        if isinstance(ready, ToolResult):
            return self._settle(ready)
        attempt = 1 if known is None else known.attempt + 1
        begin = time.time()
        tool, arguments = ready
        context = _begin(driver, call, tool, attempt, begin, self._parent_id)
        if tool.spec.effect is not Effect.PURE or driver.is_heard:
            await driver.sync()
        spec = for_code(driver.toolbox.by_name[call.name])
        result, blobs = await run_tool(call, tool, arguments, context, spec)
        return self._settle(result, blobs, time.time() - begin)

    def _settle(
        self, result: ToolResult, blobs: Blobs | None = None, duration_seconds: float = 0.0
    ) -> ToolResult:
        done = e.ToolCompleted(
            at=time.time(),
            step=self._driver.state.step,
            result=result,
            duration_seconds=duration_seconds,
            parent_call_id=self._parent_id,
        )
        self._driver.record(done, blobs=blobs)
        return result

    def _refuse(self, call: ToolCall) -> ToolResult | None:
        """What stands in the way of the call, less a question to somebody."""
        state = self._driver.state
        most = state.policy.max_tool_calls
        # The calls of the model that are open, of which one makes this call, have their place already.
        open_calls = sum(item.result is None for item in state.calls)
        if most is not None and state.spent.tool_calls + open_calls >= most:
            return failed(call, ToolErrorKind.NOT_RUN, f"Not run: the turn has made its {most} tool calls.")
        limit = state.call_limits.get(call.name)
        if limit is not None and state.spent.calls_by_tool.get(call.name, 0) >= limit:
            return refuse_over_limit(call, limit)
        if self._approval_of(call) is Approval.NEVER:
            return refuse_unapproved(call, None)
        return None

    def _approval_of(self, call: ToolCall) -> Approval:
        state = self._driver.state
        return state.policy.approval_of(call.name, state.effects.get(call.name))

    async def _ask(self, call: ToolCall) -> ToolResult | None:
        driver = self._driver
        if self._approval_of(call) is not Approval.ASK:
            return None
        decision = None
        if driver.approver is not None:
            driver.record(e.ApprovalRequested(at=time.time(), call_id=call.call_id))
            await driver.sync()
            decision = await _consult(driver, call)
        if decision is None or decision.arguments is not None:
            text = "Not run: somebody must approve it first, which they can only if you call it directly."
            return failed(call, ToolErrorKind.REFUSED, text)
        decided = approval_decided(call.call_id, decision)
        driver.record(decided)
        return None if decision.is_approved else refuse_unapproved(call, decided)
