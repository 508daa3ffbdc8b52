"""Which turn a request of the Responses API asks for: of which run, by which agent, with what the run waits for."""

import asyncio
from collections.abc import Iterable
from typing import Any

from msgspec.structs import replace

from treadle.agent.agent import Agent
from treadle.core.errors import ConfigError
from treadle.core.events import RunResumed, RunStarted
from treadle.core.inbox import InboxMessage
from treadle.core.state import State
from treadle.core.state import fold as fold_events
from treadle.core.types import Json, Message, Role
from treadle.journal.protocol import Journal
from treadle.journal.run_info import RunFilter
from treadle.models.wire.served import join_words
from treadle.runs.begin import make_run_id
from treadle.runs.options import Given, SessionOptions
from treadle.runs.resume import fork_run
from treadle.runs.run import Run
from treadle.server.admission.access import ApiCaller, RequestRefused, no_such
from treadle.server.catalog import ClientWish, check_choice
from treadle.server.gateway.conversations import digest_of
from treadle.server.no_answer import NO_RETRY
from treadle.server.responses.given_items import read_input
from treadle.server.responses.item_parts import Echo
from treadle.server.responses.request_form import echo_of, read_wish, wish_of
from treadle.server.responses.request_items import (
    AskedTurn,
    CreateResponse,
    RequestItems,
    items_in,
)
from treadle.server.responses.response_fold import ResponseFold
from treadle.server.responses.response_ids import (
    CONVERSATION,
    ResponseId,
    conversation_id,
    read_call_id,
    read_conversation_id,
    read_response_id,
    wire_call_id,
)
from treadle.server.responses.response_part import count_waits, part_of_run
from treadle.server.responses.response_records import (
    KeptConversation,
    find_conversation,
    newest_response,
    read_kept,
    read_request,
)
from treadle.server.responses.response_turn import MARK, METADATA, ResponseTurn, client_name, under_way
from treadle.server.run_host import RunHost
from treadle.server.turn_order import Reply, TurnOrder, begin_options, write_mail

_NEXT_SECONDS = 1e-6
_NOTHING_SAID = "input has no message of the user, and no output of a call that waits"


async def plan_response(
    host: RunHost, caller: ApiCaller, body: CreateResponse, new_run_id: str | None = None
) -> "ResponseTurn":
    """Return the turn that a request asks for. `new_run_id` is the id of the run, if it begins one.

    Raises: `ConfigError`, `RequestRefused`.
    """
    _check_body(body)
    conversation, begun = await _find_conversation(host, caller, body)
    given = body.input if begun is None else [*begun.items, *items_in(body.input)]
    asked, form = await read_input(host, caller, given), wish_of(host.catalog, body)
    if form.searches:
        await _check_stores(host, caller, form)
    before = body.previous_response_id
    before_echo: Echo | None = None
    if before is not None or conversation is not None:
        before, before_echo = await asyncio.to_thread(_find_before, host.journal, before, conversation)
    system = [] if before_echo is None else list(before_echo.system)
    system += [] if begun is None else begun.system
    system += asked.instructions
    instructions = join_texts([body.instructions, *system])
    wish, shared = replace(form, instructions=instructions, client=caller.name), body.form
    agent = await host.catalog.open_agent(body.model, wish, shared.key)
    if shared.wish is None:
        shared.wish, shared.key = form, None if form.servers else host.catalog.key_of(body.model, form)
    if body.tool_choice is not None:
        given_kinds = [tool["type"] for tool in body.tools]
        check_choice(agent, body.choice, allows_all=body.allows_all, given=given_kinds)
    run, mail = None, list[InboxMessage]()
    if begun is None:
        run, mail = await _find_run(host, caller, agent, body, asked, conversation)
    state = None if run is None else run.state
    if state is None and (asked.results or asked.approvals):
        known = next(iter([*asked.results, *asked.approvals]))
        raise ConfigError(
            f"no call {known!r:.100} waits for an output; give previous_response_id or conversation"
        )
    if state is None and asked.message is None:
        raise ConfigError(_NOTHING_SAID)
    is_new = state is None
    run_id = (new_run_id or make_run_id()) if run is None else run.run_id
    metadata = body.metadata or {}
    if begun is not None:
        assert conversation is not None
        run_id, metadata = conversation, begun.metadata
    if state is not None and state.turn.is_open and not mail:
        raise under_way()
    turn, step = (0, 0) if state is None else (state.turn.number, state.step)
    history, message = asked.history, asked.message
    if mail and any([said.role is not Role.USER for said in history]):
        history = []  # the client has sent again what the run already has
    if not is_new and history and message is not None:
        message, history = _join([*history, message]), []
    echo = echo_of(body, instructions)
    echo.previous_response_id, echo.system = before, system
    if before_echo is not None:
        # The newest response of a conversation is the one that was made last, also if the clock was set back.
        echo.created_at = max(echo.created_at, before_echo.created_at + _NEXT_SECONDS)
    if conversation is not None:
        echo.conversation = conversation_id(_conversation_run(body))
    elif before_echo is not None:
        echo.conversation = before_echo.conversation
    options: SessionOptions = {"renews_instructions": True}
    if is_new:
        labels = {METADATA: dict(metadata)}
        options |= begin_options(host, caller, body.model, labels, tuple(history))
    place = ResponseId(run_id, turn + 1, step)
    if run is not None and mail:
        waits = await asyncio.to_thread(lambda: count_waits(run.events))
        place = ResponseId(run_id, turn, step, max(0, waits - 1))
    order = TurnOrder(
        agent=agent,
        run_id=run_id,
        message=message,
        mail=mail,
        options=options,
        blobs=asked.blobs,
        begins_at=(turn, step),
    )
    host.note_run(run_id)
    made = ResponseTurn(host, caller, place, echo, order)
    if state is not None:
        made.fold.note_calls([item.call for item in state.turn.calls.values()])
    if run is not None and wish.servers:
        for event in await asyncio.to_thread(lambda: run.events):
            if isinstance(event.body, RunStarted | RunResumed):
                made.fold.note_listed(event.body.tools)
    return made


def _check_body(body: CreateResponse) -> None:
    """Check what a request says beside its items. Raises: `ConfigError`, `RequestRefused`."""
    if body.conversation is not None and body.previous_response_id is not None:
        raise ConfigError("give previous_response_id or conversation, not both")
    if body.conversation is not None and not (name := _conversation_name(body)).startswith(CONVERSATION):
        raise ConfigError(f"conversation is {name!r:.100}; give an id that begins with {CONVERSATION!r}")
    if body.guardrails:
        told = "this server has no safety checks (guardrails); leave guardrails out, or ask another server"
        raise RequestRefused(503, told, "guardrails_unavailable", NO_RETRY)


def _conversation_name(body: CreateResponse) -> str:
    given = body.conversation
    assert given is not None
    return given if isinstance(given, str) else given.id


def _conversation_run(body: CreateResponse) -> str:
    """Return the id of the run of the conversation that a request names. Raises: `RunNotFoundError`."""
    return read_conversation_id(_conversation_name(body))


async def _find_conversation(
    host: RunHost, caller: ApiCaller, body: CreateResponse
) -> tuple[str | None, KeptConversation | None]:
    """Return the id of the run of the conversation that a request names, and what is stored of it if that run has
    not begun. `None`: the request names none, or the run has begun."""
    if body.conversation is None:
        return None, None
    name = _conversation_run(body)
    stored = await asyncio.to_thread(find_conversation, host.journal, name, caller.sees_only)
    kept = read_kept(stored)
    run_id = kept.run_id or name
    if stored is None or await host.find_info(caller, run_id) is not None:
        return run_id, None
    return run_id, kept


async def find_marked(host: RunHost, caller: ApiCaller, body: CreateResponse, mark: str) -> str | None:
    """Return the id of the first response of a conversation if the request with this mark has begun its run.

    Raises: `RunNotFoundError`.
    """
    if body.conversation is None or body.previous_response_id is not None:
        return None
    name = _conversation_run(body)
    kept = read_kept(await asyncio.to_thread(find_conversation, host.journal, name, caller.sees_only))
    labels = {MARK: mark, **host.visible_to(caller)}
    wanted = RunFilter(run_ids=[name, kept.run_id or name, *kept.earlier], labels=labels)
    found = await asyncio.to_thread(host.journal.runs, wanted)
    return str(ResponseId(found[0].run_id, 1, 0)) if found else None


def _find_before(
    journal: Journal, before: str | None, conversation: str | None
) -> tuple[str | None, Echo | None]:
    """Return the id of the response that a request continues, and what it repeats of its request."""
    if conversation is not None:
        before = newest_response(journal, conversation)
    return before, None if before is None else read_request(journal, read_response_id(before))


def join_texts(texts: Iterable[str | None]) -> str | None:
    """Return the texts that are not empty as one; `None` if there is none."""
    return "\n\n".join([text for text in texts if text]) or None


async def read_asked(
    host: RunHost,
    caller: ApiCaller,
    body: AskedTurn,
    schema: dict[str, Json] | None = None,
    max_steps: int | None = None,
) -> tuple[RequestItems, ClientWish]:
    """Return the items of a request, and what it wants of the agent, whose answers fit `schema`.

    Raises: `ConfigError`, `RequestRefused`.
    """
    asked = await read_input(host, caller, body.input)
    instructions = join_texts([body.instructions, *asked.instructions])
    wish = read_wish(host.catalog, body, body.tools, schema, max_steps)
    await _check_stores(host, caller, wish)
    return asked, replace(wish, instructions=instructions, client=caller.name)


async def _check_stores(host: RunHost, caller: ApiCaller, wish: ClientWish) -> None:
    """Check that a client sees the vector stores that it names. Raises: `RequestRefused`."""
    for store_id in [name for search in wish.searches for name in search["vector_store_ids"]]:
        await host.get_store(caller, str(store_id))


def _join(messages: list[Message]) -> Message:
    """Return one message of the user for several. Raises: `ConfigError` if one is not of the user."""
    if any([message.role is not Role.USER for message in messages]):
        raise ConfigError("a conversation goes on with messages of the user only; it has the others already")
    return join_words(messages)


async def _find_run(
    host: RunHost,
    caller: ApiCaller,
    agent: Agent[Any],
    body: CreateResponse,
    asked: RequestItems,
    conversation: str | None,
) -> tuple[Run[Any] | None, list[InboxMessage]]:
    """Return the run that a request continues, and the messages for its inbox; a new conversation has no run."""
    if conversation is not None:
        if (found := await host.find_run(caller, conversation)) is None:
            raise no_such("conversation", f"{CONVERSATION}{_conversation_run(body)}")
        return found, _read_mail(conversation, found.state, asked)
    if body.previous_response_id is None:
        if asked.run_id is None and not asked.history:
            return None, []
        found = await _find_named(host, caller, asked)
        return found, [] if found is None else _read_mail(found.run_id, found.state, asked)
    fold = await find_response(host, caller, body.previous_response_id)
    before = fold.response_id
    run = await host.get_run(caller, before.run_id)
    if run.state.turn.number == before.turn and run.state.step <= fold.step:
        return run, _read_mail(before.run_id, run.state, asked)
    # It was continued before, so that this is another branch. A request that is refused leaves no fork.
    events = await asyncio.to_thread(host.journal.read, before.run_id, until_seq=fold.seq)
    mail = _read_mail(before.run_id, fold_events([event.body for event in events]), asked)
    forked = await fork_run(agent, before.run_id, fold.seq, Given(agent.answer, agent.deps), {})
    return forked, mail


async def find_response(host: RunHost, caller: ApiCaller, response_id: str) -> ResponseFold:
    """Return a response that another one continues.

    Raises: `RequestRefused` if there is none, or it is not over.
    """
    place = read_response_id(response_id)
    await host.get_info(caller, place.run_id)
    events = await asyncio.to_thread(host.journal.read, place.run_id)
    fold = await asyncio.to_thread(part_of_run, events, place, Echo(model="", created_at=0))
    if fold is None:
        raise no_such("response", response_id)
    if not fold.is_over:
        raise RequestRefused(409, f"{response_id!r} is not over", "conversation_locked")
    return fold


async def _find_named(host: RunHost, caller: ApiCaller, asked: RequestItems) -> Run[Any] | None:
    """Return the run that the history of a request belongs to: it waits for the results, or has this history.

    Clients that keep the history themselves send all of it with each request."""
    said = digest_of(asked.history)
    run_id = asked.run_id or (host.conversations.take(client_name(caller), said) if asked.history else None)
    run = None if run_id is None else await host.find_run(caller, run_id)
    if run is None or asked.results or asked.approvals:
        return run
    if run.state.turn.is_open or digest_of(run.state.transcript) != said:
        return None
    asked.history = []
    return run


def _read_mail(run_id: str, state: State, asked: RequestItems) -> list[InboxMessage]:
    """Return the messages for the inbox that answer what a run waits for. Raises: `ConfigError` if a call of the
    client has no output, or an output no call; if there is neither a message nor an output."""
    replies = {
        read_call_id(run_id, wire): Reply(
            text,
            is_error=wire in asked.failed,
            is_declined=not text,
            parts=asked.result_parts.get(wire, ()),
        )
        for wire, text in asked.results.items()
    }
    for wire, (is_approved, reason) in asked.approvals.items():
        replies[read_call_id(run_id, wire)] = Reply(reason or "", is_approved)
    missing = f"no tool output found for the function call {wire_call_id(run_id, '')}"
    mail = write_mail(state, replies, missing, is_whole=asked.message is not None)
    if asked.message is None and not mail:
        raise ConfigError(_NOTHING_SAID)
    return mail
