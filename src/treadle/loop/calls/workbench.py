"""The workbench: the one way to make a tool call, inner calls included.

The loop, `verify`, the tool servers and the command line all make calls here. They differ in who reads the events
(the outbox) and who decides about inner calls and questions (the rules). Every outcome of a tool becomes a result,
exceptions included; only a cancellation raises.
"""

import asyncio
import inspect
import logging
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeAlias

from msgspec.structs import replace

from treadle.core import events as e
from treadle.core.asking import Answer, Question
from treadle.core.calls import RunInner, refuse_unapproved, unknown_outcome
from treadle.core.errors import ConfigError, NoResultError, RetryWithMessage, ToolError
from treadle.core.limits import Allowance
from treadle.core.lineage import Child
from treadle.core.types import Effect, Json, ToolCall, ToolErrorKind, ToolResult, ToolSpec
from treadle.journal.protocol import Clock, Journal
from treadle.loop.calls.questions import Asking, InnerCalls, ParkedError, Questioner, Rules
from treadle.loop.calls.results import (
    LARGE_BYTES,
    Blobs,
    Order,
    describe_exception,
    describe_stop,
    failed,
    find_message,
    find_result,
    is_large,
    read_call,
    to_decided,
    to_result,
    to_started,
)
from treadle.loop.listener import Hooks
from treadle.loop.outbox import Outbox
from treadle.sandbox.protocol import Sandbox
from treadle.tools.context import NO_CONTEXT, NO_DEPS, Scope, ToolContext
from treadle.tools.protocol import ApprovalRequest, Approver, Asker, Decision, Tool, ToolOutput
from treadle.tools.threads import THREADS
from treadle.tools.toolbox import Toolbox
from treadle.tools.user_code import FirstFailures

MAX_INNER_CHARS = 4_000_000
"""The longest result of an inner call in characters; a longer one is cut in the middle."""


# An attribute of an enum takes longer to look up than a global name.
_PURE = Effect.PURE
_PATIENCE_SECONDS = 10.0
"""How long a call without a time-out waits for an earlier attempt that could not be stopped."""
_CLOSING_SECONDS = 2.0
"""How long the closing of a scope waits for calls that could not be stopped."""
StandIn: TypeAlias = Callable[[Order, ToolSpec, Outbox], Awaitable[ToolResult | None]]
"""What answers calls in place of the tools; see `Workbench.stand_in`."""
_STILL_RUNNING = (
    "Not run: an earlier attempt at this call is still running and could not be stopped. Wait before you call it "
    "again, and check what it did."
)


class Workbench:
    """The place where one run calls the tools of its toolbox."""

    def __init__(
        self,
        toolbox: Toolbox,
        *,
        run_id: str,
        sandbox: Sandbox | None = None,
        approver: Approver | None = None,
        asker: Asker | None = None,
        rules: Rules | None = None,
        journal: Journal | None = None,
        deps: object = NO_DEPS,
        hooks: Hooks | None = None,
        clock: Clock = time,
    ) -> None:
        """Make a workbench. Without `rules`, all inner calls run and no question is asked."""
        self.toolbox = toolbox
        self.reading: Toolbox | None = None
        """The toolbox that is used once a compaction has cut something: it has tools besides that read it again.
        `None`: there are none, or `toolbox` has them."""
        self.run_id = run_id
        self.sandbox = sandbox
        self.scope = Scope()
        """The resources that tools hold for the run until it is closed."""
        self.approver = approver
        self.rules = rules or Rules()
        self.questions = Questioner(run_id, asker, self.rules)
        self.journal = journal
        """The journal that the run is kept in; `None` outside of a run."""
        self.deps = deps
        """The object that tools get as `ToolContext.deps`."""
        self.hooks = hooks
        """The hooks of the run, which the runs of sub-agents are told to too; `None` outside of a run."""
        self.clock = clock
        self.failures: FirstFailures | None = None
        """If given, a mistake in the code of a tool ends the work with an error: an unknown name, or an odd
        exception such as a `TypeError` that all of its first calls end with. The call then has no result, and is
        made again once the code is mended. By default, the model is told."""
        self.report: Callable[[str, str], None] | None = None
        """The function that gets progress reports: the id of the call and a text. `None`: nobody listens."""
        self.end_called: Callable[[Sequence[str]], Awaitable[None]] | None = None
        """The function that ends the runs which stopped calls have driven; `None` if calls drive no runs."""
        self.stand_in: StandIn | None = None
        """If given, it is asked first about each call of the model that can be made. It puts the events of the call
        into the outbox and returns the result, or returns `None` if the tool is to be called."""
        self.stopped: list[str] = []
        """The ids of the stopped calls whose runs are not ended yet."""
        self.children: dict[str, Child] = {}
        """The runs that calls without a result have driven, by call id."""
        self._asking: dict[str, Asking] = {}
        """The questions of the running calls of the model, by call id. Calls without a context have none."""

    def unoffered(self) -> tuple[ToolSpec, ...]:
        """Return the tools of `reading` that `toolbox` does not have."""
        specs = () if self.reading is None else self.reading.specs
        return tuple([spec for spec in specs if spec.name not in self.toolbox.by_name])

    def offer_reading(self) -> None:
        """Use the tools of `reading` from now on."""
        if self.reading is not None:
            self.toolbox, self.reading = self.reading, None

    async def make(self, order: Order, outbox: Outbox) -> ToolResult:
        """Make a call for the model, and return its result. The result also goes to the outbox, with changed
        files.

        Raises: `ParkedError` if the call waits for the answer to a question, or for the result of an external tool,
        so that it has no result.
        """
        call = order.call if order.edited is None else replace(order.call, arguments=order.edited)
        ready = read_call(call, self.toolbox.tools, is_cut_off=order.is_cut_off)
        if isinstance(ready, ToolResult):
            return self._complete(order, ready, outbox)
        if self.stand_in is not None:
            found = await self.stand_in(order, ready[0].spec, outbox)
            if found is not None:
                return found
        if ready[0].spec.is_external:
            outbox.put(to_started(order, call, ready[0].spec))
            raise ParkedError
        inner: InnerCalls | None = None
        asking: Asking | None = None
        if call.name not in self.toolbox.contextless:
            inner = InnerCalls(
                self.rules, self.make_inner, self.toolbox.mask, call.call_id, order.step, outbox
            )
            asking = self._asking[call.call_id] = Asking(self.questions, call.call_id, outbox)
        max_chars = self.toolbox.by_name[call.name].max_result_chars
        try:
            tool, arguments = ready
            result, blobs, seconds = await self._run(order, call, tool, arguments, outbox, inner, max_chars)
        except (ParkedError, BaseExceptionGroup):
            if asking is None or not asking.is_parked:
                raise
        finally:
            if inner is not None:
                inner.end()
            if asking is not None:
                asking.is_over = True
                del self._asking[call.call_id]
        if asking is not None and asking.is_parked:
            if self.sandbox is not None and not ready[0].spec.is_concurrent:
                self.sandbox.undo_changes()
            raise ParkedError from None
        if asking is not None and asking.open_ids:
            asking.withdraw()
        if self.sandbox is not None and self.sandbox.unprepared_bytes > LARGE_BYTES:
            await asyncio.to_thread(self.sandbox.prepare_delta)
        if inner is not None and inner.leaves_doubt(order.last_once):
            result = unknown_outcome(call)
        return self._complete(order, result, outbox, seconds, blobs, has_files=True)

    async def make_inner(
        self, decided: RunInner, arguments: str, parent_id: str, step: int, outbox: Outbox
    ) -> ToolResult:
        """Make an inner call of the running call `parent_id`, after asking for approval if it is needed.

        The tool gets `arguments`; everybody else reads those of the decided call, which have no secrets.
        """
        call, mask = decided.call, self.toolbox.mask
        order = Order(call, step, decided.attempt, parent_id)
        ready = read_call(replace(call, arguments=arguments), self.toolbox.tools)
        if not isinstance(ready, ToolResult) and ready[0].spec.is_external:
            ready = failed(call, ToolErrorKind.NOT_RUN, f"Not run: {call.name} can only be called directly.")
        if isinstance(ready, ToolResult):
            return self._complete(order, replace(ready, content=mask.hide(ready.content)), outbox)
        refused = await self._ask(call, outbox) if decided.needs_approval else None
        if refused is not None:
            return self._complete(order, refused, outbox)
        result, blobs, seconds = await self._run(order, call, *ready, outbox, None, MAX_INNER_CHARS)
        return self._complete(order, result, outbox, seconds, blobs)

    async def consult(self, call: ToolCall) -> Decision | None:
        """Ask the approver whether to run a call. Return `None` without one, or if it does not decide now."""
        spec = self.toolbox.by_name.get(call.name)
        if self.approver is None or spec is None:
            return None
        asked = self._approve(self.approver, ApprovalRequest(self.run_id, call, spec))
        return await self.questions.arrivals.first(call.call_id, asked)

    @staticmethod
    async def _approve(approver: Approver, request: ApprovalRequest) -> Decision | None:
        said = approver(request)
        if inspect.isawaitable(said):
            said = await said
        if not isinstance(said, Decision | bool | None):
            raise ConfigError(
                f"the approver returned {said!r:.200}; return a bool, a Decision, or None to decide later"
            )
        return Decision(said) if isinstance(said, bool) else said

    def stop(self, bodies: Sequence[e.DurableBody], outbox: Outbox) -> None:
        """Put the results of stopped calls, which complete the transcript, and the files that they changed.

        The results say if the call goes on in a thread, and which run it has driven.
        """
        if not bodies:
            return
        if self.end_called is not None:
            drivers = self.toolbox.drivers
            results = [body.result for body in bodies if isinstance(body, e.ToolCompleted)]
            self.stopped += {*self.children, *[item.call_id for item in results if item.name in drivers]}
        left = THREADS.of_run(self.run_id) if THREADS.left else {}
        marked: list[e.DurableBody] = []
        for body in bodies:
            if left and isinstance(body, e.ToolCompleted) and body.result.call_id in left:
                text = f"{body.result.content} It runs in a thread that could not be stopped, and goes on."
                body = replace(body, result=replace(body.result, content=text))
            if self.children and isinstance(body, e.ToolCompleted) and body.child is None:
                body = replace(body, child=self.children.pop(body.result.call_id, None))
            marked.append(body)
        snapshot, blobs = self.take_snapshot()
        outbox.put(*snapshot, *marked, blobs=blobs)

    async def end_stopped(self) -> None:
        """End the runs that stopped calls have driven."""
        call_ids, self.stopped = self.stopped, []
        if self.end_called is not None:
            await self.end_called(call_ids)

    async def close_scope(self) -> None:
        """Close what tools hold for the run. Calls that go on in threads have a moment to end before."""
        left = THREADS.of_run(self.run_id)
        if left:
            await THREADS.wait(left.values(), _CLOSING_SECONDS)
            running = [call_id for call_id, item in left.items() if not item.done()]
            if running:
                told = f"what tools hold for run {self.run_id!r} is closed, but calls go on in threads: {running}"
                asyncio.get_running_loop().call_exception_handler({"message": told})
        await self.scope.close()

    def take_snapshot(self) -> tuple[tuple[e.SnapshotTaken, ...], Blobs | None]:
        """Return an event for the sandbox's changes since the last snapshot, and the changed contents by hash.

        Without changes, return an empty tuple and `None`.
        """
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
        inner: InnerCalls | None,
        max_chars: int,
    ) -> tuple[ToolResult, Blobs | None, float]:
        """Put `tool_started` in the outbox and run the tool. Return its result, the contents of its artifacts, and
        the time that it took in seconds."""
        spec, mask = tool.spec, self.toolbox.mask
        if THREADS.left and (refused := await self._wait_for_thread(call, spec)) is not None:
            return refused, None, 0.0
        outbox.put(to_started(order, call, spec))
        if spec.effect is not _PURE or self.report is not None:
            await outbox.kept()
        context: ToolContext[Any] = NO_CONTEXT
        asking: Asking | None = None
        timer = None if spec.timeout_seconds is None else asyncio.timeout(spec.timeout_seconds)
        if call.name not in self.toolbox.contextless:
            asking = self._asking[order.parent_call_id or call.call_id]
            asking.running.append((spec.effect, timer))
            context = _CallContext(self, order.call.call_id, order.step, inner, asking)
        begin = self.clock.monotonic()
        try:
            if timer is None:
                outcome = await tool.call(arguments, context)
            else:
                async with timer:
                    outcome = await tool.call(arguments, context)
            if self.failures is not None:
                self.failures.succeed(call.name)
            if type(outcome) is str and len(outcome) <= max_chars and not mask and outcome.isascii():
                result, blobs = ToolResult(call.call_id, call.name, outcome), None  # most results are such
            elif is_large(outcome):
                result, blobs = await asyncio.to_thread(to_result, call, outcome, max_chars, mask)
            else:
                result, blobs = to_result(call, outcome, max_chars, mask)
        except TimeoutError as error:
            kind, text = ToolErrorKind.FAILED, describe_exception(error, mask)
            if timer is not None and timer.expired():
                is_running = THREADS.keep(f"{self.run_id}/{call.call_id}", error.__cause__)
                kind = ToolErrorKind.TIMEOUT
                text = describe_stop(spec, is_running=is_running)
            result, blobs = failed(call, kind, text), None
        except asyncio.CancelledError as error:
            if _is_cancelled():
                THREADS.keep(f"{self.run_id}/{call.call_id}", error)
                raise
            # This call was not cancelled; something that the tool waited for was.
            result, blobs = failed(call, ToolErrorKind.FAILED, describe_exception(error, mask)), None
        except RetryWithMessage as error:
            told = mask.hide(str(error))
            text = f"{told}\nCall {call.name} again." if told else f"Call {call.name} again."
            result, blobs = failed(call, ToolErrorKind.RETRY, text), None
        except Exception as error:
            if self.failures is not None:
                told = f"the tool {call.name!r} of run {self.run_id!r} failed"
                key = (self.run_id, call.arguments)
                if (wrong := self.failures.blame_tool(call.name, error, key, told)) is not None:
                    raise wrong from error
            if not isinstance(error, ToolError):
                logging.getLogger("treadle.tools").debug("the tool %r failed", call.name, exc_info=error)
            is_lost = isinstance(error, NoResultError)
            kind = ToolErrorKind.IN_DOUBT if is_lost else ToolErrorKind.FAILED
            result, blobs = failed(call, kind, describe_exception(error, mask)), None
        finally:
            if asking is not None:
                asking.running.pop()
        return result, blobs, self.clock.monotonic() - begin

    async def _wait_for_thread(self, call: ToolCall, spec: ToolSpec) -> ToolResult | None:
        """Wait for an earlier attempt at a call that goes on in a thread. Return a result if it does not end."""
        earlier = THREADS.left.get(f"{self.run_id}/{call.call_id}")
        if earlier is None:
            return None
        if self.report is not None:
            self.report(call.call_id, "waiting for an earlier attempt at this call, which is still running")
        await THREADS.wait([earlier], spec.timeout_seconds or _PATIENCE_SECONDS)
        return None if earlier.done() else failed(call, ToolErrorKind.TIMEOUT, _STILL_RUNNING)

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
            step=order.step,
            result=result,
            duration_seconds=seconds,
            parent_call_id=order.parent_call_id,
            child=self.children.pop(result.call_id, None) if self.children else None,
        )
        if not has_files or self.sandbox is None or not self.sandbox.has_changes:
            outbox.put(done, blobs=blobs)
            return result
        snapshot, files = self.take_snapshot()
        outbox.put(*snapshot, done, blobs={**(blobs or {}), **(files or {})} or None)
        return result

    async def _ask(self, call: ToolCall, outbox: Outbox) -> ToolResult | None:
        """Ask for the approval of an inner call. Return its result if it is refused, `None` if it may run."""
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


class _CallContext(ToolContext[Any]):
    __slots__ = ("_asking", "_bench", "_inner")

    def __init__(
        self, bench: "Workbench", call_id: str, step: int, inner: InnerCalls | None, asking: Asking
    ) -> None:
        """Make a context. An inner call has no `inner`: it cannot make further calls."""
        super().__init__(
            bench.run_id,
            call_id,
            step,
            bench.sandbox,
            scope=bench.scope,
            tools=bench.toolbox.specs,
            deps=bench.deps,
        )
        self._bench = bench
        self._inner = inner
        self._asking = asking

    @property
    def place(self) -> str:
        return self._bench.rules.find_place(self.step, self.call_id)

    @property
    def is_heard(self) -> bool:
        return self._bench.report is not None

    def progress(self, text: str) -> None:
        if (report := self._bench.report) is not None:
            report(self.call_id, self._bench.toolbox.mask.hide(text))

    async def find_result(self, call_id: str) -> ToolResult | None:
        journal = self._bench.journal
        return (
            None if journal is None else await asyncio.to_thread(find_result, journal, self.run_id, call_id)
        )

    async def find_message(self, number: int) -> str | None:
        journal = self._bench.journal
        return (
            None if journal is None else await asyncio.to_thread(find_message, journal, self.run_id, number)
        )

    async def call_tool(self, name: str, arguments: dict[str, Json]) -> ToolOutput:
        if self._inner is None:
            return await super().call_tool(name, arguments)
        return await self._inner.call(name, arguments)

    async def ask(self, question: Question | str) -> Answer:
        asked = Question(question) if isinstance(question, str) else question
        mask = self._bench.toolbox.mask
        shown = asked.without(mask) if mask else asked
        return asked.read_choice(shown, await self._asking.ask(self.call_id, shown, asked))

    async def consult(self, call: ToolCall) -> Decision | None:
        return await self._bench.consult(call)

    @property
    def journal(self) -> Journal | None:
        return self._bench.journal

    @property
    def approver(self) -> Approver | None:
        return self._bench.approver

    @property
    def hooks(self) -> Hooks | None:
        return self._bench.hooks

    def allowance(self) -> Allowance:
        return self._bench.rules.allow(self._bench.toolbox.drivers)

    def note_child(self, child: Child) -> None:
        self._bench.children[self.call_id] = child


def _is_cancelled() -> bool:
    """Return whether somebody cancelled the present task, which no frame of an error may refer to."""
    task = asyncio.current_task()
    return task is None or task.cancelling() > 0
