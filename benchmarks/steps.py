"""Steps per second relative to two loops written by hand, at 64 and 1,024 runs in flight and one at a time."""

import resource
from collections.abc import Awaitable, Callable

from pyreqwest.client import ClientBuilder

from benchmarks import bare
from benchmarks.common import (
    Figure,
    NoJournal,
    Timing,
    compare,
    in_slices,
    journal_path,
    make_agent,
    server,
    timed,
)
from benchmarks.spike import Spike, Store
from treadle import Agent, open_journal

STEPS = 5
RUNS = {64: 600, 1024: 2048, 1: 60}
"""How many runs a slice has, by runs in flight."""
WANTED = {64: 0.6, 1024: 0.55, 1: 0.4}


async def measure() -> list[Figure]:
    """Measure whole answers, with the journal at level `process`."""
    return [figure for in_flight in RUNS for figure in await _measure(in_flight)]


async def _measure(in_flight: int) -> list[Figure]:
    with server(STEPS) as base_url, journal_path() as path, open_journal(path) as journal:
        client, url = ClientBuilder().build(), f"{base_url}/chat/completions"
        with journal_path() as beside, Store(beside) as store:
            spike = Spike(client, url, store)

            def side(one: Callable[[], Awaitable[int]]) -> Callable[[], Awaitable[Timing]]:
                return lambda: timed(one, RUNS[in_flight], in_flight)

            found = await in_slices(
                {
                    "bare": side(lambda: bare.run(client, url)),
                    "spike": side(spike.run),
                    "treadle": side(runner(make_agent(base_url, journal))),
                    "off": side(runner(make_agent(base_url, NoJournal()))),
                }
            )
    name = "one run at a time" if in_flight == 1 else f"{in_flight:,} in flight"
    ratio, detail = compare(found["treadle"], found["bare"])
    spike_ratio, spike_detail = compare(found["spike"], found["bare"])
    off_ratio, off_detail = compare(found["off"], found["treadle"])
    return [
        Figure(f"steps/s over the bare loop's, {name}", ratio, f">= {WANTED[in_flight]}", detail),
        Figure(f"the spike's over the bare loop's, {name}", spike_ratio, ">= 0", spike_detail),
        Figure(f"journal off over journal on, {name}", off_ratio, ">= 1", off_detail),
    ]


def runner(agent: Agent) -> Callable[[], Awaitable[int]]:
    async def one() -> int:
        run = await agent.run("Add 1 and 2.")
        assert run.stop_reason == "completed", run.error
        return run.steps

    return one


async def measure_memory() -> list[Figure]:
    """Measure the largest resident set of a process that makes 1,024 runs at a time and nothing else."""
    with server(STEPS) as base_url, journal_path() as path, open_journal(path) as journal:
        await timed(runner(make_agent(base_url, journal)), 20_000, 1024)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return [Figure("memory at 1,024 runs in flight, MB in all", peak_mb, "<= 120", "20,000 runs of 5 steps")]
