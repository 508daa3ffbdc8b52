"""What is kept of each request for a response and of conversations, and the stream of a response that anybody can
read again.

The events of such a stream are a fold of the journal, so that they and their numbers are the same in every process
and after every restart.
"""

import asyncio
import time
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core.errors import JournalError, LeaseHeldError
from treadle.core.events import Event
from treadle.core.types import Json
from treadle.journal.hub import listen_together
from treadle.journal.protocol import Journal
from treadle.journal.resources import Resource, ResourceFilter
from treadle.runs.recording import delete_session
from treadle.server.admission.access import RequestRefused
from treadle.server.responses.item_parts import Echo
from treadle.server.responses.response_ids import ResponseId
from treadle.server.responses.response_part import PartReader
from treadle.server.webhooks import WEBHOOK

if TYPE_CHECKING:
    from treadle.server.run_host import RunHost

_KIND = "response"
CONVERSATION = "conversation"
"""The kind of the resources that stand for conversations; each has the id of its run."""
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(Echo).decode


def record_of(place: ResponseId, echo: Echo, owner: str) -> Resource:
    """Return what is kept of a request for a response, which repeats it."""
    return Resource(
        kind=_KIND,
        parent=place.run_id,
        resource_id=str(place),
        owner=owner,
        label=echo.model,
        created_at=echo.created_at,
        body=_encode(echo).decode(),
    )


def read_request(journal: Journal, place: ResponseId) -> Echo | None:
    """Return what a response repeats of its request; `None` if nothing was kept. Blocks."""
    found = journal.resources.get(_KIND, str(place), 0.0, place.run_id)
    return None if found is None else _decode(found.body)


def page_of_responses(journal: Journal, chosen: ResourceFilter) -> list[Resource]:
    """Return what is kept of the requests for responses of all runs. Blocks."""
    return journal.resources.page(replace(chosen, kind=_KIND, parent=None), 0.0)


def newest_response(journal: Journal, run_id: str) -> str | None:
    """Return the id of the newest response of a run; `None` if it has none. Blocks."""
    chosen = ResourceFilter(kind=_KIND, parent=run_id, newest_first=True, limit=1)
    found = journal.resources.page(chosen, 0.0)
    return found[0].resource_id if found else None


class KeptConversation(Struct):
    """What a conversation has besides its run, which begins with its first response."""

    metadata: dict[str, str] = {}
    items: list[dict[str, Json]] = []
    """The items that it had before the first response of its run, as they were given, with ids."""
    run_id: str | None = None
    """The run that the conversation has since its items were changed; `None`: the one of its own id."""
    earlier: list[str] = []
    """The runs that it had before."""
    system: list[str] = []
    """The system messages that were said in these runs."""


_decode_kept = msgspec.json.Decoder(KeptConversation).decode


def conversation_of(run_id: str, owner: str, kept: KeptConversation) -> Resource:
    """Return what is stored of a conversation."""
    body = _encode(kept).decode()
    return Resource(kind=CONVERSATION, resource_id=run_id, owner=owner, created_at=time.time(), body=body)


def find_conversation(journal: Journal, run_id: str, owner: str | None) -> Resource | None:
    """Return what is stored of a conversation; `None` if nothing is, or it is not the owner's. Blocks."""
    found = journal.resources.get(CONVERSATION, run_id, 0.0)
    return found if found is not None and owner in (None, found.owner) else None


def read_kept(stored: Resource | None) -> KeptConversation:
    """Return what a conversation has besides its run."""
    return KeptConversation() if stored is None else _decode_kept(stored.body)


def change_conversation(journal: Journal, stored: Resource, kept: KeptConversation) -> None:
    """Store a change of a conversation. Blocks. Raises: `RequestRefused` if another request has changed it."""
    if not journal.resources.replace(stored, replace(stored, body=_encode(kept).decode())):
        raise RequestRefused(409, "another request has changed the conversation; ask again", "conflict")


def delete_run(journal: Journal, run_id: str) -> list[str]:
    """Delete a run as `delete_session` does, and what else is stored of it: its conversation, its webhooks and the
    requests for its responses.

    It blocks. Raises: `RequestRefused` if a response is under way.
    """
    try:
        deleted = delete_session(journal, run_id)
    except LeaseHeldError:
        raise RequestRefused(409, "it is under way; cancel it first", "conversation_locked") from None
    for name in deleted:
        journal.resources.delete(_KIND, name, children=(_KIND, WEBHOOK), namesakes=(CONVERSATION,))
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
