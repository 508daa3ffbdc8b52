"""The performer of a step's tool calls, which runs them at the same time where possible and asks for approvals."""

import asyncio
import time
from collections.abc import Coroutine, Sequence
from contextlib import nullcontext, suppress

from treadle.core import events as e
from treadle.core.actions import AskApprover, RequestApprovals, RunCalls
from treadle.core.calls import CallState, last_once, refuse_unapproved
from treadle.core.state import State
from treadle.core.types import FinishReason, ToolResult
from treadle.loop.calls.questions import ParkedError
from treadle.loop.calls.results import Order, read_call, to_decided
from treadle.loop.calls.workbench import Workbench
from treadle.loop.outbox import Outbox

# An attribute of an enum takes longer to look up than a global name.
_LENGTH = FinishReason.LENGTH
_SOON_SECONDS = 0.01
"""A listener hears of decisions that took less time together with the next."""


class ToolCalls:
    """The performer of all actions about tool calls, on one workbench."""

    __slots__ = ("_bench",)

    def __init__(self, bench: Workbench) -> None:
        self._bench = bench

    async def run(self, state: State, action: RunCalls, outbox: Outbox) -> None:
        """Run calls in order; consecutive calls of tools that allow it run at the same time."""
        bench, calls = self._bench, action.calls
        if len(calls) == 1:
            try:
                await bench.make(_order(state, calls[0]), outbox)
            except ParkedError:
                return
            return
        orders = [_order(state, item) for item in calls]
        start = 0
        while start < len(orders):
            end = start + 1
            if self._is_concurrent(orders[start]):
                while end < len(orders) and self._is_concurrent(orders[end]):
                    end += 1
            if end - start == 1:
                with suppress(ParkedError):
                    await bench.make(orders[start], outbox)
            else:
                await _run_beside(orders[start:end], outbox, bench, state.policy.parallel_tool_calls)
            start = end

    async def request_approvals(self, state: State, action: RequestApprovals, outbox: Outbox) -> None:
        """Record which calls wait for approval. A call that could not run anyway gets its error result instead."""
        bodies: list[e.DurableBody] = []
        is_cut_off = state.turn.finish_reason is FinishReason.LENGTH
        for item in action.calls:
            ready = read_call(item.call, self._bench.toolbox.tools, is_cut_off=is_cut_off)
            if isinstance(ready, ToolResult):
                bodies.append(e.ToolCompleted(step=state.step, result=ready))
            else:
                bodies.append(e.ApprovalRequested(call_id=item.call.call_id))
        outbox.put(*bodies)

    async def ask(self, state: State, action: AskApprover, outbox: Outbox) -> None:
        """Ask the approver about one call after another; record a pause at the first that nobody decides about."""
        await outbox.kept()
        for item in action.calls:
            begin = time.monotonic()
            decision = await self._bench.consult(item.call)
            if decision is None:
                outbox.put(e.RunPaused(reason="approval"))
                return
            decided = to_decided(item.call.call_id, decision)
            if not self._bench.questions.arrivals.has_recorded(item.call.call_id):
                outbox.put(decided)
            if not decision.is_approved:
                outbox.put(e.ToolCompleted(step=state.step, result=refuse_unapproved(item.call, decided)))
            if self._bench.report is not None and time.monotonic() - begin > _SOON_SECONDS:
                # A listener need not wait for the decisions about the other calls.
                await outbox.kept()

    def _is_concurrent(self, order: Order) -> bool:
        tool = self._bench.toolbox.tools.get(order.call.name)
        return tool is None or tool.spec.is_concurrent


def _order(state: State, item: CallState) -> Order:
    approval = item.approval
    return Order(
        item.call,
        state.step,
        item.attempt + 1,
        is_cut_off=state.turn.finish_reason is _LENGTH,
        edited=approval.arguments if isinstance(approval, e.ApprovalDecided) else None,
        last_once=last_once(item) if item.inner else 0,
    )


async def _run_beside(orders: Sequence[Order], outbox: Outbox, bench: Workbench, limit: int) -> None:
    slots = asyncio.Semaphore(limit)
    own: dict[str, asyncio.Semaphore] = {}
    for order in orders:
        spec = bench.toolbox.by_name.get(order.call.name)
        if spec is not None and spec.max_concurrent is not None and spec.name not in own:
            own[spec.name] = asyncio.Semaphore(spec.max_concurrent)

    async def run_in_slot(order: Order) -> None:
        narrow = own.get(order.call.name)
        # The tool's own limit comes first, so that a call that waits for it does not occupy a slot.
        async with narrow or nullcontext(), slots:
            with suppress(ParkedError):
                await bench.make(order, outbox)
        if bench.report is not None:
            # A listener need not wait for the other calls of the step.
            await outbox.kept()

    await _run_together([run_in_slot(order) for order in orders])


async def _run_together(coroutines: Sequence[Coroutine[None, None, None]]) -> None:
    """Run coroutines at the same time. The first error, or a cancellation, stops all of them."""
    tasks = [asyncio.ensure_future(item) for item in coroutines]
    try:
        await asyncio.gather(*tasks)
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
    finally:
        # The error of a task holds this frame, and the frame must not hold the task.
        tasks.clear()
