"""Worker processes over a queue in PostgreSQL."""

import asyncio
import os
import signal

import pytest
from tests.workers.gates import Gate, gate, message

from treadle import Agent, open_journal
from treadle.core import events as e
from treadle.workers.registry import make_workers

__all__ = ["gate"]


@pytest.mark.full
async def test_the_death_of_a_worker_is_a_resume_on_another(postgres_url: str, gate: Gate) -> None:
    names = [f"r-{number}" for number in range(4)]
    with open_journal(postgres_url) as journal:
        workers = make_workers("local:2", journal)
        agent = Agent("mock:echo", tools=[gate.tool], journal=journal)
        running = asyncio.gather(*[workers.run(agent, name, message(name)) for name in names])
        for name in names:
            await gate.reached(name)
        os.kill(gate.pids("r-0")[0], signal.SIGKILL)
        gate.open()
        runs = await asyncio.wait_for(running, 60)
        assert [run.output for run in runs] == [f"done {name}" for name in names]
        for name in names:
            types = [type(event.body) for event in journal.read(name)]
            assert types.count(e.RunFinished) == types.count(e.RunStarted) == 1
        await workers.close()
