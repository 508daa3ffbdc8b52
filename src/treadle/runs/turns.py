"""The beginning of turns, with the memories that the agent recalls for them, and the storing of completed turns
in its memory."""

from typing import TYPE_CHECKING

from treadle.core import events as e
from treadle.core.state import State
from treadle.core.types import Message, StopReason
from treadle.knowledge.protocol import CompletedTurn, turn_key
from treadle.loop.driver import Driver
from treadle.runs.agent_parts import AgentParts

if TYPE_CHECKING:
    from treadle.routing.judging import Judgement, MessageJudge


def next_queued(state: State) -> tuple[int, Message] | None:
    """Return the message that begins the next turn of a session, with the number of its event; `None` if none
    waits, or if a turn is open."""
    if state.turn.is_open or not state.queued or state.started is None or not state.started.is_session:
        return None
    return state.queued[0]


def takes_time(agent: "AgentParts") -> bool:
    """Return whether the agent's judge, or what it recalls, may take long, so that a message is stored before its
    turn begins."""
    return agent.known is not None or (
        agent.judge is not None and not getattr(agent.judge, "is_instant", False)
    )


async def open_turn(
    agent: AgentParts, driver: Driver, message: Message, *, queued_seq: int | None = None
) -> e.TurnStarted:
    """Return the event that opens the next turn. It has the user's message, the judgement of the agent's judge
    about it, and the memories that the agent recalls for it."""
    number, recalled, judgement, hint = driver.state.turn.number + 1, None, None, None
    if agent.judge is not None:
        judgement, hint = await _judge(agent, agent.judge, driver, message)
    if agent.known is not None:
        key = turn_key(driver.run_id, number)
        recalled = await agent.known.recall(
            message.content, turn_key=key, now=agent.clock.time(), told=driver.state.shown.told
        )
    return e.TurnStarted(
        turn=number,
        message=message,
        recalled=recalled,
        judgement=judgement,
        hint=hint,
        queued_seq=queued_seq,
    )


async def _judge(
    agent: "AgentParts", judge: "MessageJudge", driver: Driver, message: Message
) -> tuple["Judgement", str | None]:
    """Return what the judge says about the next turn's message, and the hint for the model, if there is one."""
    from treadle.routing.judging import facts_of_message, judge_safely, write_hint

    tools, known = driver.bench.toolbox.specs, agent.known
    facts = facts_of_message(
        driver.state,
        message,
        tools=tools,
        topics=() if known is None else known.topics,
        has_documents=known is not None and known.has_documents,
    )
    judgement = await judge_safely(judge, message.content, facts)
    policy = agent.policy if driver.state.started is None else driver.state.policy
    return judgement, write_hint(judgement, policy, tools)


async def write_back(agent: AgentParts, run_id: str, state: State) -> None:
    """Remember the newest turn, if it is completed and the agent remembers turns. Doing it again changes
    nothing."""
    known, opened = agent.known, state.turn.opened
    if known is None or not known.writes_back or opened is None:
        return
    if not state.turn.is_open and state.ending.stop_reason is StopReason.COMPLETED:
        text, answer = opened.message.content, state.ending.output
        turn = CompletedTurn(
            run_id=run_id, number=state.turn.number, text=text, answer=answer, began_at=opened.at
        )
        await known.write_back(turn)
