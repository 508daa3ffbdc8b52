"""Messages for runs: sent to the inbox of a run that somebody else may drive, or to the run of a stream.

`send`, and `record` in `recording.py`, are the only ways to change a run that the caller does not drive.
"""

import asyncio
from collections.abc import Mapping

from msgspec import Struct

from treadle.core.asking import Answerable
from treadle.core.errors import ConfigError, LeaseHeldError
from treadle.core.inbox import Enqueue, GiveAnswer, InboxMessage, Interrupt, Steer
from treadle.core.state import State
from treadle.core.types import Delivery, Message, Role
from treadle.journal.protocol import Journal
from treadle.loop.driver import Driver
from treadle.runs.recording import take_in_all
from treadle.runs.resume import read_given

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
