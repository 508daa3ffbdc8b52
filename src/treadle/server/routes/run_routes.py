"""`/v1/runs`: every run of the journal, its events as they happen, and its inbox."""

import asyncio
from collections.abc import AsyncIterator
from typing import Annotated, Any

import msgspec
from fastapi import APIRouter, Body, Header, Query, Request
from fastapi.responses import Response

from treadle.core.errors import ConfigError
from treadle.core.events import Ephemeral
from treadle.core.inbox import InboxMessage
from treadle.core.types import Json, ToolCall
from treadle.journal.hub import listen
from treadle.journal.run_info import RunFilter, RunInfo
from treadle.runs.recording import delete_session, send
from treadle.server.access import ApiCaller, RequestRefused
from treadle.server.responses.response_records import forget_requests
from treadle.server.responses.response_turn import load_run
from treadle.server.routes.route_context import Fast, Reader, Runner, TheHost, encode, event_stream
from treadle.server.run_host import RunHost

router = APIRouter(prefix="/v1/runs", tags=["runs"])
_decode_message = msgspec.json.Decoder(InboxMessage).decode


@router.get("")
async def list_runs(
    host: TheHost,
    caller: Reader,
    limit: Annotated[int, Query(ge=1, le=1000)] = 50,
    after: str | None = None,
    status: str | None = None,
    model: str | None = None,
    is_waiting: bool | None = None,
    is_session: bool | None = None,
    is_turn_open: bool | None = None,
    label: Annotated[list[str] | None, Query(description="NAME=VALUE; may be given several times")] = None,
) -> Response:
    """Return runs, the newest first. `after` is the id of the last run of the page before."""
    labels = dict(_read_label(text) for text in label or ())
    condition = RunFilter(
        status=status,
        model=model,
        is_waiting=is_waiting,
        is_session=is_session,
        is_turn_open=is_turn_open,
        labels={**labels, **host.visible_to(caller)},
    )
    found = await asyncio.to_thread(
        lambda: host.journal.runs(condition, after=after, limit=limit + 1, newest_first=True)
    )
    data = [_write(info) for info in found[:limit]]
    return Fast({"object": "list", "data": data, "has_more": len(found) > limit})


def _read_label(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise ConfigError(f"label is {text!r:.100}; give NAME=VALUE")
    return name, value


def _write(info: RunInfo) -> dict[str, Json]:
    return {"object": "run", "id": info.run_id, "title": info.title, **msgspec.to_builtins(info)}


def _write_call(call: ToolCall) -> dict[str, Json]:
    return {"name": call.name, "arguments": call.arguments}


async def _find(host: RunHost, caller: ApiCaller, run_id: str) -> RunInfo:
    """Return the facts about a run that the client may see. Raises: `RequestRefused`."""
    condition = RunFilter(run_ids=[run_id], labels=host.visible_to(caller))
    found = await asyncio.to_thread(host.journal.runs, condition)
    if not found:
        raise RequestRefused(404, f"there is no run {run_id!r:.100}", "not_found")
    return found[0]


@router.get("/{run_id}")
async def get_run(run_id: str, host: TheHost, caller: Reader) -> Response:
    """Return a run: its state, its answer, and what it waits for."""
    info = await _find(host, caller, run_id)
    run = await load_run(host, caller, run_id)
    questions = {
        key: {"text": asked.text, "options": [option.label for option in asked.options]}
        for key, asked in run.open_questions.items()
    }
    waits: dict[str, Json] = {
        "questions": questions,
        "approvals": {key: _write_call(call) for key, call in run.approvals.items()},
        "results": {key: _write_call(call) for key, call in run.external_calls.items()},
    }
    return Fast({**_write(info), "output": run.state.ending.output, "waits_for": waits})


@router.get("/{run_id}/messages")
async def get_messages(run_id: str, host: TheHost, caller: Reader) -> Response:
    """Return the transcript of a run."""
    run = await load_run(host, caller, run_id)
    return Fast({"object": "list", "data": msgspec.to_builtins(list(run.messages))})


@router.get("/{run_id}/events")
async def get_events(
    run_id: str,
    request: Request,
    host: TheHost,
    caller: Reader,
    after_seq: Annotated[int, Query(ge=0)] = 0,
    stream: bool = False,
    last_event_id: Annotated[str | None, Header()] = None,
) -> Response:
    """Return the events of a run after number `after_seq`.

    With `stream`, or if the client accepts only event streams, the events are sent as they happen, with the pieces
    of output between them. The id of each event is its number, so a client that connects again with Last-Event-ID
    goes on where it was. The stream ends with the run.
    """
    await _find(host, caller, run_id)
    if last_event_id is not None:
        if not last_event_id.isdecimal():
            raise ConfigError(f"Last-Event-ID is {last_event_id!r:.50}; give the number of an event")
        after_seq = int(last_event_id)
    if stream or request.headers.get("accept", "") == "text/event-stream":
        return event_stream(_follow(host, run_id, after_seq))
    found = await asyncio.to_thread(host.journal.read, run_id, after_seq)
    lines = [event.to_json() for event in found]
    return Response(b'{"object":"list","data":[' + b",".join(lines) + b"]}", media_type="application/json")


async def _follow(host: RunHost, run_id: str, after_seq: int) -> AsyncIterator[bytes]:
    async for item in listen(host.journal, run_id, after_seq):
        if isinstance(item, Ephemeral):
            yield b"event: %b\ndata: %b\n\n" % (item.type.encode(), item.to_json())
        else:
            yield b"id: %d\nevent: %b\ndata: %b\n\n" % (item.seq, str(item.type).encode(), item.to_json())


@router.post("/{run_id}/inbox")
async def post_message(
    run_id: str, host: TheHost, caller: Runner, body: Annotated[dict[str, Any], Body()]
) -> Response:
    """Send a message to a run, whoever drives it: steer, queue, interrupt, answer, decide, result, cancel or note.

    The message is stored when this returns. If nobody drives the run, it is taken in at once, and the run goes on
    if it waited for it.
    """
    await _find(host, caller, run_id)
    try:
        message = _decode_message(encode(body))
    except msgspec.ValidationError as error:
        raise ConfigError(f"the message cannot be read: {error}") from None
    sent = await send(host.journal, run_id, message)
    if sent.refused is not None:
        raise RequestRefused(409, sent.refused, "refused")
    return Fast(
        {"object": "inbox_message", "number": sent.number, "is_driven": sent.is_driven}, status_code=202
    )


@router.delete("/{run_id}")
async def delete_run(run_id: str, host: TheHost, caller: Runner) -> Response:
    """Delete a run, with the runs of its sub-agents and what memories have of it."""
    await _find(host, caller, run_id)
    deleted = await asyncio.to_thread(delete_session, host.journal, run_id)
    await asyncio.to_thread(forget_requests, host.journal, run_id)
    return Fast({"object": "run.deleted", "id": run_id, "deleted": deleted})
