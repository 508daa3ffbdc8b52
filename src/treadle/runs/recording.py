"""Changes to runs that the caller does not drive: messages for their inboxes (`send`), events that need no model,
such as grades (`record`), the end of runs whose calls were stopped, and the deletion of sessions.

A message can be stored while the lease is about to be released. So whoever releases the lease of a run looks again
afterwards, and takes in what has come meanwhile.
"""

import asyncio
import hashlib
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress

from msgspec import Struct

from treadle.core import events as e
from treadle.core.asking import Answerable, open_questions, read_answer
from treadle.core.calls import abandon_turn
from treadle.core.errors import ConfigError, JournalError, LeaseHeldError
from treadle.core.inbox import Enqueue, GiveAnswer, InboxMessage, Interrupt, Steer
from treadle.core.state import State, Status, advance
from treadle.core.types import Delivery, Message, Role
from treadle.journal.deletion import find_callees
from treadle.journal.protocol import Clock, Journal
from treadle.journal.run_info import RunFilter
from treadle.loop.driver import Driver
from treadle.loop.mail import Mail
from treadle.loop.outbox import Recorder
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
    return (await _change(journal, run_id, make, clock))[0]


async def take_in_all(journal: Journal, run_id: str) -> dict[int, str]:
    """Take in the messages that wait in the inbox of a run that nobody drives.

    Return why messages mean nothing, by their numbers. Raises: `RunNotFoundError`; `LeaseHeldError` if a process
    drives the run.
    """
    return (await _change(journal, run_id, lambda state: (), time))[1]


async def take_in_rest(journal: Journal, run_id: str, state: State | None = None) -> None:
    """Take in the messages that came while the lease of a run was released, unless somebody drives it again.

    `state` is the state in which the run was released: it becomes the state with those messages. If the store
    fails, the next driver takes them in.
    """
    with suppress(JournalError):  # whoever holds the lease takes them in
        taken, _ = await _change(journal, run_id, lambda state: (), time)
        if state is not None:
            for event in await asyncio.to_thread(journal.read, run_id, state.seq, taken.seq):
                advance(state, event.body)


def child_run_id(run_id: str, call_id: str) -> str:
    """Return the id of the run that a call drives."""
    digest = hashlib.sha256(f"{run_id}/{call_id}".encode(errors="replace")).hexdigest()
    return f"sub-{digest[:16]}"


async def end_called(journal: Journal, run_id: str, call_ids: Iterable[str]) -> None:
    """End the runs that calls of a run have driven, and those that these have called. Nobody resumes them, because
    the calls have results.

    A run that is over, that somebody drives, or that the store cannot change stays as it is.
    """
    for call_id in call_ids:
        called = child_run_id(run_id, call_id)
        running: list[str] = []

        def end(state: State, running: list[str] = running) -> Sequence[e.DurableBody]:
            if state.status is Status.FINISHED or not state.turn.is_open:
                return ()
            for item in state.turn.calls.values():
                if item.result is None:
                    running.extend([item.call.call_id, *item.inner])
            return (e.RunResumed(), *abandon_turn(state))

        with suppress(JournalError):
            await record(journal, called, end)
            await end_called(journal, called, running)


def delete_session(journal: Journal, run_id: str, clock: Clock = time) -> list[str]:
    """Delete a session, or another run, with the runs that its calls of agents drove and the episodes in memory
    that tell about them. Return the ids of the runs. Blocks.

    Raises: `RunNotFoundError`; `LeaseHeldError` if one of them is being driven; nothing is deleted then.
    """
    from treadle.knowledge.memory import forget_runs

    found = find_callees(journal, run_id)
    free = {info.run_id for info in journal.runs(RunFilter(run_ids=found, is_driven=False))}
    for name in found:
        if name not in free:
            journal.delete(
                name
            )  # raises the error that says what is wrong, unless the run was let go meanwhile
    forget_runs(journal, found, clock.time())
    # The run itself is the last, so that a deletion that fails can be repeated.
    for name in reversed(found):
        if name in free:
            journal.delete(name)
    return found


async def _change(
    journal: Journal, run_id: str, make: Callable[[State], Sequence[e.DurableBody]], clock: Clock
) -> tuple[State, dict[int, str]]:
    """Take in messages, and append what `make` returns, while this task holds the lease of a run. Return the new
    state, and why messages mean nothing, by their numbers."""
    refused: dict[int, str] = {}
    writer = await journal.acquire(run_id)
    try:
        state = (await asyncio.to_thread(Run.load, run_id, journal)).state
        recorder = Recorder(state, writer, clock, works=False)
        mail = Mail(recorder)
        for posted in await asyncio.to_thread(journal.inbox, run_id, state.taken):
            last = mail.take(posted)
            if isinstance(last, e.Noted) and last.refused is not None:
                refused[posted.number] = last.remark or ""
        writer.driven.forget(writer.driven.newest, state.taken)
        recorder.put(*make(state))
        await writer.sync()
    finally:
        await see_through(writer.release)
    await writer.sync()
    if mail.is_waiting:
        await take_in_rest(journal, run_id)
    return state, refused


_MESSAGES: dict[Delivery, type[Steer | Enqueue | Interrupt]] = {
    Delivery.STEER: Steer,
    Delivery.QUEUE: Enqueue,
    Delivery.INTERRUPT: Interrupt,
}


class Sent(Struct, frozen=True):
    """The state of a message that was sent to a run."""

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
        refused = await take_in_all(journal, run_id)
    except LeaseHeldError:
        return Sent(number, is_driven=True)
    return Sent(number, is_driven=False, refused=refused.get(number))


def user_message(message: Message, delivery: Delivery) -> InboxMessage:
    """Return the inbox message that delivers a message of the user in the given way."""
    return _MESSAGES[delivery](message)


def read_given(state: State, question_id: str, said: Answerable) -> e.QuestionAnswered:
    """Return the event for an answer. Raises: `ConfigError` if the question is not open, or the answer does not
    fit."""
    from treadle.tools.schema.answer_schema import find_output_fault

    known = {body.question_id: body for body in open_questions(state)}
    if question_id not in known:
        raise ConfigError(
            f"no question {question_id!r} is open; the open questions are: {', '.join(known) or 'none'}"
        )
    answer = read_answer(known[question_id], said, find_output_fault)
    return e.QuestionAnswered(question_id=question_id, text=answer.text)


def answer_message(state: State, question_id: str, said: Answerable) -> GiveAnswer:
    """Return the message that answers a question. Raises: `ConfigError` if the question is not open, or the answer
    does not fit."""
    text = read_given(state, question_id, said).text
    return GiveAnswer(question_id, text, is_declined=not text)


class Driven:
    """The run of a stream. Messages can be sent to it while it is driven."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
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
        self._journal.posting(driver.run_id, Steer(Message(Role.USER, text)))
