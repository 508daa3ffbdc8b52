"""`/view`, the page that shows runs, and `/v1/view`, what it asks beyond the API of runs."""

import asyncio
import gzip
import hashlib
from functools import lru_cache
from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response

from treadle.context.step_view import view_step
from treadle.server.admission.access import ApiCaller, RequestRefused
from treadle.server.compression import takes_gzip
from treadle.server.routes.route_context import Checked, Fast, Name, Reader, TheHost
from treadle.server.routes.run_routes import MAX_SEQ
from treadle.server.shown_runs import journal_of, show_info
from treadle.viewer.bundle import NotBuiltError, read_bundle
from treadle.viewer.run_view import (
    find_relatives,
    list_memories,
    list_owners,
    read_content,
    write_content,
    write_events,
)

router = APIRouter(tags=["viewer"], dependencies=[Checked])
PAGE_HEADERS = {
    "content-security-policy": "frame-ancestors 'none'",
    "referrer-policy": "no-referrer",
    "cache-control": "no-cache",
    "vary": "accept-encoding",
}
"""Headers of the page. What the page may load and run stands in the page itself, with the hash of its script."""
CONTENT_HEADERS = {
    "cache-control": "private, max-age=86400, immutable",
    "vary": "authorization, x-api-key",
}
"""Headers of contents, which never change. A browser that keeps one does not show it to another key."""


@lru_cache
def _read_page() -> tuple[bytes, bytes, str]:
    """Return the page, the same in gzip, and the tag of its content. Raises: `NotBuiltError`."""
    page = read_bundle().encode()
    return page, gzip.compress(page, mtime=0), f'"{hashlib.sha256(page).hexdigest()[:32]}"'


@router.get("/", include_in_schema=False)
async def go_to_page() -> Response:
    """Lead a browser that opens the address of the server to the page."""
    return RedirectResponse("/view")


@router.get("/view", include_in_schema=False)
async def get_page(request: Request) -> Response:
    """Return the page. It has no data, so that anybody may have it."""
    try:
        page, packed, tag = _read_page()
    except NotBuiltError as error:
        return PlainTextResponse(f"{error}\n", status_code=503, headers=PAGE_HEADERS)
    headers = {**PAGE_HEADERS, "etag": tag}
    known = [name.strip().removeprefix("W/") for name in request.headers.get("if-none-match", "").split(",")]
    if tag in known or "*" in known:
        return Response(status_code=304, headers=headers)
    if takes_gzip(request.headers.raw):
        return HTMLResponse(packed, headers={**headers, "content-encoding": "gzip"})
    return HTMLResponse(page, headers=headers)


@router.get("/v1/view/runs/{run_id}/events")
async def get_page_events(
    run_id: Name,
    host: TheHost,
    caller: Reader,
    after_seq: Annotated[int, Query(ge=0, le=MAX_SEQ)] = 0,
    limit: Annotated[int, Query(ge=1, le=100_000)] = 100_000,
) -> Response:
    """Return at most `limit` events of a run after number `after_seq`, and the facts about the run.

    The tokens of answers are left out.
    """
    info = await host.get_info(caller, run_id)
    journal = journal_of(host.journal, caller)
    found = await asyncio.to_thread(journal.read, run_id, after_seq, after_seq + limit)
    body = await asyncio.to_thread(write_events, found, show_info(caller, info))
    return Response(body, media_type="application/json")


@router.get("/v1/view/runs/{run_id}/prompts/{step}")
async def get_prompt(run_id: Name, step: int, host: TheHost, caller: Reader) -> Response:
    """Return what the model saw at a step of a run."""
    await host.get_info(caller, run_id)
    journal = journal_of(host.journal, caller)
    return Fast(await asyncio.to_thread(lambda: view_step(journal.read(run_id), step)))


@router.get("/v1/view/runs/{run_id}/contents/{digest}")
async def get_content(run_id: Name, digest: Name, host: TheHost, caller: Reader) -> Response:
    """Return a content that an event of a run refers to: a file, or an artifact."""
    await host.get_info(caller, run_id)
    content = await asyncio.to_thread(read_content, host.journal, run_id, digest)
    return Fast(write_content(content), headers=CONTENT_HEADERS)


@router.get("/v1/view/runs/{run_id}/relatives")
async def get_relatives(run_id: Name, host: TheHost, caller: Reader) -> Response:
    """Return the forks of a run, the runs that it was forked from, and its sub-agents' runs."""
    info = await host.get_info(caller, run_id)
    journal = journal_of(host.journal, caller)
    return Fast(
        await asyncio.to_thread(find_relatives, journal, show_info(caller, info), host.visible_to(caller))
    )


@router.get("/v1/view/memories")
async def get_owners(host: TheHost, caller: Reader) -> Response:
    """Return the personas and users that have memories."""
    _check_all(caller)
    return Fast(await asyncio.to_thread(list_owners, host.journal))


@router.get("/v1/view/memories/entries")
async def get_memories(host: TheHost, caller: Reader, persona: str, user: str) -> Response:
    """Return what a persona remembers about a user, the newest first."""
    _check_all(caller)
    return Fast(await asyncio.to_thread(list_memories, host.journal, persona, user))


def _check_all(caller: ApiCaller) -> None:
    """Refuse a client that sees only its own runs, since memories have no owner."""
    if not caller.sees_all:
        raise RequestRefused(403, "only a key with the scope 'admin' may read memories", "forbidden")
