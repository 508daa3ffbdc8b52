"""The runs that a server drives.

Every run waits in a queue of the journal whenever nobody drives it, so that another process of the server, or the
next one, continues what this one has left: after a crash, at a graceful end, and when an answer arrives.
"""

import asyncio
import contextlib
import itertools
import logging
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextvars import ContextVar
from typing import Any

from msgspec import Struct

from treadle.core.errors import JournalError, LeaseHeldError, RunNotFoundError, TreadleError
from treadle.core.events.narrowing import Item
from treadle.journal.protocol import Journal
from treadle.journal.resources import Resource
from treadle.journal.run_info import QUEUE, RunFilter, RunInfo
from treadle.knowledge.files.file_store import FileStore
from treadle.knowledge.files.vector_stores import VectorStores
from treadle.knowledge.memory.namespace import make_embedder
from treadle.loop.listener import Emit
from treadle.loop.wayout import see_through
from treadle.runs.drive import next_queued
from treadle.runs.options import Given
from treadle.runs.recording import record, take_in_rest
from treadle.runs.resume import resume_run
from treadle.runs.run import Run
from treadle.server.admission.access import ApiCaller, RequestRefused, no_such
from treadle.server.admission.budgets import OWNER, Budgets
from treadle.server.admission.given_servers import end_without_servers
from treadle.server.catalog import AgentCatalog
from treadle.server.gateway.gateway_host import GatewayHost, result_of
from treadle.server.webhooks import Webhooks
from treadle.workers.protocol import WorkerOptions
from treadle.workers.worker import Worker

_REST_SECONDS = 0.05
"""How long interrupted runs may wait. Every request changes the journal, and a look for such runs has a price."""
_RETRY_SECONDS = 2.0
"""How long to wait after the journal has failed, and after which time without a failure it works again."""
_FILES_AT_A_TIME = 2
SERVED = "serve"
"""The queue in which the runs of servers wait."""
VIEWED = "view"
"""The queue in which the runs wait that were begun in the page of `treadle view`."""
AGENT = "treadle.agent"
"""The label with the name of the agent or model that a client asked for."""
_log = logging.getLogger("treadle.server")


class _Place(Struct, eq=False):
    """The place that a request takes among the runs of its key that are under way."""

    run_id: str | None = None
    """The run of the request; `None` until it is known."""


_PLACE: ContextVar[_Place | None] = ContextVar("_PLACE", default=None)
"""The place of the request that is being answered; `None` if its key has no limit of open runs."""


class BegunTurn:
    """A turn that this process drives. What it emits is kept for `items`, unless nobody reads it."""

    def __init__(self) -> None:
        self.task: asyncio.Task[Run[Any]]
        self.has_emitted = False
        self.has_news = asyncio.Event()
        """Set when the turn has emitted something, or has ended."""
        self._items: asyncio.Queue[Item | None] | None = asyncio.Queue()

    def put(self, item: Item | None) -> None:
        """Keep an event or a piece of output; `None` is the end of the turn."""
        if self._items is not None:
            self._items.put_nowait(item)
        self.has_emitted = self.has_emitted or item is not None
        self.has_news.set()

    def drop(self) -> None:
        """Keep nothing from now on, because nobody reads it."""
        self._items = None

    async def items(self) -> AsyncIterator[Item]:
        """Yield the turn's events once they are stored, and the pieces of output between them, until it is over or
        waits for somebody. It may be called once."""
        try:
            while self._items is not None and (item := await self._items.get()) is not None:
                yield item
        finally:
            self.drop()


class RunHost(GatewayHost):
    """The journal, the agents and the running work of one server process."""

    def __init__(
        self, journal: Journal, catalog: AgentCatalog, *, window: int = 256, queue: str = SERVED
    ) -> None:
        super().__init__(journal, catalog)
        self.catalog = catalog
        self.queue = queue
        """The queue in which the runs that clients begin wait."""
        self.webhooks = Webhooks(journal, catalog.config.file.serve)
        self.budgets = Budgets(journal, catalog.config.file.serve.keys)
        catalog.hooks = [hook for hook in (self.webhooks, self.budgets) if hook]
        self._options = WorkerOptions(queue=queue, window=window, rest_seconds=_REST_SECONDS)
        self.worker = self._make_worker()
        self.files = FileStore(journal.resources)
        named = catalog.config.file.serve.embeddings
        embedder = None if named is None else make_embedder(named, config=catalog.config)
        self.vectors = journal.resources.once(VectorStores, lambda: VectorStores(journal.resources, embedder))
        self._reading = asyncio.Semaphore(_FILES_AT_A_TIME)
        self._working: asyncio.Task[None] | None = None
        self._failure: JournalError | None = None
        """Why interrupted runs are not continued now; `None` if they are."""
        self._ends: set[Callable[[], object]] = set()
        """The functions that end the streams of those who follow runs."""
        self._places: dict[str, dict[_Place, None]] = {}
        """The places of the requests that are being answered, the oldest first, by the name of their key."""

    async def open(self) -> None:
        """Begin to continue the runs that wait in the queue."""
        self._working = asyncio.ensure_future(self._work())
        self.start_quietly(self._take_in_mail())
        self.start_quietly(self._read_left_files())
        if self.webhooks:
            self.start_quietly(self.webhooks.work())

    def _make_worker(self) -> Worker:
        return Worker(
            self.journal,
            self._options,
            hooks=self.catalog.hooks,
            config=self.catalog.config,
            on_problem=self._note_problem,
        )

    async def _work(self) -> None:
        """Continue the runs that wait, also after the journal has failed for a while."""
        while True:
            mending = asyncio.get_running_loop().call_later(_RETRY_SECONDS, self._note_failure, None)
            try:
                await self.worker.work()
            except JournalError as error:
                if self._failure is None:
                    _log.error("interrupted runs are not continued: %s", error)
                self._note_failure(error)
            finally:
                mending.cancel()
            await asyncio.sleep(_RETRY_SECONDS)
            self.worker = self._make_worker()

    def _note_failure(self, error: JournalError | None) -> None:
        self._failure = error

    def _note_problem(self, run_id: str, error: Exception) -> None:
        _log.error("run %r cannot be driven here: %s", run_id, error)
        self.start_quietly(self._end_lost(run_id))

    async def _end_lost(self, run_id: str) -> None:
        """End the turn of a run if nobody can go on with it. Its clients would wait forever."""
        with contextlib.suppress(JournalError):  # somebody drives it
            await record(self.journal, run_id, end_without_servers)

    async def _read_left_files(self) -> None:
        """Read the files of vector stores that an earlier server has left, and delete what has expired."""
        await asyncio.to_thread(self.vectors.delete_expired)
        await self.read_files(await asyncio.to_thread(self.vectors.unread))

    async def read_files(self, attached: Sequence[Resource]) -> None:
        """Read files that were attached to vector stores, few at the same time. A failure keeps no other file from
        being read."""

        async def read(item: Resource) -> None:
            async with self._reading:
                await self.vectors.read_in([item])

        outcomes = await asyncio.gather(*[read(item) for item in attached], return_exceptions=True)
        if failures := [outcome for outcome in outcomes if isinstance(outcome, BaseException)]:
            raise failures[0]

    async def _take_in_mail(self) -> None:
        """Take in the messages for runs that wait, which were stored just before an earlier server died."""
        waiting = RunFilter(labels={QUEUE: self.queue}, is_waiting=True, is_driven=False)
        for info in await asyncio.to_thread(self.journal.runs, waiting):
            if await asyncio.to_thread(self.journal.inbox, info.run_id):
                await take_in_rest(self.journal, info.run_id)

    @property
    def driven(self) -> int:
        """How many turns and interrupted runs this process works on."""
        return len(self._tasks) + self.worker.in_flight.status().in_flight

    @property
    def fault(self) -> str | None:
        """Why the server cannot work; `None` if it can."""
        if self.is_closing:
            return "the server is stopping"
        error: BaseException | None = self._failure
        if error is None and self._working is not None and self._working.done():
            error = None if self._working.cancelled() else self._working.exception()
        return None if error is None else f"the journal failed: {error}"

    async def begin(self, drive: Callable[[Emit], Coroutine[Any, Any, Run[Any]]]) -> BegunTurn:
        """Begin to drive a run in a task, and return it once the run's first new event is stored.

        `drive` gets the listener that it must pass on. Raises: what prevented the run, such as `ConfigError`.
        """
        turn = BegunTurn()
        turn.task = self.start(drive(turn.put))
        turn.task.add_done_callback(lambda _: turn.put(None))
        turn.task.add_done_callback(self._end_turn)
        await turn.has_news.wait()
        if not turn.has_emitted:
            await result_of(turn.task)  # raises what prevented the run
        return turn

    def _follow_up(self, done: object) -> None:
        if isinstance(done, Run):
            self._go_on(done)

    def _end_turn(self, task: "asyncio.Task[Run[Any]]") -> None:
        if not task.cancelled() and task.exception() is None:
            self._go_on(task.result())

    def _go_on(self, run: Run[Any]) -> None:
        """Answer the messages that came for the next turns while a turn was driven."""
        if next_queued(run.state) is not None:
            self.start_quietly(self.answer_queued(run.run_id))

    async def answer_queued(self, run_id: str) -> None:
        """Answer the messages that wait for the next turns of a session, unless somebody drives it."""
        try:
            _, agent = await asyncio.to_thread(self.worker.prepare, run_id)
            self._go_on(await resume_run(agent, run_id, Given(agent.answer, agent.deps)))
        except LeaseHeldError:
            pass  # whoever drives it answers them
        except TreadleError as error:
            _log.warning("the messages that wait for run %r are not answered: %s", run_id, error)

    @contextlib.contextmanager
    def following(self, end: Callable[[], object]) -> Iterator[None]:
        """Call `end` if the server stops within the `with` block, at once if it is stopping already."""
        self._ends.add(end)
        if self.is_closing:
            asyncio.get_running_loop().call_soon(end)
        try:
            yield
        finally:
            self._ends.discard(end)

    async def get_info(self, caller: ApiCaller, run_id: str) -> RunInfo:
        """Return the facts about a run that a client sees. Raises: `RequestRefused`."""
        found = await self.find_info(caller, run_id)
        if found is None:
            raise no_such("run", run_id)
        return found

    async def find_run(self, caller: ApiCaller, run_id: str) -> Run[Any] | None:
        """Return the run with this id; `None` if there is none that a client sees."""
        try:
            return await self.get_run(caller, run_id)
        except RequestRefused:
            return None

    async def get_run(self, caller: ApiCaller, run_id: str, journal: Journal | None = None) -> Run[Any]:
        """Return a run that a client sees, as `journal` shows it; `None`: as it is. Raises: `RequestRefused`."""
        await self.get_info(caller, run_id)
        try:
            return await asyncio.to_thread(Run.load, run_id, journal or self.journal)
        except RunNotFoundError:  # it was deleted just now
            raise no_such("run", run_id) from None

    async def get_file(self, caller: ApiCaller, file_id: str) -> Resource:
        """Return a file that a client sees. Raises: `RequestRefused`."""
        found = await asyncio.to_thread(self.files.get, file_id, caller.sees_only)
        if found is None:
            raise no_such("file", file_id)
        return found

    async def read_file(self, caller: ApiCaller, file_id: str) -> tuple[Resource, bytes]:
        """Return a file that a client sees, and its content. Raises: `RequestRefused`."""
        found = await self.get_file(caller, file_id)
        content = await asyncio.to_thread(self.files.content, found)
        if content is None:
            raise no_such("file", file_id)
        return found, content

    async def get_store(self, caller: ApiCaller, store_id: str) -> Resource:
        """Return a vector store that a client sees. Raises: `RequestRefused`."""
        found = await asyncio.to_thread(self.vectors.get, store_id, caller.sees_only)
        if found is None:
            raise no_such("vector store", store_id)
        return found

    def labels(self, caller: ApiCaller, agent: str | None = None) -> dict[str, str]:
        labels = {QUEUE: self.queue, OWNER: caller.name, AGENT: agent}
        return {name: value for name, value in labels.items() if value}

    def visible_to(self, caller: ApiCaller) -> dict[str, str]:
        return {} if caller.sees_all else {OWNER: caller.name}

    async def check_room(self, caller: ApiCaller) -> None:
        """Check that a client may begin a run. Raises: `RequestRefused`."""
        if self.budgets:
            await self.budgets.check(caller.name)
        most = caller.max_open_runs
        if most is None:
            return
        place = self._take_place(caller.name)
        condition = RunFilter(labels={OWNER: caller.name}, is_turn_open=True, is_waiting=False)
        found = {info.run_id for info in await asyncio.to_thread(self.journal.runs, condition, limit=most)}
        places = self._places[caller.name]
        before = itertools.takewhile(lambda it: it is not place, places)
        others = [it for it in before if it.run_id not in found]
        if len(found) + len(others) >= most:
            del places[place]
            raise RequestRefused(
                429, f"{most} runs of this key are under way already", "too_many_runs", {"retry-after": "5"}
            )

    def _take_place(self, name: str) -> _Place:
        """Return a place that a request has until it is answered. A short run is stored at its end only, so that no
        listing has it before."""
        place, places = _Place(), self._places.setdefault(name, {})
        places[place] = None
        _PLACE.set(place)
        task = asyncio.current_task()
        assert task is not None
        task.add_done_callback(lambda _: places.pop(place, None))
        return place

    def note_run(self, run_id: str) -> None:
        """Note the run of the request that is being answered, so that it is not counted twice."""
        if (place := _PLACE.get()) is not None:
            place.run_id = run_id

    def note_asked(self, caller: ApiCaller, run_id: str) -> None:
        self.note_run(run_id)

    async def close(self) -> None:
        """Pause the runs that are under way; the next server continues them."""
        self.is_closing = True
        tasks = [*self._tasks, *([] if self._working is None else [self._working])]
        for task in tasks:
            task.cancel()
        for end in list(self._ends):
            end()

        async def wait() -> None:
            if tasks:
                await asyncio.wait(tasks)

        await see_through(wait)
        await self.catalog.close()
