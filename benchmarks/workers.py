"""How steps/s grow with worker processes, and what very many runs in flight cost.

Each worker has a core of its own; the program that hands out the runs, and the model's server, have the others.
"""

import asyncio
import gc
import os
import resource
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common import Figure, Timing, add, compare, in_slices, journal_path, pin, server
from treadle import Agent, Policy, model, open_journal
from treadle.workers.protocol import WorkerOptions, Workers
from treadle.workers.registry import make_workers

STEPS, RUNS, WINDOW, ROUNDS = 40, 512, 256, 6
"""The steps of a run; the runs of a slice, and how many of them are in flight; and the slices."""


async def measure() -> list[Figure]:
    """Measure two worker processes against one."""
    return [await _compare("local", ">= 1.7", "two worker processes on two cores over one, steps/s")]


async def measure_ray() -> list[Figure]:
    """Measure two actors of Ray against one."""
    return [await _compare("ray", ">= 1.5", "two actors of Ray on two cores over one, steps/s")]


async def _compare(kind: str, wanted: str, name: str) -> Figure:
    pin(3)
    with (
        server(STEPS, core=2) as base_url,
        journal_path() as first,
        journal_path() as second,
        open_journal(first) as one_journal,
        open_journal(second) as two_journal,
    ):
        journals = {1: one_journal, 2: two_journal}
        options = WorkerOptions(window=WINDOW)
        sides = {
            count: (make_workers(f"{kind}:{count}", journal, options), journal)
            for count, journal in journals.items()
        }
        try:
            found = await _alternate(sides, base_url)
        finally:
            for workers, _ in sides.values():
                await workers.close()
    one, two = (median([speed for speed, _ in found[count]]) for count in (1, 2))
    one_cpu, two_cpu = (median([cpu for _, cpu in found[count]]) for count in (1, 2))
    detail = (
        f"{two:,.0f} steps/s against {one:,.0f}; the workers' processor time {two_cpu:.0f} us a step against "
        f"{one_cpu:.0f}; {ROUNDS} slices, {WINDOW} in flight, {STEPS} steps a run"
    )
    return Figure(name, two / one, wanted, detail)


async def _alternate(
    sides: dict[int, tuple[Workers, Any]], base_url: str
) -> dict[int, list[tuple[float, float]]]:
    """Return steps/s and processor time of each slice, by number of workers. They alternate, after a warm-up."""
    found: dict[int, list[tuple[float, float]]] = {count: [] for count in sides}
    for number in range(ROUNDS + 1):
        for count, (workers, journal) in sides.items():
            asked = model("openai:bench", base_url=base_url)
            agent = Agent(asked, tools=[add], policy=Policy(max_steps=None), journal=journal)
            if number == 1:
                _pin(workers)
            speed = await _drive(workers, agent, f"{number}-{count}")
            if number:
                found[count].append(speed)
    return found


async def _drive(workers: Workers, agent: Agent, prefix: str) -> tuple[float, float]:
    """Drive the runs of a slice, and return the steps per second, and the workers' microseconds per step."""
    gc.collect()
    cpu = _cpu_seconds(workers)
    left = iter(range(RUNS))
    began = time.perf_counter()

    async def work() -> None:
        for number in left:
            run = await workers.run(agent, f"{prefix}-{number}", "Add 1 and 2.")
            assert run.steps == STEPS, run.error

    await asyncio.gather(*[work() for _ in range(WINDOW)])
    seconds = time.perf_counter() - began
    return RUNS * STEPS / seconds, (_cpu_seconds(workers) - cpu) / (RUNS * STEPS) * 1e6


def _cpu_seconds(workers: Workers) -> float:
    """Return the processor time that the workers have used."""
    pids = [hand.pid for hand in workers._hands if hand.pid is not None]  # type: ignore[attr-defined]
    stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum([int(stat[11]) + int(stat[12]) for stat in stats]) / os.sysconf("SC_CLK_TCK")


def _pin(workers: Workers) -> None:
    """Give each worker process a core of its own."""
    for core, hand in enumerate(workers._hands):  # type: ignore[attr-defined]
        for thread in os.listdir(f"/proc/{hand.pid}/task"):
            os.sched_setaffinity(int(thread), {core})


async def _drive_batch(agent: Agent, window: int) -> Timing:
    steps, wall, cpu = 0, time.perf_counter(), time.process_time()
    async for run in agent.run_many(["Add 1 and 2."] * 20_000, window=window):
        assert run.stop_reason == "completed", run.error
        steps += run.steps
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return Timing(wall / steps * 1e6, cpu / steps * 1e6)


async def measure_many() -> list[Figure]:
    """Measure steps/s and memory at 10,000 runs in flight in one process, against 1,024."""
    with server(5) as base_url, journal_path() as path, open_journal(path) as journal:
        agent = Agent(
            model("openai:bench", base_url=base_url),
            tools=[add],
            policy=Policy(max_steps=None),
            journal=journal,
        )
        found = await in_slices(
            {str(count): partial(_drive_batch, agent, count) for count in (1_024, 10_000)}, rounds=4
        )
        peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    ratio, detail = compare(found["10000"], found["1024"])
    return [
        Figure("steps/s at 10,000 runs in flight over those at 1,024", ratio, ">= 0.8", detail),
        Figure(
            "memory at 10,000 runs in flight, MB in all", peak_mb, "<= 900", "20,000 runs of 5 steps a slice"
        ),
    ]
