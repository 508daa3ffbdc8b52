"""`/v1/conversations`: sessions, as OpenAI's Conversations API shows them.

A conversation is stored with its metadata and items. Its run begins with its first response, which has the items as
its history. If items are added or deleted after that, the next response begins another run with all that is left.
"""

import asyncio
from contextlib import suppress
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict

from treadle.core.errors import ConfigError, RunNotFoundError
from treadle.core.types import Json
from treadle.journal.protocol import Journal
from treadle.journal.resources import Resource
from treadle.runs.begin import make_run_id
from treadle.runs.run import Run
from treadle.server.admission.access import ApiCaller, RequestRefused, no_such
from treadle.server.admission.budgets import OWNER
from treadle.server.admission.idempotency import keyed_request, new_run_id
from treadle.server.responses.conversation_items import ItemPage, items_of_run, page_of
from treadle.server.responses.request_items import AskedTurn, read_items
from treadle.server.responses.response_ids import conversation_id, read_conversation_id, read_response_id
from treadle.server.responses.response_plan import read_asked
from treadle.server.responses.response_records import (
    KeptConversation,
    change_conversation,
    conversation_of,
    delete_run,
    find_conversation,
    newest_response,
    read_kept,
    read_request,
)
from treadle.server.responses.response_turn import METADATA
from treadle.server.routes.route_context import Fast, Name, Reader, Runner, TheHost
from treadle.server.run_host import RunHost

router = APIRouter(prefix="/v1/conversations", tags=["conversations"])
Items = list[dict[str, Any]]


class ChangeConversation(BaseModel):
    """The body of `POST /v1/conversations/{name}`."""

    model_config = ConfigDict(extra="forbid")

    metadata: dict[str, str] | None = None


class CreateConversation(ChangeConversation):
    """The body of `POST /v1/conversations`."""

    items: Items | None = None


class AddItems(BaseModel):
    """The body of `POST /v1/conversations/{name}/items`."""

    model_config = ConfigDict(extra="forbid")

    items: Items


@router.post("")
async def create_conversation(
    body: CreateConversation, request: Request, host: TheHost, caller: Runner
) -> Response:
    """Begin a conversation. `items` are the messages that it had before."""
    run_id = new_run_id(keyed_request(request))
    kept = KeptConversation(dict(body.metadata or {}))
    await _add_items(host, caller, run_id, kept, body.items or [])
    made = conversation_of(run_id, caller.name, kept)
    await asyncio.to_thread(host.journal.resources.add, [made], made.created_at)
    return await get_conversation(conversation_id(run_id), host, caller)


async def _add_items(
    host: RunHost, caller: ApiCaller, run_id: str, kept: KeptConversation, items: Items
) -> list[dict[str, Json]]:
    """Add items, and return them with their ids. Raises: `ConfigError` if a model cannot be told them."""
    await read_asked(host, caller, AskedTurn(input=[*kept.items, *items]))
    used = {item["id"] for item in kept.items}
    added: list[dict[str, Json]] = []
    for item in items:
        item_id = item.get("id")
        if not isinstance(item_id, str) or item_id in used:
            item_id = f"msg_{run_id}_{len(kept.items) + len(added)}"
        used.add(item_id)
        content = item.get("content")
        if isinstance(content, str):
            kind = "output_text" if item.get("role") == "assistant" else "input_text"
            item = {**item, "content": [{"type": kind, "text": content}]}
        added.append({"type": "message", "status": "completed", **item, "id": item_id})
    kept.items = [*kept.items, *added]
    return added


async def _find(host: RunHost, caller: ApiCaller, name: str) -> tuple[str, Resource | None, Run[Any] | None]:
    """Return the id of a conversation without its prefix, what is stored of it, and its run, if that has begun.

    Raises: `RequestRefused` if there is no such conversation.
    """
    run_id = read_conversation_id(name)
    stored = await asyncio.to_thread(find_conversation, host.journal, run_id, caller.sees_only)
    run = await host.find_run(caller, read_kept(stored).run_id or run_id)
    if stored is None and run is None:
        raise no_such("conversation", name)
    return run_id, stored, run


def _write(run_id: str, stored: Resource | None, run: Run[Any] | None) -> dict[str, Json]:
    metadata, created_at = read_kept(stored).metadata, 0.0
    if stored is not None:
        created_at = stored.created_at
    elif run is not None:
        created_at = 0.0 if run.state.started is None else run.state.started.at
        told = run.metadata.get(METADATA)
        metadata = told if isinstance(told, dict) else {}
    return {
        "id": conversation_id(run_id),
        "object": "conversation",
        "created_at": int(created_at),
        "metadata": dict(metadata),
    }


@router.get("/{name}")
async def get_conversation(name: Name, host: TheHost, caller: Reader) -> Response:
    """Return a conversation."""
    return Fast(_write(*await _find(host, caller, name)))


@router.post("/{name}")
async def change_conversation_metadata(
    name: Name, body: ChangeConversation, host: TheHost, caller: Runner
) -> Response:
    """Replace the metadata of a conversation."""
    run_id, stored, run = await _find(host, caller, name)
    metadata = dict(body.metadata or {})
    if stored is None:
        stored = conversation_of(run_id, caller.name, KeptConversation(metadata))
        await asyncio.to_thread(host.journal.resources.add, [stored], stored.created_at)
    else:
        kept = read_kept(stored)
        kept.metadata = metadata
        await asyncio.to_thread(change_conversation, host.journal, stored, kept)
    return Fast({**_write(run_id, stored, run), "metadata": metadata})


@router.delete("/{name}")
async def delete_conversation(name: Name, host: TheHost, caller: Runner) -> Response:
    """Delete a conversation, with what memories have of it."""
    run_id, stored, run = await _find(host, caller, name)
    for known in [*read_kept(stored).earlier, *([] if run is None else [run.run_id])]:
        with suppress(RunNotFoundError):
            await asyncio.to_thread(delete_run, host.journal, known)
    if stored is not None:
        await asyncio.to_thread(host.journal.resources.delete, stored.kind, run_id)
    return Fast({"id": name, "object": "conversation.deleted", "deleted": True})


@router.get("/{name}/items")
async def list_items(
    name: Name,
    host: TheHost,
    caller: Reader,
    page: Annotated[ItemPage, Query()],
) -> Response:
    """Return the items of a conversation, the newest first unless `order` is `asc`."""
    return Fast(page.choose(await _items_of(name, host, caller)))


@router.post("/{name}/items")
async def add_items(name: Name, body: AddItems, host: TheHost, caller: Runner) -> Response:
    """Add items to a conversation. If it has a response, its next one begins a new run, which has them."""
    run_id, stored, kept = await _find_changeable(name, host, caller)
    added = await _add_items(host, caller, run_id, kept, body.items)
    await asyncio.to_thread(change_conversation, host.journal, stored, kept)
    return Fast(page_of(added))


async def _find_changeable(
    name: str, host: RunHost, caller: ApiCaller
) -> tuple[str, Resource, KeptConversation]:
    """Return what is stored of a conversation, and what it is to be changed in: all its items, and a new run if it
    has one. The journal of its run cannot be changed.

    Raises: `RequestRefused`, `ConfigError`.
    """
    run_id, stored, run = await _find(host, caller, name)
    if run is None:
        assert stored is not None
        return run_id, stored, read_kept(stored)
    if run.state.turn.is_open:
        said = "a response of this conversation is under way, or waits for outputs; its items can be changed later"
        raise RequestRefused(409, said, "conversation_locked")
    items = await _items_of(name, host, caller)
    if not all(map(_has_contents, items)):
        raise ConfigError(
            "the items of a conversation with images or files cannot be changed after its first response; what is "
            "new is the input of its next response"
        )
    metadata = _write(run_id, stored, run)["metadata"]
    if stored is None:
        owner = str(run.metadata.get(OWNER, caller.name))
        stored = conversation_of(run_id, owner, KeptConversation(metadata))
        await asyncio.to_thread(host.journal.resources.add, [stored], stored.created_at)
    earlier = [*read_kept(stored).earlier, run.run_id]
    system = await asyncio.to_thread(_system_of, host.journal, run.run_id, read_kept(stored))
    return run_id, stored, KeptConversation(metadata, items, make_run_id(), earlier, system)


def _has_contents(item: dict[str, Any]) -> bool:
    """Return whether an item has the contents of its images and files, which items of runs only name."""
    lists = [value for name in ("content", "output") if isinstance(value := item.get(name), list)]
    places = ("image_url", "file_id", "file_data")
    parts = [part for found in lists for part in found if part.get("type") in ("input_image", "input_file")]
    return all([any(map(part.get, places)) for part in parts])


def _system_of(journal: Journal, run_id: str, kept: KeptConversation) -> list[str]:
    """Return the system messages of a run that are not among the items it began with. Blocks."""
    newest = newest_response(journal, run_id)
    echo = None if newest is None else read_request(journal, read_response_id(newest))
    own = read_items([it for it in kept.items if it.get("role") in ("system", "developer")]).instructions
    return [text for text in ([] if echo is None else echo.system) if text not in own]


@router.get("/{name}/items/{item_id}")
async def get_item(name: Name, item_id: Name, host: TheHost, caller: Reader) -> Response:
    """Return one item of a conversation."""
    for item in await _items_of(name, host, caller):
        if item["id"] == item_id:
            return Fast(item)
    raise no_such("item", item_id)


@router.delete("/{name}/items/{item_id}")
async def delete_item(name: Name, item_id: Name, host: TheHost, caller: Runner) -> Response:
    """Delete an item of a conversation, and return the conversation; see `add_items`."""
    run_id, stored, kept = await _find_changeable(name, host, caller)
    left = [item for item in kept.items if item["id"] != item_id]
    if len(left) == len(kept.items):
        raise no_such("item", item_id)
    kept.items = left
    await asyncio.to_thread(change_conversation, host.journal, stored, kept)
    return Fast(_write(run_id, stored, None))


async def _items_of(name: str, host: RunHost, caller: ApiCaller) -> list[dict[str, Json]]:
    _, stored, run = await _find(host, caller, name)
    kept = read_kept(stored).items
    if run is None:
        return kept
    made = await asyncio.to_thread(lambda: items_of_run(run.events, run.run_id, has_history=not kept))
    return [*kept, *made]
