"""Sessions in which everything happens at random: messages in every delivery, cancellations, compactions,
questions, sub-agents, memories and failing servers, opened several times. What always holds is checked."""

import asyncio
import random
from contextlib import suppress
from typing import Any

import pytest
from tests.conftest import IS_FULL

from treadle import Agent, ConfigError, Policy, ScriptedModel, Session, open_journal, tool
from treadle.core import events as e
from treadle.core.errors import ContextOverflowError, ServerError
from treadle.core.prompts.transcript import check_transcript
from treadle.core.spec import MemorySpec
from treadle.core.state import State, fold
from treadle.core.types import Completion, Delivery, Request, Role, StopReason
from treadle.knowledge.memory import Store, open_memory
from treadle.models import TieredModel, call
from treadle.models.protocol import Watch

CALLS = (
    call("look", {"count": 3}),
    call("look", {"count": 400}),
    call("look", '{"count": '),
    call("act", {}),
    call("ask_user", {"question": "Which?"}),
    call("ask_user", {"question": "Why?"}),
    call("remember", {"text": "The user has a boat.", "reason": "r", "confidence": 1.0}),
    call("helper", {"task": "Look."}),
    call("absent", {}),
)


class Fickle(ScriptedModel):
    """A model that does anything."""

    def __init__(self, name: str, chance: random.Random) -> None:
        super().__init__([""], name=name)
        self._chance = chance

    async def infer(self, request: Request, watch: Watch) -> Completion:
        chance = self._chance
        await asyncio.sleep(chance.choice([0, 0, 0.001, 0.003]))
        answer: Any = "done " + "some words " * chance.choice([0, 1, 60])
        if chance.random() < 0.05:
            answer = chance.choice([ServerError("down"), ContextOverflowError("too long")])
        elif not request.messages[0].content.startswith("You write the memory"):
            if chance.random() < 0.1:
                answer = chance.choice(["", "I don't know."])
            elif request.tools and chance.random() < 0.5:
                answer = chance.choices(CALLS, k=chance.randint(1, 3))
        return await ScriptedModel([answer], name=self.name).infer(request, watch)


def make_agent(chance: random.Random, journal: Any) -> "Agent[str]":
    @tool(effect="pure")
    async def look(count: int) -> str:
        """Look."""
        await asyncio.sleep(chance.choice([0, 0.002]))
        return "a result " * count

    @tool(effect="once")
    async def act() -> str:
        """Act."""
        await asyncio.sleep(chance.choice([0, 0.002]))
        return "acted"

    async def answer(question: Any) -> str | None:
        await asyncio.sleep(chance.choice([0, 0.001]))
        return chance.choice([None, "yes", "no"])

    child = Agent(Fickle("child", chance), tools=[look, "ask"], policy=Policy(max_steps=3))
    tiers = {"small": Fickle("small", chance), "mid": Fickle("mid", chance)}
    router = chance.choice(["cascade", "rules", "scored", None])
    return Agent(
        TieredModel(tiers, router=router) if router else Fickle("one", chance),
        tools=[look, act, "ask", child.as_tool("helper", "helps")],
        journal=journal,
        asker=chance.choice([answer, None]),
        approver=lambda request: True,
        memory=MemorySpec(persona="p", user="u", writes_back=True),
        policy=Policy(
            context_tokens=chance.choice([None, 3500, 6000]),
            max_steps=chance.choice([3, 6]),
            deadline_seconds=chance.choice([None, None, 0.05]),
            approve=chance.choice([{}, {"once": "ask"}]),
        ),
    )


async def live(session: "Session[str]", chance: random.Random) -> None:
    """Do several things with a session, many of them at the same time."""
    sending: list[asyncio.Future[Any]] = []
    for number in range(chance.randint(1, 6)):
        kind = chance.choice(["send", "send", "send", "send", "post", "compact", "finish"])
        text, delivery = (
            f"message {number} " + "please " * chance.choice([0, 30]),
            chance.choice(list(Delivery)),
        )
        # A session says so if it cannot do something now, because a turn is open or waits for an answer.
        with suppress(ConfigError):
            if kind == "send":
                sending.append(asyncio.ensure_future(session.send(text, delivery=delivery.value)))
                await asyncio.sleep(chance.choice([0, 0.001, 0.004]))
                if chance.random() < 0.15:
                    sending[-1].cancel()
            elif kind == "post":
                session.post(text, delivery)
            elif kind == "compact":
                await session.compact()
            else:
                await session.finish_turn(answers=dict.fromkeys(session.run.questions, "x"))
    for result in await asyncio.gather(*sending, return_exceptions=True):
        if isinstance(result, Exception) and not isinstance(result, ConfigError):
            raise result


def check_messages(bodies: list[e.DurableBody], state: State) -> None:
    """Check that each message of the user is in the transcript once, or waits for its turn."""
    sent = [
        body.message.content
        for body in bodies
        if (isinstance(body, e.TurnStarted) and body.queued_seq is None)
        or (isinstance(body, e.MessageInjected) and body.delivery is not None)
    ]
    waiting = [message.content for _, message in (*state.queued, *state.turn.steering)]
    own = [
        body.message.content
        for body in bodies
        if isinstance(body, e.MessageInjected) and body.delivery is None
    ]
    told = [message.content for message in state.transcript if message.role is Role.USER]
    blocks = [body.recalled.text for body in bodies if isinstance(body, e.TurnStarted) and body.recalled]
    for number, text in enumerate(told):
        block = next((item for item in blocks if text.startswith(f"{item}\n\n")), None)
        told[number] = text if block is None else text[len(block) + 2 :]
    assert sorted([*told, *waiting]) == sorted([*sent, *own])


@pytest.mark.parametrize("seed", range(600 if IS_FULL else 12))
async def test_what_always_holds(seed: int) -> None:
    """Rules out messages that are lost or doubled, transcripts with calls that have no result, turns remembered
    twice, replays that differ, and exceptions that are no misuse, whatever happens at the same time."""
    chance = random.Random(seed)
    with open_journal("memory:") as journal:
        for _ in range(chance.randint(1, 3)):
            async with make_agent(chance, journal).session("s") as session:
                await live(session, chance)
        agent = make_agent(chance, journal)
        for info in journal.runs():
            bodies = [event.body for event in journal.read(info.run_id)]
            state = fold(bodies)
            if not state.turn.calls:
                assert check_transcript(list(state.messages)) == []
                assert check_transcript(list(state.transcript)) == []
            check_messages(bodies, state)
            found = await agent.replay(info.run_id)
            assert found.is_exact, (info.run_id, found.divergence)
            if info.run_id == "s":
                done = sum(
                    isinstance(body, e.TurnCompleted) and body.stop_reason is StopReason.COMPLETED
                    for body in bodies
                )
                episodes = open_memory(journal, "p", "u").store.entries([Store.EPISODIC])
                assert sum(1 + entry.merged for entry in episodes) <= done
