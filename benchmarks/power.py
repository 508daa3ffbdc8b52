"""Events per second at the level `power` with 64 writers, relative to one sync of the file for each event."""

import asyncio
import os
import time
from statistics import median

from benchmarks.common import Figure, journal_path
from treadle import open_journal
from treadle.core.events import DurableBody, ToolStarted
from treadle.core.types import Effect

EVENTS = 200


async def measure() -> list[Figure]:
    """Measure writers that wait until each event is kept before they append the next."""
    ratios = []
    with journal_path() as path, open_journal(path, level="power") as journal:
        body: DurableBody = ToolStarted(at=1.0, step=1, call_id="c", name="x" * 200, effect=Effect.PURE)
        for round_ in range(5):

            async def write(name: str) -> None:
                writer = journal.create(name)
                for _ in range(EVENTS):
                    writer.append([body])
                    await writer.sync()
                await writer.release()

            start = time.perf_counter()
            await asyncio.gather(*[write(f"{round_}-{i}") for i in range(64)])
            ours = 64 * EVENTS / (time.perf_counter() - start)
            baseline = _one_sync_each(path.with_suffix(".log"))
            ratios.append((ours / baseline, ours, baseline))
    ratio, ours, baseline = sorted(ratios)[len(ratios) // 2]
    detail = f"{ours:,.0f} events/s against {baseline:,.0f}; median of {len(ratios)} rounds"
    return [Figure("durable events/s at power over one fsync an event", median([ratio]), ">= 20", detail)]


def _one_sync_each(path: "os.PathLike[str]") -> float:
    line = b"x" * 260 + b"\n"
    count = 200
    with open(path, "ab", buffering=0) as file:
        start = time.perf_counter()
        for _ in range(count):
            file.write(line)
            os.fsync(file.fileno())
        return count / (time.perf_counter() - start)
