"""What is kept of each request for a response, and the stream of a response that anybody can read again.

The events of such a stream are a fold of the journal, so that they and their numbers are the same in every process
and after every restart.
"""

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import msgspec

from treadle.core.errors import JournalError
from treadle.core.events import Event
from treadle.core.types import Json
from treadle.journal.hub import listen_together
from treadle.journal.protocol import Journal
from treadle.journal.resources import Resource, ResourceFilter
from treadle.runs.recording import delete_session
from treadle.server.responses.response_fold import Echo
from treadle.server.responses.response_ids import ResponseId
from treadle.server.responses.response_part import PartReader
from treadle.server.webhooks import WEBHOOK

if TYPE_CHECKING:
    from treadle.server.run_host import RunHost

_KIND = "response"
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Echo).decode


def record_of(place: ResponseId, echo: Echo, owner: str) -> Resource:
    """Return what is kept of a request for a response, which repeats it."""
    return Resource(
        kind=_KIND,
        parent=place.run_id,
        resource_id=str(place),
        owner=owner,
        created_at=echo.created_at,
        body=_encode(echo).decode(),
    )


def read_request(journal: Journal, place: ResponseId) -> Echo | None:
    """Return what a response repeats of its request; `None` if nothing was kept. Blocks."""
    found = journal.resources.get(_KIND, str(place), 0.0, place.run_id)
    return None if found is None else _decode(found.body)


def newest_response(journal: Journal, run_id: str) -> str | None:
    """Return the id of the newest response of a run; `None` if it has none. Blocks."""
    chosen = ResourceFilter(kind=_KIND, parent=run_id, newest_first=True, limit=1)
    found = journal.resources.page(chosen, 0.0)
    return found[0].resource_id if found else None


def delete_run(journal: Journal, run_id: str) -> list[str]:
    """Delete a run as `delete_session` does, with the requests for its responses and its webhooks. Blocks."""
    deleted = delete_session(journal, run_id)
    for name in deleted:
        journal.resources.delete(_KIND, name, children=(_KIND, WEBHOOK))
    return deleted


async def follow_response(
    host: "RunHost", place: ResponseId, echo: Echo, after: int = -1
) -> AsyncIterator[dict[str, Json]]:
    """Yield the events of a response whose numbers are larger than `after`, those to come included.

    Raises: `JournalError` if the server stops before the end.
    """
    reader = PartReader(place, echo)
    task = asyncio.current_task()
    assert task is not None
    groups = listen_together(host.journal, place.run_id, has_output=False)
    try:
        with host.following(task.cancel):
            async for group in groups:
                for event in [heard.item for heard in group if isinstance(heard.item, Event)]:
                    for told in reader.take(event):
                        if told["sequence_number"] > after:
                            yield told
                    if reader.fold.is_over:
                        return
    except asyncio.CancelledError:
        if not host.is_closing:
            raise
        task.uncancel()
    finally:
        await groups.aclose()
    raise JournalError("the run was paused; it goes on when the server starts again")
