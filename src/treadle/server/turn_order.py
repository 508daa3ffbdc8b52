"""The one way in which a server drives the turn that a client asks for, in any protocol."""

import asyncio
import hashlib
from typing import Any

from msgspec import Struct

from treadle.agent.agent import Agent
from treadle.core.inbox import InboxMessage
from treadle.core.types import Message
from treadle.journal.protocol import Journal
from treadle.journal.run_info import RunFilter
from treadle.loop.listener import Emit
from treadle.runs.options import Given, SessionOptions
from treadle.runs.resume import resume_run
from treadle.runs.run import Run
from treadle.server.access import ApiCaller, RequestRefused
from treadle.server.run_host import RunHost


class TurnOrder(Struct, kw_only=True):
    """What a client asks of a run: its next turn, or the rest of a turn that waited for the client."""

    agent: Agent[Any]
    run_id: str
    message: Message | None = None
    """The user's message; `None` if the client only sends what the run waits for."""
    mail: list[InboxMessage] = []
    """The results, answers and decisions that the run waits for."""
    options: SessionOptions = {}


async def drive_turn(journal: Journal, order: TurnOrder, emit: Emit) -> Run[Any]:
    """Drive a turn until it is over or waits for somebody, and return the run.

    `emit` gets its events once they are stored, and the pieces of output. If this is cancelled, the turn stays
    open, so that the next process goes on with it.
    """
    agent, run_id = order.agent, order.run_id
    if order.mail:
        for message in order.mail:
            await asyncio.wrap_future(journal.posting(run_id, message))
        renews = order.options.get("renews_instructions", False)
        return await resume_run(
            agent, run_id, Given(agent.answer, agent.deps, emit, renews_instructions=renews)
        )
    assert order.message is not None
    options: SessionOptions = {**order.options, "pauses_when_cancelled": True}
    async with agent.session(run_id, **options) as session:
        return await session.send(order.message.content, attach=order.message.parts, on_event=emit)


def run_id_of(caller: ApiCaller, kind: str, name: str) -> str:
    """Return the id of the run that stands for what a client has named, such as a thread of AG-UI."""
    text = "\0".join((kind, caller.name, name))
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:19]


async def find_named(host: RunHost, caller: ApiCaller, run_id: str) -> Run[Any] | None:
    """Return the run with an id of `run_id_of`; `None` if it was not begun yet."""
    condition = RunFilter(run_ids=[run_id], labels=host.visible_to(caller))
    if not await asyncio.to_thread(host.journal.runs, condition):
        return None
    return await asyncio.to_thread(Run.load, run_id, host.journal)


def check_idle(run: Run[Any]) -> None:
    """Check that a run can be sent the user's next message. Raises: `RequestRefused`."""
    if run.state.turn.is_open:
        raise RequestRefused(
            409,
            "the run waits for answers or results; send these first"
            if run.open_questions or run.approvals or run.external_calls
            else "the turn before is not over",
            "conversation_locked",
        )
