"""A session that others send messages while it is driven, in a process that can be killed at numbered boundaries.

The messages are posted through a second journal on the same file, as another process does it: while the model
answers, while a tool runs, and while somebody is asked. Each is posted once; if the process was killed before it
was stored, it is posted again.
"""

import asyncio
import json
import os
import sys
import traceback
from pathlib import Path
from typing import Any

from tests.crash.scenario import RUN_ID, address_of, boundary, open_crashing

from treadle import Agent, Approval, ApprovalRequest, Policy, ToolContext, open_journal, tool
from treadle.core.asking import Question
from treadle.core.events import ApprovalDecided, MessageInjected, Noted, QuestionAnswered, encode_body
from treadle.core.inbox import (
    Cancel,
    DecideCall,
    Enqueue,
    GiveAnswer,
    InboxMessage,
    Interrupt,
    Note,
    Steer,
    encode_message,
)
from treadle.core.types import Completion, FinishReason, Message, Request, Role
from treadle.journal.protocol import Journal
from treadle.models import call
from treadle.models.protocol import Watch

FIRST = "go"
"""The message of the first turn, which is not posted."""
POSTED = ("steer-1", "note-1", "queue-1", "interrupt-1", "answer-1", "cancel-1", "decided-1")
"""What is in the messages that are posted, each in one of them."""


def said(text: str) -> Message:
    return Message(Role.USER, text)


class Sender:
    """Another process, as the driver of the run sees it."""

    def __init__(self, path: Path, level: str) -> None:
        self.journal: Journal = open_journal(address_of(path), level)

    def has_stored(self, text: str) -> bool:
        """Return whether a message with `text` was stored, whether it was taken in or not."""
        waiting = [encode_message(item.message) for item in self.journal.inbox(RUN_ID) if item.message]
        events = [event.body for event in self.journal.read(RUN_ID)]
        taken = [encode_body(body) for body in events if isinstance(body, _TAKEN)]
        return any(text.encode() in raw for raw in [*waiting, *taken])

    async def post(self, text: str, message: InboxMessage) -> bool:
        """Store a message, unless it is stored already. Return whether it was stored now."""
        if await asyncio.to_thread(self.has_stored, text):
            return False
        boundary()
        number = await asyncio.to_thread(self.journal.post, RUN_ID, message)
        boundary.witness(f"posted {number} {text}")
        boundary()
        return True


_TAKEN = (MessageInjected, Noted, QuestionAnswered, ApprovalDecided)
"""The events that have the content of messages."""


class Addressee:
    """A model that posts messages to its own run while it answers."""

    name = "addressee"

    def __init__(self, sender: Sender) -> None:
        self._sender = sender

    async def infer(self, request: Request, watch: Watch) -> Completion:
        boundary()
        users = [at for at, item in enumerate(request.messages) if item.role is Role.USER]
        text, post = request.messages[users[-1]].content, self._sender.post
        has_called = any([item.role is Role.TOOL for item in list(request.messages)[users[-1] :]])
        calls: tuple[Any, ...] = ()
        if text == FIRST and not has_called:
            await post("steer-1", Steer(said("steer-1")))
            await post("note-1", Note(labels={"a": "note-1"}))
            await post("queue-1", Enqueue(said("queue-1")))
            calls = (call("work"),)
        elif text == "interrupt-1" and not has_called:
            calls = (call("ask_user", {"question": "Which?"}),)
        elif text == "queue-1":
            if await post("cancel-1", Cancel("cancel-1")):
                await asyncio.sleep(3600)
        elif text == "pay" and not has_called:
            calls = (call("pay"),)
        boundary()
        message = Message(Role.ASSISTANT, "done", calls)
        reason = FinishReason.TOOL_CALLS if calls else FinishReason.STOP
        return Completion(message, reason, cost_usd=0.0)


def make_agent(sender: Sender, journal: Any) -> Agent[Any]:
    """Return the agent whose run is sent messages."""

    @tool(effect="pure")
    async def work() -> str:
        """Work until an interrupt stops it."""
        boundary()
        if await sender.post("interrupt-1", Interrupt(said("interrupt-1"))):
            await asyncio.sleep(3600)
        return "worked"

    @tool(effect="once")
    async def pay(context: ToolContext) -> str:
        """Pay."""
        boundary.witness(f"effect {context.idempotency_key}")
        boundary()
        return "paid"

    async def approve(request: ApprovalRequest) -> bool:
        boundary()
        call_id = request.call.call_id
        await sender.post("decided-1", DecideCall(call_id, is_approved=True, reason="decided-1"))
        await asyncio.sleep(3600)
        return False

    async def answer(question: Question) -> str:
        boundary()
        await sender.post("answer-1", GiveAnswer(question.question_id, "answer-1"))
        await asyncio.sleep(3600)
        return ""

    return Agent(
        Addressee(sender),
        tools=[work, pay, "ask"],
        policy=Policy(approve={"once": Approval.ASK}),
        approver=approve,
        asker=answer,
        journal=journal,
    )


async def talk(path: Path, level: str) -> None:
    """Continue the session until every message was sent and taken in."""
    sender, journal = Sender(path, level), open_crashing(path, level)
    agent = make_agent(sender, journal)
    async with asyncio.timeout(30), agent.session(RUN_ID) as session:

        def texts() -> list[str]:
            return [item.content for item in session.messages if item.role is Role.USER]

        async def rest() -> None:
            await session.finish_turn()
            while session.is_turn_open or session.queued:
                await asyncio.sleep(0.005)

        await rest()
        if FIRST not in texts():
            await session.send(FIRST)
            await rest()
        await sender.post("interrupt-1", Interrupt(said("interrupt-1")))
        await sender.post("queue-1", Enqueue(said("queue-1")))
        await sender.post("steer-1", Steer(said("steer-1")))
        await sender.post("note-1", Note(labels={"a": "note-1"}))
        while not {"interrupt-1", "queue-1", "steer-1"} <= set(texts()):
            await asyncio.sleep(0.005)
        await rest()
        if "pay" not in texts():
            await session.send("pay")
        await rest()
    sender.journal.close()
    journal.close()


def main() -> None:
    """Drive the session that the last argument describes, then end at once, without Python's own shutdown."""
    order = json.loads(sys.argv[-1])
    path, code = Path(order["path"]), 1
    try:
        boundary.begin(order["crash_at"], path.with_suffix(".witness"))
        asyncio.run(talk(path, order["level"]))
        path.with_suffix(".count").write_text(str(boundary.count))
        code = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)
