"""The runs that a server drives.

Every run waits in a queue of the journal whenever nobody drives it, so that another process of the server, or the
next one, continues what this one has left: after a crash, at a graceful end, and when an answer arrives.
"""

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

from treadle.core.lineage import Caller
from treadle.core.types import Completion, Fault
from treadle.journal.protocol import Journal
from treadle.journal.run_info import QUEUE, RunFilter
from treadle.loop.wayout import see_through
from treadle.runs.recording import take_in_rest
from treadle.server.access import ApiCaller, RequestRefused
from treadle.server.catalog import AgentCatalog
from treadle.server.gateway.conversations import Conversations
from treadle.workers.protocol import WorkerOptions
from treadle.workers.worker import Worker

T = TypeVar("T")
_MAX_HISTORIES = 10_000
_REST_SECONDS = 0.05
"""How long interrupted runs may wait. Every request changes the journal, and a look for such runs has a price."""
SERVED = "serve"
"""The queue in which the runs of servers wait."""
OWNER = "treadle.owner"
"""The label with the name of the key that began a run."""


class RunHost:
    """The journal, the agents and the running work of one server process."""

    def __init__(self, journal: Journal, catalog: AgentCatalog, *, window: int = 256) -> None:
        self.journal = journal
        self.catalog = catalog
        self._worker = Worker(
            journal,
            WorkerOptions(queue=SERVED, window=window, rest_seconds=_REST_SECONDS),
            config=catalog.config,
        )
        self._working: asyncio.Task[None] | None = None
        self._tasks: set[asyncio.Task[Any]] = set()
        self.is_closing = False
        self.conversations = Conversations(journal)
        self._histories: OrderedDict[tuple[str, bytes], str] = OrderedDict()
        """The runs of the newest conversations, by the client and the digest of the conversation."""

    async def open(self) -> None:
        """Begin to continue the runs that wait in the queue."""
        self._working = asyncio.ensure_future(self._worker.work())
        self.start(self._take_in_mail())

    async def _take_in_mail(self) -> None:
        """Take in the messages for runs that wait, which were stored just before an earlier server died."""
        waiting = RunFilter(labels={QUEUE: SERVED}, is_waiting=True, is_driven=False)
        for info in await asyncio.to_thread(self.journal.runs, waiting):
            if await asyncio.to_thread(self.journal.inbox, info.run_id):
                await take_in_rest(self.journal, info.run_id)

    @property
    def fault(self) -> str | None:
        """Why the server cannot work; `None` if it can."""
        if self.is_closing:
            return "the server is stopping"
        if self._working is None or not self._working.done():
            return None
        error = None if self._working.cancelled() else self._working.exception()
        return f"the journal failed: {error}"

    def start(self, work: Coroutine[Any, Any, T]) -> "asyncio.Task[T]":
        """Do `work` in a task that goes on when the client leaves."""
        if self.is_closing:
            work.close()
            raise RequestRefused(
                503, "the server is stopping; ask again", "server_stopping", {"retry-after": "5"}
            )
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._end)
        return task

    def start_quietly(self, work: Coroutine[Any, Any, None]) -> None:
        """Do `work` in a task that nobody waits for, unless the server is stopping."""
        with contextlib.suppress(RequestRefused):
            self.start(work)

    def _end(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # whoever waits for the task gets it

    def labels(self, caller: ApiCaller) -> dict[str, str]:
        """Return the labels of a run that a client begins."""
        return {QUEUE: SERVED, **({OWNER: caller.name} if caller.name else {})}

    def visible_to(self, caller: ApiCaller) -> dict[str, str]:
        """Return the labels that a run must have so that a client sees it."""
        return {} if caller.sees_all else {OWNER: caller.name}

    def lineage(self, caller: ApiCaller) -> Caller | None:
        """Return which call of another run begins the runs of a client; `None` if none does."""
        return None

    def note_asked(self, caller: ApiCaller, run_id: str) -> None:
        """Take note of the run of a request to the gateway before its model is asked."""

    def note_done(self, caller: ApiCaller, done: Sequence[Completion], fault: Fault | None, why: str) -> None:
        """Take note of the answers to such a request, or of whose fault it is that there is none, and why."""

    async def has_run(self, caller: ApiCaller, run_id: str) -> bool:
        """Return whether there is a run with this id that a client sees."""
        wanted = RunFilter(run_ids=[run_id], labels=self.visible_to(caller))
        return bool(await asyncio.to_thread(self.journal.runs, wanted))

    def note_history(self, caller: ApiCaller, digest: bytes, run_id: str) -> None:
        """Note that the conversation of a run has this digest."""
        self._histories[caller.name, digest] = run_id
        if len(self._histories) > _MAX_HISTORIES:
            self._histories.popitem(last=False)

    def find_history(self, caller: ApiCaller, digest: bytes) -> str | None:
        """Return the run whose conversation has this digest; `None` if this process knows none."""
        return self._histories.get((caller.name, digest))

    async def check_room(self, caller: ApiCaller) -> None:
        """Check that a client may begin a run. Raises: `RequestRefused`."""
        most = caller.max_open_runs
        if most is None:
            return
        condition = RunFilter(labels={OWNER: caller.name}, is_turn_open=True, is_waiting=False)
        found = await asyncio.to_thread(self.journal.runs, condition, limit=most)
        if len(found) >= most:
            raise RequestRefused(
                429, f"{most} runs of this key are under way already", "too_many_runs", {"retry-after": "5"}
            )

    async def close(self) -> None:
        """Pause the runs that are under way; the next server continues them."""
        self.is_closing = True
        tasks = [*self._tasks, *([] if self._working is None else [self._working])]
        for task in tasks:
            task.cancel()

        async def wait() -> None:
            if tasks:
                await asyncio.wait(tasks)

        await see_through(wait)
        await self.catalog.close()
