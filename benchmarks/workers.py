"""How steps/s grow with worker processes, and what very many runs in flight cost.

Each worker has a core of its own; the program that hands out the runs, and the model's server, have the others.
"""

import asyncio
import gc
import os
import time
from statistics import median
from typing import Any

from benchmarks.common import Figure, add, journal_path, pin, server
from treadle import Agent, Policy, model, open_journal
from treadle.engines.protocol import Runner, RunnerOptions
from treadle.engines.runners import make_runner

STEPS, RUNS, WINDOW, ROUNDS = 40, 192, 96, 8
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
        options = RunnerOptions(window=WINDOW)
        sides = {
            count: (make_runner(f"{kind}:{count}", journal, options), journal)
            for count, journal in journals.items()
        }
        try:
            found = await _alternate(sides, base_url)
        finally:
            for runner, _ in sides.values():
                await runner.close()
    one, two = median(found[1]), median(found[2])
    detail = (
        f"{two:,.0f} steps/s against {one:,.0f}; {ROUNDS} slices, {WINDOW} in flight, {STEPS} steps a run"
    )
    return Figure(name, two / one, wanted, detail)


async def _alternate(sides: dict[int, tuple[Runner, Any]], base_url: str) -> dict[int, list[float]]:
    """Return the steps/s of each slice, by number of workers. The slices alternate, after a warm-up."""
    found: dict[int, list[float]] = {count: [] for count in sides}
    for number in range(ROUNDS + 1):
        for count, (runner, journal) in sides.items():
            asked = model("openai:bench", base_url=base_url)
            agent = Agent(asked, tools=[add], policy=Policy(max_steps=None), journal=journal)
            if number == 1:
                _pin(runner)
            speed = await _drive(runner, agent, f"{number}-{count}")
            if number:
                found[count].append(speed)
    return found


async def _drive(runner: Runner, agent: Agent, prefix: str) -> float:
    """Drive the runs of a slice, and return the steps per second."""
    gc.collect()
    left = iter(range(RUNS))
    began = time.perf_counter()

    async def work() -> None:
        for number in left:
            run = await runner.run(agent, f"{prefix}-{number}", "Add 1 and 2.")
            assert run.steps == STEPS, run.error

    await asyncio.gather(*[work() for _ in range(WINDOW)])
    return RUNS * STEPS / (time.perf_counter() - began)


def _pin(runner: Runner) -> None:
    """Give each worker process a core of its own."""
    for core, hand in enumerate(runner._hands):  # type: ignore[attr-defined]
        for thread in os.listdir(f"/proc/{hand.pid}/task"):
            os.sched_setaffinity(int(thread), {core})
