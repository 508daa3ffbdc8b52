"""The workers `ray` or `ray:N`: actors on a Ray cluster that claim runs, spread over its nodes.

Ray only starts the actors and tells when one died. The leases in the journal decide
which actor drives a run. If an actor or a node dies, another actor resumes its runs.
"""

import asyncio
import logging
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from treadle.core.errors import WorkerError
from treadle.core.registry import require
from treadle.journal.protocol import Journal
from treadle.loop.wayout import see_through
from treadle.workers.protocol import WorkerOptions
from treadle.workers.queued import (
    STOP_SECONDS,
    QueueWorkers,
    WorkerHandle,
    WorkerReport,
    import_path,
    share_window,
)
from treadle.workers.registry import read_count

_REPORT_SECONDS = 0.5
_START_SECONDS = 30.0
"""How long Ray may take to start an actor before that is logged."""

_log = logging.getLogger("treadle.workers")


class WorkerActor:
    """The actor: a worker in a process of Ray's."""

    def __init__(self, address: str, options: WorkerOptions, folder: str, path: Sequence[str]) -> None:
        # What the runs name is found from the same folder as in the program, if this node has it.
        if Path(folder).is_dir():
            os.chdir(folder)
        sys.path += [entry for entry in path if entry not in sys.path]
        self._address = address
        self._options = options
        self._working: asyncio.Task[None] | None = None
        self._worker: Any = None
        self._problems: list[WorkerReport] = []

    async def work(self) -> None:
        """Drive runs until `stop` is called."""
        from treadle.journal.registry import open_journal
        from treadle.workers.worker import Worker

        def tell(run_id: str, error: Exception) -> None:
            self._problems.append(WorkerReport.of(run_id, error))

        raylet = os.getppid()
        with open_journal(self._address) as journal:
            self._worker = Worker(journal, self._options, on_problem=tell)
            self._working = asyncio.ensure_future(self._worker.work())
            watching = asyncio.ensure_future(_cancel_without(raylet, self._working))
            with suppress(asyncio.CancelledError):
                await self._working
            watching.cancel()
        if os.getppid() != raylet:
            os._exit(1)

    async def report(self) -> list[WorkerReport]:
        """Return what the worker drives, and the problems since the last call."""
        problems, self._problems = self._problems, []
        counts = [] if self._worker is None else [WorkerReport(count=self._worker.in_flight.status())]
        return [*counts, *problems]

    async def pid(self) -> int:
        """Return the id of the actor's process."""
        return os.getpid()

    async def stop(self) -> None:
        """Give all runs back, and let `work` return."""
        if self._working is not None:
            self._working.cancel()


async def _cancel_without(raylet: int, working: asyncio.Task[None]) -> None:
    """Cancel the work when the node's raylet has died. Ray itself notifies its actors late."""
    while os.getppid() == raylet:  # noqa: ASYNC110 (no event tells it)
        await asyncio.sleep(_REPORT_SECONDS)
    working.cancel()


class RayWorker:
    """One actor. See `WorkerHandle`."""

    def __init__(self, cluster: "_Cluster", address: str, options: WorkerOptions) -> None:
        self._cluster = cluster
        self._given = (address, options, str(Path.cwd()), import_path())
        self.pid: int | None = None
        """The id of the live actor's process, on its node."""

    async def work(self, tell: Callable[[WorkerReport], None]) -> None:
        ray = await self._cluster.start()
        make = ray.remote(WorkerActor).options(num_cpus=1, scheduling_strategy="SPREAD")
        actor = make.remote(*self._given)
        working = asyncio.ensure_future(_result(actor.work.remote()))
        starting = asyncio.ensure_future(_result(actor.pid.remote()))
        try:
            if not (await asyncio.wait([starting], timeout=_START_SECONDS))[0]:
                _log.warning(
                    "Ray has not started a worker for %g s: has the cluster a free CPU (see `ray status`)?",
                    _START_SECONDS,
                )
            self.pid = await starting
            while not (await asyncio.wait([working], timeout=_REPORT_SECONDS))[0]:
                for report in await _result(actor.report.remote()):
                    tell(report)
            await working
        except asyncio.CancelledError:
            if self.pid is not None:  # else it waits for a CPU, and has nothing to give back
                await see_through(lambda: _stop(actor, working))
            raise
        except ray.exceptions.RayError as error:
            raise WorkerError(f"a worker on Ray ended: {error}") from error
        finally:
            self.pid = None
            working.cancel()
            starting.cancel()
            ray.kill(actor)
        raise WorkerError("a worker on Ray ended and left no error message")


async def _result(reference: Any) -> Any:
    return await reference


async def _stop(actor: Any, working: "asyncio.Future[Any]") -> None:
    # An actor that has died gives nothing back; its leases have ended with it.
    with suppress(Exception):
        async with asyncio.timeout(STOP_SECONDS):
            await _result(actor.stop.remote())
            await working


class _Cluster:
    """The connection of this program to Ray."""

    def __init__(self) -> None:
        self.ray = require("ray", "ray")
        self._lock = asyncio.Lock()
        self._is_ours = False

    async def start(self) -> Any:
        """Return the module `ray`, connected: to the cluster of RAY_ADDRESS, else to one that is started here."""
        async with self._lock:
            if not self.ray.is_initialized():
                await asyncio.to_thread(self.ray.init, log_to_driver=False, include_dashboard=False)
                self._is_ours = True
        return self.ray

    async def stop(self) -> None:
        """Leave the cluster, which ends if it was started here."""
        if self._is_ours:
            self._is_ours = False
            await asyncio.to_thread(self.ray.shutdown)


class RayWorkers(QueueWorkers):
    """The workers that are actors of one Ray cluster."""

    def __init__(
        self, journal: Journal, options: WorkerOptions, handles: list[WorkerHandle], cluster: _Cluster
    ) -> None:
        super().__init__(journal, options, handles)
        self._cluster = cluster

    async def close(self) -> None:
        await super().close()
        await self._cluster.stop()


def make_ray(journal: Journal, argument: str, options: WorkerOptions) -> RayWorkers:
    """Return workers with as many actors as `argument` says, by default one for each core of this machine.

    Raises: `ConfigError`, also if Ray is not installed.
    """
    count = read_count("ray", argument, default=os.cpu_count() or 1)
    cluster, shared = _Cluster(), share_window(options, count)
    handles: list[WorkerHandle] = [RayWorker(cluster, journal.address or "", shared) for _ in range(count)]
    return RayWorkers(journal, options, handles, cluster)
