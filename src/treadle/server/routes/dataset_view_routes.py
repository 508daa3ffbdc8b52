"""`/v1/view`: datasets, rollouts, evaluations, topics, tokens and exports, for the pages that show them.

Datasets, rollouts and topics are those that `treadle view` was started with; no request names a path.
"""

import asyncio
from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request
from fastapi.responses import Response
from msgspec.structs import replace

from treadle.core.texts.hiding import hide_servers
from treadle.export.token_exporter import TOKEN_FORMATS
from treadle.server.admission.access import RequestRefused
from treadle.server.routes.route_context import Checked, Fast, Name, Reader, TheHost, encode
from treadle.server.shown_runs import journal_of, show_group
from treadle.trajectory.tokens.masks import check_mask_names
from treadle.viewer.token_views import ExportedRun, list_formats, view_export, view_tokens
from treadle.viewer.viewed_data import ViewedData

router = APIRouter(prefix="/v1/view", tags=["viewer"], dependencies=[Checked])


def _get_data(request: Request, caller: Reader) -> ViewedData:
    """Return what the server was started with, which only callers who see all runs may see."""
    if not caller.sees_all:
        raise RequestRefused(403, "this key sees its own runs only", "forbidden")
    viewed: ViewedData = request.app.state.viewed
    return viewed


TheData = Annotated[ViewedData, Depends(_get_data)]


async def _answer(make: Callable[..., Any], *given: Any, **named: Any) -> Response:
    """Return what a blocking function makes, as JSON."""

    def work() -> bytes | None:
        found = make(*given, **named)
        return None if found is None else encode(found)

    body = await asyncio.to_thread(work)
    if body is None:
        raise RequestRefused(404, "there is no such item", "not_found")
    return Response(body, media_type="application/json")


@router.get("/pages")
async def get_pages(data: TheData) -> Response:
    """Return the pages that have data, and the one that is shown first."""
    return Fast(data.describe())


@router.get("/datasets/{number}")
async def get_dataset(number: int, data: TheData) -> Response:
    """Return the statistics of a dataset."""
    return await _answer(data.dataset, number)


@router.get("/datasets/{number}/rows")
async def find_rows(
    number: int,
    data: TheData,
    words: Annotated[str, Query(max_length=1000)] = "",
    status: str = "",
    kind: str = "",
    tool: str = "",
    filter: str = "",
    topic: str = "",
    offset: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 200,
) -> Response:
    """Return the rows of a dataset, rejected samples included, that have all words and the chosen values."""
    chosen = {"status": status, "kind": kind, "tool": tool, "filter": filter, "topic": topic}
    given = {name: value for name, value in chosen.items() if value}
    return await _answer(data.find_rows, number, words, given, offset, limit)


@router.get("/datasets/{number}/rows/{row}")
async def get_row(number: int, row: int, data: TheData, is_rejected: bool = False) -> Response:
    """Return a row or a rejected sample: its messages, its origin, and what filters said."""
    return await _answer(data.read_row, number, row, is_rejected=is_rejected)


@router.get("/comparison")
async def get_comparison(data: TheData) -> Response:
    """Return how the rows of two datasets differ."""
    return await _answer(data.comparison)


@router.get("/topics")
async def get_topics(data: TheData) -> Response:
    """Return topics."""
    return await _answer(data.topics)


@router.get("/evaluation")
async def get_evaluation(data: TheData) -> Response:
    """Return the samples of an evaluation that are graded so far, or of two that are compared, with their
    tables."""
    return await _answer(data.evaluation)


@router.get("/rollouts")
async def get_rollouts(
    data: TheData,
    host: TheHost,
    after: Annotated[int, Query(ge=0)] = 0,
    limit: Annotated[int, Query(ge=1, le=1000)] = 1000,
) -> Response:
    """Return at most `limit` of the groups that are delivered so far, in the order of delivery, without the first
    `after` of them."""
    return await _answer(data.rollouts, host.journal, after, limit)


@router.get("/rollouts/{group_id}/{run_id}")
async def get_rollout(group_id: Name, run_id: Name, data: TheData, host: TheHost) -> Response:
    """Return the messages and the tokens of a rollout."""
    return await _answer(data.rollout, host.journal, group_id, run_id)


@router.get("/groups/{group_id}")
async def get_group(group_id: Name, data: TheData, host: TheHost) -> Response:
    """Return the finished runs of the journal whose label `group` is this, as rollouts of one group."""
    return await _answer(data.group, host.journal, group_id)


@router.get("/runs/{run_id}/tokens")
async def get_tokens(run_id: Name, host: TheHost, caller: Reader, mask: str = "all") -> Response:
    """Return the tokens of a run and of its sub-agents, branch by branch."""
    await host.get_info(caller, run_id)
    return await _answer(view_tokens, host.journal, run_id, check_mask_names(mask), host.visible_to(caller))


@router.get("/runs/{run_id}/exported")
async def get_exported(run_id: Name, host: TheHost, caller: Reader, format: str = "openai") -> Response:
    """Return the lines that a format makes of a run, and what they lose."""
    await host.get_info(caller, run_id)
    journal = host.journal if format in TOKEN_FORMATS.names() else journal_of(host.journal, caller)
    show = None if caller.sees_all else show_group

    def make() -> ExportedRun:
        found = view_export(journal, run_id, format, host.visible_to(caller), show)
        return found if caller.sees_all else replace(found, refused=hide_servers(found.refused))

    return await _answer(make)


@router.get("/formats")
async def get_formats(caller: Reader) -> Response:
    """Return the formats of rows and of tokens."""
    return await _answer(list_formats)
