"""The time from opening the journal of an interrupted run of 200 steps to its next action, in milliseconds."""

import asyncio
import time
from statistics import median

from benchmarks.common import Figure, add, journal_path
from benchmarks.growth import scripted
from treadle import Agent, Policy, open_journal
from treadle.core.types import Completion, Request
from treadle.models.protocol import Watch


class _Stalls:
    """A model that answers a number of times, then waits for ever, and notes when it was asked."""

    name = "stalls"

    def __init__(self, steps: int) -> None:
        self._inner = scripted(1000)
        self._steps = steps
        self.asked_at = 0.0
        self.is_asked = asyncio.Event()

    async def infer(self, request: Request, watch: Watch) -> Completion:
        """Answer or wait; see `Model.infer`."""
        if len(request.messages) >= 2 * self._steps:
            self.asked_at = time.perf_counter()
            self.is_asked.set()
            await asyncio.Event().wait()
        return await self._inner.infer(request, watch)


async def measure() -> list[Figure]:
    """Open the journal anew for each measurement, as another process would."""
    times = []
    with journal_path() as path:
        for _ in range(15):
            model = _Stalls(200)
            with open_journal(path) as journal:
                agent = Agent(model, tools=[add], policy=Policy(max_steps=None), journal=journal)
                run_id = await _interrupt(agent.run("Add 1 and 2."), model, journal)
            again = _Stalls(200)
            start = time.perf_counter()
            with open_journal(path) as journal:
                agent = Agent(again, tools=[add], policy=Policy(max_steps=None), journal=journal)
                await _interrupt(agent.resume(run_id), again, journal)
            times.append((again.asked_at - start) * 1e3)
    detail = f"median of {len(times)}; slowest {max(times):.1f}"
    return [Figure("resume of a run of 200 steps, ms to the next action", median(times), "<= 50", detail)]


async def _interrupt(work, model: _Stalls, journal) -> str:  # type: ignore[no-untyped-def]
    task = asyncio.ensure_future(work)
    await model.is_asked.wait()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return str(journal.runs()[-1].run_id)
