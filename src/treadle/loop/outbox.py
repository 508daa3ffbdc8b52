"""The outbox: the stream in which a performer returns events while it works.

A performer puts events into an outbox in order, and does not know who reads them: a run's `Recorder` appends them
to the journal, `verify` compares them, and others ignore them.

Invariant: an event is appended before the state changes. Hooks and listeners are told of it once it is durable.
"""

from collections import deque
from collections.abc import Awaitable, Mapping, Sequence
from typing import Protocol

from msgspec.structs import force_setattr as stamp
from msgspec.structs import replace

from treadle.core import events as e
from treadle.core.calls import waiting_calls
from treadle.core.state import State, Status, advance
from treadle.journal.protocol import DONE, Clock, RunWriter
from treadle.loop.listener import MANY, Hooks, Listener


class Outbox(Protocol):
    """The receiver of a performer's events."""

    def put(self, *bodies: e.DurableBody, blobs: Mapping[str, bytes] | None = None) -> None:
        """Take the next events, all or none, with the contents that they refer to. Their times are not set yet."""
        ...

    def kept(self) -> Awaitable[None]:
        """Wait until all events that were put are durable. Raises: `JournalError`."""
        ...


class Collected:
    """An outbox without a journal: it keeps the events in a list."""

    def __init__(self) -> None:
        self.bodies: list[e.DurableBody] = []

    def put(self, *bodies: e.DurableBody, blobs: Mapping[str, bytes] | None = None) -> None:
        """Add the events to the list."""
        self.bodies += bodies

    def kept(self) -> Awaitable[None]:
        """Return an awaitable that is finished, because there is nothing to wait for."""
        return DONE


class Recorder:
    """The outbox of a run whose lease this process holds. It appends events, and changes the state in place."""

    def __init__(
        self, state: State, writer: RunWriter, clock: Clock, hooks: Hooks | None = None, *, works: bool = True
    ) -> None:
        """Make a recorder. With `works` false, nobody works on the run, so the time that passes does not count."""
        self.state = state
        self.run_id = writer.run_id
        self.writer = writer
        self.listener: Listener | None = None
        """The queue in front of the function that is told of the run's events; `None` if there is none."""
        self._kept: list[e.DurableBody] | None = None
        """The bodies of the newest events, in memory; `None` if they are not kept."""
        self._is_read = bool(hooks)
        """True if anybody is told of the events: hooks or a listener."""
        self._clock = clock
        self._works = works
        self._worked_seconds, self._stamped_at = state.work_seconds, clock.monotonic()
        self._hooks = hooks or None
        self._unsent: deque[e.Event] = deque()
        """The events that the listener has not been told."""
        self._unhooked: list[e.DurableBody] = []
        """The bodies of the events that the hooks have not been told."""
        self._held: tuple[e.DurableBody, ...] = ()
        """The run's first events, until they are appended together with the next ones."""
        self._held_blobs: Mapping[str, bytes] | None = None

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

    def append_held(self) -> None:
        """Append the run's first events, so that the journal has the run."""
        if self._held:
            self._append_held((), None)

    def keep_events(self) -> None:
        """Keep the events that are appended from now on in memory."""
        self._kept = []

    @property
    def kept_events(self) -> list[e.Event] | None:
        """The events that were appended since `keep_events`; `None` if they are not kept."""
        if self._kept is None:
            return None
        first_seq = self.state.seq - len(self._kept) + 1
        return [e.Event(self.run_id, seq, body) for seq, body in enumerate(self._kept, first_seq)]

    def put(self, *bodies: e.DurableBody, blobs: Mapping[str, bytes] | None = None) -> None:
        """Append events, all or none, and apply them to the state."""
        if not bodies:
            return
        now, state = self._clock.time(), self.state
        for body in bodies:
            stamp(body, "at", now)
        if state.policy.deadline_seconds is not None:
            self._stamp_work(bodies)
        is_read = self._is_read
        if is_read and self._hooks is not None and self._hooks.traces:
            self._hooks.trace(self.run_id, state, bodies)
        if self._held:
            self._append_held(bodies, blobs)
        else:
            self.writer.append(bodies, blobs)
        for body in bodies:
            advance(state, body)
        if self._kept is not None:
            self._kept += bodies
        if is_read:
            self._note(bodies)

    def _note(self, bodies: Sequence[e.DurableBody]) -> None:
        """Keep events that were appended for those who are told of them."""
        if self._hooks is not None:
            self._unhooked += bodies
        if self.listener is not None:
            first_seq = self.state.seq - len(bodies) + 1
            self._unsent += [e.Event(self.run_id, seq, body) for seq, body in enumerate(bodies, first_seq)]

    def _append_held(self, bodies: tuple[e.DurableBody, ...], blobs: Mapping[str, bytes] | None) -> None:
        """Append the events that are held, and `bodies` after them."""
        held, self._held = self._held, ()
        self.writer.append((*held, *bodies), {**(self._held_blobs or {}), **(blobs or {})} or None)
        # A turn's listener is not told of the beginning of its session.
        if self._hooks is not None:
            self._unhooked += held
        if self._kept is not None:
            self._kept += held

    def _stamp_work(self, bodies: Sequence[e.DurableBody]) -> None:
        """Set how long the turn has been worked on."""
        now, is_waiting = self._clock.monotonic(), bool(waiting_calls(self.state))
        for body in bodies:
            if isinstance(body, e.TurnStarted):
                self._worked_seconds = 0.0
            elif self._works and not (
                is_waiting
                or isinstance(body, e.ApprovalDecided | e.QuestionAnswered | e.RunPaused | e.RunResumed)
            ):
                # The time in which somebody decides, or nobody works, does not count.
                self._worked_seconds += now - self._stamped_at
            self._stamped_at = now
            stamp(body, "worked_seconds", self._worked_seconds)

    def reach(self, worked_seconds: float) -> None:
        """Count at least this time as worked. The event loop's timers may ring a little early."""
        self._worked_seconds = max(self._worked_seconds, worked_seconds)

    def adopt(self, events: Sequence[e.Event]) -> None:
        """Append copies of another run's events, with their times and fields unknown to this version."""
        self.writer.append_events(events)
        if self._kept is not None:
            self._kept = []  # those before are not followed by the next ones
        for event in events:
            advance(self.state, event.body)
            if self.listener is not None:
                self._unsent.append(replace(event, run_id=self.run_id))
        if self._hooks is not None:
            self._unhooked += [event.body for event in events]
        self._worked_seconds = self.state.work_seconds

    def kept(self) -> Awaitable[None]:
        """Wait until all appended events are durable, then pass them to the hooks and the listener."""
        if self._held:
            return DONE
        if self.listener is None and not (self._unhooked and self._are_hooks_due()):
            return self.writer.sync()
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
        await self.writer.sync()
        # Meanwhile, another call of the step may have appended events that are not durable yet.
        if self._hooks is not None and (found := self._unhooked):
            first_seq = self.state.seq - len(found) + 1
            self._unhooked = found[kept_seq - first_seq + 1 :]
            self._hooks.tell(self.run_id, first_seq, found[: kept_seq - first_seq + 1])
        while self.listener is not None and self._unsent and self._unsent[0].seq <= kept_seq:
            self.listener.tell(self._unsent.popleft())
        if self.listener is not None:
            await self.listener.idle()

    async def finish(self) -> None:
        """Pass what is left to the hooks and the listener, once it is durable, and tell the hooks that the run is
        left."""
        if not self._held:
            is_heard = self._hooks is not None or self.listener is not None
            await (self._tell() if is_heard else self.writer.sync())
        if self._hooks is not None:
            self._hooks.leave(self.run_id)

    def listen(self, listener: Listener | None) -> None:
        """Tell `listener` from now on of every event once it is durable; `None`: nobody."""
        if self.listener is not None:
            self.listener.end()
        self.listener = listener
        self._is_read = listener is not None or self._hooks is not None
