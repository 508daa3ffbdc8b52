"""Changes to runs that nobody drives: events that need no model, such as grades, and messages that wait.

A message can be stored while the lease is about to be released. So whoever releases the lease of a run looks again
afterwards, and takes in what has come meanwhile.
"""

import asyncio
import time
from collections.abc import Callable, Sequence

from msgspec.structs import force_setattr

from treadle.core import events as e
from treadle.core.errors import JournalError, LeaseHeldError
from treadle.core.inbox import Posted, events_of
from treadle.core.state import State, advance
from treadle.journal.protocol import Clock, Journal, RunWriter
from treadle.loop.calls.questions import find_form_fault
from treadle.loop.wayout import see_through
from treadle.runs.run import Run


async def record(
    journal: Journal,
    run_id: str,
    make: Callable[[State], Sequence[e.DurableBody]],
    clock: Clock = time,
) -> State:
    """Append the events that `make` returns for a run's state, without driving the run, and return the new
    state.

    The messages that wait in the run's inbox are taken in first. Raises: `RunNotFoundError`; `LeaseHeldError`
    if a process drives the run; what `make` raises.
    """
    recorder = await _lease(journal, run_id, make, clock)
    if recorder.has_mail:
        await take_in_rest(journal, run_id)
    return recorder.state


async def take_in_all(journal: Journal, run_id: str) -> dict[int, str]:
    """Take in the messages that wait in the inbox of a run that nobody drives.

    Return why messages mean nothing, by their numbers. Raises: `RunNotFoundError`; `LeaseHeldError` if a process
    drives the run.
    """
    recorder = await _lease(journal, run_id, None, time)
    if recorder.has_mail:
        await take_in_rest(journal, run_id)
    return recorder.refused


async def take_in_rest(journal: Journal, run_id: str) -> None:
    """Take in the messages that came while the lease of a run was released, unless somebody drives it again.

    If the store fails, the next driver takes them in.
    """
    try:
        while (await _lease(journal, run_id, None, time)).has_mail:
            pass
    except LeaseHeldError:
        return  # its holder takes them in
    except JournalError:
        return


async def _lease(
    journal: Journal, run_id: str, make: Callable[[State], Sequence[e.DurableBody]] | None, clock: Clock
) -> "_Recorder":
    """Take in messages, and append what `make` returns, while this task holds the lease of a run."""
    writer = await journal.acquire(run_id)
    try:
        recorder = _Recorder((await asyncio.to_thread(Run.load, run_id, journal)).state, writer, clock)
        for posted in await asyncio.to_thread(journal.inbox, run_id, recorder.state.taken):
            recorder.take_in(posted)
        writer.driven.forget(writer.driven.newest, recorder.state.taken)
        if make is not None:
            recorder.put(make(recorder.state))
        await writer.sync()
    finally:
        await see_through(writer.release)
    await writer.sync()
    return recorder


class _Recorder:
    """The lease of a run that is not driven, and the state after what was appended."""

    def __init__(self, state: State, writer: RunWriter, clock: Clock) -> None:
        self.state = state
        self.refused: dict[int, str] = {}
        """Why messages mean nothing, by number."""
        self._writer = writer
        self._clock = clock

    @property
    def has_mail(self) -> bool:
        """True if messages have arrived that were not taken in."""
        return self._writer.driven.newest > self.state.taken

    def put(self, bodies: Sequence[e.DurableBody]) -> None:
        """Append events."""
        now = self._clock.time()
        for body in bodies:
            force_setattr(body, "at", now)
            if self.state.policy.deadline_seconds is not None:
                # Nobody works on the run meanwhile.
                force_setattr(body, "worked_seconds", self.state.work_seconds)
        if bodies:
            self._writer.append(bodies)
        for body in bodies:
            advance(self.state, body)

    def take_in(self, posted: Posted) -> None:
        """Append the events that a message means."""
        bodies = events_of(self.state, posted, find_form_fault)
        if isinstance(last := bodies[-1], e.Noted) and last.refused is not None:
            self.refused[posted.number] = last.remark or ""
        self.put(bodies)
        self._writer.take_in(posted.number)
