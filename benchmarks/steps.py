"""Steps per second relative to the bare loop, with 64 and 1,024 runs in flight, and the memory with 1,024."""

import resource

from pyreqwest.client import ClientBuilder

from benchmarks import bare
from benchmarks.common import Figure, compare, in_turn, journal_path, make_agent, server, timed
from treadle import open_journal

STEPS = 5


async def measure() -> list[Figure]:
    """Measure complete answers, with the journal at the level `process`."""
    return [await _measure(64), await _measure(1024)]


async def _measure(in_flight: int) -> Figure:
    with server(STEPS) as base_url, journal_path() as path, open_journal(path) as journal:
        agent = make_agent(base_url, journal)
        client = ClientBuilder().build()
        url = f"{base_url}/chat/completions"

        async def ours() -> int:
            run = await agent.run("Add 1 and 2.")
            assert run.stop_reason == "completed", run.error
            return run.steps

        async def theirs() -> int:
            return await bare.run(client, url)

        pairs = [
            pair
            async for pair in in_turn(
                lambda: timed(ours, 4000, in_flight), lambda: timed(theirs, 4000, in_flight), rounds=7
            )
        ]
    ratio, detail = compare(pairs)
    return Figure(f"steps/s, {in_flight} in flight, over the bare loop's", ratio, ">= 0.5", detail)


async def measure_memory() -> list[Figure]:
    """Return the largest resident set of a process that does nothing but 1,024 concurrent runs."""
    with server(STEPS) as base_url, journal_path() as path, open_journal(path) as journal:
        agent = make_agent(base_url, journal)

        async def ours() -> int:
            return (await agent.run("Add 1 and 2.")).steps

        await timed(ours, 20_000, 1024)
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return [Figure("memory at 1,024 runs in flight, MB in all", peak_mb, "<= 120", "20,000 runs of 5 steps")]
