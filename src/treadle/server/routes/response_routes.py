"""`/v1/responses`: OpenAI's Responses API."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import ValidationError

from treadle.core.errors import ConfigError
from treadle.core.events import RunStarted
from treadle.core.inbox import Cancel
from treadle.core.texts.hiding import hide_servers
from treadle.core.types import Json
from treadle.journal.resources import ResourceFilter
from treadle.runs.recording import send
from treadle.server.admission.access import (
    ApiCaller,
    LeavingWatch,
    Receive,
    RequestRefused,
    Scope,
    Send,
    check_scope,
    no_such,
    read_body,
)
from treadle.server.admission.idempotency import KeyedRequest, keyed_request, new_run_id
from treadle.server.event_stream import EventStream, write_named
from treadle.server.gateway.gateway_host import result_of
from treadle.server.gateway.wires import RUN_HEADER
from treadle.server.no_answer import NO_RETRY
from treadle.server.responses.compact_request import drive_compaction, plan_compaction
from treadle.server.responses.conversation_items import ItemPage, items_of_run, page_of
from treadle.server.responses.item_parts import Echo
from treadle.server.responses.request_form import RequestReader
from treadle.server.responses.request_items import CompactResponse, CreateResponse
from treadle.server.responses.response_fold import ResponseFold
from treadle.server.responses.response_ids import ResponseId, read_response_id
from treadle.server.responses.response_part import part_of_run
from treadle.server.responses.response_plan import find_marked, plan_response
from treadle.server.responses.response_records import (
    delete_run,
    follow_response,
    page_of_responses,
    read_request,
)
from treadle.server.responses.response_turn import METADATA
from treadle.server.routes.route_context import Fast, Name, Reader, Runner, TheHost, encode
from treadle.server.run_host import AGENT, RunHost

router = APIRouter(prefix="/v1/responses", tags=["responses"])
RESPONSE_HEADER = "x-treadle-response"
"""The header with the id of a response that has failed, so that it can be read and continued."""
_DONE = b"data: [DONE]\n\n"


@router.post("")
async def create_response(body: CreateResponse, request: Request, host: TheHost, caller: Runner) -> Response:
    """Answer a message, or go on with the results of the client's tools.

    With `stream`, the answer is a stream of events. With `background`, the response is returned at once, and its
    work goes on when the client leaves; otherwise a client that leaves cancels it.
    """
    _check_characters(body)
    return await _respond(body, request.scope, keyed_request(request), host, caller)


def _check_characters(body: CreateResponse | CompactResponse) -> None:
    try:
        encode(body.model_dump())
    except UnicodeEncodeError:
        raise ConfigError("the request has half of a surrogate pair, which is no character") from None


async def _respond(
    body: CreateResponse, scope: Scope, keyed: KeyedRequest | None, host: RunHost, caller: ApiCaller
) -> Response:
    await host.check_room(caller)
    if keyed is not None and (known := await _find_begun(host, caller, body, keyed)) is not None:
        return await _answer_again(host, known, body, keyed)
    exchange = await plan_response(host, caller, body, new_run_id=new_run_id(keyed))
    if keyed is not None:
        exchange.keep_first(keyed.note, keyed.kept.nonce)
    if not (body.background or body.stream):
        with LeavingWatch(scope, lambda: host.start_quietly(exchange.cancel())):
            answer = await exchange.answer()
        await exchange.keep()
        return _write_whole(exchange.fold, keyed, answer)
    await exchange.start()
    keeping = host.start(exchange.keep())
    if body.background:
        exchange.drop()
        await result_of(keeping)
        if body.stream:
            return EventStream(write_lines(follow_response(host, exchange.place, exchange.echo)))
        exchange.fold.status = "queued"
        return Fast(exchange.fold.response())
    return EventStream(write_lines(exchange.events()), lambda: host.start_quietly(exchange.cancel()))


@router.post("/compact")
async def compact_response(
    body: CompactResponse, request: Request, host: TheHost, caller: Runner
) -> Response:
    """Return a conversation as its user's messages and one summary, as input of a new response.

    The result can also be continued by its id.
    """
    _check_characters(body)
    await host.check_room(caller)
    keyed = keyed_request(request)
    order = await plan_compaction(host, caller, body, new_run_id(keyed))
    fold = await host.do(drive_compaction(host, caller, order))
    return _write_whole(fold, keyed, fold.response())


async def answer_directly(
    app: Any, host: RunHost, reader: RequestReader, scope: Scope, receive: Receive, _: Send
) -> Any:
    """Return what answers `POST /v1/responses`, without the layers of FastAPI, which cost more than a turn.

    A body that cannot be read here goes on to `app`, which says what is wrong with it.
    """
    if (b"content-type", b"application/json") not in scope["headers"]:
        return app
    raw, state = await read_body(receive), scope["state"]
    try:
        body = reader.read(raw)
    except ValidationError:
        unread = [{"type": "http.request", "body": raw, "more_body": False}]

        async def read_again() -> Any:
            return unread.pop() if unread else await receive()

        return lambda scope, _, send: app(scope, read_again, send)
    caller = check_scope(state["caller"], "run")
    return await _respond(body, scope, state.get("keyed"), host, caller)


async def _find_begun(
    host: RunHost, caller: ApiCaller, body: CreateResponse, keyed: KeyedRequest
) -> ResponseFold | None:
    """Return the response that the same request has begun before its process died; `None` if it has begun none."""
    place = keyed.kept.place or await find_marked(host, caller, body, keyed.kept.nonce)
    if place is None:
        return None
    try:
        return await _fold(host, caller, place)
    except RequestRefused:
        return None


def _write_whole(fold: ResponseFold, keyed: KeyedRequest | None, answer: dict[str, Json]) -> Response:
    """Return a response that is over. Raises: `NoAnswerError` if it has failed without any output."""
    failure = fold.failure
    if failure is None or fold.output:
        return Fast(answer)
    if keyed is not None:
        keyed.is_answered = True
    # The run has tried again as often as its policy says, and the same request would begin another one.
    named = {RUN_HEADER: fold.response_id.run_id, RESPONSE_HEADER: str(fold.response_id)}
    failure.headers = {**(failure.headers or {}), **NO_RETRY, **named}
    raise failure


async def _answer_again(
    host: RunHost, fold: ResponseFold, body: CreateResponse, keyed: KeyedRequest
) -> Response:
    """Return a response that another process has begun, as its request asked for it.

    Raises: as `_write_whole` does.
    """
    events = follow_response(host, fold.response_id, fold.echo)
    if body.stream:
        return EventStream(write_lines(events))
    if body.background:
        return Fast(fold.response())
    async for _ in events:
        pass  # until it is over
    over = await asyncio.to_thread(_read_part, host, fold.response_id) or fold
    return _write_whole(over, keyed, over.response())


async def write_lines(events: AsyncIterator[dict[str, Json]], last: Json = -1) -> AsyncIterator[bytes]:
    """Yield the events as lines. `last` is the number of the newest event that the client has."""
    try:
        async for event in events:
            yield write_named(event)
            last = event["sequence_number"]
    except Exception as error:
        # A client that asks again for what comes after this number misses nothing, and gets nothing twice.
        told = {
            "sequence_number": last,
            "code": "server_error",
            "message": hide_servers(str(error)),
            "param": None,
        }
        yield write_named({"type": "error", **told})
    yield _DONE


@router.get("")
async def list_responses(
    host: TheHost,
    caller: Reader,
    limit: Annotated[int, Query(ge=1, le=100)] = 50,
    order: Literal["asc", "desc"] = "desc",
    after: str | None = None,
    model: str | None = None,
) -> Response:
    """Return the responses of the client with their input items, the newest first unless `order` is `asc`."""
    chosen = ResourceFilter(
        kind="",
        owner=caller.sees_only,
        label=model,
        after=after,
        limit=limit + 1,
        newest_first=order == "desc",
    )
    found = await asyncio.to_thread(page_of_responses, host.journal, chosen)
    shown = []
    for kept in found[:limit]:
        place = read_response_id(kept.resource_id)
        fold = await asyncio.to_thread(_read_part, host, place)
        if fold is not None:
            shown.append({**fold.response(), "input": await _list_items(host, place)})
    return Fast(page_of(shown, has_more=len(found) > limit))


@router.get("/{response_id}")
async def get_response(
    response_id: Name,
    host: TheHost,
    caller: Reader,
    stream: bool = False,
    starting_after: Annotated[int, Query(ge=-1)] = -1,
) -> Response:
    """Return a response, as far as it is done.

    With `stream`, return its events whose `sequence_number` is larger than `starting_after`, and then new ones as
    they happen. Only responses that were asked for with `background` can be streamed again.
    """
    fold = await _fold(host, caller, response_id)
    if not stream:
        return Fast(fold.response())
    if not fold.echo.is_background:
        raise ConfigError(
            f"{response_id!r:.100} was not asked for with background, so it has no stream to read again"
        )
    return EventStream(
        write_lines(follow_response(host, fold.response_id, fold.echo, starting_after), starting_after)
    )


async def _fold(host: RunHost, caller: ApiCaller, response_id: str) -> ResponseFold:
    """Return the fold of a response. Raises: `RequestRefused` if there is none."""
    place = read_response_id(response_id)
    await host.get_run(caller, place.run_id)
    found = await asyncio.to_thread(_read_part, host, place)
    if found is None:
        raise no_such("response", response_id)
    return found


def _read_part(host: RunHost, place: ResponseId) -> ResponseFold | None:
    events, echo = host.journal.read(place.run_id), read_request(host.journal, place)
    if echo is not None:
        return part_of_run(events, place, echo)
    started = events[0].body
    assert isinstance(started, RunStarted)
    spec = started.spec
    metadata = (started.metadata or {}).get(METADATA)
    echo = Echo(
        model=str((started.metadata or {}).get(AGENT, spec.model.name)),
        created_at=started.at,
        instructions=started.system_message,
        metadata=metadata if isinstance(metadata, dict) else {},
        rest={"parallel_tool_calls": True, "tool_choice": "auto", "text": {"format": {"type": "text"}}},
    )
    return part_of_run(events, place, echo)


@router.post("/{response_id}/cancel")
async def cancel_response(response_id: Name, host: TheHost, caller: Runner) -> Response:
    """Stop the work on a response, whichever process of the server does it."""
    fold = await _fold(host, caller, response_id)
    if fold.is_over and fold.status != "cancelled" and not fold.echo.is_background:
        told = f"cannot cancel {response_id!r:.100}: it is over, and was not asked for with background"
        raise RequestRefused(409, told, "response_over")
    if not fold.is_over:
        await send(host.journal, fold.response_id.run_id, Cancel("the client has cancelled it"))
        for _ in range(100):
            fold = await _fold(host, caller, response_id)
            if fold.is_over:
                break
            await asyncio.sleep(0.02)
    return Fast(fold.response())


@router.get("/{response_id}/input_items")
async def list_input_items(
    response_id: Name,
    host: TheHost,
    caller: Reader,
    page: Annotated[ItemPage, Query()],
) -> Response:
    """Return the items that the conversation had before those of this response, the newest first unless `order` is
    `asc`."""
    place = (await _fold(host, caller, response_id)).response_id
    return Fast(page.choose(await _list_items(host, place)))


async def _list_items(host: RunHost, place: ResponseId) -> list[dict[str, Json]]:
    """Return the items that a conversation had before those of a response, the oldest first."""
    events = await asyncio.to_thread(host.journal.read, place.run_id)
    return await asyncio.to_thread(items_of_run, events, place.run_id, place)


@router.delete("/{response_id}")
async def delete_response(response_id: Name, host: TheHost, caller: Runner) -> Response:
    """Delete the conversation that a response belongs to, with what memories have of it."""
    place = read_response_id(response_id)
    await host.get_run(caller, place.run_id)
    await asyncio.to_thread(delete_run, host.journal, place.run_id)
    return Fast({"id": response_id, "object": "response.deleted", "deleted": True})
