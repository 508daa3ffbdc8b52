"""Workers whose runs wait in a queue of the journal until a worker claims them.

`QueueWorkers` begins a run, leaves it in the queue and waits until the journal says that it has ended. It also
starts workers and replaces those that die. Who drives a run does not matter: workers that joined by themselves
count as much as those that it started.
"""

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, Unpack, cast

from msgspec import Struct
from msgspec.structs import replace

from treadle.agent.agent import Agent
from treadle.agent.session import Session
from treadle.core.errors import ConfigError, RunExistsError, TreadleError, UserCodeError, WorkerError
from treadle.core.events import SET_ASIDE
from treadle.core.events.narrowing import Event
from treadle.core.types import Message, Role, StopReason, Usage
from treadle.journal.protocol import Journal, News
from treadle.journal.run_info import QUEUE, RunFilter, RunInfo, queue_of
from treadle.loop.wayout import see_through
from treadle.runs.agent_parts import refuse_missing
from treadle.runs.begin import Beginning, begin, enqueue
from treadle.runs.ensure import IfExists, ensure_run
from treadle.runs.options import Given, SessionOptions, StreamOptions
from treadle.runs.resume import hand_over
from treadle.runs.run import Run
from treadle.runs.task import Task, load_task
from treadle.tools.user_code import describe_error, is_from_user, place_of
from treadle.workers.protocol import WorkedSession, WorkerOptions, WorkersStatus

STOP_SECONDS = 30.0
"""How long a worker may take to give its runs back before it is killed."""
_LOOK_SECONDS = 1.0
"""How long to wait for news before looking at the runs again."""
_PAUSE_SECONDS = 0.02
"""The least time between two looks."""
_MAX_DEATHS = 5
"""So many workers may die one after another without a run ending; then their runs are given up."""
_PROBLEM_CHARS = 4000
"""How much of an error is in a report."""


_AFTER_WORK = IfExists(is_likely=True, accepts_waiting=True, continued_faults=())
"""A run that workers have ended is not driven again here, only graded if its worker died before it was."""


class WorkerHandle(Protocol):
    """A worker that `QueueWorkers` starts, on this machine or on another one."""

    async def work(self, tell: "Callable[[WorkerReport], None]") -> None:
        """Start the worker, and wait until it has died. `tell` takes its reports.

        If cancelled, stop the worker, and wait until it has given its runs back. Raises: `WorkerError` that says
        why the worker died, if that is known; `ConfigError` if it would not help to start it again.
        """


class WorkerReport(Struct, omit_defaults=True, kw_only=True):
    """A report of a worker to its `QueueWorkers`; also a line that `treadle worker --json` prints."""

    count: WorkersStatus | None = None
    """What the worker drives at the moment; `None` if the report is about something else."""
    run_id: str | None = None
    """A run that the worker cannot drive."""
    problem: str | None = None
    """The reason why the worker cannot drive it."""
    place: str = ""
    """The line of the user's code that failed; empty if there is none."""
    is_config: bool = False
    """True if the configuration is wrong, such as a key that is missing."""

    @classmethod
    def of(cls, run_id: str, error: Exception) -> "WorkerReport":
        """Return the report about a run that cannot be driven."""
        cause = error.__cause__ if isinstance(error, UserCodeError) and error.__cause__ is not None else error
        place = place_of(cause) if is_from_user(cause) else ""
        text = str(error) if isinstance(error, TreadleError) else describe_error(error)
        problem = text if len(text) <= _PROBLEM_CHARS else f"{text[:_PROBLEM_CHARS]}…"
        return cls(run_id=run_id, problem=problem, place=place, is_config=isinstance(error, ConfigError))


class QueueWorkers:
    """The workers that claim runs from a queue of the journal."""

    def __init__(self, journal: Journal, options: WorkerOptions, handles: list[WorkerHandle]) -> None:
        """Keep the options. The worker processes start with the first run. Raises: `ConfigError`."""
        if journal.address is None:
            raise ConfigError(
                "workers need a journal that other processes can open; give the path of a file, or the address of "
                "a store, in place of 'memory:'"
            )
        self._journal = journal
        self._options = options
        self._handles = handles
        self._counts: dict[int, WorkersStatus] = {}
        """What each live worker drives."""
        self._restarts = self._deaths = 0
        self._waiting: dict[str, asyncio.Future[bool]] = {}
        """The runs that have not ended. A future gets whether the run waits for somebody, or why it is given up."""
        self._watching: asyncio.Task[None] | None = None
        self._working: dict[int, asyncio.Task[None]] = {}
        """The tasks that keep the workers alive, by the number of the worker."""
        self._is_closed = False
        self.on_used: Callable[[Usage, float | None], None] = lambda usage, cost_usd: None
        """The function that is told what a turn or run has used since it was left to the workers."""

    async def run(
        self, agent: Agent[Any], run_id: str, task: str | Task, /, **options: Unpack[StreamOptions]
    ) -> Run[Any]:
        if self._is_closed:
            raise ConfigError("these workers are closed; make new ones")
        if not isinstance(task, str):
            load_task(f"{task.task_set}:{task.task_id}")  # a worker does the same
        given = Given(agent.answer, options.get("deps", agent.deps))
        before: tuple[Usage, float | None] = (Usage(), 0.0)
        with self._await_end(run_id) as ended:
            try:
                await enqueue(agent, task, given, {**options, "run_id": run_id}, self._options.queue)
            except RunExistsError:
                info = (await asyncio.to_thread(self._journal.runs, RunFilter(run_ids=[run_id])))[0]
                if info.stop_reason == SET_ASIDE and info.is_waiting:
                    return await asyncio.to_thread(load_run, agent, run_id)
                if not await self._waits(agent, info, given):
                    return await ensure_run(agent, run_id, task, given, options, IfExists(is_likely=True))
                before = Usage(info.input_tokens, info.output_tokens), info.cost_usd
            self._start()
            is_waiting = await ended
        if is_waiting:
            run = await asyncio.to_thread(load_run, agent, run_id)
        else:
            run = await ensure_run(agent, run_id, task, given, options, _AFTER_WORK)
        self.on_used(*used_since(before, run))
        return run

    def session(self, agent: Agent[Any], run_id: str, /, **options: Unpack[SessionOptions]) -> WorkedSession:
        return QueuedSession(
            agent, run_id, options, self._options.queue, self._turn_ended, lambda *used: self.on_used(*used)
        )

    async def _turn_ended(self, run_id: str) -> None:
        with self._await_end(run_id) as ended:
            self._start()
            await ended

    @contextlib.contextmanager
    def _await_end(self, run_id: str) -> Any:
        if run_id in self._waiting:
            raise ConfigError(f"run {run_id!r} is being waited for already; give each run its own id")
        ended = self._waiting[run_id] = asyncio.get_running_loop().create_future()
        try:
            yield ended
        finally:
            del self._waiting[run_id]
            ended.cancel()

    async def _waits(self, agent: Agent[Any], info: RunInfo, given: Given) -> bool:
        """Return whether a run that exists is left to the workers. One that has failed is reopened for them. A run
        of another queue, or without a queue, is not, because no worker may be there to drive it."""
        if queue_of(info.labels) != self._options.queue or info.is_waiting:
            return False
        if info.is_turn_open or info.is_driven:
            return True
        if info.stop_reason != StopReason.ERROR:
            return False
        await hand_over(agent, info.run_id, given)
        return True

    def status(self) -> WorkersStatus:
        counts, in_flight = list(self._counts.values()), len(self._waiting)

        def add_up(numbers: list[int]) -> int:
            # The newest reports may be older than the end of a run.
            return min(in_flight, sum(numbers))

        return WorkersStatus(
            workers=len(counts),
            in_flight=in_flight,
            driven=add_up([count.in_flight for count in counts]),
            waiting_on_model=add_up([count.waiting_on_model or 0 for count in counts]),
            waiting_on_tools=add_up([count.waiting_on_tools or 0 for count in counts]),
            restarts=self._restarts,
        )

    async def close(self) -> None:
        self._is_closed = True
        tasks = [*self._working.values(), *([] if self._watching is None else [self._watching])]
        for task in tasks:
            task.cancel()
        if tasks:
            await see_through(lambda: asyncio.wait(tasks))

    def _start(self) -> None:
        """Start the workers that do not run. Those that could not start with the runs before may be able to now."""
        if self._watching is None:
            self._watching = asyncio.ensure_future(self._watch())
        for number, handle in enumerate(self._handles):
            if (task := self._working.get(number)) is None or task.done():
                self._working[number] = asyncio.ensure_future(self._keep_up(number, handle))

    async def _watch(self) -> None:
        """Look for runs that have ended whenever something is stored. If the store fails, the runs are given up."""
        news: News | None = None
        while True:
            try:
                news = news or self._journal.news()
                for info in await asyncio.to_thread(self._find_ended, list(self._waiting)):
                    self._deaths = 0
                    if (ended := self._waiting.get(info.run_id)) is not None and not ended.done():
                        ended.set_result(info.is_waiting)
                await asyncio.sleep(_PAUSE_SECONDS)
                await news.wait(_LOOK_SECONDS)
            except Exception as error:  # later runs are waited for too
                self._give_up(error)
                await asyncio.sleep(_LOOK_SECONDS)

    def _find_ended(self, run_ids: list[str]) -> list[RunInfo]:
        """Return the runs that are not driven and whose turn is over or waits for an answer. Blocks."""
        if not run_ids:
            return []
        ended = RunFilter(run_ids=run_ids, is_turn_open=False, is_driven=False)
        paused = RunFilter(run_ids=run_ids, is_waiting=True, is_driven=False)
        return [*self._journal.runs(ended), *self._journal.runs(paused)]

    async def _keep_up(self, number: int, handle: WorkerHandle) -> None:
        """Keep a worker alive: start it, and start it again when it dies."""

        def tell(report: WorkerReport) -> None:
            if report.count is not None:
                self._counts[number] = report.count
            ended = self._waiting.get(report.run_id or "")
            if ended is not None and not ended.done():
                told = f"run {report.run_id!r} cannot be driven: {report.problem}"
                wrong: Exception = ConfigError(told) if report.is_config else WorkerError(told, report.place)
                if report.is_config and report.place:
                    wrong = UserCodeError(told)
                ended.set_exception(wrong)

        while True:
            error: Exception | None = None
            try:
                await handle.work(tell)
            except ConfigError as wrong:
                self._give_up(wrong)
                return
            except Exception as failed:
                error = failed
            finally:
                self._counts.pop(number, None)
            self._restarts += 1
            self._deaths += 1
            if self._deaths >= _MAX_DEATHS * len(self._handles):
                self._give_up(error or WorkerError("the workers died again and again"))
                self._deaths = 0
            await asyncio.sleep(min(5.0, 0.1 * 2**self._deaths))

    def _give_up(self, error: Exception) -> None:
        for ended in self._waiting.values():
            if not ended.done():
                ended.set_exception(error)


def share_window(options: WorkerOptions, count: int) -> WorkerOptions:
    """Return the options for each of `count` workers, whose windows together are the caller's."""
    return replace(options, window=-(-options.window // count))


def import_path() -> list[str]:
    """Return the folders from which this program imports modules, as paths that mean the same elsewhere."""
    return [entry or str(Path.cwd()) for entry in sys.path]


def used_since(before: tuple[Usage, float | None], run: Run[Any]) -> tuple[Usage, float | None]:
    """Return the tokens and cost that a run has used after the use `before`; `None`: the cost is unknown."""
    usage, cost_usd = before
    used = Usage(run.usage.input_tokens - usage.input_tokens, run.usage.output_tokens - usage.output_tokens)
    return used, None if cost_usd is None or run.cost_usd is None else run.cost_usd - cost_usd


def load_run(agent: Agent[Any], run_id: str) -> Run[Any]:
    """Return a run as it is in the journal. Blocks."""
    return Run(run_id, Run.load(run_id, agent.journal).state, agent.journal, agent.answer)


class QueuedSession:
    """A session with the methods of `workers.protocol.WorkedSession`. It holds no lease between its calls.

    A session that was begun without the queue is driven here, because no worker takes it.
    """

    def __init__(
        self,
        agent: Agent[Any],
        run_id: str,
        options: SessionOptions,
        queue: str,
        ended: Callable[[str], Awaitable[None]],
        on_used: Callable[[Usage, float | None], None],
    ) -> None:
        """Make the session. `ended` waits until its open turn has ended, and `on_used` is told what was used."""
        refuse_missing(agent.spec, has_model=False, has_tools=False)
        self._agent = agent
        self._run_id = run_id
        self._options = options
        self._queue = queue
        self._ended = ended
        self._on_used = on_used
        self._given = Given(agent.answer, agent.deps)
        self._task = options.get("task")
        self._here = contextlib.AsyncExitStack()
        self._local: Session[Any] | None = None

    async def __aenter__(self) -> "QueuedSession":
        metadata = {**(self._options.get("metadata") or {}), QUEUE: self._queue}
        beginning = Beginning(self._run_id, self._options.get("files"), metadata, is_session=True)
        try:
            driver = await begin(self._agent, self._task, self._given, beginning)
            await driver.leave()
        except RunExistsError:
            if self._options.get("begins_with_message"):
                raise
            if (await self._load()).metadata.get(QUEUE) != self._queue:
                session = self._agent.session(self._run_id, **self._options)
                self._local = await self._here.enter_async_context(session)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._here.aclose()

    async def finish_turn(self) -> Run[Any]:
        """See `Session.finish_turn`. A turn that ended with an error is tried again."""
        if self._local is not None:
            return await self._local.finish_turn()
        run = await self._load()
        if run.state.turn.is_open:
            return await self._await(run.usage, run.cost_usd)
        return await self._hand_over(None) if run.state.has_failed_turn else run

    async def send(self, text: str, *, is_last: bool = False, is_own: bool = False) -> Run[Any]:
        if self._local is not None:
            return await self._local.send(text, is_last=is_last, is_own=is_own)
        return await self._hand_over(Message(Role.USER, text, is_own=is_own))

    async def grade(self) -> float | None:
        if self._local is not None:
            return await self._local.grade()
        async with self._agent.session(self._run_id, **self._options) as session:
            return await session.grade()

    async def read_events(self) -> Sequence[Event]:
        found = await asyncio.to_thread(self._agent.journal.read, self._run_id)
        return cast("Sequence[Event]", tuple(found))

    async def _await(self, usage: Usage, cost_usd: float | None) -> Run[Any]:
        """Wait for the end of the open turn, and return the run, which had used so much before."""
        await self._ended(self._run_id)
        run = await self._load()
        self._on_used(*used_since((usage, cost_usd), run))
        return run

    async def _hand_over(self, message: Message | None) -> Run[Any]:
        """Open the next turn, or the one that failed, and leave it to the workers. Return the run at its end."""
        state = await hand_over(self._agent, self._run_id, self._given, self._task, message)
        return await self._await(state.usage, state.cost_usd)

    async def _load(self) -> Run[Any]:
        return await asyncio.to_thread(load_run, self._agent, self._run_id)
