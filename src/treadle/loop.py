"""The driver: the only loop there is.

It asks `decide`, performs, appends what happened and folds it into the state, until there is nothing to do.
Streaming, resuming and replaying are this loop with a listener, with a state folded from a journal, and with
a world that answers from one.

Invariant: an event is appended before the state moves on, and nothing is told to a tool with an effect, to
the model or to a listener before what led to it is kept.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

from msgspec.structs import replace

from treadle.core import events as e
from treadle.core.decide import Action, Append, Infer, abandon_turn, decide, stop_calls
from treadle.core.errors import ProviderError
from treadle.core.state import CallState, State, Status, apply
from treadle.core.types import Effect, Fault, Request, StopReason, ToolResult
from treadle.journal.protocol import RunWriter
from treadle.models.protocol import Model, Watch
from treadle.perform import (
    call_ids_of,
    describe_failure,
    read_call,
    run_together,
    run_tool,
    share_prompt,
    whole_prompt,
    with_ids,
)
from treadle.sandbox.protocol import Sandbox
from treadle.tools.protocol import Toolbox, ToolContext

Emit = Callable[[e.Event | e.Ephemeral], None]


class Driver:
    """Drives one run, from whatever state it is in."""

    def __init__(
        self,
        state: State,
        writer: RunWriter,
        model: Model,
        toolbox: Toolbox,
        sandbox: Sandbox | None = None,
        emit: Emit | None = None,
    ) -> None:
        self.state = state
        self._writer = writer
        self._model = model
        self._tools = toolbox.tools
        self._specs = toolbox.specs
        self.sandbox = sandbox
        self._unsent: list[e.Event] = []
        self._call_ids: set[str] = set()
        self._token_ids: tuple[int, ...] = ()
        self._telling: asyncio.Future[None] | None = None
        self.listen(emit)

    def listen(self, emit: Emit | None) -> None:
        """From now on tell `emit` what is kept, and the deltas between."""
        self._emit = emit
        self._loop = asyncio.get_running_loop()

    async def drive(self) -> State:
        """Go on until the run waits for somebody or is over; `sync` then says when all of it is kept.

        Cancelling stops the model and the tools at once, and leaves a journal that can be resumed.
        Raises: `JournalError` if the store refuses; nothing else.
        """
        while (action := decide(self.state)) is not None:
            if self.state.policy.deadline_seconds is None:
                await self._perform(action)
                continue
            left = self.state.policy.deadline_seconds - self.state.work_seconds
            try:
                async with asyncio.timeout(max(0.0, left)) as timer:
                    await self._perform(action)
            except TimeoutError:
                if not timer.expired():
                    raise
                self._on_deadline()
        return self.state

    async def pause(self, reason: str) -> None:
        """Note that nobody drives the run any more; what was under way is thrown away or in doubt."""
        if self.state.status is not Status.FINISHED:
            self._throw_away(reason, StopReason.CANCELLED)
            self.record(e.RunPaused(at=time.time(), reason=reason))
        await self.sync()

    async def abandon(self, reason: str) -> None:
        """End the turn without its answer, so that another can begin.

        One that is over, or waits for the user, stays as it is.
        """
        is_working = self.state.is_turn_open and self.state.status is Status.RUNNING
        if not self._throw_away(reason, StopReason.CANCELLED) and is_working:
            self._record_now(abandon_turn(self.state), with_files=True)
        await self.drive()
        await self.sync()

    def take_snapshot(self) -> tuple[tuple[e.SnapshotTaken, ...], Mapping[str, bytes] | None]:
        """What changed in the sandbox, to be recorded with what changed it; none if nothing did."""
        changes = self.sandbox.take_delta() if self.sandbox is not None else None
        if changes is None or self.sandbox is None:
            return (), None
        delta, blobs = changes
        taken = e.SnapshotTaken(at=time.time(), snapshot_id=self.sandbox.snapshot_id, delta=delta)
        return (taken,), blobs

    def record(self, *bodies: e.DurableBody, blobs: Mapping[str, bytes] | None = None) -> None:
        """Append events, all or none, and let the state move on."""
        self._writer.append(bodies, blobs)
        state = self.state
        for body in bodies:
            state = apply(state, body)
            if self._emit is not None:
                self._unsent.append(e.Event(self._writer.run_id, state.seq, body))
        self.state = state

    def adopt(self, events: Sequence[e.Event]) -> None:
        """Begin with the events of another run, as they were read: what a newer version added is kept."""
        self._writer.append_events(events)
        for event in events:
            self.state = apply(self.state, event.body)
            if self._emit is not None:
                self._unsent.append(replace(event, run_id=self._writer.run_id))

    async def sync(self) -> None:
        """Wait until what was recorded is kept, then tell it to the listener."""
        kept_seq = self.state.seq
        await self._writer.sync()
        if self._emit is not None:
            # While this waited, another call of the step may have recorded more, which is not kept yet.
            while self._unsent and self._unsent[0].seq <= kept_seq:
                self._emit(self._unsent.pop(0))

    def _record_now(self, bodies: Sequence[e.DurableBody], *, with_files: bool = False) -> None:
        """Record what was decided, which knows no clock; and the files that calls changed until stopped."""
        snapshot, blobs = self.take_snapshot() if with_files and bodies else ((), None)
        now = time.time()
        self.record(*snapshot, *[replace(body, at=now) for body in bodies], blobs=blobs)

    async def _perform(self, action: Action) -> None:
        if isinstance(action, Infer):
            await self._infer(action)
        elif isinstance(action, Append):
            self._record_now(action.bodies)
        elif len(action.calls) == 1:
            await self._run_call(action.calls[0])
        else:
            await self._run_calls(action.calls)
        if self._emit is not None:
            await self.sync()

    async def _infer(self, action: Infer) -> None:
        messages, step = self.state.messages, action.step
        begin = time.time()
        self.record(
            e.InferenceStarted(at=begin, step=step, messages=len(messages), has_tools=action.has_tools)
        )
        await self.sync()
        # Made anew: kept, it would make a cycle of the driver, and finished runs would wait for the collector.
        watch = Watch(self._on_delta if self._emit is not None else None, self._on_failed_attempt)
        try:
            completion = await self._model.infer(
                Request(messages, self._specs if action.has_tools else ()), watch
            )
        except Exception as error:
            self.record(describe_failure(error, step, time.time()))
            return
        if completion.message.tool_calls:
            self._call_ids = self._call_ids or call_ids_of(messages)
            completion = with_ids(completion, step, self._call_ids)
        if completion.tokens is not None:
            tokens = share_prompt(completion.tokens, self._token_ids)
            self._token_ids = whole_prompt(tokens, self._token_ids)
            completion = replace(completion, tokens=tokens)
        now = time.time()
        self.record(
            e.InferenceCompleted(at=now, step=step, completion=completion, duration_seconds=now - begin)
        )

    async def _run_calls(self, calls: Sequence[CallState]) -> None:
        """Run calls in order; neighbours that may run beside others run together."""
        start = 0
        while start < len(calls):
            end = start + 1
            if self._is_concurrent(calls[start]):
                while end < len(calls) and self._is_concurrent(calls[end]):
                    end += 1
            if end - start == 1:
                await self._run_call(calls[start])
            else:
                slots = asyncio.Semaphore(self.state.policy.parallel_tool_calls)
                await run_together([self._run_in_slot(slots, item) for item in calls[start:end]])
            start = end

    def _is_concurrent(self, item: CallState) -> bool:
        tool = self._tools.get(item.call.name)
        return tool is None or tool.spec.is_concurrent

    async def _run_in_slot(self, slots: asyncio.Semaphore, item: CallState) -> None:
        async with slots:
            await self._run_call(item)

    async def _run_call(self, item: CallState) -> None:
        call, step = item.call, self.state.step
        ready = read_call(call, self._tools, self.state.finish_reason)
        begin = time.time()
        if isinstance(ready, ToolResult):
            self.record(e.ToolCompleted(at=begin, step=step, result=ready))
            return
        tool, arguments = ready
        effect = tool.spec.effect
        self.record(
            e.ToolStarted(
                at=begin,
                step=step,
                call_id=call.call_id,
                name=call.name,
                effect=effect,
                attempt=item.attempt + 1,
            )
        )
        if effect is not Effect.PURE or self._emit is not None:
            await self.sync()
        context = ToolContext(self._writer.run_id, call.call_id, step, self.sandbox, self._on_progress)
        result = await run_tool(call, tool, arguments, context)
        now = time.time()
        done = e.ToolCompleted(at=now, step=step, result=result, duration_seconds=now - begin)
        snapshot, blobs = self.take_snapshot()
        self.record(*snapshot, done, blobs=blobs)
        if self._emit is not None:
            await self.sync()

    def _on_deadline(self) -> None:
        """Settle what the deadline stopped, so that the transcript is whole."""
        self._throw_away("the deadline passed", StopReason.DEADLINE)
        self._record_now(stop_calls(self.state), with_files=True)

    def _throw_away(self, why: str, stop_reason: StopReason) -> bool:
        """Record that the inference under way was stopped; whether there was one."""
        is_inferring = self.state.is_inferring
        if is_inferring:
            failure = e.InferenceFailed(
                at=time.time(),
                step=self.state.step + 1,
                error=why,
                error_type="Cancelled",
                fault=Fault.USER,
                stop_reason=stop_reason,
            )
            self.record(failure)
        return is_inferring

    def _on_delta(self, delta: e.Delta) -> None:
        if self._emit is not None:
            self._emit(e.Ephemeral(self._writer.run_id, delta))

    def _on_progress(self, call_id: str, text: str) -> None:
        # A tool in a thread reports from there.
        if self._emit is not None:
            self._loop.call_soon_threadsafe(self._on_delta, e.ToolProgress(call_id, text))

    def _on_failed_attempt(self, error: ProviderError, attempt: int, delay_seconds: float) -> None:
        failure = describe_failure(error, self.state.step + 1, time.time())
        self.record(replace(failure, attempt=attempt, retry_in_seconds=delay_seconds))
        if self._emit is not None:
            self._telling = asyncio.ensure_future(self.sync())
