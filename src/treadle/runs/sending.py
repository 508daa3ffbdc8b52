"""The ways to tell a run something from outside: messages for its inbox, and events that need no model, such as
grades.

`send` and `record` are the only ways to change a run that the caller does not drive.
"""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct
from msgspec.structs import force_setattr

from treadle.core import events as e
from treadle.core.asking import Answerable
from treadle.core.errors import ConfigError, LeaseHeldError
from treadle.core.inbox import (
    Enqueue,
    GiveAnswer,
    InboxMessage,
    Interrupt,
    Posted,
    Steer,
    events_of,
)
from treadle.core.state import State, advance
from treadle.core.types import Delivery, Message, Role
from treadle.journal.protocol import Clock, Journal, RunWriter
from treadle.loop.calls.questions import find_form_fault
from treadle.loop.driver import Driver
from treadle.loop.wayout import see_through
from treadle.runs.resume import read_given
from treadle.runs.run import Run

_MESSAGES: dict[Delivery, type[Steer | Enqueue | Interrupt]] = {
    Delivery.STEER: Steer,
    Delivery.QUEUE: Enqueue,
    Delivery.INTERRUPT: Interrupt,
}


class Sent(Struct, frozen=True):
    """What has become of a message that was sent to a run."""

    number: int
    """The number of the message in the run's inbox."""
    is_driven: bool
    """True if a process drives the run, and takes the message in between two actions."""
    refused: str | None = None
    """Why the message had no effect; `None` if it had one, or was not taken in yet."""


async def send(
    journal: Journal, run_id: str, message: InboxMessage, blobs: Mapping[str, bytes] | None = None
) -> Sent:
    """Send a message to a run. If nobody drives the run, take in the messages that wait in its inbox, without
    driving it.

    Raises: `RunNotFoundError`; `JournalError`.
    """
    number = await asyncio.to_thread(journal.post, run_id, message, blobs)
    try:
        recorder = await _record(journal, run_id, None)
    except LeaseHeldError:
        return Sent(number, is_driven=True)
    return Sent(number, is_driven=False, refused=recorder.refused.get(number))


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
    return (await _record(journal, run_id, make, clock)).state


async def _record(
    journal: Journal,
    run_id: str,
    make: Callable[[State], Sequence[e.DurableBody]] | None,
    clock: Clock = time,
) -> "_Recorder":
    writer = await journal.acquire(run_id)
    try:
        recorder = _Recorder((await asyncio.to_thread(Run.load, run_id, journal)).state, writer, clock)
        for posted in await asyncio.to_thread(journal.inbox, run_id, recorder.state.taken):
            recorder.take_in(posted)
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


def user_message(message: Message, delivery: Delivery) -> InboxMessage:
    """Return the inbox message that delivers a message of the user in the given way."""
    return _MESSAGES[delivery](message)


def answer_message(state: State, question_id: str, said: Answerable) -> GiveAnswer:
    """Return the message that answers a question. Raises: `ConfigError` if the question is not open, or the answer
    does not fit."""
    text = read_given(state, question_id, said).text
    return GiveAnswer(question_id, text, is_declined=not text)


def deliver(
    driver: Driver, message: Message, delivery: Delivery, blobs: Mapping[str, bytes] | None = None
) -> int:
    """Append a message of the user to a run that the caller drives, and return the number of its event."""
    driver.put(e.MessageInjected(message=message, delivery=delivery), blobs=blobs or None)
    return driver.state.seq


class Driven:
    """The run of a stream. Messages can be sent to it while it is driven."""

    def __init__(self) -> None:
        self._driver: Driver | None = None

    def hold(self, driver: Driver) -> None:
        """Keep the driver of the run."""
        self._driver = driver

    def steer(self, text: str) -> None:
        """Send a message that the model sees at its next step. Raises: `ConfigError` if nobody drives the run."""
        driver = self._driver
        if driver is None or not driver.state.turn.is_open:
            state = "has not begun" if driver is None else "is over"
            raise ConfigError(f"the message {text!r:.80} cannot be sent: the run {state}")
        deliver(driver, Message(Role.USER, text), Delivery.STEER)
