"""`/v1/conversations`: sessions, as OpenAI's Conversations API shows them."""

import asyncio
import time
from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict

from treadle.core.types import Json
from treadle.runs.options import SessionOptions
from treadle.server.access import no_such
from treadle.server.idempotency import keyed_request, new_run_id
from treadle.server.responses.request_items import read_items
from treadle.server.responses.response_ids import conversation_id, read_conversation_id
from treadle.server.responses.response_records import delete_run
from treadle.server.responses.response_turn import METADATA
from treadle.server.routes.response_routes import page_of, write_items
from treadle.server.routes.route_context import Fast, Reader, Runner, TheHost

router = APIRouter(prefix="/v1/conversations", tags=["conversations"])


class CreateConversation(BaseModel):
    """The body of `POST /v1/conversations`."""

    model_config = ConfigDict(extra="forbid")

    metadata: dict[str, str] | None = None
    items: list[dict[str, Any]] = []


@router.post("")
async def create_conversation(
    body: CreateConversation, request: Request, host: TheHost, caller: Runner
) -> Response:
    """Begin a conversation. `items` are the messages that it had before."""
    run_id = new_run_id(keyed_request(request))
    if await host.find_info(caller, run_id) is not None:
        return await get_conversation(conversation_id(run_id), host, caller)
    asked = read_items(body.items)
    history = [*asked.history, *([] if asked.message is None else [asked.message])]
    agent = await asyncio.to_thread(host.catalog.agent, host.catalog.names[0])
    options: SessionOptions = {
        "metadata": {**host.labels(caller), METADATA: dict(body.metadata or {})},
        "history": history,
        "expects_new": True,
    }
    async with agent.session(run_id, **options):
        pass
    return Fast(_write(run_id, options["metadata"] or {}, time.time()))


def _write(run_id: str, metadata: Mapping[str, Json], created_at: float) -> dict[str, Json]:
    kept = metadata.get(METADATA)
    return {
        "id": conversation_id(run_id),
        "object": "conversation",
        "created_at": int(created_at),
        "metadata": kept if isinstance(kept, dict) else {},
    }


@router.get("/{name}")
async def get_conversation(name: str, host: TheHost, caller: Reader) -> Response:
    """Return a conversation."""
    run = await host.get_run(caller, read_conversation_id(name))
    started = run.state.started
    return Fast(_write(run.run_id, run.metadata, 0.0 if started is None else started.at))


@router.delete("/{name}")
async def delete_conversation(name: str, host: TheHost, caller: Runner) -> Response:
    """Delete a conversation, with what memories have of it."""
    run_id = read_conversation_id(name)
    await host.get_run(caller, run_id)
    await asyncio.to_thread(delete_run, host.journal, run_id)
    return Fast({"id": name, "object": "conversation.deleted", "deleted": True})


@router.get("/{name}/items")
async def list_items(
    name: str,
    host: TheHost,
    caller: Reader,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: str = "desc",
    after: str | None = None,
) -> Response:
    """Return the messages of a conversation, the newest first unless `order` is `asc`."""
    items = await _items_of(name, host, caller)
    if order != "asc":
        items.reverse()
    if after is not None:
        found = [number for number, item in enumerate(items) if item["id"] == after]
        items = items[found[0] + 1 :] if found else []
    return Fast(page_of(items[:limit], has_more=len(items) > limit))


@router.get("/{name}/items/{item_id}")
async def get_item(name: str, item_id: str, host: TheHost, caller: Reader) -> Response:
    """Return one message of a conversation."""
    for item in await _items_of(name, host, caller):
        if item["id"] == item_id:
            return Fast(item)
    raise no_such("item", item_id)


async def _items_of(name: str, host: TheHost, caller: Reader) -> list[dict[str, Json]]:
    run = await host.get_run(caller, read_conversation_id(name))
    return write_items(run.messages, run.run_id)
