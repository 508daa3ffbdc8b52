"""`/v1/vector_stores`: sets of files that are searched. Source: OpenAI API reference, Vector stores, 2026;
llama-stack-client 0.7.5."""

import asyncio
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response
from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict, Field

from treadle.core.types import Json
from treadle.journal.resources import Resource, ResourceCounts, ResourceFilter
from treadle.knowledge.files.attribute_filters import check_attributes, read_filter
from treadle.knowledge.files.file_store import ATTACHED, Chunking, attached_facts
from treadle.knowledge.files.vector_stores import AUTO_CHUNKING, BATCH, STORE, read_chunking, store_facts
from treadle.server.admission.access import RequestRefused, no_such
from treadle.server.admission.idempotency import new_id
from treadle.server.responses.conversation_items import ItemPage, page_of
from treadle.server.routes.route_context import Fast, Reader, Runner, TheHost, get_caller
from treadle.server.run_host import RunHost

router = APIRouter(prefix="/v1/vector_stores", tags=["vector stores"])
_READING_SECONDS = 2.0
"""How long the answer to a client that attaches files waits until they are read. Small files can then be found at
once, as clients of llama-stack expect."""
_STATES = ("in_progress", "completed", "failed", "cancelled")
Metadata = Annotated[
    dict[
        Annotated[str, Field(max_length=64)],
        Annotated[str, Field(max_length=512)],
    ],
    Field(max_length=16),
]
Name = Annotated[str, Field(max_length=256)]
FileIds = Annotated[list[str], Field(max_length=2000)]


class ExpiresAfter(BaseModel):
    """When a vector store that nobody uses expires."""

    anchor: Literal["last_active_at"] = "last_active_at"
    days: Annotated[int, Field(ge=1, le=365)]


class ChangeVectorStore(BaseModel):
    """The body of `POST /v1/vector_stores/{id}`."""

    name: Name | None = None
    metadata: Metadata | None = None
    expires_after: ExpiresAfter | None = None


class CreateVectorStore(ChangeVectorStore):
    """The body of `POST /v1/vector_stores`. Fields about the provider of embeddings are ignored."""

    model_config = ConfigDict(extra="ignore")

    file_ids: FileIds = []
    chunking_strategy: dict[str, Any] | None = None


class AttachFile(BaseModel):
    """The body of `POST /v1/vector_stores/{id}/files`."""

    file_id: str
    attributes: dict[str, Any] | None = None
    chunking_strategy: dict[str, Any] | None = None


class AttachBatch(BaseModel):
    """The body of `POST /v1/vector_stores/{id}/file_batches`."""

    file_ids: FileIds = []
    files: Annotated[list[AttachFile], Field(max_length=2000)] = []
    """Files with attributes of their own, in place of `file_ids`."""
    attributes: dict[str, Any] | None = None
    chunking_strategy: dict[str, Any] | None = None


class ChangeAttached(BaseModel):
    """The body of `POST /v1/vector_stores/{id}/files/{file_id}`."""

    attributes: dict[str, Any] | None


class RankingOptions(BaseModel):
    """How the results of a search are ranked. There is one ranker, whatever `ranker` says."""

    model_config = ConfigDict(extra="ignore")

    score_threshold: Annotated[float, Field(ge=0, le=1)] = 0.0


class SearchVectorStore(BaseModel):
    """The body of `POST /v1/vector_stores/{id}/search`."""

    model_config = ConfigDict(extra="ignore")

    query: str | Annotated[list[str], Field(min_length=1, max_length=16)]
    filters: dict[str, Any] | None = None
    max_num_results: Annotated[int, Field(ge=1, le=50)] = 10
    ranking_options: RankingOptions = RankingOptions()


@router.post("")
async def create_store(body: CreateVectorStore, request: Request, host: TheHost, caller: Runner) -> Response:
    """Make a vector store. `file_ids` are attached to it; what takes long is read after this returns."""
    chunking = read_chunking(body.chunking_strategy)
    files = [await host.get_file(caller, file_id) for file_id in dict.fromkeys(body.file_ids)]
    days = None if body.expires_after is None else body.expires_after.days
    made = await asyncio.to_thread(
        host.vectors.create, body.name, body.metadata or {}, days, caller.name, new_id(request, "vs_")
    )
    if files:
        await _attach(host, made, [(file, None) for file in files], chunking)
    return Fast(await _write(host, made))


async def _attach(
    host: RunHost,
    store: Resource,
    files: Sequence[tuple[Resource, Json]],
    chunking: Chunking | None,
    *,
    is_batch: bool = False,
    batch_id: str | None = None,
) -> Resource | None:
    batch, made = await asyncio.to_thread(
        lambda: host.vectors.attach(store, files, chunking, is_batch=is_batch, batch_id=batch_id)
    )
    with suppress(RequestRefused):  # the server is stopping, and the next one reads them
        reading = host.start(host.read_files(made))
        if not is_batch:
            await asyncio.wait([reading], timeout=_READING_SECONDS)
    return batch


async def _write(host: RunHost, item: Resource) -> dict[str, Json]:
    facts, counts = store_facts(item), await asyncio.to_thread(host.vectors.counts, item.resource_id)
    expires = None if facts.expires_days is None else {"anchor": "last_active_at", "days": facts.expires_days}
    ends_at = facts.expires_at()
    state = "in_progress" if counts.counts.get("in_progress") else "completed"
    return {
        "id": item.resource_id,
        "object": "vector_store",
        "created_at": int(item.created_at),
        "name": facts.name or "",
        "metadata": dict(facts.metadata),
        "status": "expired" if host.vectors.is_expired(item) else state,
        "usage_bytes": counts.size_bytes,
        "file_counts": _write_counts(counts),
        "last_active_at": int(facts.active_at),
        "expires_after": expires,
        "expires_at": None if ends_at is None else int(ends_at),
    }


def _write_counts(counts: ResourceCounts) -> dict[str, Json]:
    found: dict[str, Json] = {state: counts.counts.get(state, 0) for state in _STATES}
    return found | {"total": sum(counts.counts.values())}


class PageOfStores(ItemPage):
    """Which part of a list of stores or files is returned."""

    before: str | None = None

    def chosen(self, kind: str, **terms: Any) -> ResourceFilter:
        """Return the condition for the part, and one resource more, by which the end of the list is known."""
        return ResourceFilter(
            kind=kind,
            after=self.after,
            before=self.before,
            limit=self.limit + 1,
            newest_first=self.order == "desc",
            **terms,
        )


class PageOfAttached(PageOfStores):
    """Which part of a list of files is returned."""

    filter: Literal["in_progress", "completed", "failed", "cancelled"] | None = None


@router.get("")
async def list_stores(host: TheHost, caller: Reader, asked: Annotated[PageOfStores, Query()]) -> Response:
    """Return the vector stores of the client."""
    found, has_more = await _page(host, asked.chosen(STORE, owner=caller.sees_only))
    return Fast(page_of([await _write(host, item) for item in found], has_more=has_more))


async def _page(host: RunHost, chosen: ResourceFilter) -> tuple[list[Resource], bool]:
    """Return a page of one less than the limit, and whether there are more."""
    found = await asyncio.to_thread(host.vectors.page, chosen)
    has_more = len(found) == chosen.limit
    if has_more:
        found = found[1:] if chosen.before is not None else found[:-1]
    return found, has_more


async def _find_store(store_id: str, request: Request, host: TheHost) -> Resource:
    return await host.get_store(get_caller(request), store_id)


TheStore = Annotated[Resource, Depends(_find_store)]
"""The vector store that the path of a request names, and that the client sees."""


async def _find_attached(file_id: str, store: TheStore, host: TheHost) -> Resource:
    found = await asyncio.to_thread(host.vectors.attached, store.resource_id, file_id)
    if found is None:
        raise RequestRefused(404, f"the vector store has no file {file_id!r:.100}", "not_found")
    return found


async def _find_batch(batch_id: str, store: TheStore, host: TheHost) -> Resource:
    found = await asyncio.to_thread(
        host.vectors.table.get, BATCH, batch_id, store.created_at, store.resource_id
    )
    if found is None:
        raise no_such("batch", batch_id)
    return found


TheAttached = Annotated[Resource, Depends(_find_attached)]
"""The file of the vector store that the path of a request names."""
TheBatch = Annotated[Resource, Depends(_find_batch)]
"""The batch of files that the path of a request names."""


@router.get("/{store_id}")
async def get_store(host: TheHost, caller: Reader, store: TheStore) -> Response:
    """Return a vector store."""
    return Fast(await _write(host, store))


@router.post("/{store_id}")
async def change_store(body: ChangeVectorStore, host: TheHost, caller: Runner, store: TheStore) -> Response:
    """Change a vector store. What is not given stays; `expires_after: null` means that it never expires."""
    facts: dict[str, object] = {}
    if body.name is not None:
        facts["name"] = body.name
    if body.metadata is not None:
        facts["metadata"] = body.metadata
    if "expires_after" in body.model_fields_set:
        facts["expires_days"] = None if body.expires_after is None else body.expires_after.days
    return Fast(await _write(host, await asyncio.to_thread(lambda: host.vectors.change(store, **facts))))


@router.delete("/{store_id}")
async def delete_store(host: TheHost, caller: Runner, store: TheStore) -> Response:
    """Delete a vector store. Its files stay."""
    await asyncio.to_thread(host.vectors.delete, store.resource_id)
    return Fast({"id": store.resource_id, "object": "vector_store.deleted", "deleted": True})


@router.post("/{store_id}/search")
async def search_store(body: SearchVectorStore, host: TheHost, caller: Reader, store: TheStore) -> Response:
    """Return the pieces of the store's files that fit a query best."""
    condition = None if body.filters is None else read_filter(body.filters)
    queries = [body.query] if isinstance(body.query, str) else body.query
    found = await host.vectors.search(store, queries, body.max_num_results, condition)
    data: list[Json] = [
        {
            "file_id": hit.file_id,
            "filename": hit.filename,
            "score": hit.score,
            "attributes": dict(hit.attributes),
            "content": [{"type": "text", "text": hit.text}],
        }
        for hit in found
        if hit.score >= body.ranking_options.score_threshold
    ]
    told = {"search_query": queries, "has_more": False, "next_page": None}
    return Fast({"object": "vector_store.search_results.page", **told, "data": data})


@router.post("/{store_id}/files")
async def attach_file(body: AttachFile, host: TheHost, caller: Runner, store: TheStore) -> Response:
    """Attach a file. Its `status` says when it can be found: a file that takes long is read after this returns."""
    file = await host.get_file(caller, body.file_id)
    await _attach(host, store, [(file, body.attributes)], read_chunking(body.chunking_strategy))
    return Fast(_write_attached(await _find_attached(body.file_id, store, host)))


def _write_attached(item: Resource) -> dict[str, Json]:
    facts = attached_facts(item)
    error = None if facts.error is None else {"code": facts.error_code, "message": facts.error}
    sizes = facts.chunking or AUTO_CHUNKING
    static = {"max_chunk_size_tokens": sizes.max_tokens, "chunk_overlap_tokens": sizes.overlap_tokens}
    return {
        "id": item.resource_id,
        "object": "vector_store.file",
        "created_at": int(item.created_at),
        "vector_store_id": item.parent,
        "status": item.state,
        "last_error": error,
        "usage_bytes": item.size_bytes,
        "attributes": dict(facts.attributes),
        "chunking_strategy": {"type": "static", "static": static},
    }


@router.get("/{store_id}/files")
async def list_attached(
    host: TheHost, caller: Reader, store: TheStore, asked: Annotated[PageOfAttached, Query()]
) -> Response:
    """Return the files of a vector store."""
    return Fast(await _list(host, asked.chosen(ATTACHED, parent=store.resource_id, state=asked.filter)))


async def _list(host: RunHost, chosen: ResourceFilter) -> dict[str, Json]:
    found, has_more = await _page(host, chosen)
    return page_of([_write_attached(item) for item in found], has_more=has_more)


@router.get("/{store_id}/files/{file_id}")
async def get_attached(host: TheHost, caller: Reader, item: TheAttached) -> Response:
    """Return a file of a vector store, with its status."""
    if host.vectors.is_left(item):
        host.start_quietly(host.read_files([item]))
    return Fast(_write_attached(item))


@router.post("/{store_id}/files/{file_id}")
async def change_attached(body: ChangeAttached, host: TheHost, caller: Runner, item: TheAttached) -> Response:
    """Replace the attributes of a file of a vector store."""
    attributes = check_attributes(body.attributes)
    changed = await asyncio.to_thread(lambda: host.vectors.change_attached(item, attributes=attributes))
    return Fast(_write_attached(changed))


@router.get("/{store_id}/files/{file_id}/content")
async def get_attached_content(host: TheHost, caller: Reader, item: TheAttached) -> Response:
    """Return the text of a file of a vector store, in the pieces that are searched."""
    pieces = await asyncio.to_thread(host.vectors.pieces, item)
    data: list[Json] = [{"type": "text", "text": piece.text} for piece in pieces]
    named = {"file_id": item.resource_id, "filename": attached_facts(item).name}
    told = {**named, "has_more": False, "next_page": None}
    return Fast({"object": "vector_store.file_content.page", **told, "data": data, "content": data})


@router.delete("/{store_id}/files/{file_id}")
async def detach_file(host: TheHost, caller: Runner, item: TheAttached) -> Response:
    """Remove a file from a vector store. The uploaded file stays."""
    await asyncio.to_thread(host.vectors.detach, item)
    return Fast({"id": item.resource_id, "object": "vector_store.file.deleted", "deleted": True})


@router.post("/{store_id}/file_batches")
async def attach_batch(
    body: AttachBatch, request: Request, host: TheHost, caller: Runner, store: TheStore
) -> Response:
    """Attach several files at once."""
    if bool(body.file_ids) == bool(body.files):
        raise RequestRefused(400, "give file_ids or files, and not both", "invalid_request")
    given: dict[str, Json] = dict.fromkeys(body.file_ids, body.attributes)
    given |= {item.file_id: item.attributes for item in body.files}
    files = [(await host.get_file(caller, file_id), value) for file_id, value in given.items()]
    chunking, batch_id = read_chunking(body.chunking_strategy), new_id(request, "vsfb_")
    batch = await _attach(host, store, files, chunking, is_batch=True, batch_id=batch_id)
    assert batch is not None
    return Fast(await _write_batch(host, batch))


async def _write_batch(host: RunHost, item: Resource) -> dict[str, Json]:
    counts = await asyncio.to_thread(host.vectors.counts, item.parent, item.resource_id)
    state = "completed"
    if item.state == "cancelled" or counts.counts.get("in_progress"):
        state = "cancelled" if item.state == "cancelled" else "in_progress"
    return {
        "id": item.resource_id,
        "object": "vector_store.files_batch",
        "created_at": int(item.created_at),
        "vector_store_id": item.parent,
        "status": state,
        "file_counts": _write_counts(counts),
    }


@router.get("/{store_id}/file_batches/{batch_id}")
async def get_batch(host: TheHost, caller: Reader, batch: TheBatch) -> Response:
    """Return a batch of files, with how many of them are read."""
    return Fast(await _write_batch(host, batch))


@router.get("/{store_id}/file_batches/{batch_id}/files")
async def list_batch(
    host: TheHost, caller: Reader, batch: TheBatch, asked: Annotated[PageOfAttached, Query()]
) -> Response:
    """Return the files of a batch."""
    of_batch = {"parent": batch.parent, "label": batch.resource_id, "state": asked.filter}
    return Fast(await _list(host, asked.chosen(ATTACHED, **of_batch)))


@router.post("/{store_id}/file_batches/{batch_id}/cancel")
async def cancel_batch(host: TheHost, caller: Runner, batch: TheBatch, store: TheStore) -> Response:
    """Stop the reading of the files of a batch that are not read yet."""
    chosen = ResourceFilter(kind=ATTACHED, state="in_progress", parent=batch.parent, label=batch.resource_id)

    def cancel() -> None:
        for attached in host.vectors.page(chosen):
            host.vectors.change_attached(attached, is_cancelled=True)
        host.vectors.table.replace(batch, replace(batch, state="cancelled"))

    if await asyncio.to_thread(host.vectors.page, chosen):
        await asyncio.to_thread(cancel)
    return Fast(await _write_batch(host, await _find_batch(batch.resource_id, store, host)))
