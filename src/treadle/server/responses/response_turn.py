"""One exchange of a client with an agent: a request of the Responses API is driven as a turn, or as the rest of a
turn that waited for the client."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import cached_property

from treadle.core.errors import JournalError, LeaseHeldError, RunExistsError, RunNotFoundError
from treadle.core.inbox import Cancel
from treadle.core.state import State
from treadle.core.types import Json
from treadle.loop.driver import Driver
from treadle.runs.drive import takes_time
from treadle.server.admission.access import ApiCaller, RequestRefused
from treadle.server.gateway.conversations import digest_of
from treadle.server.gateway.gateway_host import stopping
from treadle.server.no_answer import NO_RETRY
from treadle.server.responses.item_parts import Echo
from treadle.server.responses.response_fold import ResponseFold
from treadle.server.responses.response_ids import ResponseId
from treadle.server.responses.response_part import part_of_run
from treadle.server.responses.response_records import record_of
from treadle.server.run_host import BegunTurn, RunHost
from treadle.server.turn_order import TurnOrder, drive_turn

METADATA = "metadata"
"""The entry of a run's metadata with what the client wants to keep with it."""
MARK = "treadle.request"
"""The label of a run with what marks the request that has begun it, if others know the run's id."""
_PAUSED = "the run was paused; it goes on when the server starts again"
_UNSTORED_SECONDS = 0.05
"""How long a run whose client has left may take to be stored before it is cancelled again."""


def client_name(caller: ApiCaller) -> str:
    """Return the name under which the responses of a client are known; its chats are others."""
    return f"responses/{caller.name}"


def under_way() -> RequestRefused:
    """Return the refusal of a request while another response of its conversation is made."""
    said = "another response of this conversation is under way; ask again when it is over"
    return RequestRefused(409, said, "conversation_locked")


class ResponseTurn:
    """The turn of a response, or the rest of one."""

    def __init__(
        self, host: RunHost, caller: ApiCaller, place: ResponseId, echo: Echo, order: TurnOrder
    ) -> None:
        self._host = host
        self._caller = caller
        self.place = place
        self.echo = echo
        self.run_id = place.run_id
        self._order = order
        self._turn: BegunTurn | None = None
        self._is_answering = self._is_kept = self._is_keyed = False
        self._record = record_of(place, echo, caller.name)
        self._joined: Awaitable[bool] | None = None
        order.on_driver = self._join

    @cached_property
    def fold(self) -> ResponseFold:
        """The fold that makes the events of the response's stream."""
        return ResponseFold(self.place, self.echo)

    def keep_first(self, note: Callable[[str], Awaitable[None]], mark: str) -> None:
        """Keep what the response repeats of its request, and `note` its id, before the turn is stored.

        So nothing is begun of which the request's key does not know. The run of a new conversation has the key's
        `mark` instead, from its first event on.
        """

        async def before() -> None:
            await self.keep()
            await note(str(self.place))

        self._is_keyed = True
        options = self._order.options
        if self.echo.conversation is None or not options.get("begins_with_message"):
            self._order.before = before
        elif takes_time(self._order.agent):
            # Other clients know the id of its run. Only who has begun it may keep something under this id.
            self._order.before = before
            self._order.options = {**options, "begins_with_message": False}
        else:
            self._order.options = {**options, "metadata": {**(options.get("metadata") or {}), MARK: mark}}

    def _join(self, driver: Driver) -> None:
        """Keep what the response repeats of its request together with the first events of its run."""
        if not self._is_kept:
            self._joined = self._host.journal.resources.join([self._record])

    async def keep(self) -> None:
        """Keep what the response repeats of its request, unless it is kept. Raises: `JournalError`."""
        if not self._is_kept:
            resources = self._host.journal.resources
            await resources.add_soon(
                [self._record], time.time(), self._joined or resources.join([self._record])
            )
            self._is_kept = True

    async def start(self) -> None:
        """Begin to drive the run, and wait until the request is stored, so that it is not lost any more.

        Raises: what prevents the turn, such as `ConfigError`, `LeaseHeldError` and `JournalError`.
        """
        order, agent = self._order, self._order.agent
        output = agent.kit.output(agent.answer.schema, None)
        self.fold.offer([tool.spec for tool in agent.tools.values()], output)
        try:
            self._turn = await self._host.begin(lambda emit: drive_turn(self._host.journal, order, emit))
        except (LeaseHeldError, RunExistsError):
            raise under_way() from None

    async def events(self) -> AsyncIterator[dict[str, Json]]:
        """Yield the events of the response's stream until the response is over."""
        assert self._turn is not None
        for event in self.fold.begin():
            yield event
        async for item in self._turn.items():
            told = self.fold.take(item.body)
            if self.fold.is_over:
                # The next request may follow at once, and needs the lease.
                await asyncio.wait([self._turn.task])
                if not self._turn.task.cancelled() and self._turn.task.exception() is None:
                    self._note_history(self._turn.task.result().state)
            for event in told:
                yield event
            if self.fold.is_over:
                return
        with contextlib.suppress(asyncio.CancelledError):
            await self._turn.task
        raise JournalError(_PAUSED)

    def _note_history(self, state: State) -> None:
        """Note the conversation so far, so that a client that sends it continues this run."""
        said = digest_of(state.transcript)
        self._host.conversations.note(client_name(self._caller), said, self.run_id)

    async def answer(self) -> dict[str, Json]:
        """Drive the run until the response is over, and return it. Then it is in `fold`.

        Raises: as `start` does; `RequestRefused` if the server stops meanwhile.
        """
        if self._host.is_closing:
            raise stopping()
        self._is_answering = True
        try:
            run = await self._host.do(drive_turn(self._host.journal, self._order, None))
        except (LeaseHeldError, RunExistsError):
            raise under_way() from None
        except RequestRefused:
            if self._host.is_closing:
                raise self._paused() from None
            raise
        finally:
            self._is_answering = False
        fold = part_of_run(run.events, self.place, self.echo)
        if fold is None or not fold.is_over:
            raise self._paused()
        self.fold = fold
        self._note_history(run.state)
        return fold.response()

    def _paused(self) -> RequestRefused:
        """Return the refusal of a request whose run goes on at the next start of the server."""
        told = f"response {self.fold.response_id} was paused; it goes on when the server starts again"
        # The same request without an idempotency key would begin another run.
        return RequestRefused(503, told, "server_stopping", {} if self._is_keyed else NO_RETRY)

    def drop(self) -> None:
        """Keep no events for `events`, because nobody reads them."""
        assert self._turn is not None
        self._turn.drop()

    async def cancel(self) -> None:
        """Stop the run, because its client has left."""
        if self._turn is not None:
            self._turn.drop()
        while True:
            try:
                await asyncio.wrap_future(self._host.journal.posting(self.run_id, Cancel("the client left")))
                return
            except RunNotFoundError:
                if not self._is_answering:
                    return
                await asyncio.sleep(_UNSTORED_SECONDS)
