"""The mail of a run: the messages in its inbox, from whoever does not drive it.

The driver takes them in between two actions. A message that stops the turn also wakes the driver in the middle of
an action, and one that answers what somebody is asked about is taken in at once.
"""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Any

from treadle.core import events as e
from treadle.core.errors import JournalError
from treadle.core.inbox import Posted, events_of, kind_of, stops
from treadle.journal.driven import OnMail
from treadle.loop.calls.questions import find_form_fault
from treadle.loop.calls.workbench import Workbench
from treadle.loop.outbox import Recorder

_STOPPED = {"cancel": "cancelled", "interrupt": "interrupted"}
"""Why an action was stopped, by the tag of the message that has stopped it."""


class Mail:
    """The messages for a run whose lease this process holds."""

    def __init__(self, recorder: Recorder, bench: Workbench | None = None) -> None:
        """Make the mail of a run that is driven with `bench`; `None`: it is not driven."""
        self.on_idle: OnMail | None = None
        """The function that is told of messages that arrive while nobody drives the run on."""
        self.on_taken: Callable[[int, int | None], None] | None = None
        """The function that is told of each message that was taken in: its number, and the number of the event with
        the user's message in it, if there is one."""
        self.is_acting = False
        """True while an action is performed, and not between two actions."""
        self.stopped_by: str | None = None
        """The tag of the message that has stopped the action; `None` if none has."""
        self._recorder = recorder
        self._bench = bench
        self._driven = recorder.writer.driven
        self._task: asyncio.Task[Any] | None = None
        """The task that drives the run; `None` if none does."""
        self._cancellations = 0
        """How often that task had been cancelled when it began to drive the run."""
        self._looking: asyncio.Task[None] | None = None

    @property
    def is_waiting(self) -> bool:
        """True if messages have arrived that were not taken in."""
        return self._driven.newest > self._recorder.state.taken or bool(self._driven.coming)

    def attend(self, loop: asyncio.AbstractEventLoop) -> None:
        """Hear of messages from now on, for the present task, which drives the run."""

        def on_mail(kind: str) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._hear, kind)

        self._driven.attend(on_mail)
        assert self._bench is not None
        self._bench.questions.arrivals.on_wait = self._look
        # No variable has the task: it keeps its cancellation, whose traceback has this frame, alive.
        self._task = asyncio.current_task()
        self._cancellations = 0 if self._task is None else self._task.cancelling()

    def idle(self) -> None:
        """Call `on_idle` when a message arrives, until the run is driven on."""
        self._task = self.stopped_by = None
        if self._bench is not None:
            self._bench.questions.arrivals.on_wait = None
        self._driven.attend(self.on_idle)

    def has_stopped(self) -> bool:
        """Return whether a message, and nobody else, has cancelled the action."""
        if self.stopped_by is None or self._task is None:
            return False
        return self._task.cancelling() == self._cancellations + 1

    def end_stop(self) -> str:
        """Go on after an action that a message has cancelled, and which may have caught that. Return why."""
        assert self._task is not None
        kind, self.stopped_by = self.stopped_by or "", None
        self._task.uncancel()
        return _STOPPED.get(kind, kind)

    def _hear(self, kind: str) -> None:
        """Stop the action if a message with the tag `kind` wants that; take it in at once if somebody is asked."""
        if self._task is None or not self.is_acting:  # it is taken in before the next action
            return
        if stops(self._recorder.state, kind):
            if self.stopped_by is None:
                self.stopped_by = kind
                self._task.cancel()
        elif self._bench is not None and self._bench.questions.arrivals:
            self._look()

    def _look(self) -> None:
        """Take in what has arrived while somebody is asked, because it may have the answer."""
        if self.is_waiting:
            self._looking = asyncio.ensure_future(self._take_in_answers())

    async def _take_in_answers(self) -> None:
        with suppress(JournalError):  # the next action fails too
            await self.take_in(is_acting=True)

    async def take_in(self, *, is_acting: bool = False) -> None:
        """Take in the messages that have arrived: append the events that they mean.

        If `is_acting`, an action is under way: the first message that stops it, and all later ones, then stay
        in the inbox.
        """
        driven, state = self._driven, self._recorder.state
        await self._await_coming()
        newest = driven.newest
        found = await asyncio.to_thread(driven.read, state.taken)
        # Whoever is told that a message was taken in knows its number by then.
        await self._await_coming()
        for posted in found:
            if posted.number > state.taken:
                if is_acting and posted.message is not None and stops(state, kind_of(posted.message)):
                    return
                self.take(posted)
        if not found:
            driven.forget(newest, state.taken)

    async def _await_coming(self) -> None:
        """Wait until the messages are stored that this process has sent."""
        coming = self._driven.coming
        while coming:
            first = coming[0]
            await stored(first)
            if coming and coming[0] is first:  # a thread that sends a message may have removed it
                coming.popleft()

    def take(self, posted: Posted) -> e.DurableBody:
        """Append the events of a message, answer those who wait for it, and return the last event."""
        recorder, bench = self._recorder, self._bench
        first_seq = recorder.state.seq + 1
        bodies = events_of(recorder.state, posted, find_form_fault)
        if bench is not None and any([isinstance(body, e.TurnCompleted) for body in bodies]):
            bench.stop(bodies, recorder)
        else:
            recorder.put(*bodies)
        recorder.writer.take_in(posted.number)
        if bench is not None:
            bench.questions.arrivals.settle_all(bodies)
        if self.on_taken is not None:
            has_said = isinstance(bodies[0], e.MessageInjected)
            self.on_taken(posted.number, first_seq if has_said else None)
        return bodies[-1]


async def stored(number: "Future[int]") -> None:
    """Wait until a message is stored, or the store has failed. Cancelling this loses no message."""
    waiting = asyncio.wrap_future(number)
    await asyncio.wait([waiting])
    _ = waiting.cancelled() or waiting.exception()
