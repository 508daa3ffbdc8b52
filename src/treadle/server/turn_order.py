"""The one way in which a server drives the turn that a client asks for, in any protocol."""

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import Any, cast

from msgspec import Struct

from treadle.agent.agent import Agent
from treadle.core.asking import open_questions
from treadle.core.calls import external_calls, waiting_calls
from treadle.core.errors import ConfigError, LeaseHeldError
from treadle.core.events import MessageInjected, Noted, RunFinished, TurnCompleted, TurnStarted
from treadle.core.events.narrowing import Item
from treadle.core.inbox import DecideCall, GiveAnswer, GiveResult, InboxMessage
from treadle.core.state import State
from treadle.core.types import Artifact, Delivery, Json, Message, Role, ToolCall
from treadle.journal.hub import listen
from treadle.journal.protocol import Journal
from treadle.journal.run_info import RunFilter, RunInfo
from treadle.loop.driver import Driver
from treadle.loop.listener import Emit
from treadle.loop.wayout import released_on_error
from treadle.runs.begin import Beginning, run_first_turn
from treadle.runs.drive import takes_time
from treadle.runs.options import Given, SendOptions, SessionOptions, check_history
from treadle.runs.recording import Sent, user_message
from treadle.runs.resume import continue_run, reopen
from treadle.runs.run import Run
from treadle.server.admission.access import ApiCaller, RequestRefused
from treadle.server.admission.idempotency import KeyedRequest
from treadle.server.responses.response_fold import is_wait
from treadle.server.run_host import BegunTurn, RunHost

Drive = Callable[[Emit], Coroutine[Any, Any, Run[Any]]]
_YES = frozenset(("yes", "y", "approve", "approved", "ok", "true"))
"""The texts that approve a call, in lower case."""


class TurnOrder(Struct, kw_only=True):
    """What a client asks of a run: its next turn, or the rest of a turn that waited for the client."""

    agent: Agent[Any]
    run_id: str
    message: Message | None = None
    """The user's message; `None` if the client only sends what the run waits for, or has sent it to the inbox.

    Beside `mail`, the model sees it together with the answers."""
    blobs: Mapping[str, bytes] = {}
    """The contents of the parts of the message, of the history before it and of the mail, as far as they are not
    inline."""
    mail: list[InboxMessage] = []
    """The results, answers and decisions that the run waits for."""
    options: SessionOptions = {}
    begins_at: tuple[int, int] | None = None
    """The numbers of turns and of steps that the run has before it goes on; `None`: any. Another client may have
    driven it since this was planned."""
    before: Callable[[], Awaitable[None]] | None = None
    """A function that is called before anything of the turn is stored, once no other client can drive the run.
    Therefore, a run that begins with its message must have an id that nobody else knows."""
    on_driver: Callable[[Driver], object] | None = None
    """A function that is called before a new run gets its first events, so that what it stores is committed with
    them. It is not called if the agent takes time before its turn begins."""


class Reply(Struct, frozen=True):
    """What a client says to something that a run waits for, in any protocol."""

    text: str = ""
    """The result of a call, the answer to a question, or why a call is refused."""
    is_approved: bool | None = None
    """The decision about a call that waits for approval; `None` if this is a result or an answer."""
    arguments: str | None = None
    """JSON arguments that replace those of an approved call."""
    is_error: bool = False
    """True if the call failed."""
    is_declined: bool = False
    """True if the user does not want to answer."""
    parts: tuple[Artifact, ...] = ()
    """The images and files of the result of a call."""


async def drive_turn(journal: Journal, order: TurnOrder, emit: Emit | None) -> Run[Any]:
    """Drive a turn until it is over or waits for somebody, and return the run.

    `emit` gets its events once they are stored, and the pieces of output. Without it, the model need not stream and
    fewer commits are needed; the run then has its events in memory. If this is cancelled, the turn stays
    open, so that the next process goes on with it. Raises: what prevents the turn; `LeaseHeldError` if the run has
    gone on since the turn was planned.
    """
    agent, run_id = order.agent, order.run_id
    if order.mail or order.message is None:
        state, writer = await reopen(agent, run_id, trust=False)
        async with released_on_error(writer):
            await _begin(order, state)
            for message in order.mail:
                has_parts = isinstance(message, GiveResult) and message.artifacts
                blobs = order.blobs if has_parts else None
                await asyncio.wrap_future(journal.posting(run_id, message, blobs))
            if order.message is not None:
                told = user_message(order.message, Delivery.STEER)
                await asyncio.wrap_future(journal.posting(run_id, told, order.blobs))
        renews = order.options.get("renews_instructions", False)
        given = Given(agent.answer, agent.deps, emit, renews_instructions=renews)
        run = await continue_run(agent, state, writer, given)
        if emit is None:
            await asyncio.to_thread(lambda: run.events)
        return run
    options, is_quiet = order.options, emit is None
    if options.get("begins_with_message") and not takes_time(agent):
        await _begin(order)
        given = Given(agent.answer, agent.deps, emit, keeps_events=is_quiet, on_driver=order.on_driver)
        history = check_history(options.get("history", ()))
        files, labels = options.get("files"), options.get("metadata")
        beginning = Beginning(run_id, files, labels, is_session=True, is_lazy=True, history=history)
        return await run_first_turn(agent, order.message, given, beginning, order.blobs)
    options = {**options, "pauses_when_cancelled": True, "keeps_events": is_quiet}
    async with agent.session(run_id, **options) as session:
        await _begin(order, session.run.state)
        sent: SendOptions = {"attach": order.message.parts, "blobs": order.blobs, "on_event": emit}
        sent["is_last"] = is_quiet
        if session.has_reopened_turn:
            sent["delivery"] = "interrupt"  # the client has seen the error, and now says something else
        run = await session.send(order.message.content, **sent)
        if is_quiet:
            run.events = list(await session.read_events())
        return run


async def _begin(order: TurnOrder, state: State | None = None) -> None:
    """Call `order.before`, unless somebody has driven the run on since the plan. Raises: `LeaseHeldError` then."""
    if state is not None and order.begins_at not in (None, (state.turn.number, state.step)):
        raise LeaseHeldError(f"run {order.run_id!r} was driven on by another client; ask again")
    if order.before is not None:
        await order.before()


def begin_options(
    host: RunHost,
    caller: ApiCaller,
    agent: str,
    labels: Mapping[str, Json] = {},
    history: Sequence[Message] = (),
) -> SessionOptions:
    """Return the options of a session that begins with the message of a client, who has named `agent`."""
    return {
        "metadata": {**labels, **host.labels(caller, agent)},
        "expects_new": True,
        "begins_with_message": True,
        "history": history,
    }


async def plan_text(
    host: RunHost, caller: ApiCaller, agent: str, run: Run[Any] | str, text: str, data: dict[str, Json] | None
) -> TurnOrder:
    """Return the order for what a client says to an agent: the user's next message, or an answer.

    `run` is the run, or the id of a new one. `data` has answers to what the run waits for, by id; `None`: the text
    is no answer. Raises: `ConfigError`, `RequestRefused`.
    """
    made = await asyncio.to_thread(host.catalog.agent, agent)
    if isinstance(run, str):
        order = TurnOrder(agent=made, run_id=run, options=begin_options(host, caller, agent))
    else:
        order = TurnOrder(agent=made, run_id=run.run_id)
        if run.state.turn.is_open and data is not None:
            order.mail = read_input(run, text, data)
            return order
        check_idle(run)
    if not text:
        raise ConfigError("the message has no text; give a message")
    order.message = Message(Role.USER, text)
    return order


async def find_before(
    host: RunHost, caller: ApiCaller, run_id: str, keyed: KeyedRequest | None
) -> Run[Any] | None:
    """Return a run as it was before a request, also before an earlier try of it; `None` if it had not begun."""
    run = await host.find_run(caller, run_id)
    if run is None or keyed is None or keyed.kept.place is None:
        return run
    seq = int(keyed.kept.place)
    return await asyncio.to_thread(Run.load, run_id, host.journal, seq) if seq else None


def seq_before(info: RunInfo, keyed: KeyedRequest | None) -> int:
    """Return the number of a run's newest event before a request, also before an earlier try of it."""
    return info.events if keyed is None or keyed.kept.place is None else int(keyed.kept.place)


async def start_turn(
    host: RunHost, order: TurnOrder, seq: int, keyed: KeyedRequest | None, drive: Drive | None = None
) -> BegunTurn:
    """Begin the turn that a client asks for. `seq` is the number of the run's newest event before it.

    `drive` drives it in a way of its own. If the same request has begun the turn before its process died, that turn
    is followed, whoever drives it. Raises: what prevents the turn.
    """
    host.note_run(order.run_id)
    if keyed is not None and keyed.kept.place is None:
        # Before the turn is stored, so that nothing is begun of which the key does not know.
        await keyed.note(str(seq))
    elif keyed is not None:
        run_id, infos = order.run_id, RunFilter(run_ids=[order.run_id])
        if any(info.events > seq for info in await asyncio.to_thread(host.journal.runs, infos)):
            return await host.begin(lambda emit: _follow_turn(host.journal, run_id, seq, emit))
    return await host.begin(drive or (lambda emit: drive_turn(host.journal, order, emit)))


async def _follow_turn(journal: Journal, run_id: str, seq: int, emit: Emit) -> Run[Any]:
    """Emit the events of a run after number `seq` until its turn is over or waits for somebody; return the run."""
    run = await asyncio.to_thread(Run.load, run_id, journal)
    parent = None if run.state.started is None else run.state.started.parent
    copied = 0 if parent is None else parent.seq
    for event in run.events:
        if event.seq > max(seq, copied):
            emit(event)
    if run.state.turn.is_open and not any(write_needs(run).values()):
        async for item in listen(journal, run_id, run.state.seq):
            emit(item)
            body = item.body
            if is_wait(body) or isinstance(body, TurnCompleted | RunFinished):
                break
        run = await asyncio.to_thread(Run.load, run_id, journal)
    return run


async def follow_message(journal: Journal, run_id: str, seq: int, sent: Sent) -> AsyncIterator[Item]:
    """Yield what happens to a run after event `seq`, until the turn that answers a message of its inbox is over.

    It also ends if the message has no effect, or the run waits for somebody.
    """
    if not sent.is_driven:  # it waits
        for event in await asyncio.to_thread(journal.read, run_id, seq):
            yield cast("Item", event)
        return
    injected, taken, is_answering = 0, 0, False
    async for item in listen(journal, run_id, seq):
        yield item
        body = item.body
        if isinstance(body, MessageInjected):
            injected = item.seq or 0
        if getattr(body, "inbox", None) == sent.number:
            if isinstance(body, Noted):
                return
            taken = injected
            is_answering = isinstance(body, MessageInjected) and body.delivery is Delivery.STEER
        elif isinstance(body, TurnStarted) and taken:
            is_answering = is_answering or body.queued_seq == taken
        if isinstance(body, RunFinished) or (taken and is_wait(body)):
            return
        if is_answering and isinstance(body, TurnCompleted):
            return


def run_id_of(caller: ApiCaller, kind: str, name: str) -> str:
    """Return the id of the run that stands for what a client has named, such as a thread of AG-UI."""
    text = "\0".join((kind, caller.name, name))
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:19]


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
    replies = {}
    for key, value in given.items():
        is_approved = value if isinstance(value, bool) else str(value).strip().lower() in _YES
        if key not in run.approvals:
            replies[key] = Reply(str(value))
        else:
            replies[key] = Reply("" if is_approved else str(value), is_approved)
    return write_mail(run.state, replies)


def write_mail(
    state: State,
    replies: Mapping[str, Reply],
    missing: str = "answer all that the run waits for, also ",
    *,
    is_whole: bool = False,
) -> list[InboxMessage]:
    """Return the messages for the inbox that a client's replies to a waiting run mean, by the ids of what it waits
    for.

    Raises: `ConfigError` for a reply to something that the run does not wait for, and if only some of what it waits
    for has a reply; its text begins with `missing`. If `is_whole`, no reply at all is a mistake, too.
    """
    calls = {item.call.call_id for item in external_calls(state)}
    questions = {body.question_id for body in open_questions(state)}
    approvals = {item.call.call_id for item in waiting_calls(state)}
    mail: list[InboxMessage] = []
    for key, reply in replies.items():
        if reply.is_approved is not None and key in approvals:
            mail.append(DecideCall(key, reply.is_approved, reply.text or None, reply.arguments))
        elif reply.is_approved is not None:
            raise ConfigError(f"no call {key!r:.100} waits for an approval")
        elif key in calls:
            mail.append(GiveResult(key, reply.text, reply.is_error, reply.parts))
        elif key in questions:
            mail.append(GiveAnswer(key, reply.text, is_declined=reply.is_declined))
        else:
            raise ConfigError(f"no call {key!r:.100} waits for an output")
    left = [key for key in (*calls, *questions, *approvals) if key not in replies]
    if left and (mail or is_whole):
        raise ConfigError(f"{missing}{left[0]}")
    return mail
