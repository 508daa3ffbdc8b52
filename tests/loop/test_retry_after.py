"""What a server asks a run to wait: too long a wait ends it at once, and a wait is obeyed after a resume too."""

import asyncio
import re
import time
from email.utils import formatdate

import pytest
from tests.forks.process import FORKS
from tests.models.answers import answer, error
from tests.models.server import Received, Reply, serve

from treadle import Agent, Policy, Run, model, open_journal
from treadle.core.events import Event, InferenceCompleted, InferenceFailed
from treadle.models import Limiter

DRIVE = """
import sys
from treadle import Agent, model, open_journal
path, url = sys.argv[1:]
with open_journal(path) as journal:
    Agent(model("openai:m", base_url=url, api_key="k"), journal=journal).run_sync("Hi", run_id="r")
"""
DAY = 86_400


def busy(seconds: float | str) -> Reply:
    """Return an answer that asks to wait."""
    return Reply(error("slow down"), 429, {"retry-after": str(seconds)})


def make(url: str, journal: object, name: str = "openai:m", **options) -> Agent:
    """Return an agent whose model is at `url`."""
    policy = options.pop("policy", None)
    return Agent(
        model(name, base_url=url, api_key="k", **options), journal=journal, policy=policy or Policy()
    )


def failures(run: Run) -> list[InferenceFailed]:
    """Return the failed attempts of a run."""
    return [event.body for event in run.events if isinstance(event.body, InferenceFailed)]


@pytest.mark.parametrize("asked", [str(DAY), "a date", "in milliseconds"])
async def test_a_wait_of_a_day_ends_the_run_at_once_and_says_so(asked):
    headers = {"retry-after": str(DAY)}
    if asked == "a date":
        headers = {"retry-after": formatdate(time.time() + DAY, usegmt=True)}
    elif asked == "in milliseconds":
        headers = {"retry-after-ms": str(DAY * 1000)}
    async with serve([Reply(error("slow down"), 429, headers)]) as server:
        run = await make(server.base_url, "memory:").run("Hi")
        assert (run.stop_reason, run.fault) == ("error", "infrastructure")
        assert f"{server.origin} answered 429 for model 'm': slow down" in run.error
        assert "the server asks to wait 86" in run.error
        assert "past the 1800 s that total_timeout_seconds allows" in run.error
        (failure,) = failures(run)
        assert DAY - 10 < failure.retry_after_seconds <= DAY
        assert len(server.requests) == 1


async def test_a_wait_past_the_deadline_of_the_run_ends_it_at_once():
    async with serve([busy(100)]) as server:
        run = await make(server.base_url, "memory:", policy=Policy(deadline_seconds=50)).run("Hi")
        assert run.stop_reason == "error"
        assert "the server asks to wait 100 s, past the run's deadline, which is in" in run.error


async def test_a_wait_that_one_run_was_asked_for_ends_the_others_that_wait_with_it():
    """The limiter knows of the wait; a run that waits for it in silence would hang for a day."""
    started = asyncio.Event()
    asked = 0

    def reply(received: Received) -> Reply:
        nonlocal asked
        asked += 1
        return Reply(error("slow down"), 429, {"retry-after": str(DAY)}, before=started)

    async with serve(reply) as server:
        limiter = Limiter(max_concurrency=1, is_adaptive=False)
        agent = make(server.base_url, "memory:", limiter=limiter)
        runs = [asyncio.ensure_future(agent.run("Hi")) for _ in range(5)]
        await server.asked.wait()
        while limiter.stats().waiting < 4 and asked < 2:
            await asyncio.sleep(0.01)
        started.set()
        done = [*await asyncio.gather(*runs), await agent.run("later")]
        assert {run.stop_reason for run in done} == {"error"}
        assert sum("in its answer to another request" in run.error for run in done) >= 4
        assert asked <= 2


async def test_a_shorter_wait_is_told_to_those_who_watch():
    told: list[InferenceFailed] = []
    is_told = asyncio.Event()

    def hear(item: object) -> None:
        if isinstance(item, Event) and isinstance(item.body, InferenceFailed):
            told.append(item.body)
            is_told.set()

    async with serve([busy(600)]) as server:
        limiter = Limiter(is_adaptive=False)
        agent = make(server.base_url, "memory:", limiter=limiter)
        runs = [asyncio.ensure_future(agent.run("one"))]
        while not limiter.held_seconds:
            await asyncio.sleep(0.01)
        runs.append(asyncio.ensure_future(agent.run("two", on_event=hear)))
        await asyncio.wait_for(is_told.wait(), 60)
        for run in runs:
            run.cancel()
        await asyncio.gather(*runs, return_exceptions=True)
    assert re.search(r"in its answer to another request, to send nothing for \d+ s", told[0].error)
    assert 0 < told[0].retry_in_seconds <= told[0].retry_after_seconds


async def test_a_resumed_run_waits_for_the_rest_even_after_a_kill(tmp_path):
    path = str(tmp_path / "runs.db")
    async with serve([busy(3), Reply(answer("late"))]) as server:
        process = FORKS.start("-c", DRIVE, path, server.base_url)
        with open_journal(path) as journal:
            await asyncio.wait_for(server.asked.wait(), 30)
            while not await has_failed(path):
                await asyncio.sleep(0.02)
            process.kill()
            process.wait(30)
            run = await make(server.base_url, journal).resume("r")
            assert (run.stop_reason, run.output) == ("completed", "late")
            first = failures(run)[0]
            assert first.retry_after_seconds == 3
            (answered,) = [
                event.body.at for event in run.events if isinstance(event.body, InferenceCompleted)
            ]
        # The server was left in peace for as long as it had asked.
        assert answered - first.at >= 3
        assert len(server.requests) == 2


async def has_failed(path: str) -> bool:
    """Return whether the run's first attempt is known to have failed."""
    with open_journal(path) as journal:
        try:
            events = await asyncio.to_thread(journal.read, "r")
        except LookupError:
            return False
        return any(isinstance(event.body, InferenceFailed) for event in events)


async def test_a_resume_before_a_long_wait_is_over_ends_at_once_without_asking():
    async with serve([busy(DAY)]) as server, serve([Reply(answer("here"))]) as other:
        journal = open_journal("memory:")
        run = await make(server.base_url, journal).run("Hi")
        again = await make(server.base_url, journal).resume(run.run_id)
        assert again.stop_reason == "error"
        assert "not sent: before the run was resumed, the server of openai:m asked to wait" in again.error
        assert "past the 1800 s that total_timeout_seconds allows" in again.error
        assert len(server.requests) == 1
        # Another model's server has not asked for anything.
        moved = await make(other.base_url, journal, "vllm:m").resume(run.run_id)
        assert (moved.stop_reason, moved.output) == ("completed", "here")
