"""The messages that a session has sent to the inbox of its run, and those that wait for their turns."""

from concurrent.futures import Future
from typing import Generic

from msgspec import Struct

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


class Outgoing(Struct, Generic[T_co], eq=False):
    """A message that this session has sent to the inbox of its run."""

    message: Message
    number: Future[int]
    """The number of the message in the inbox, once it is stored."""
    is_awaited: bool
    """True if a task waits for the turn of the message."""
    is_unseen: bool = True
    """True if the message was not taken in."""
    seq: int | None = None
    """The number of the event with the message; `None` if it was not taken in."""
    run: Run[T_co] | None = None
    """The run of the turn that has taken the message; `None` if none has."""
