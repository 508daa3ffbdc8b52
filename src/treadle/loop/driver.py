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
from treadle.core.decide import (
    Action,
    Append,
    Ask,
    CheckAnswer,
    Infer,
    RequestApprovals,
    RunCalls,
    abandon_turn,
    decide,
    stop_calls,
)
from treadle.core.errors import ProviderError
from treadle.core.state import State, Status, apply
from treadle.core.types import Fault, StopReason
from treadle.journal.protocol import RunWriter
from treadle.loop.answers import check_answer, make_request
from treadle.loop.perform import call_ids_of, describe_failure, share_prompt, whole_prompt, with_ids
from treadle.loop.toolcalls import ask, request_approvals, run_calls
from treadle.models.protocol import Model, Watch
from treadle.sandbox.protocol import Sandbox
from treadle.tools.context import Scope
from treadle.tools.protocol import Approver
from treadle.tools.toolbox import Toolbox

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
        approver: Approver | None = None,
    ) -> None:
        self.state = state
        self._writer = writer
        self.run_id = writer.run_id
        self._model = model
        self.toolbox = toolbox.under(state.policy)
        self.sandbox = sandbox
        self.approver = approver
        self.scope = Scope()
        """What tools hold for the run, until `close`."""
        self._unsent: list[e.Event] = []
        self._call_ids: set[str] = set()
        self._token_ids: tuple[int, ...] = ()
        self._telling: asyncio.Future[None] | None = None
        self.listen(emit)

    def listen(self, emit: Emit | None) -> None:
        """From now on tell `emit` what is kept, and the deltas between."""
        self._emit = emit
        self._loop = asyncio.get_running_loop()

    @property
    def is_heard(self) -> bool:
        """Somebody listens."""
        return self._emit is not None

    async def close(self) -> None:
        """Give back what tools hold for the run; it can be driven on, and they take it anew."""
        # One that ended with an error may be resumed, and then needs what its tools hold elsewhere.
        has_failed = self.state.stop_reason is StopReason.ERROR
        self.scope.is_run_over = self.state.status is Status.FINISHED and not has_failed
        await self.scope.close()

    async def drive(self) -> State:
        """Go on until the run waits for somebody or is over; `sync` then says when all of it is kept.

        Cancelling stops the model and the tools at once, and leaves a journal that can be resumed.
        Raises: `JournalError` if the store refuses; nothing else.
        """
        while (action := decide(self.state)) is not None:
            # Time that somebody takes to decide is not the run's.
            if self.state.policy.deadline_seconds is None or isinstance(action, Ask):
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
        elif isinstance(action, RunCalls):
            await run_calls(self, action.calls)
        elif isinstance(action, CheckAnswer):
            self._record_now(check_answer(self.state, action))
        elif isinstance(action, RequestApprovals):
            await request_approvals(self, action.calls)
        else:
            await ask(self, action.calls[0].call)
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
            request = make_request(self, has_tools=action.has_tools)
            completion = await self._model.infer(request, watch)
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

    def on_progress(self, call_id: str, text: str) -> None:
        """Tell the listener what a tool reports, from whatever thread."""
        if self._emit is not None:
            self._loop.call_soon_threadsafe(self._on_delta, e.ToolProgress(call_id, text))

    def _on_failed_attempt(self, error: ProviderError, attempt: int, delay_seconds: float) -> None:
        failure = describe_failure(error, self.state.step + 1, time.time())
        self.record(replace(failure, attempt=attempt, retry_in_seconds=delay_seconds))
        if self._emit is not None:
            self._telling = asyncio.ensure_future(self.sync())
