"""The one way in which a server drives the turn that a client asks for, in any protocol."""

import asyncio
import hashlib
from collections.abc import Mapping
from typing import Any

from msgspec import Struct

from treadle.agent.agent import Agent
from treadle.core.errors import ConfigError
from treadle.core.inbox import DecideCall, GiveAnswer, GiveResult, InboxMessage
from treadle.core.types import Json, Message, ToolCall
from treadle.journal.protocol import Journal
from treadle.loop.listener import Emit
from treadle.runs.options import Given, SessionOptions
from treadle.runs.resume import resume_run
from treadle.runs.run import Run
from treadle.server.access import ApiCaller, RequestRefused
from treadle.server.run_host import RunHost

_YES = frozenset(("yes", "y", "approve", "approved", "ok", "true"))
"""The texts that approve a call, in lower case."""


class TurnOrder(Struct, kw_only=True):
    """What a client asks of a run: its next turn, or the rest of a turn that waited for the client."""

    agent: Agent[Any]
    run_id: str
    message: Message | None = None
    """The user's message; `None` if the client only sends what the run waits for, or has sent it to the inbox."""
    blobs: Mapping[str, bytes] = {}
    """The contents of the parts of the message and of the history before it, as far as they are not inline."""
    mail: list[InboxMessage] = []
    """The results, answers and decisions that the run waits for."""
    options: SessionOptions = {}


async def drive_turn(journal: Journal, order: TurnOrder, emit: Emit | None) -> Run[Any]:
    """Drive a turn until it is over or waits for somebody, and return the run.

    `emit` gets its events once they are stored, and the pieces of output. Without it, the model need not stream and
    fewer commits are needed; the run then has its events in memory. If this is cancelled, the turn stays
    open, so that the next process goes on with it.
    """
    agent, run_id = order.agent, order.run_id
    if order.mail or order.message is None:
        for message in order.mail:
            await asyncio.wrap_future(journal.posting(run_id, message))
        renews = order.options.get("renews_instructions", False)
        given = Given(agent.answer, agent.deps, emit, renews_instructions=renews)
        run = await resume_run(agent, run_id, given)
        if emit is None:
            await asyncio.to_thread(lambda: run.events)
        return run
    is_quiet = emit is None
    options: SessionOptions = {**order.options, "pauses_when_cancelled": True, "keeps_events": is_quiet}
    async with agent.session(run_id, **options) as session:
        parts, blobs, text = order.message.parts, order.blobs, order.message.content
        run = await session.send(text, attach=parts, blobs=blobs, on_event=emit, is_last=is_quiet)
        if is_quiet:
            run.events = list(await session.read_events())
        return run


def run_id_of(caller: ApiCaller, kind: str, name: str) -> str:
    """Return the id of the run that stands for what a client has named, such as a thread of AG-UI."""
    text = "\0".join((kind, caller.name, name))
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:19]


async def find_named(host: RunHost, caller: ApiCaller, run_id: str) -> Run[Any] | None:
    """Return the run with an id of `run_id_of`; `None` if it was not begun yet."""
    if not await host.has_run(caller, run_id):
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


def write_needs(run: Run[Any]) -> dict[str, Json]:
    """Return what a run waits for, by kind and id."""

    def write(calls: Mapping[str, ToolCall]) -> dict[str, Json]:
        return {key: {"name": call.name, "arguments": call.arguments} for key, call in calls.items()}

    questions = {
        key: {"text": asked.text, "options": [option.label for option in asked.options]}
        for key, asked in run.open_questions.items()
    }
    return {"questions": questions, "approvals": write(run.approvals), "results": write(run.external_calls)}


def read_input(run: Run[Any], text: str, data: dict[str, Json]) -> list[InboxMessage]:
    """Return the messages for the inbox that a client's answer to a waiting run means.

    `data` maps the ids of what the run waits for to answers, to true or false, or to results. A text alone answers
    the only thing that the run waits for. Raises: `ConfigError`.
    """
    waits = [*run.open_questions, *run.approvals, *run.external_calls]
    given = {key: value for key, value in data.items() if key in waits}
    if not given:
        if len(waits) != 1 or not text:
            raise ConfigError(f"the run waits for {len(waits)} things; answer each by its id")
        given = {waits[0]: text}
    if missing := [key for key in waits if key not in given]:
        raise ConfigError(f"{missing[0]!r} has no answer; answer all that the run waits for")
    mail: list[InboxMessage] = []
    for key, value in given.items():
        if key in run.approvals:
            is_approved = value if isinstance(value, bool) else str(value).strip().lower() in _YES
            mail.append(DecideCall(key, is_approved, None if is_approved else str(value)))
        elif key in run.open_questions:
            mail.append(GiveAnswer(key, str(value)))
        else:
            mail.append(GiveResult(key, str(value)))
    return mail
