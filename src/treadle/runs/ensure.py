"""The one way to a run with a given id: `ensure_run` returns it, whether the journal has none of it, a part of
it or all of it.

Work that is repeated after a crash with the same ids is continued, and nothing is paid for twice. `Batch` works on
many tasks at the same time, and yields each result when it is there.
"""

import asyncio
import contextlib
import gc
from collections.abc import (
    AsyncIterable,
    AsyncIterator,
    Awaitable,
    Callable,
    Collection,
    Coroutine,
    Iterable,
    Iterator,
    Mapping,
    Sized,
)
from typing import Any, Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from treadle.core.asking import open_questions
from treadle.core.errors import ConfigError, LeaseHeldError, RunExistsError, RunNotFoundError
from treadle.core.lineage import Parent
from treadle.core.state import Status
from treadle.core.types import Fault, Json, Role, StopReason
from treadle.journal.run_info import RunFilter
from treadle.loop.wayout import see_through
from treadle.runs.agent_parts import AgentParts, require_trust
from treadle.runs.begin import run_task
from treadle.runs.drive import write_back
from treadle.runs.options import Given, StreamOptions
from treadle.runs.resume import fork_run, resume_run
from treadle.runs.run import Run
from treadle.runs.task import Task


class IfExists(Struct, frozen=True, kw_only=True):
    """The rules of `ensure_run` for a run that the journal already has."""

    is_likely: bool = False
    """True if the journal probably has the run. The run is then looked for before it is begun."""
    checks_text: bool = False
    """True if it is an error that the run was begun with a message of the user that is not the text of the
    task."""
    accepts_driven: bool = False
    """True if a run that another process drives is returned in its present state, and is no error."""
    accepts_waiting: bool = False
    """True if a run that waits for an answer or an approval is returned; otherwise the agent's asker and approver
    are asked again."""
    needs_trust: bool = True
    """True if a finished run from elsewhere is returned only if the user trusts it. A run that is continued needs
    trust in any case."""
    continued_faults: Collection[Fault] = tuple(Fault)
    """The faults after which a run that ended with an error is continued. After other faults, the run counts as
    finished."""


def ensure_run(
    agent: AgentParts,
    run_id: str,
    task: str | Task | Parent,
    given: Given | None = None,
    options: StreamOptions | None = None,
    if_exists: IfExists = IfExists(),
) -> Coroutine[Any, Any, Run[Any]]:
    """Return the run `run_id` of a task, driven until it ends or waits for the user.

    A run that is not in the journal is begun; with a `Parent` as its task, it is forked from another run. A run
    that is not finished is continued, as is one that ended with an error. A finished run is read from the journal;
    if its process died before the task's check was run, it is graded now. `given` is by default what the agent
    and the options give.

    Raises: as `Agent.run`, `Agent.resume` and `Agent.fork` do; `LeaseHeldError` if another process drives the run;
    `ConfigError` if the run has another task. `if_exists` can change the last two.
    """
    options = options or {}
    given = given or Given(agent.answer, options.get("deps", agent.deps))

    def begin() -> Coroutine[Any, Any, Run[Any]]:
        if isinstance(task, Parent):
            return fork_run(agent, task.run_id, task.seq, given, {"new_run_id": run_id})
        return run_task(agent, task, given, {**options, "run_id": run_id})

    text = None if isinstance(task, Parent) else task if isinstance(task, str) else task.input
    return ensure_begun(agent, run_id, begin, given, if_exists, text)


async def ensure_begun(
    agent: AgentParts,
    run_id: str,
    begin: Callable[[], Awaitable[Run[Any]]],
    given: Given,
    if_exists: IfExists,
    text: str | None = None,
) -> Run[Any]:
    """Return a run as `ensure_run` does. If the journal does not have it, `begin` begins and drives it.

    `text` is the message that the run should begin with; `None` if it is not checked.
    """
    if if_exists.is_likely and (found := await _take_up(agent, run_id, given, if_exists, text)) is not None:
        return found
    try:
        return await begin()
    except RunExistsError:
        found = await _take_up(agent, run_id, given, if_exists, text)
        if found is None:  # it was deleted meanwhile
            raise
        return found


async def _take_up(
    agent: AgentParts, run_id: str, given: Given, if_exists: IfExists, text: str | None
) -> Run[Any] | None:
    """Return a run that exists, continued if it is not finished; `None` if the journal does not have it."""
    try:
        run = await asyncio.to_thread(_load, agent, run_id, given, needs_trust=if_exists.needs_trust)
    except RunNotFoundError:
        return None
    if if_exists.checks_text:
        _check_text(run, text)
    if _is_done(run, if_exists.continued_faults):
        await write_back(agent, run_id, run.state)  # its process may have died before it did
        return run
    if if_exists.accepts_waiting and waits_for_user(run):
        return run
    try:
        return await resume_run(agent, run_id, given)
    except LeaseHeldError:
        if if_exists.accepts_driven:
            return run
        raise


def _load(agent: AgentParts, run_id: str, given: Given, *, needs_trust: bool) -> Run[Any]:
    if needs_trust:
        require_trust(agent.journal, run_id, agent.spec, trust=given.trust)
    return Run(run_id, Run.load(run_id, agent.journal).state, agent.journal, given.answer)


def _check_text(run: Run[Any], text: str | None) -> None:
    asked = next((item.content for item in run.messages if item.role is Role.USER), text)
    if text is not None and asked != text:
        raise ConfigError(
            f"run {run.run_id!r} has another task ({asked!r:.80}, and not {text!r:.80}); give the same task or "
            "another id: in a batch, the same tasks in the same order, or another batch_id"
        )


def _is_done(run: Run[Any], continued_faults: Collection[Fault]) -> bool:
    """Return whether nothing is left to do for a run."""
    if run.status is not Status.FINISHED:
        return False
    if run.stop_reason is StopReason.ERROR:
        return run.fault is not None and run.fault not in continued_faults
    return not _lacks_grade(run)


def _lacks_grade(run: Run[Any]) -> bool:
    """Return whether the process of a finished run of a task died before it graded the run."""
    started = run.state.started
    has_task = started is not None and started.task is not None
    return has_task and not run.state.turn.rewards and run.fault not in (Fault.INFRASTRUCTURE, Fault.USER)


def waits_for_user(run: Run[Any]) -> bool:
    """Return whether a run is paused until somebody answers, decides or posts a result."""
    waits = open_questions(run.state) or run.approvals or run.external_calls
    return run.status is Status.PAUSED and bool(waits)


_IN_BATCH = IfExists(
    checks_text=True, accepts_driven=True, needs_trust=False, continued_faults=(Fault.INFRASTRUCTURE,)
)


def batch_work(
    agent: AgentParts, given: Given, batch_id: str | None, options: Mapping[str, Any]
) -> Callable[[int, str | Task], Awaitable[Run[Any]]]:
    """Return the function that makes the run of a task with a number, from 1; see `Agent.run_many`.

    With a `batch_id`, the run has the id `BATCH_ID-NUMBER`, and is continued if the journal has it.
    """
    kept: StreamOptions = {name: options[name] for name in ("files", "metadata") if name in options}  # type: ignore[assignment]
    looking: asyncio.Future[bool] | None = None

    def has_runs() -> bool:
        return bool(agent.journal.runs(RunFilter(id_prefix=f"{batch_id}-"), limit=1))

    async def work(number: int, task: str | Task) -> Run[Any]:
        nonlocal looking
        metadata: dict[str, Json] = {**(kept.get("metadata") or {}), "number": number}
        if batch_id is None:
            return await run_task(agent, task, given, {**kept, "metadata": metadata})
        looking = looking or asyncio.ensure_future(asyncio.to_thread(has_runs))
        if_exists = replace(_IN_BATCH, is_likely=await asyncio.shield(looking))
        made: StreamOptions = {**kept, "metadata": {**metadata, "batch": batch_id}}
        return await ensure_run(agent, f"{batch_id}-{number}", task, given, made, if_exists)

    return work


T = TypeVar("T")
R_co = TypeVar("R_co", covariant=True)
_END: Any = object()


_MANY = 16
"""From so many runs in flight on, the garbage collector runs less often."""
_OBJECTS = 2
"""How many new objects for each run in flight make it run, ..."""
_LEAST_OBJECTS = 5000
"""... and how many at least. Few objects of a run are garbage that only the collector finds."""


@contextlib.contextmanager
def collecting_less(window: int) -> Iterator[None]:
    """Let Python's garbage collector run less often while `window` runs are in flight, if they are many.

    A run in flight has about 60 objects that the collector visits each time, which would cost more than the runs.
    """
    before = gc.get_threshold()
    ours = (max(_LEAST_OBJECTS, _OBJECTS * window), *before[1:])
    if window < _MANY or not 0 < before[0] < ours[0]:
        yield
        return
    gc.set_threshold(*ours)
    try:
        yield
    finally:
        if gc.get_threshold() == ours:
            gc.set_threshold(*before)


class _Failure(Struct):
    error: Exception


class BatchProgress(Struct):
    total: int | None
    """The number of tasks; `None` if they come from an iterator."""
    begun: int = 0
    """How many tasks were begun."""
    done: int = 0
    """How many results were yielded."""

    def __str__(self) -> str:
        return f"{self.done} of {self.begun if self.total is None else self.total} done"


class Batch(Generic[R_co]):
    """An asynchronous iterator that works on tasks, at most `window` at a time, and yields each result when it is
    there.

    A task is taken from the iterable only when there is room in the window, and a result waits there until it is
    read, so a batch of any length needs only the memory of a window. The first exception cancels all other work
    and is raised. `aclose`, a cancellation, and leaving `async for` early cancel all work; the first two wait
    until it has ended.
    """

    def __init__(
        self,
        work: Callable[[int, T], Awaitable[R_co]],
        tasks: Iterable[T] | AsyncIterable[T],
        window: int,
    ) -> None:
        """Make a batch. `work` gets the number of a task, counted from 1, and the task."""
        if not isinstance(window, int) or window < 1:
            raise ConfigError(f"window is {window!r}; give how many runs may be driven at once, at least 1")
        if isinstance(tasks, str) or not isinstance(tasks, Iterable | AsyncIterable):
            raise ConfigError(f"tasks is {tasks!r:.200}; give a list or an iterator of tasks")
        total = len(tasks) if isinstance(tasks, Sized) else None
        self.progress = BatchProgress(total)
        self._results: AsyncIterator[R_co] = _generate(work, tasks, window, self.progress)

    def __aiter__(self) -> AsyncIterator[R_co]:
        return self

    async def __anext__(self) -> R_co:
        return await self._results.__anext__()

    async def aclose(self) -> None:
        """Cancel all work, and wait until it has ended."""
        await self._results.aclose()  # type: ignore[attr-defined]


async def _generate(
    work: Callable[[int, T], Awaitable[Any]],
    tasks: Iterable[T] | AsyncIterable[T],
    window: int,
    progress: BatchProgress,
) -> AsyncIterator[Any]:
    source = aiter(tasks) if isinstance(tasks, AsyncIterable) else _wrap(iter(tasks))
    results: asyncio.Queue[Any] = asyncio.Queue(maxsize=1)
    taking = asyncio.Lock()

    async def worker() -> None:
        while True:
            # One worker at a time asks for a task, as an asynchronous iterator needs.
            async with taking:
                task = await anext(source, _END)
                if task is _END:
                    return
                progress.begun += 1
                number = progress.begun
            await results.put(await work(number, task))

    async def feed() -> None:
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(window):
                    group.create_task(worker())
        except ExceptionGroup as failed:
            await results.put(_Failure(failed.exceptions[0]))
        else:
            await results.put(_END)

    feeding = asyncio.ensure_future(feed())
    try:
        with collecting_less(window):
            while (item := await results.get()) is not _END:
                if isinstance(item, _Failure):
                    raise item.error
                progress.done += 1
                yield item
    finally:
        feeding.cancel()
        await see_through(lambda: asyncio.wait([feeding]))


async def _wrap(items: Iterator[T]) -> AsyncIterator[T]:
    for item in items:
        yield item
