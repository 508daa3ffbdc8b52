"""What the gateway needs of the process that it is in: the journal, the models by name, and the running work."""

import asyncio
import contextlib
from collections.abc import Coroutine, Sequence
from typing import Any, Protocol, TypeVar

from treadle.agent.agent import Agent
from treadle.core.lineage import Caller
from treadle.core.state import Ending
from treadle.core.types import Completion
from treadle.journal.protocol import Journal
from treadle.journal.run_info import RunFilter, RunInfo
from treadle.server.admission.access import ApiCaller, RequestRefused
from treadle.server.catalog import ClientWish
from treadle.server.gateway.conversations import Conversations

T = TypeVar("T")


class Offered(Protocol):
    """The agents and models that clients may name; see `AgentCatalog`."""

    def agent(self, name: str, wish: ClientWish) -> Agent[Any]: ...

    def is_agent(self, name: str) -> bool: ...

    def dialect_of(self, name: str) -> str | None: ...


class GatewayHost:
    """The host of the gateway. The server's own is `RunHost`."""

    def __init__(self, journal: Journal, offered: Offered) -> None:
        self.journal = journal
        self.offered = offered
        self.conversations = Conversations(journal)
        self.is_closing = False
        self._tasks: set[asyncio.Task[Any]] = set()

    def start(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Do `work` in a task that goes on when the client leaves."""
        if self.is_closing:
            work.close()
            raise stopping()
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._end)
        return task

    async def do(self, work: Coroutine[Any, Any, T]) -> T:
        """Do `work` in the task of a request, and return its result.

        Raises: what it raises; `RequestRefused` if the server stops, which cancels the task.
        """
        task = asyncio.current_task()
        if self.is_closing or task is None:
            work.close()
            raise stopping()
        self._tasks.add(task)
        try:
            done = await work
            self._follow_up(done)
            return done
        except asyncio.CancelledError:
            if not self.is_closing:
                raise
            task.uncancel()
            raise stopping() from None
        finally:
            self._tasks.discard(task)

    def _follow_up(self, done: object) -> None:
        """Begin what follows from the result of the work of a request."""

    def start_quietly(self, work: Coroutine[Any, Any, None]) -> None:
        """Do `work` in a task that nobody waits for, unless the server is stopping."""
        with contextlib.suppress(RequestRefused):
            self.start(work)

    def _end(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waits for the task gets it

    def labels(self, caller: ApiCaller, agent: str | None = None) -> dict[str, str]:
        """Return the labels of a run that a client begins. `agent` is the name that the client asked for."""
        return {}

    def visible_to(self, caller: ApiCaller) -> dict[str, str]:
        """Return the labels that a run must have so that a client sees it."""
        return {}

    async def check_room(self, caller: ApiCaller) -> None:
        """Check that a client may ask. Raises: `RequestRefused`."""

    async def find_info(self, caller: ApiCaller, run_id: str) -> RunInfo | None:
        """Return the facts about the run with this id; `None` if there is none that a client sees."""
        wanted = RunFilter(run_ids=[run_id], labels=self.visible_to(caller))
        found = await asyncio.to_thread(self.journal.runs, wanted)
        return found[0] if found else None

    def lineage(self, caller: ApiCaller) -> Caller | None:
        """Return which call of another run begins the runs of a client; `None` if none does."""
        return None

    def note_asked(self, caller: ApiCaller, run_id: str) -> None:
        """Take note of the run of a request before its model is asked."""

    def note_done(self, caller: ApiCaller, done: Sequence[Completion], ending: Ending | None) -> None:
        """Take note of the answers to a request; if there are none, of how its turn ended."""

    async def close(self) -> None:
        """Stop the work, and wait until it has ended."""
        self.is_closing = True
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)


def stopping() -> RequestRefused:
    """Return the refusal of a server that stops."""
    return RequestRefused(503, "the server is stopping; ask again", "server_stopping", {"retry-after": "5"})


async def result_of(task: "asyncio.Task[T]") -> T:
    """Wait for work, and return its result. Raises: what it raised; `RequestRefused` if it was stopped."""
    await asyncio.wait([task])
    if task.cancelled():
        raise stopping()
    return task.result()
