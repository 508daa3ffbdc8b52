"""`/v1/files`: the files that clients upload, for vector stores and for messages."""

import asyncio
from typing import Annotated, Literal
from urllib.parse import quote

from fastapi import APIRouter, File, Form, Query, Request, UploadFile
from fastapi.responses import Response
from pydantic import StringConstraints

from treadle.core.types import Json
from treadle.journal.resources import Resource, ResourceFilter
from treadle.knowledge.files.file_store import FILE, facts_of
from treadle.server.admission.idempotency import new_id
from treadle.server.responses.conversation_items import page_of
from treadle.server.routes.route_context import Fast, Name, Reader, Runner, TheHost

router = APIRouter(prefix="/v1/files", tags=["files"])
Word = Annotated[str, StringConstraints(min_length=1, max_length=64, pattern=r"^[\w-]+$")]


@router.post("")
async def upload_file(
    request: Request,
    host: TheHost,
    caller: Runner,
    file: Annotated[UploadFile, File(description="The content, with its name.")],
    purpose: Annotated[Word, Form(description="Such as `assistants` or `user_data`.")],
    expires_anchor: Annotated[Literal["created_at"] | None, Form(alias="expires_after[anchor]")] = None,
    expires_seconds: Annotated[
        int | None, Form(alias="expires_after[seconds]", ge=3600, le=2_592_000)
    ] = None,
) -> Response:
    """Store a file. It is stored when this returns, whatever happens to the server."""
    content = await file.read()
    made = await asyncio.to_thread(
        host.files.add,
        file.filename or "file",
        content,
        purpose,
        caller.name,
        expires_seconds,
        new_id(request, "file-"),
    )
    return Fast(_write(made))


def _write(item: Resource) -> dict[str, Json]:
    return {
        "id": item.resource_id,
        "object": "file",
        "bytes": item.size_bytes,
        "created_at": int(item.created_at),
        "expires_at": None if item.expires_at is None else int(item.expires_at),
        "filename": facts_of(item).name,
        "purpose": item.label,
        "status": "processed",
    }


@router.get("")
async def list_files(
    host: TheHost,
    caller: Reader,
    after: str | None = None,
    limit: Annotated[int, Query(ge=1, le=10_000)] = 10_000,
    order: Literal["asc", "desc"] = "desc",
    purpose: str | None = None,
) -> Response:
    """Return the files of the client, the newest first unless `order` is `asc`."""
    chosen = ResourceFilter(
        kind=FILE,
        owner=caller.sees_only,
        label=purpose,
        after=after,
        limit=limit + 1,
        newest_first=order == "desc",
    )
    found = await asyncio.to_thread(host.files.page, chosen)
    return Fast(page_of([_write(item) for item in found[:limit]], has_more=len(found) > limit))


@router.get("/{file_id}")
async def get_file(file_id: Name, host: TheHost, caller: Reader) -> Response:
    """Return the facts about a file."""
    return Fast(_write(await host.get_file(caller, file_id)))


@router.get("/{file_id}/content")
async def get_content(file_id: Name, host: TheHost, caller: Reader) -> Response:
    """Return the content of a file."""
    item, content = await host.read_file(caller, file_id)
    # Whatever the file is, no browser runs it as a page of this server.
    name = quote(facts_of(item).name, safe="")
    headers = {"content-disposition": f"attachment; filename*=UTF-8''{name}"}
    return Response(content, media_type="application/octet-stream", headers=headers)


@router.delete("/{file_id}")
async def delete_file(file_id: Name, host: TheHost, caller: Runner) -> Response:
    """Delete a file, also from all vector stores. Runs that have seen it keep what they have seen."""
    await host.get_file(caller, file_id)
    await asyncio.to_thread(host.files.delete, file_id)
    return Fast({"id": file_id, "object": "file", "deleted": True})
