"""The driver, which contains the only loop.

The loop asks `decide` for an action, calls a performer that carries it out, appends the events that the performer
returns and applies them to the state, until nothing is left to do. Streaming is this loop with a listener; resuming
is this loop with a state that was read from a journal.

Invariant: an event is appended before the state changes. A tool with an effect, the model and a listener see
nothing before the events that led to it are durable. Only the driver appends.
"""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import cached_property, partial
from typing import Any

from msgspec.structs import force_setattr as stamp
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
from treadle.core.asking import FindFault, to_answer
from treadle.core.calls import abandon_turn, stop_calls
from treadle.core.decide import decide
from treadle.core.errors import JournalError
from treadle.core.inbox import Posted, events_of, kind_of, stops
from treadle.core.state import State, Status, advance
from treadle.core.types import Fault, StopReason
from treadle.journal.driven import DrivenRun, OnMail
from treadle.journal.protocol import Clock, RunWriter
from treadle.loop.calls.questions import find_form_fault
from treadle.loop.calls.workbench import Workbench
from treadle.loop.compaction import Compaction, give_up
from treadle.loop.hooks import MANY, Hooks
from treadle.loop.inference import Inference, check_answer
from treadle.loop.listener import Emit, Listener
from treadle.loop.outbox import DONE, Outbox
from treadle.loop.toolcalls import ToolCalls
from treadle.loop.wayout import see_through
from treadle.models.protocol import Model
from treadle.tools.protocol import Decision


class Driver:
    """The driver of one run. It starts from any state, owns it, and changes it in place."""

    def __init__(
        self,
        state: State,
        writer: RunWriter,
        model: Model,
        bench: Workbench,
        emit: Emit | None = None,
        hooks: Hooks | None = None,
    ) -> None:
        """Make a driver for the run of `writer`, whose tools are called on `bench`."""
        self.state = state
        self.run_id = writer.run_id
        self._writer = writer
        clock = self._clock = bench.clock
        read_blob = None if bench.journal is None else bench.journal.read_blob
        self._model = model
        self._inference = _make_inference(model, read_blob, clock)
        self.bench = bench
        self._calls = ToolCalls(bench)
        self.find_answer_fault: FindFault | None = None
        """The function that checks answers; `None`: only their JSON Schema is checked."""
        self._worked_seconds, self._stamped_at = state.work_seconds, clock.monotonic()
        self.kept_events: list[e.Event] | None = None
        """The events that this driver appended, in memory; `None` if they are not kept."""
        self._unsent: deque[e.Event] = deque()
        """The events that the listener has not been told."""
        self._hooks = hooks or None
        self._held: tuple[e.DurableBody, ...] = ()
        """The run's first events, until they are appended together with the next ones."""
        self._held_blobs: Mapping[str, bytes] | None = None
        self._unhooked: list[e.DurableBody] = []
        """The bodies of the events that the hooks have not been told."""
        self._is_released = False
        self._driven = writer.driven
        self._task: asyncio.Task[Any] | None = None
        """The task that drives the run; `None` if none does."""
        self._cancellations = 0
        """How often that task had been cancelled when it began to drive the run."""
        self._is_acting = False
        """True while an action is performed, and not between two actions."""
        self._stopped_by: str | None = None
        """The tag of the message that has stopped the action; `None` if none has."""
        self.on_mail: OnMail | None = None
        """The function that is told of messages that arrive while nobody drives the run on."""
        self.on_taken: Callable[[int, int | None], None] | None = None
        """The function that is told of each message that was taken in: its number, and the number of the event with
        the user's message in it, if there is one."""
        self._listener: Listener | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        """The event loop in which the run is driven; `None` before that."""
        self.listen(emit)

    def listen(self, emit: Emit | None) -> None:
        """Call `emit` from now on with every event once it is durable, and with the deltas; `None`: call nobody."""
        if self._listener is not None:
            self._listener.end()
        listener = self._listener = None if emit is None else Listener(self.run_id, emit)
        self._inference.on_delta = None if listener is None else listener.tell_delta
        self.bench.report = None if listener is None else _Progress(listener, asyncio.get_running_loop())
        if self._driven.listeners and self._loop is not None:
            self._publish(self._loop)

    def _publish(self, loop: asyncio.AbstractEventLoop) -> None:
        """Pass deltas to those who listen to the run in this process, too, as long as there are any."""
        hearer: Listener | _Publisher | None = self._listener
        if self._driven.listeners:
            hearer = _Publisher(self.state, self._driven, self._listener)
        self._inference.on_delta = None if hearer is None else hearer.tell_delta
        self.bench.report = None if hearer is None else _Progress(hearer, loop)

    def give_up_listener(self) -> None:
        """Stop waiting for the listener; see `Listener.give_up`."""
        if self._listener is not None:
            self._listener.give_up()

    async def leave(self) -> None:
        """Close what tools hold for the run, release its lease, and wait until all is durable. Safe to repeat."""
        # A run that ended with an error may be resumed, so its tools keep what they hold outside this process.
        has_failed = self.state.ending.stop_reason is StopReason.ERROR
        self.bench.scope.is_run_over = self.state.status is Status.FINISHED and not has_failed
        if not self.bench.scope.is_empty:
            await see_through(self.bench.close_scope)
        if not self._is_released:
            if not self._held and self.has_mail:
                with suppress(JournalError):  # the next driver takes them in
                    await self.take_in()
            await self._writer.release()
            self._is_released = True
        if not self._held:
            is_heard = self._hooks is not None or self._listener is not None
            await (self._tell() if is_heard else self._writer.sync())
        self.listen(None)
        if self._hooks is not None:
            self._hooks.leave(self.run_id)

    async def drive(self) -> State:
        """Run the loop until the run waits for somebody or is over, and return the state.

        Afterwards `kept` waits until all events are durable. Cancelling stops the model and the tools at once, and
        leaves a journal that can be resumed. Raises: `JournalError` if the store fails; nothing else.
        """
        state, bench, driven = self.state, self.bench, self._driven
        bench.questions.begin()
        self._attend()
        perform_inference, has_deadline = self._inference.perform, state.policy.deadline_seconds is not None
        # No variable has the task: it keeps its cancellation, whose traceback has this frame, alive.
        self._task = asyncio.current_task()
        self._cancellations = 0 if self._task is None else self._task.cancelling()
        try:
            while True:
                if driven.newest > state.taken or driven.coming:
                    await self.take_in()
                if (action := decide(state)) is None:
                    break
                if isinstance(action, Append):
                    self.put(*action.bodies)
                else:
                    self._is_acting = True
                    try:
                        if has_deadline:
                            await self._perform_until(action)
                        elif isinstance(action, Infer):
                            await perform_inference(state, action, self)
                        else:
                            await self._performer(action)(state, action, self)
                    except asyncio.CancelledError:
                        if not self._is_stopped():
                            raise
                    finally:
                        self._is_acting = False
                    if self._stopped_by is not None:
                        self._note_stopped()
                if self._listener is not None:
                    await self.kept()
        finally:
            self._task = self._stopped_by = None
            bench.questions.arrivals.on_wait = driven.on_listen = None
            self.attend_idle()
        if state.status is Status.PAUSED:
            # A run that waits for somebody holds nothing, and calls that wait for an answer begin again.
            if bench.sandbox is not None:
                bench.sandbox.undo_changes()
            if not bench.scope.is_empty:
                await see_through(bench.close_scope)
        return state

    @property
    def has_mail(self) -> bool:
        """True if messages have arrived that were not taken in."""
        return self._driven.newest > self.state.taken or bool(self._driven.coming)

    def attend_idle(self) -> None:
        """Call `on_mail` when a message arrives, until the run is driven on."""
        self._driven.attend(self.on_mail)

    def _is_stopped(self) -> bool:
        """Return whether a message, and nobody else, has cancelled the action."""
        if self._stopped_by is None or self._task is None:
            return False
        return self._task.cancelling() == self._cancellations + 1

    def _note_stopped(self) -> None:
        """Go on after an action that a message has cancelled, and which may have caught that."""
        assert self._task is not None
        kind, self._stopped_by = self._stopped_by, None
        self._task.uncancel()
        self._throw_away(_STOPPED.get(kind or "", kind or ""), StopReason.CANCELLED)

    def _attend(self) -> None:
        """Hear of messages while the run is driven."""
        loop = self._loop = asyncio.get_running_loop()

        def on_mail(kind: str) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._hear, kind)

        self._driven.attend(on_mail)
        self._driven.on_listen = partial(self._publish, loop)
        if self._driven.listeners:
            self._publish(loop)
        self.bench.questions.arrivals.on_wait = self._look

    def _hear(self, kind: str) -> None:
        """Stop the action if a message with the tag `kind` wants that; take it in at once if somebody is asked."""
        if self._task is None or not self._is_acting:  # it is taken in before the next action
            return
        if stops(self.state, kind):
            if self._stopped_by is None:
                self._stopped_by = kind
                self._task.cancel()
        elif self.bench.questions.arrivals:
            self._look()

    def _look(self) -> None:
        """Take in what has arrived while somebody is asked, because it may have the answer."""
        if self.has_mail:
            self._looking = asyncio.ensure_future(self._take_in_answers())

    async def _take_in_answers(self) -> None:
        with suppress(JournalError):  # the next action fails too
            await self.take_in(is_acting=True)

    async def take_in(self, *, is_acting: bool = False) -> None:
        """Take in the messages that have arrived: append the events that they mean.

        If `is_acting`, an action is under way: the first message that stops it, and all later ones, then stay
        in the inbox.
        """
        driven, state = self._driven, self.state
        while driven.coming:
            stored = asyncio.wrap_future(driven.coming[0])
            await asyncio.wait([stored])  # which does not cancel it, so that no message is lost
            driven.coming.popleft()
            _ = stored.cancelled() or stored.exception()
        newest = driven.newest
        found = await asyncio.to_thread(driven.read, state.taken)
        for posted in found:
            if posted.number > state.taken:
                if is_acting and posted.message is not None and stops(state, kind_of(posted.message)):
                    return
                self._take(posted)
        if not found:
            driven.forget(newest, state.taken)

    def _take(self, posted: Posted) -> None:
        """Append the events that a message means, and give an answer to those who wait for it."""
        state, first_seq = self.state, self.state.seq + 1
        bodies = events_of(state, posted, find_form_fault)
        if any([isinstance(body, e.TurnCompleted) for body in bodies]):
            self._put_stopped(bodies)
        else:
            self.put(*bodies)
        self._writer.take_in(posted.number)
        arrivals = self.bench.questions.arrivals
        for body in bodies:
            if isinstance(body, e.QuestionAnswered):
                arrivals.settle(body.question_id, to_answer(body.text))
            elif isinstance(body, e.ApprovalDecided):
                arrivals.settle(body.call_id, Decision(body.is_approved, body.reason, body.arguments))
        if self.on_taken is not None:
            has_said = isinstance(bodies[0], e.MessageInjected)
            self.on_taken(posted.number, first_seq if has_said else None)

    @cached_property
    def _compaction(self) -> Compaction:
        return Compaction(self._model, self._clock)

    async def compact(self) -> e.ContextCompacted | None:
        """Compact the context between two turns, and return the event; `None` if there is nothing to compact."""
        event = await self._compaction.make(self.state, Compact("asked"))
        if event is not None:
            self.put(event)
            await self.kept()
        return event

    async def pause(self, reason: str) -> None:
        """Record that the run pauses. A running inference is given up; running tool calls are in doubt."""
        if self.state.status not in (Status.FINISHED, Status.PAUSED) and not self._held:
            self._throw_away(reason, StopReason.CANCELLED)
            self.put(e.RunPaused(reason=reason))
        await self.kept()

    async def abandon(self, reason: str) -> None:
        """End the turn without an answer, so that another can begin.

        A turn that is over or waits for the user is not changed.
        """
        is_working = self.state.turn.is_open and self.state.status is Status.RUNNING
        if not self._throw_away(reason, StopReason.CANCELLED) and is_working:
            self._put_stopped(abandon_turn(self.state))
        await self.drive()
        await self.kept()

    def hold(self, *bodies: e.DurableBody, blobs: Mapping[str, bytes] | None = None) -> None:
        """Apply a new run's first events to the state, and append them together with the next ones.

        A run that gets no more events never exists in the journal.
        """
        now = self._clock.time()
        for body in bodies:
            stamp(body, "at", now)
            advance(self.state, body)
        self._held, self._held_blobs = bodies, blobs

    @property
    def is_held(self) -> bool:
        """True if the run's first events are not appended yet."""
        return bool(self._held)

    def put(self, *bodies: e.DurableBody, blobs: Mapping[str, bytes] | None = None) -> None:
        """Append events, all or none, and apply them to the state."""
        if not bodies:
            return
        now, state = self._clock.time(), self.state
        for body in bodies:
            stamp(body, "at", now)
        if state.policy.deadline_seconds is not None:
            self._stamp_work(bodies)
        if self._held:
            self._append_held(bodies, blobs)
        else:
            self._writer.append(bodies, blobs)
        for body in bodies:
            advance(state, body)
        if self._hooks is not None:
            self._unhooked += bodies
        if self._listener is not None or self.kept_events is not None:
            first_seq = state.seq - len(bodies) + 1
            events = [e.Event(self.run_id, seq, body) for seq, body in enumerate(bodies, first_seq)]
            if self._listener is not None:
                self._unsent += events
            if self.kept_events is not None:
                self.kept_events += events

    def _append_held(self, bodies: tuple[e.DurableBody, ...], blobs: Mapping[str, bytes] | None) -> None:
        held, self._held = self._held, ()
        self._writer.append((*held, *bodies), {**(self._held_blobs or {}), **(blobs or {})} or None)
        # A turn's listener is not told of the beginning of its session.
        if self._hooks is not None:
            self._unhooked += held
        if self.kept_events is not None:
            self.kept_events += [e.Event(self.run_id, seq, body) for seq, body in enumerate(held, 1)]

    def _stamp_work(self, bodies: Sequence[e.DurableBody]) -> None:
        """Set how long the turn has been worked on."""
        now = self._clock.monotonic()
        for body in bodies:
            if isinstance(body, e.TurnStarted):
                self._worked_seconds = 0.0
            elif not isinstance(body, e.ApprovalDecided | e.QuestionAnswered | e.RunPaused | e.RunResumed):
                # The time in which somebody decides, or nobody works, does not count.
                self._worked_seconds += now - self._stamped_at
            self._stamped_at = now
            stamp(body, "worked_seconds", self._worked_seconds)

    def adopt(self, events: Sequence[e.Event]) -> None:
        """Append copies of another run's events, with their times and with fields that this version does not
        know."""
        self._writer.append_events(events)
        for event in events:
            advance(self.state, event.body)
            if self._listener is not None:
                self._unsent.append(replace(event, run_id=self.run_id))
        if self._hooks is not None:
            self._unhooked += [event.body for event in events]
        self._worked_seconds = self.state.work_seconds

    def kept(self) -> Awaitable[None]:
        """Wait until all appended events are durable, then pass them to the hooks and the listener."""
        if self._held:
            return DONE
        if self._listener is None and not (self._unhooked and self._are_hooks_due()):
            return self._writer.sync()
        return self._tell()

    def _are_hooks_due(self) -> bool:
        """Return whether the hooks are to be told now. Patient ones are told when the turn ends or pauses."""
        hooks, state = self._hooks, self.state
        assert hooks is not None
        if not hooks.is_patient or not state.turn.is_open or len(self._unhooked) >= MANY:
            return True
        return state.status is not Status.RUNNING

    async def _tell(self) -> None:
        kept_seq = self.state.seq
        await self._writer.sync()
        # Meanwhile, another call of the step may have appended events that are not durable yet.
        if self._hooks is not None and (found := self._unhooked):
            first_seq = self.state.seq - len(found) + 1
            self._unhooked = found[kept_seq - first_seq + 1 :]
            self._hooks.tell(self.run_id, first_seq, found[: kept_seq - first_seq + 1])
        while self._listener is not None and self._unsent and self._unsent[0].seq <= kept_seq:
            self._listener.tell(self._unsent.popleft())
        if self._listener is not None:
            await self._listener.idle()

    def _performer(self, action: Action) -> "Callable[[State, Any, Outbox], Awaitable[None]]":
        """Return the function that performs `action`; it takes the state, the action and the outbox."""
        if isinstance(action, Infer):
            return self._inference.perform
        if isinstance(action, RunCalls):
            return self._calls.run
        if isinstance(action, Compact):
            return self._compaction.perform
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
            await self._performer(action)(self.state, action, self)
            return
        try:
            async with asyncio.timeout(max(0.0, deadline_seconds - self.state.work_seconds)) as timer:
                self.bench.questions.deadline = timer
                await self._performer(action)(self.state, action, self)
        except TimeoutError:
            if not timer.expired():
                raise
            # The event loop's timers may ring a little early.
            self._worked_seconds = max(self._worked_seconds, deadline_seconds)
            self._throw_away("the deadline passed", StopReason.DEADLINE)
            if isinstance(action, Compact):
                self.put(give_up(self.state, action, "the deadline passed"))
            self._put_stopped(stop_calls(self.state))
        finally:
            # A question that is put outside of any call waits for no deadline.
            self.bench.questions.deadline = None

    def _put_stopped(self, bodies: Sequence[e.DurableBody]) -> None:
        """Append the results of stopped calls, which complete the transcript, and the files that they changed."""
        snapshot, blobs = self.bench.take_snapshot() if bodies else ((), None)
        self.put(*snapshot, *self.bench.mark_running(bodies), blobs=blobs)

    def _throw_away(self, why: str, stop_reason: StopReason) -> bool:
        """Record that the running inference was stopped. Return whether there was one."""
        is_inferring = self.state.turn.asked is not None
        if is_inferring:
            failure = e.InferenceFailed(
                step=self.state.step + 1,
                error=why,
                error_type="Cancelled",
                fault=Fault.USER,
                stop_reason=stop_reason,
                may_be_billed=True,
            )
            self.put(failure)
        return is_inferring


def _make_inference(model: Model, read_blob: Callable[[str], bytes] | None, clock: Clock) -> Inference:
    """Return the performer of one run's inferences. Raises: `ConfigError` for a router that cannot be used."""
    if getattr(model, "tiers", None) is not None:
        from treadle.loop.routing import RoutedInference
        from treadle.models.wrappers.tiered import TieredModel

        if isinstance(model, TieredModel):
            return RoutedInference(model, read_blob, clock)
    return Inference(model, read_blob, clock)


_STOPPED = {"cancel": "cancelled", "interrupt": "interrupted"}
"""Why an action was stopped, by the tag of the message that has stopped it."""


class _Publisher:
    """A function that passes deltas to the listener of a run, and to those who listen to it in this process."""

    __slots__ = ("_driven", "_listener", "_state")

    def __init__(self, state: State, driven: DrivenRun, listener: Listener | None) -> None:
        self._state = state
        self._driven = driven
        self._listener = listener

    @property
    def is_over(self) -> bool:
        """False: somebody may listen."""
        return False

    def tell_delta(self, delta: e.Delta) -> None:
        """Pass a delta on."""
        if self._listener is not None:
            self._listener.tell_delta(delta)
        for listener in self._driven.listeners:
            listener(self._state.seq, delta)


class _Progress:
    """A function that passes a tool's progress reports to a listener. Any thread may call it."""

    __slots__ = ("_listener", "_loop")

    def __init__(self, listener: "Listener | _Publisher", loop: asyncio.AbstractEventLoop) -> None:
        self._listener = listener
        self._loop = loop

    def __call__(self, call_id: str, text: str) -> None:
        # A thread that a tool left behind may report when the event loop is closed.
        if not self._listener.is_over:
            self._loop.call_soon_threadsafe(self._listener.tell_delta, e.ToolProgress(call_id, text))
