"""A worker: it claims the runs that wait in a queue of a journal, and drives them.

Any number of workers share a queue, in any processes and on any machines that can open the journal. The journal's
leases say which worker drives a run. If a worker dies, another one claims its runs and resumes them. `RunAgents`
builds the agents of the runs from their specs.
"""

import asyncio
import logging
import math
import os
import time
from collections.abc import Callable, Iterable
from copy import copy
from functools import partial
from typing import Any

import msgspec
from msgspec.structs import replace

from treadle.agent.agent import Agent
from treadle.core import events as e
from treadle.core.errors import ConfigError, JournalError, LeaseHeldError, LeaseLostError
from treadle.core.events import RunStarted
from treadle.core.policy import Policy
from treadle.core.spec import AgentSpec, PartSpec
from treadle.core.state import State
from treadle.http.locks import new_lock
from treadle.journal.protocol import Journal, News, RunWriter
from treadle.loop.listener import Hook, Hooks
from treadle.loop.wayout import see_through
from treadle.models.config.presets import is_oracle
from treadle.models.config.recipe import Config, make_model
from treadle.models.protocol import Model
from treadle.runs.agent_parts import require_trust
from treadle.runs.drive import next_queued
from treadle.runs.ensure import collecting_less
from treadle.runs.options import Given
from treadle.runs.resume import continue_run, load_task_of, reopen
from treadle.runs.run import Run
from treadle.tools.protocol import ToolLike
from treadle.workers.protocol import LOSSES_ALONE, MAX_LOSSES, WorkerOptions
from treadle.workers.registry import RunsInFlight

_LOOK_SECONDS = 1.0
"""How long a worker waits for news before it looks for runs whose driver died."""
_FIRST_PAUSE_SECONDS, _LONGEST_PAUSE_SECONDS = 1.0, 300.0
"""How long a run is left out after the store failed; each failure doubles it."""

_log = logging.getLogger("treadle.workers")


class Worker:
    """One process's share of the work on a queue."""

    def __init__(
        self,
        journal: Journal,
        options: WorkerOptions = WorkerOptions(),
        *,
        hooks: Iterable[Hook] = (),
        on_problem: Callable[[str, Exception], None] | None = None,
        config: Config | None = None,
    ) -> None:
        """Make a worker that drives at most `options.window` runs at a time. `config` is as for `RunAgents`.

        `on_problem` is called with the id of each run that this worker cannot drive, and why. Such a run stays in
        the queue, for other workers.
        """
        self.journal = journal
        self.agents = RunAgents(journal, hooks, config=config)
        self.in_flight = RunsInFlight()
        self.done = 0
        """How many runs this worker has driven until they ended or waited for somebody."""
        self._options = options
        self._on_problem = on_problem or partial(_log.error, "run %r cannot be driven here: %s")
        self._left_out: dict[str, float] = {}
        """The runs that cannot be driven here, each with the time until which it is left out."""
        self._pauses: dict[str, float] = {}
        """How long each run was left out the last time because the store failed."""
        self._running: set[asyncio.Task[None]] = set()
        self._has_room = asyncio.Event()
        self._failure: Exception | None = None

    async def work(self) -> None:
        """Claim and drive runs until cancelled; then give them back. Raises: `JournalError` if the store fails."""
        news = self.journal.news(self._options.queue)
        try:
            with collecting_less(self._options.window):
                await self._claim(news)
        finally:
            await see_through(self._stop)

    async def _claim(self, news: News) -> None:
        while True:
            if self._failure is not None:
                raise self._failure
            if len(self._running) >= self._options.window:
                self._has_room.clear()
                await self._has_room.wait()
            elif (writer := await self._next()) is not None:
                task = asyncio.ensure_future(self._drive(writer))
                self._running.add(task)
                task.add_done_callback(self._end)
                if writer.losses >= LOSSES_ALONE:
                    await asyncio.wait([task])
            else:
                await asyncio.sleep(self._options.rest_seconds)
                await news.wait(_LOOK_SECONDS)

    async def _next(self) -> RunWriter | None:
        """Claim a run; `None` if none waits that can be driven here now."""
        now = time.monotonic()
        for run_id in [run_id for run_id, until in self._left_out.items() if until < now]:
            del self._left_out[run_id]
        most = LOSSES_ALONE - 1 if self._running else None
        return await self.journal.claim(self._options.queue, self._left_out, max_losses=most)

    def _end(self, task: asyncio.Task[None]) -> None:
        self._running.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._failure = error
        self._has_room.set()

    async def _drive(self, writer: RunWriter) -> None:
        run_id = writer.run_id
        try:
            if writer.losses >= MAX_LOSSES:
                await _set_aside(writer)
                return
            with self.in_flight.watch() as hold:
                try:
                    state, agent = await asyncio.to_thread(self.prepare, run_id)
                except BaseException as error:
                    # Once it is released, this worker could claim it again.
                    self._leave_out(run_id, error)
                    await see_through(writer.release)
                    raise
                given = Given(agent.answer, agent.deps, retries=self._options.retries, on_driver=hold)
                run = await continue_run(agent, state, writer, given)
                while run.state.started is not None and run.state.started.is_session:
                    # A message may have come after the last turn, before the lease was given back.
                    run = await asyncio.to_thread(Run.load, run_id, self.journal)
                    if next_queued(run.state) is None:
                        break
                    state, writer = await reopen(agent, run_id, trust=False)
                    run = await continue_run(agent, state, writer, given)
        except (LeaseHeldError, LeaseLostError) as error:
            _log.warning("%s", error)
        except Exception as error:
            # Tools, tasks and checks may raise anything, and must not end the other runs.
            if self._leave_out(run_id, error):
                self._on_problem(run_id, error)
        else:
            self._pauses.pop(run_id, None)
            self.done += 1

    def _leave_out(self, run_id: str, error: BaseException) -> bool:
        """Leave a run to others: for a while if the store failed, else for good. Return whether it is for good."""
        if not isinstance(error, JournalError):
            self._left_out[run_id] = math.inf
            return True
        pause = min(_LONGEST_PAUSE_SECONDS, 2 * self._pauses.get(run_id, _FIRST_PAUSE_SECONDS / 2))
        self._pauses[run_id], self._left_out[run_id] = pause, time.monotonic() + pause
        _log.warning("run %r is tried again in %g s: %s", run_id, pause, error)
        return False

    def prepare(self, run_id: str) -> tuple[State, Agent[Any]]:
        """Return the state of a run, and the agent that drives it. Blocks.

        Raises: `UntrustedError`; `ConfigError` if the agent cannot be built here.
        """
        state = Run.load(run_id, self.journal).state
        assert state.agent is not None
        require_trust(self.journal, run_id, state.agent, trust=False)
        require_key(state.agent.model)
        return state, self.agents.agent_for(state.agent, state.started)

    async def _stop(self) -> None:
        """Cancel the runs in flight, which releases their leases, and close the agents."""
        for task in self._running:
            task.cancel()
        if self._running:
            await asyncio.wait(self._running)
        await self.agents.close()


async def _set_aside(writer: RunWriter) -> None:
    """Pause a run until somebody resumes it by its id, because its drivers die again and again."""
    remark = (
        f"{writer.losses} processes in a row ended or hung while they drove this run; mend the cause, then resume "
        f"it with `treadle resume {writer.run_id}`"
    )
    _log.error("run %r is set aside: %s", writer.run_id, remark)
    writer.append([e.RunPaused(at=time.time(), reason=e.SET_ASIDE, remark=remark)])
    await see_through(writer.release)
    await writer.sync()


_MAX_AGENTS = 64
_MAX_MODELS = 256


class RunAgents:
    """The agents of the runs of a journal. Runs whose agents have the same model, tools and schema share one.

    Any thread may use it.
    """

    def __init__(
        self,
        journal: Journal,
        hooks: Iterable[Hook] = (),
        *,
        api_key: str | None = None,
        tools: Iterable[ToolLike] | None = None,
        config: Config | None = None,
    ) -> None:
        """Keep what all agents share. `api_key` and `tools` replace those of the specs, if they are given. `config`
        has the named models; `None`: the configuration of this folder."""
        self.built = 0
        """How many agents were built."""
        self._journal = journal
        self._hooks = Hooks(hooks)
        self._api_key = api_key
        self._tools = tools if tools is None else tuple(tools)
        self._config = config
        self._agents: dict[bytes, Agent[Any] | ConfigError] = {}
        self._models: dict[bytes, Model] = {}
        self._lock = new_lock()

    def agent_for(self, spec: AgentSpec, started: RunStarted | None) -> Agent[Any]:
        """Return an agent of `spec` that continues the run which began with `started`. Blocks.

        The run keeps its own policy, instructions and files, which are in its journal. Raises: `ConfigError` if the
        agent cannot be built here.
        """
        # Runs of a group differ in the seed of their samples, and in nothing that has to be built again.
        settings = dict(spec.model.settings or {})
        has_own_model = is_oracle(spec.model.name, settings) or settings.pop("seed", None) is not None
        model = replace(spec.model, settings=settings or None)
        base = replace(spec, model=model, instructions=None, policy=Policy(), files=None, task_set=None)
        with self._lock:
            agent = self._find(base, started)
            if has_own_model:
                agent = copy(agent)
                agent.model = self._find_model(spec.model, started)
        return agent

    def _find(self, spec: AgentSpec, started: RunStarted | None) -> Agent[Any]:
        key = msgspec.json.encode(spec)
        found = self._agents.get(key)
        if found is None:
            try:
                found = self._build(spec, started)
            except ConfigError as error:
                found = error
            _keep(self._agents, key, found, _MAX_AGENTS)
        if isinstance(found, ConfigError):
            raise found
        return found

    def _build(self, spec: AgentSpec, started: RunStarted | None) -> Agent[Any]:
        model = self._find_model(spec.model, started)
        agent = Agent.from_spec(spec, model=model, tools=self._tools, journal=self._journal)
        self.built += 1
        agent.has_policy = False
        agent.hooks = self._hooks
        return agent

    def _find_model(self, part: PartSpec, started: RunStarted | None) -> Model:
        if is_oracle(part.name, part.settings or {}):
            return make_model(part, task=load_task_of(started))
        key = msgspec.json.encode(part)
        found = self._models.get(key)
        if found is None:
            config = self._config
            made = make_model(part, api_key=self._api_key) if config is None else config.model(part)
            found = _keep(self._models, key, made, _MAX_MODELS)
        return found

    async def close(self) -> None:
        """Close the agents and their hooks."""
        for agent in self._agents.values():
            if isinstance(agent, Agent):
                await agent.close()
        self._hooks.close()


def require_key(part: PartSpec) -> None:
    """Check that the API key of a model is set here, if it was set where the run began. Raises: `ConfigError`.

    A model behind a server of the user could also be built without a key.
    """
    settings = part.settings or {}
    variable = settings.get("api_key_env")
    if variable and settings.get("base_url") is not None and not os.environ.get(str(variable)):
        raise ConfigError(
            f"no API key for the model {part.name!r} at {settings['base_url']}: set the environment variable "
            f"{variable} where the worker runs"
        )


def _keep(kept: dict[bytes, Any], key: bytes, value: Any, limit: int) -> Any:
    """Keep a value under its key, in place of the oldest one if there are too many, and return it."""
    if len(kept) >= limit:
        kept.pop(next(iter(kept)), None)
    kept[key] = value
    return value
