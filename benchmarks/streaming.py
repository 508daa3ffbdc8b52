"""Streaming: answers of 50 chunks, 64 in flight, relative to a bare loop that reads the same chunks."""

from pyreqwest.client import ClientBuilder

from benchmarks import bare
from benchmarks.common import Figure, compare, in_slices, journal_path, make_agent, server, timed
from treadle import open_journal


async def measure() -> list[Figure]:
    """Measure runs that pass every delta and every event to a listener."""
    with server(5, 50) as base_url, journal_path() as path, open_journal(path) as journal:
        agent = make_agent(base_url, journal)
        client = ClientBuilder().build()
        url = f"{base_url}/chat/completions"
        heard = 0

        def listen(_: object) -> None:
            nonlocal heard
            heard += 1

        async def ours() -> int:
            run = await agent.run("Add 1 and 2.", on_event=listen)
            assert run.stop_reason == "completed", run.error
            return run.steps

        found = await in_slices(
            {
                "bare": lambda: timed(lambda: bare.run_streaming(client, url), 128, 64),
                "treadle": lambda: timed(ours, 128, 64),
            }
        )
    assert heard > 128 * 5 * 50
    ratio, detail = compare(found["treadle"], found["bare"])
    return [Figure("streaming, 50 chunks an answer, 64 in flight", ratio, ">= 0.6", detail)]
