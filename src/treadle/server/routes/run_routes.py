"""`/v1/runs`: every run of the journal, its events as they happen, and its inbox."""

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Annotated, Any, get_args

import msgspec
from fastapi import APIRouter, Body, Depends, Header, Query, Request
from fastapi.responses import Response
from msgspec import Struct
from msgspec.structs import replace

from treadle.agent.overview import find_lines
from treadle.core.errors import ConfigError
from treadle.core.events import Ephemeral
from treadle.core.events.narrowing import Item
from treadle.core.inbox import (
    Cancel,
    DecideCall,
    Enqueue,
    InboxMessage,
    Interrupt,
    Note,
    Steer,
    Withdraw,
)
from treadle.core.registry import did_you_mean
from treadle.core.state import Status
from treadle.core.texts.json_text import decode_json
from treadle.core.types import Json, Role
from treadle.journal.hub import SENT_BYTES, Heard, listen_together
from treadle.journal.run_info import DAMAGED, RunFilter, RunInfo, RunOrder
from treadle.runs.recording import send
from treadle.server.admission.access import ApiCaller, RequestRefused, no_such
from treadle.server.event_stream import EventStream, to_sse
from treadle.server.export_form import ExportForm, read_form
from treadle.server.responses import response_records
from treadle.server.routes.route_context import Checked, Fast, Name, Reader, Runner, TheHost, encode
from treadle.server.run_host import AGENT, RunHost
from treadle.server.shown_runs import journal_of, show_info, view_of
from treadle.server.turn_order import write_needs
from treadle.viewer.run_view import write_run as write_facts

MAX_SEQ = 2**53
"""More than any number of an event."""
router = APIRouter(prefix="/v1/runs", tags=["runs"], dependencies=[Checked])
_decode_message = msgspec.json.Decoder(InboxMessage).decode
_MESSAGES = {str(kind.__struct_config__.tag): kind for kind in get_args(InboxMessage)}
"""The messages to a run, by their types."""


_PAGE = 200
_ID_CHARS = 6
"""How long the beginning of an id is at least. Words that somebody searches for are often shorter."""


class ListedRuns(Struct):
    """Which runs a list has, and where it begins."""

    condition: RunFilter
    text: str | None
    after: str | None
    limit: int
    sorting: dict[str, Any]
    """The options of `Journal.runs` that say in which order."""


async def read_listed(
    host: TheHost,
    caller: Reader,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    after: Annotated[str | None, Query(description="the id of the last run of the page before")] = None,
    status: str | None = None,
    stop_reason: str | None = None,
    agent: Annotated[str | None, Query(description="the agent or model that a client named")] = None,
    model: str | None = None,
    parent: Annotated[str | None, Query(description="the run that others were forked from")] = None,
    text: Annotated[
        str | None,
        Query(
            min_length=1,
            description="a text in a message or a result of a tool, in any case; or the beginning of an id",
        ),
    ] = None,
    created_since: Annotated[float | None, Query(description="seconds since 1970")] = None,
    created_before: Annotated[float | None, Query(description="seconds since 1970")] = None,
    is_waiting: bool | None = None,
    is_session: bool | None = None,
    is_turn_open: bool | None = None,
    is_called: Annotated[bool | None, Query(description="false leaves out the runs of sub-agents")] = None,
    order: Annotated[
        RunOrder | None, Query(description="the figure to sort by; by default the time of the start")
    ] = None,
    is_ascending: bool = False,
    label: Annotated[list[str] | None, Query(description="NAME=VALUE; may be given several times")] = None,
) -> ListedRuns:
    """Return which runs the parameters of a request ask for. Raises: `ConfigError`, `RequestRefused`."""
    if after is not None and await host.find_info(caller, after) is None:
        raise no_such("run", after)
    known = [*[item.value for item in Status], DAMAGED]
    if status is not None and status not in known:
        hint = did_you_mean(status, known, f"known are {', '.join(known)}")
        raise ConfigError(f"there is no status {status!r:.100}{hint}")
    labels = dict(_read_label(text) for text in label or ())
    # A client that sees only its own runs is shown the agent as the model.
    names = {name for name in (agent, None if caller.sees_all else model) if name is not None}
    if names:
        labels[AGENT] = names.pop() if len(names) == 1 else ""  # no run has two names
    condition = RunFilter(
        status=status,
        stop_reason=stop_reason,
        model=model if caller.sees_all else None,
        parent_run_id=parent,
        created_since=created_since,
        created_before=created_before,
        is_waiting=is_waiting,
        is_session=is_session,
        is_turn_open=is_turn_open,
        is_called=is_called,
        labels={**labels, **host.visible_to(caller)},
    )
    # Stores of other packages may know no order.
    sorting = {"newest_first": not is_ascending, **({} if order is None else {"order": order})}
    return ListedRuns(condition, text, after, limit, sorting)


Listed = Annotated[ListedRuns, Depends(read_listed)]


def _list(host: RunHost, asked: ListedRuns) -> list[RunInfo]:
    """Return one run more than asked for, if there are so many. Blocks."""
    journal, after, most = host.journal, asked.after, asked.limit + 1
    if asked.text is None:
        return journal.runs(asked.condition, after=after, limit=most, **asked.sorting)
    named: set[str] = set()
    if len(asked.text) >= _ID_CHARS:
        named.update(info.run_id for info in journal.runs(RunFilter(id_prefix=asked.text), limit=_PAGE))
    condition = replace(asked.condition, run_ids=[*named.union(journal.find_runs(asked.text))])
    found: list[RunInfo] = []
    while len(found) < most and (page := journal.runs(condition, after=after, limit=_PAGE, **asked.sorting)):
        found += [info for info in page if info.run_id in named or any(find_lines(journal, info, asked.text))]
        after = page[-1].run_id
    return found[:most]


@router.get("")
async def list_runs(host: TheHost, caller: Reader, asked: Listed) -> Response:
    """Return runs, the newest or largest first."""
    found = await asyncio.to_thread(_list, host, asked)
    data = [write_facts(show_info(caller, info)) for info in found[: asked.limit]]
    return Fast({"object": "list", "data": data, "has_more": len(found) > asked.limit})


@router.get("/export")
async def export_runs(
    host: TheHost, caller: Reader, asked: Listed, form: Annotated[ExportForm, Depends(read_form)]
) -> Response:
    """Return the rows of the runs that a list with these parameters has. `x-treadle-left-out` says how many of them
    have no row, such as runs that are under way."""
    found = await asyncio.to_thread(_list, host, asked)
    rows, left_out = await asyncio.to_thread(
        form.write, host.journal, [info.run_id for info in found[: asked.limit]], caller
    )
    headers = {"x-treadle-left-out": str(len(left_out)), "x-treadle-has-more": str(len(found) > asked.limit)}
    return Response(rows, media_type=form.media_type, headers=headers)


def _read_label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ConfigError(f"label is {text!r:.100}; give NAME=VALUE")
    return name, value


@router.get("/{run_id}")
async def get_run(run_id: Name, host: TheHost, caller: Reader) -> Response:
    """Return a run: its state, its answer, why its newest turn ended, and what it waits for."""
    return Fast(await write_run(host, caller, run_id))


async def write_run(host: RunHost, caller: ApiCaller, run_id: str) -> dict[str, Json]:
    """Return the facts about a run, its answer, why its newest turn ended, and what it waits for.

    Raises: `RequestRefused`.
    """
    info, run = await host.get_info(caller, run_id), await host.get_run(caller, run_id)
    ending = run.state.ending
    reason = None if run.state.turn.is_open else ending.stop_reason
    told = {"output": ending.output, "turn_stop_reason": reason, "waits_for": write_needs(run)}
    return {**write_facts(show_info(caller, info)), **told}


@router.get("/{run_id}/export")
async def export_run(
    run_id: Name, host: TheHost, caller: Reader, form: Annotated[ExportForm, Depends(read_form)]
) -> Response:
    """Return a run as a row for training, as a group with tokens, or as lines of a journal."""
    await host.get_info(caller, run_id)
    rows, left_out = await asyncio.to_thread(form.write, host.journal, [run_id], caller)
    if left_out:
        raise RequestRefused(409, left_out[0], "not_exportable")
    return Response(rows, media_type=form.media_type)


@router.get("/{run_id}/messages")
async def get_messages(run_id: Name, host: TheHost, caller: Reader) -> Response:
    """Return the transcript of a run."""
    run = await host.get_run(caller, run_id, journal_of(host.journal, caller))
    return Fast({"object": "list", "data": msgspec.to_builtins(run.messages)})


@router.get("/{run_id}/events")
async def get_events(
    run_id: Name,
    request: Request,
    host: TheHost,
    caller: Reader,
    after_seq: Annotated[int, Query(ge=0, le=MAX_SEQ)] = 0,
    stream: bool = False,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """Return the events of a run after number `after_seq`.

    With `stream`, or if the client accepts only event streams, the events are sent as they happen, with the pieces
    of output between them. The id of each event is its number, so a client that connects again with Last-Event-ID
    goes on where it was. The stream ends with the run.
    """
    show = view_of(caller, await host.get_info(caller, run_id))
    if last_event_id is not None:
        if not last_event_id.isdecimal() or len(last_event_id) > len(str(MAX_SEQ)) - 1:
            raise ConfigError(f"Last-Event-ID is {last_event_id!r:.50}; give the number of an event")
        after_seq = int(last_event_id)
    if stream or request.headers.get("accept", "") == "text/event-stream":
        heard = listen_together(host.journal, run_id, after_seq)
        return EventStream(_write_together(heard, caller, show), host=host)
    found = await asyncio.to_thread(journal_of(host.journal, caller).read, run_id, after_seq)
    lines = [event.to_json() for event in found]
    return Response(b'{"object":"list","data":[' + b",".join(lines) + b"]}", media_type="application/json")


async def write_events(
    items: AsyncIterator[Item], show: Callable[[Item], Item] | None
) -> AsyncIterator[bytes]:
    """Yield events and pieces of output as server-sent events, as `show` returns them; see `view_of`."""
    async for item in items:
        yield _to_frame(item if show is None else show(item))


async def _write_together(
    groups: AsyncIterator[list[Heard]], caller: ApiCaller, show: Callable[[Item], Item] | None
) -> AsyncIterator[bytes]:
    """Yield what listeners share as server-sent events, each encoded once for all who see the same."""
    viewer = caller.sees_only
    async for group in groups:
        frames, size = list[bytes](), 0
        for heard in group:
            frame = heard.frames.get(viewer)
            if frame is None:
                frame = heard.frames[viewer] = _to_frame(heard.item if show is None else show(heard.item))
            frames.append(frame)
            size += len(frame)
            if size >= SENT_BYTES or heard is group[-1]:
                yield b"".join(frames)
                frames, size = [], 0


def _to_frame(item: Item) -> bytes:
    if isinstance(item, Ephemeral):
        return to_sse(item.to_json(), item.type)
    return to_sse(item.to_json(), item.type, item.seq)


@router.post("/{run_id}/inbox")
async def post_message(
    run_id: Name, host: TheHost, caller: Runner, body: Annotated[dict[str, Any], Body()]
) -> Response:
    """Send a message to a run, whoever drives it: steer, queue, interrupt, answer, decide, result, cancel or note.

    The message is stored when this returns. If nobody drives the run, it is taken in at once, and the run goes on
    if it waited for it.
    """
    await host.get_info(caller, run_id)
    message = _read_message(body)
    if not isinstance(message, Cancel | Note | Withdraw):
        await host.budgets.check(caller.name)
    if isinstance(message, Note) and caller.name:
        message = replace(message, by=caller.name)
    sent = await send(host.journal, run_id, message)
    if sent.refused is not None:
        raise RequestRefused(409, sent.refused, "refused")
    if isinstance(message, Steer | Enqueue | Interrupt) and not sent.is_driven:
        host.start_quietly(host.answer_queued(run_id))
    return Fast(
        {"object": "inbox_message", "number": sent.number, "is_driven": sent.is_driven}, status_code=202
    )


def _read_message(body: dict[str, Any]) -> InboxMessage:
    """Return the message to a run. Raises: `ConfigError` if it cannot be read, or says what no client can mean."""
    kind = body.get("type")
    if kind not in list(_MESSAGES):
        hint = did_you_mean(str(kind or ""), _MESSAGES, f"known are {', '.join(_MESSAGES)}")
        raise ConfigError(f"there is no message of the type {kind!r:.100}{hint}")
    keys = ["type", *[field.encode_name for field in msgspec.structs.fields(_MESSAGES[kind])]]
    for name in body:
        if name not in keys:
            hint = did_you_mean(name, keys, f"known are {', '.join(keys)}")
            raise ConfigError(f"{name:.100}: a message of the type {kind!r} has no such key{hint}")
    if isinstance(body.get("arguments"), dict):
        body = {**body, "arguments": encode(body["arguments"]).decode()}
    try:
        message: InboxMessage = _decode_message(encode(body))
    except (msgspec.ValidationError, UnicodeEncodeError) as error:
        raise ConfigError(f"the message cannot be read: {error}") from None
    if isinstance(message, Steer | Enqueue | Interrupt):
        if message.message.role is not Role.USER:
            raise ConfigError(f"message.role is {message.message.role.value!r}; only the user's can be sent")
        if not (message.message.content or message.message.parts):
            raise ConfigError("message.content is empty; give a text")
    if isinstance(message, DecideCall) and message.arguments is not None:
        _check_arguments(message.arguments)
    return message


def _check_arguments(text: str) -> None:
    try:
        arguments = decode_json(text)
    except msgspec.DecodeError as error:
        raise ConfigError(f"arguments is not JSON: {error}") from None
    if not isinstance(arguments, dict):
        raise ConfigError(f"arguments is {text!r:.100}; give an object with the arguments of the call")


@router.delete("/{run_id}")
async def delete_run(run_id: Name, host: TheHost, caller: Runner) -> Response:
    """Delete a run, with the runs of its sub-agents and what memories have of it."""
    await host.get_info(caller, run_id)
    deleted = await asyncio.to_thread(response_records.delete_run, host.journal, run_id)
    return Fast({"object": "run.deleted", "id": run_id, "deleted": deleted})
