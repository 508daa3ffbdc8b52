"""Batches of runs: order, bounds, failures, interruption and resumption."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest

from treadle import Agent, RunFilter, ScriptedModel, open_journal
from treadle.core.errors import ConfigError
from treadle.core.types import Request
from treadle.events import Item
from treadle.journal.memory import MemoryJournal
from treadle.journal.protocol import Journal


def echo(request: Request) -> str:
    return request.messages[-1].content


def agent_on(journal: Journal | Path, answer: Any = echo, **options: Any) -> Agent[str]:
    return Agent(ScriptedModel(answer, keeps_requests=False), journal=journal, **options)


async def test_runs_are_yielded_as_they_finish_with_their_numbers() -> None:
    late = asyncio.Event()

    class Model(ScriptedModel):
        async def infer(self, request: Request, watch: Any) -> Any:
            if request.messages[-1].content == "slow":
                await late.wait()
            return await super().infer(request, watch)

    agent = Agent(Model(echo), journal=MemoryJournal())
    batch = agent.run_many(["slow", "a", "b"], window=2)
    found = []
    async for run in batch:
        found.append((run.metadata["number"], run.value))
        if len(found) == 2:
            late.set()
    assert found == [(2, "a"), (3, "b"), (1, "slow")]
    assert str(batch.progress) == "3 of 3 done"


async def test_a_window_bounds_runs_and_what_is_read_ahead() -> None:
    running = most = drawn = 0

    class Model(ScriptedModel):
        async def infer(self, request: Request, watch: Any) -> Any:
            nonlocal running, most
            running += 1
            most = max(most, running)
            await asyncio.sleep(0)
            running -= 1
            return await super().infer(request, watch)

    def draw() -> Iterator[str]:
        nonlocal drawn
        for number in range(200):
            drawn += 1
            yield str(number)

    agent = Agent(Model(echo, keeps_requests=False), journal=MemoryJournal())
    done = 0
    async for _ in agent.run_many(draw(), window=5):
        done += 1
        await asyncio.sleep(0)
        assert drawn <= done + 2 * 5
    assert (done, most) == (200, 5)


async def test_tasks_may_come_from_an_asynchronous_iterator() -> None:
    async def draw() -> AsyncIterator[str]:
        for text in "abcd":
            await asyncio.sleep(0)
            yield text

    batch = agent_on(MemoryJournal()).run_many(draw(), window=3)
    assert sorted([run.value async for run in batch]) == list("abcd")
    assert str(batch.progress) == "4 of 4 done"


async def test_a_run_that_fails_is_data() -> None:
    def answer(request: Request) -> Any:
        text = request.messages[-1].content
        return RuntimeError("down") if text == "bad" else text

    runs = [run async for run in agent_on(MemoryJournal(), answer).run_many(["a", "bad", "b"])]
    assert sorted((run.metadata["number"], run.error) for run in runs) == [
        (1, None),
        (2, "RuntimeError: down"),
        (3, None),
    ]


async def test_the_same_batch_again_asks_only_for_what_is_missing(tmp_path: Path) -> None:
    asked: list[str] = []
    is_down = True

    def answer(request: Request) -> Any:
        text = request.messages[-1].content
        asked.append(text)
        return RuntimeError("down") if is_down and text == "t3" else text

    tasks = [f"t{number}" for number in range(1, 7)]
    with open_journal(tmp_path / "runs.db") as journal:
        agent = agent_on(journal, answer)
        async for run in (first := agent.run_many(tasks, window=1, batch_id="b")):
            if run.metadata["number"] == 4:
                break
        await first.aclose()
        is_down = False
        begun = set(asked)
        asked.clear()
        runs = [run async for run in agent.run_many(tasks, window=3, batch_id="b")]
        assert {run.run_id: run.value for run in runs} == {f"b-{n}": f"t{n}" for n in range(1, 7)}
        # What was answered is not asked again; what the server failed at is.
        assert {"t3", "t6"} <= set(asked) <= {"t3", "t5", "t6"}
        assert begun | set(asked) == set(tasks)
        asked.clear()
        assert len([run async for run in agent.run_many(tasks, batch_id="b")]) == 6
        assert asked == []
        assert len(journal.runs(RunFilter(labels={"batch": "b"}, stop_reason="completed"))) == 6


async def test_another_task_at_a_place_of_a_batch_is_refused() -> None:
    agent = agent_on(MemoryJournal())
    assert len([run async for run in agent.run_many(["a", "b"], batch_id="x")]) == 2
    with pytest.raises(ConfigError, match=r"run 'x-2' has another task \('b', and not 'c'\)"):
        _ = [run async for run in agent.run_many(["a", "c"], batch_id="x")]


async def test_an_exception_ends_the_batch_and_releases_every_run() -> None:
    def listen(item: Item) -> None:
        if item.type == "turn_completed" and item.output == "bad":
            raise LookupError("mine")

    def draw() -> Iterator[str]:
        yield from ["a", "bad"]
        for number in range(1000):
            yield str(number)

    journal = MemoryJournal()
    agent = agent_on(journal)
    with pytest.raises(LookupError, match="mine"):
        async for _ in agent.run_many(draw(), window=4, on_event=listen, batch_id="x"):
            pass
    assert journal.runs(RunFilter(is_driven=True)) == []
    assert len(asyncio.all_tasks()) == 1


@pytest.mark.parametrize("times", [1, 2])
async def test_cancelling_ends_all_runs_in_order(times: int) -> None:
    is_busy = asyncio.Event()

    class Model(ScriptedModel):
        async def infer(self, request: Request, watch: Any) -> Any:
            is_busy.set()
            await asyncio.Event().wait()

    journal = MemoryJournal()
    agent = Agent(Model([]), journal=journal)

    async def consume() -> None:
        async for _ in agent.run_many(map(str, range(50)), window=8):
            pass

    task = asyncio.create_task(consume())
    await is_busy.wait()
    for _ in range(times):
        task.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await task
    assert journal.runs(RunFilter(is_driven=True)) == []
    assert {info.stop_reason for info in journal.runs()} == {"interrupted"}
    assert len(asyncio.all_tasks()) == 1


async def test_leaving_early_cancels_the_rest() -> None:
    journal = MemoryJournal()
    batch = agent_on(journal).run_many(map(str, range(1000)), window=4)
    async for _ in batch:
        break
    await batch.aclose()
    assert journal.runs(RunFilter(is_driven=True)) == []
    assert len(journal.runs()) < 20


def test_a_batch_from_blocking_code(tmp_path: Path) -> None:
    agent = agent_on(tmp_path / "runs.db")
    assert sorted(run.value for run in agent.run_many_sync(["a", "b", "c"], window=2)) == ["a", "b", "c"]
    for run in agent.run_many_sync(["a", "b"], schema=None, batch_id="x"):
        assert run.value in "ab"
        break


@pytest.mark.parametrize(
    ("tasks", "options", "why"),
    [
        ("one task", {}, "give a list or an iterator of tasks"),
        (3, {}, "give a list or an iterator of tasks"),
        ([], {"window": 0}, "window is 0"),
        ([], {"window": "8"}, "window is '8'"),
        ([], {"batch_id": ""}, "batch_id is ''"),
        ([], {"windw": 8}, "run_many has no option 'windw'; did you mean 'window'"),
        ([], {"run_id": "r"}, "run_many has no option 'run_id'"),
    ],
)
def test_wrong_batches_are_told(tasks: Any, options: Any, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        agent_on(MemoryJournal()).run_many(tasks, **options)
