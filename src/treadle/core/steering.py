"""The messages that the user sends during a turn: where they wait, and when the model sees them."""

from typing import TYPE_CHECKING

from treadle.core import events as e
from treadle.core.limits import check_limits
from treadle.core.prompts.prompting import say
from treadle.core.types import Delivery, Message

if TYPE_CHECKING:
    from treadle.core.state import State


def receive(state: "State", body: e.MessageInjected) -> None:
    """Put a message of the user, with the number of its event, into the queue for this turn or the next ones."""
    turn, item = state.turn, (state.seq, body.message)
    if body.delivery is Delivery.STEER and turn.is_open:
        turn.steering = (*turn.steering, item)
    elif body.delivery is Delivery.INTERRUPT:
        _queue_first(state, *turn.steering, item)
        turn.steering = ()
    else:
        state.queued = (*state.queued, item)


def _queue_first(state: "State", *items: tuple[int, Message]) -> None:
    """Put messages before those that wait for turns, but after those that have interrupted or steered one."""
    count = state.urgent
    state.queued = (*state.queued[:count], *items, *state.queued[count:])
    state.urgent += len(items)


def queue_steering(state: "State") -> None:
    """Let the messages that no inference of the turn has taken begin the next turns."""
    if state.turn.steering:
        _queue_first(state, *state.turn.steering)
        state.turn.steering = ()


def leave_queue(state: "State", seq: int) -> None:
    """Take the message of the event `seq` from the queue: a turn begins with it, or it was taken back."""
    state.urgent -= seq in [waiting for waiting, _ in state.queued[: state.urgent]]
    state.queued = tuple([item for item in state.queued if item[0] != seq])


def take_steering(state: "State") -> None:
    """Add the messages that wait for the next inference to the transcript."""
    for _, message in state.turn.steering:
        say(state, message)
    state.turn.steering, state.turn.answer = (), None


def is_steered(state: "State") -> bool:
    """Return whether the model is asked again, because the user has sent a message for this turn."""
    turn = state.turn
    return bool(turn.steering) and turn.limit is None and check_limits(state) is None


def count_messages(state: "State", *, has_tools: bool) -> int:
    """Return how many messages the next inference is sent."""
    count, waiting = len(state.messages), state.turn.steering
    # At a wrap-up, the messages keep waiting: nothing could be done about them.
    return count + len(waiting) if waiting and has_tools else count
