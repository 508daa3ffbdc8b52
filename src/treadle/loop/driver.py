"""The driver, which contains the only loop.

The loop asks `decide` for an action, calls a performer that carries it out, appends the events that the performer
puts into the run's outbox and applies them to the state, until nothing is left to do. Streaming is this loop with a
listener; resuming is this loop with a state that was read from a journal.

Invariant: a tool with an effect, the model and a listener see nothing before the events that led to it are durable.
Only the driver's recorder (`outbox.py`) appends. Messages from outside come by mail (`mail.py`).
"""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import cached_property, partial
from typing import Any

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
from treadle.core.asking import FindFault
from treadle.core.calls import abandon_turn, stop_calls
from treadle.core.decide import decide
from treadle.core.errors import JournalError
from treadle.core.state import State, Status
from treadle.core.types import Fault, StopReason
from treadle.journal.protocol import RunWriter
from treadle.loop.calls.workbench import Workbench
from treadle.loop.compaction import Compaction, give_up
from treadle.loop.inference import Inference, check_answer
from treadle.loop.listener import DeltaListener, Emit, Hooks, Listener, Progress, Publisher
from treadle.loop.mail import Mail
from treadle.loop.outbox import Outbox, Recorder
from treadle.loop.toolcalls import ToolCalls
from treadle.loop.wayout import see_through


class Driver:
    """The driver of one run. It starts from any state, owns it, and changes it in place."""

    def __init__(
        self,
        state: State,
        writer: RunWriter,
        inference: Inference,
        bench: Workbench,
        emit: Emit | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        """Make a driver for the run of `writer`, whose model `inference` asks and whose tools `bench` calls."""
        self.state = state
        self.run_id = writer.run_id
        self.bench = bench
        self.recorder = Recorder(state, writer, bench.clock, hooks)
        self.put, self.kept = self.recorder.put, self.recorder.kept
        self.mail = Mail(self.recorder, bench)
        self.find_answer_fault: FindFault | None = None
        """The function that checks answers; `None`: only their JSON Schema is checked."""
        self._inference = inference
        self._calls = ToolCalls(bench)
        self._driven, self._is_released = writer.driven, False
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop in which the run is driven; `None` before that."""
        self._own_deltas: DeltaListener | None = None
        if emit is not None:
            self.listen(emit)

    def listen(self, emit: Emit | None) -> None:
        """Call `emit` from now on with every event once it is durable, and with the deltas; `None`: call nobody."""
        listener = None if emit is None else Listener(self.run_id, emit)
        self.recorder.listen(listener)
        self._inference.on_delta = None if listener is None else listener.tell_delta
        self.bench.report = None if listener is None else Progress(listener, asyncio.get_running_loop())
        if self._loop is not None:
            self._publish(self._loop)

    def pass_deltas(self, on_delta: DeltaListener) -> None:
        """Call `on_delta` with each piece of an answer at once. Nobody waits for it, as for a listener."""
        self._own_deltas = self._inference.on_delta = on_delta

    def _publish(self, loop: asyncio.AbstractEventLoop) -> None:
        """Pass deltas to those who listen to the run by its journal, too. Without any listener, no model is asked
        for them."""
        own = self._own_deltas if self.recorder.listener is None else self.recorder.listener.tell_delta
        hearer: Publisher | None = None
        if own is not None or self._driven.listeners:
            hearer = Publisher(self.state, self._driven, own)
        self._inference.on_delta = None if hearer is None else hearer.tell_delta
        self.bench.report = None if hearer is None else Progress(hearer, loop)

    def give_up_listener(self) -> None:
        """Stop waiting for the listener; see `Listener.give_up`."""
        if self.recorder.listener is not None:
            self.recorder.listener.give_up()

    async def leave(self) -> None:
        """Close what tools hold for the run, release its lease, and wait until all is durable. Safe to repeat."""
        # A run that ended with an error may be resumed, so its tools keep what they hold outside this process.
        self.bench.scope.is_run_over = self.state.status is Status.FINISHED and not self.state.has_failed_turn
        if not self.bench.scope.is_empty:
            await see_through(self.bench.close_scope)
        if not self._is_released:
            if not self.recorder.is_held and self.mail.is_waiting:
                with suppress(JournalError):  # the next driver takes them in
                    await self.mail.take_in()
            await self.recorder.writer.release()
            self._is_released = True
        await self.recorder.finish()
        if self.recorder.listener is not None:
            self.listen(None)

    async def drive(self) -> State:
        """Run the loop until the run waits for somebody or is over, and return the state.

        Afterwards `kept` waits until all events are durable. Cancelling stops the model and the tools at once, and
        leaves a journal that can be resumed. Raises: `JournalError` if the store fails; nothing else.
        """
        state, bench, driven, mail, recorder = self.state, self.bench, self._driven, self.mail, self.recorder
        perform_inference, run_calls = self._inference.perform, self._calls.run
        has_deadline = state.policy.deadline_seconds is not None
        bench.questions.begin()
        loop = self._loop = driven.loop = asyncio.get_running_loop()
        mail.attend(loop)
        driven.on_listen = partial(self._publish, loop)
        if driven.listeners or self._inference.on_delta is not None:
            self._publish(loop)
        try:
            while True:
                if driven.newest > state.taken or driven.coming:
                    await mail.take_in()
                if (action := decide(state)) is None:
                    break
                if type(action) is Append:
                    recorder.put(*action.bodies)
                else:
                    mail.is_acting = True
                    try:
                        if has_deadline:
                            await self._perform_until(action)
                        elif type(action) is Infer:
                            await perform_inference(state, action, recorder)
                        elif type(action) is RunCalls:
                            await run_calls(state, action, recorder)
                        else:
                            await self._performer(action)(state, action, recorder)
                    except asyncio.CancelledError:
                        if not mail.has_stopped():
                            raise
                    finally:
                        mail.is_acting = False
                    if mail.stopped_by is not None:
                        self._throw_away(mail.end_stop(), StopReason.CANCELLED)
                if recorder.listener is not None:
                    await recorder.kept()
        finally:
            driven.on_listen = driven.loop = None
            mail.idle()
        if bench.stopped:
            await see_through(bench.end_stopped)
        if state.status is Status.PAUSED:
            # A run that waits for somebody holds nothing, and calls that wait for an answer begin again.
            if bench.sandbox is not None:
                bench.sandbox.undo_changes()
            if not bench.scope.is_empty:
                await see_through(bench.close_scope)
        return state

    @cached_property
    def compaction(self) -> Compaction:
        """The performer of compactions."""
        return Compaction(self._inference.model, self.bench)

    async def compact(self, *, is_whole: bool = False) -> e.ContextCompacted | None:
        """Compact the context between two turns, and return the event; `None` if there is nothing to compact. See
        `Compact` for `is_whole`."""
        event = await self.compaction.make(self.state, Compact("asked", is_whole))
        if event is not None:
            self.put(event)
            await self.kept()
        return event

    async def pause(self, reason: str) -> None:
        """Record that the run pauses. A running inference is given up; running tool calls are in doubt."""
        if self.state.status not in (Status.FINISHED, Status.PAUSED) and not self.recorder.is_held:
            self._throw_away(reason, StopReason.CANCELLED)
            self.put(e.RunPaused(reason=reason))
        await self.kept()

    async def abandon(self, reason: str) -> None:
        """End the turn without an answer, so that another can begin.

        A turn that is over or waits for the user is not changed.
        """
        is_working = self.state.turn.is_open and self.state.status is Status.RUNNING
        if not self._throw_away(reason, StopReason.CANCELLED) and is_working:
            self.bench.stop(abandon_turn(self.state), self.recorder)
        await self.drive()
        await self.kept()

    def _performer(self, action: Action) -> "Callable[[State, Any, Outbox], Awaitable[None]]":
        """Return the function that performs `action`; it takes the state, the action and the outbox."""
        if isinstance(action, Infer):
            return self._inference.perform
        if isinstance(action, RunCalls):
            return self._calls.run
        if isinstance(action, Compact):
            return self.compaction.perform
        if isinstance(action, CheckAnswer):
            return partial(check_answer, self.find_answer_fault)
        if isinstance(action, AskUser):
            return self.bench.questions.perform
        return self._calls.request_approvals if isinstance(action, RequestApprovals) else self._calls.ask

    async def _perform_until(self, action: Action) -> None:
        """Perform an action, and stop it when the deadline passes."""
        deadline_seconds = self.state.policy.deadline_seconds
        if deadline_seconds is None or isinstance(action, AskApprover | AskUser):
            # The time that somebody takes to decide does not count against the deadline.
            await self._performer(action)(self.state, action, self.recorder)
            return
        try:
            async with asyncio.timeout(max(0.0, deadline_seconds - self.state.work_seconds)) as timer:
                self.bench.questions.deadline = timer
                await self._performer(action)(self.state, action, self.recorder)
        except TimeoutError:
            if not timer.expired():
                raise
            self.recorder.reach(deadline_seconds)
            self._throw_away("the deadline passed", StopReason.DEADLINE)
            if isinstance(action, Compact):
                self.put(give_up(self.state, action, "the deadline passed"))
            self.bench.stop(stop_calls(self.state), self.recorder)
        finally:
            # A question that is put outside of any call waits for no deadline.
            self.bench.questions.deadline = None

    def _throw_away(self, why: str, stop_reason: StopReason) -> bool:
        """Record that the running inference was stopped. Return whether there was one."""
        if is_inferring := self.state.turn.asked is not None:
            failure = e.InferenceFailed(
                step=self.state.step + 1,
                error=why,
                error_type="Cancelled",
                fault=Fault.USER,
                stop_reason=stop_reason,
                may_be_billed=True,
                said="".join(self._inference.said),
            )
            self.put(failure)
        return is_inferring
