"""The messages that a session has sent to the inbox of its run, and those that wait for their turns."""

from concurrent.futures import Future
from typing import Generic

from treadle.core.asking import open_questions
from treadle.core.calls import external_calls, waiting_calls
from treadle.core.state import State
from treadle.core.types import Message
from treadle.runs.run import Run, T_co


def count_waits(state: State) -> int:
    """Return how many answers, approvals and external results a run waits for."""
    return len(open_questions(state)) + len(waiting_calls(state)) + len(external_calls(state))


def waiting_seqs(state: State) -> list[int]:
    """Return the numbers of the events with the messages that wait for their turns, or for the next step."""
    return [seq for seq, _ in (*state.queued, *state.turn.steering)]


class Outgoing(Generic[T_co]):
    """A message that this session has sent to the inbox of its run."""

    def __init__(self, message: Message, number: Future[int], *, is_awaited: bool) -> None:
        self.message = message
        self.number = number
        """The number of the message in the inbox, once it is stored."""
        self.is_awaited = is_awaited
        """True if a task waits for the turn of the message."""
        self.is_unseen = True
        """True if the message was not taken in."""
        self.seq: int | None = None
        """The number of the event with the message; `None` if it was not taken in."""
        self.run: Run[T_co] | None = None
        """The run of the turn that has taken the message; `None` if none has."""
