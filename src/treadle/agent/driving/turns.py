"""The beginning of turns, with what the agent recalls for them, and what it remembers of completed ones."""

from treadle.agent.driving.parts import AgentParts
from treadle.context.protocol import Turn, turn_key
from treadle.core import events as e
from treadle.core.state import State
from treadle.core.types import Message, StopReason
from treadle.loop.driver import Driver


def next_queued(state: State) -> tuple[int, Message] | None:
    """Return the message that begins the next turn of a session, with the number of its event; `None` if none
    waits, or if a turn is open."""
    if state.is_turn_open or not state.queued or state.started is None or not state.started.is_session:
        return None
    return state.queued[0]


async def open_turn(
    agent: AgentParts, driver: Driver, message: Message, *, queued_seq: int | None = None
) -> e.TurnStarted:
    """Return the event that opens the next turn with the user's message, and with what the agent recalls for it."""
    number, recalled = driver.state.turn + 1, None
    if agent.known is not None:
        key = turn_key(driver.run_id, number)
        recalled = await agent.known.recall(
            message.content, turn_key=key, now=agent.clock.time(), told=driver.state.told
        )
    return e.TurnStarted(turn=number, message=message, recalled=recalled, queued_seq=queued_seq)


async def write_back(agent: AgentParts, run_id: str, state: State) -> None:
    """Remember the newest turn, if it is completed and the agent remembers turns. Doing it again changes
    nothing."""
    known, opened = agent.known, state.opened
    if known is None or not known.writes_back or opened is None:
        return
    if not state.is_turn_open and state.stop_reason is StopReason.COMPLETED:
        text, answer = opened.message.content, state.output
        turn = Turn(run_id=run_id, number=state.turn, text=text, answer=answer, began_at=opened.at)
        await known.write_back(turn)
