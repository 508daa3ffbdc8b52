"""Actors on a real local Ray: the death of an actor, and of a node, is a run that another actor resumes."""

import asyncio
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.workers.gates import Gate, gate, message

from treadle import Agent, open_journal
from treadle.core.types import StopReason
from treadle.workers.protocol import WorkerOptions
from treadle.workers.registry import make_workers

__all__ = ["gate"]


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Return a Ray cluster of one node, to which a test can add others."""
    ray = pytest.importorskip("ray")
    from ray.cluster_utils import Cluster

    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    made = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    # The address of the cluster reaches the workers as it would reach a program of a user.
    monkeypatch.setenv("RAY_ADDRESS", made.address)
    yield made
    ray.shutdown()
    made.shutdown()


@pytest.mark.full
async def test_the_runs_of_an_actor_that_was_killed_are_resumed(cluster: Any, gate: Gate) -> None:
    with open_journal(gate.folder / "runs.db") as journal:
        agent = Agent("mock:echo", tools=[gate.tool], journal=journal)
        workers = make_workers("ray:2", journal, WorkerOptions(window=4))
        names = ["a", "b", "c", "d"]
        running = asyncio.gather(*[workers.run(agent, name, message(name)) for name in names])
        pids = {name: await gate.reached(name) for name in names}
        os.kill(pids["a"], signal.SIGKILL)
        for name in [name for name, pid in pids.items() if pid == pids["a"]]:
            assert await gate.reached(name, 2) != pids["a"]
        gate.open()
        runs = await running
        assert [(run.output, run.stop_reason) for run in runs] == [
            (f"done {name}", StopReason.COMPLETED) for name in names
        ]
        assert workers.status().restarts == 1
        await workers.close()
        import ray

        # An actor that still waits for a CPU has nothing to give back, and is not waited for.

        class Other:
            def ready(self) -> bool:
                return True

        other = ray.remote(num_cpus=2)(Other).remote()
        assert await other.ready.remote()
        workers = make_workers("ray:1", journal)
        running = asyncio.ensure_future(workers.run(agent, "e", "say hello"))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(running, 3)
        await asyncio.wait_for(workers.close(), 60)
        ray.kill(other)


@pytest.mark.full
async def test_the_runs_of_a_node_that_died_are_resumed(cluster: Any, gate: Gate) -> None:
    node = cluster.add_node(num_cpus=2)
    with open_journal(gate.folder / "runs.db") as journal:
        agent = Agent("mock:echo", tools=[gate.tool], journal=journal)
        workers = make_workers("ray:4", journal, WorkerOptions(window=4))
        names = ["a", "b", "c", "d"]
        running = asyncio.gather(*[workers.run(agent, name, message(name)) for name in names])
        pids = {name: await gate.reached(name) for name in names}
        raylet = next(info for kind, info in node.all_processes.items() if kind == "raylet")[0].process
        lost = [name for name, pid in pids.items() if _stat(pid)[1] == str(raylet.pid)]
        assert len(lost) == 2
        raylet.kill()
        while not all(_has_ended(pids[name]) for name in lost):
            await asyncio.sleep(0.05)
        gate.open()
        assert [run.output for run in await running] == [f"done {name}" for name in names]
        assert all(len(gate.pids(name)) == 1 + (name in lost) for name in names)
        await workers.close()


def _stat(pid: int) -> list[str]:
    """Return the state of a process, the id of its parent, and what follows in its file in /proc."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


def _has_ended(pid: int) -> bool:
    try:
        return _stat(pid)[0] == "Z"
    except FileNotFoundError:
        return True
