"""A run with an id is begun, continued, graded or read, whatever the journal has of it."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from treadle import (
    Agent,
    ConfigError,
    LeaseHeldError,
    RunFilter,
    ScriptedModel,
    Task,
    load_task,
)
from treadle.core import events as e
from treadle.core.errors import AuthenticationError, ServerError
from treadle.core.lineage import Parent
from treadle.core.state import Status
from treadle.core.types import Fault, Request, StopReason
from treadle.journal.memory import MemoryJournal
from treadle.models.scripted import call
from treadle.runs.ensure import IfExists, ensure_run
from treadle.runs.options import Given
from treadle.runs.retries import RetryPolicy, find_infrastructure_fault
from treadle.runs.run import Run
from treadle.testbed import named_oracle


class Answers:
    """A model that gives each request the next answer, and counts them."""

    def __init__(self, *answers: Any) -> None:
        self.left = list(answers)
        self.asked = 0

    def __call__(self, request: Request) -> Any:
        self.asked += 1
        return self.left.pop(0)


def make(*answers: Any, **options: Any) -> tuple[Agent[str], Answers]:
    answer = Answers(*answers)
    return Agent(ScriptedModel(answer), journal=MemoryJournal(), **options), answer


async def test_it_is_begun_once_and_then_read() -> None:
    agent, model = make("hello")
    first = await ensure_run(agent, "r", "Hi.", options={"metadata": {"part": "x"}})
    for is_likely in (False, True):
        again = await ensure_run(agent, "r", "Hi.", if_exists=IfExists(is_likely=is_likely))
        assert (again.output, again.events) == ("hello", first.events)
    assert (model.asked, first.metadata["part"]) == (1, "x")


async def test_one_that_is_likely_there_and_is_not_is_begun() -> None:
    agent, _ = make("hello")
    assert (await ensure_run(agent, "r", "Hi.", if_exists=IfExists(is_likely=True))).output == "hello"


async def test_an_interrupted_one_is_continued() -> None:
    agent, model = make(asyncio.CancelledError(), "hello")
    with pytest.raises(asyncio.CancelledError):
        await ensure_run(agent, "r", "Hi.")
    run = await ensure_run(agent, "r", "Hi.")
    assert (run.output, model.asked) == ("hello", 2)


@pytest.mark.parametrize(
    ("error", "fault"), [(ServerError("down"), Fault.INFRASTRUCTURE), (AuthenticationError("no"), Fault.USER)]
)
async def test_one_that_failed_is_continued_after_the_faults_that_are_named(
    error: Exception, fault: Fault
) -> None:
    agent, model = make(error, "hello")
    failed = await ensure_run(agent, "r", "Hi.")
    assert failed.fault is fault
    others = tuple(item for item in Fault if item is not fault)
    kept = await ensure_run(agent, "r", "Hi.", if_exists=IfExists(continued_faults=others))
    assert (kept.events, model.asked) == (failed.events, 1)
    assert (await ensure_run(agent, "r", "Hi.")).output == "hello"


async def test_another_text_is_an_error_where_it_is_checked() -> None:
    agent, _ = make("hello")
    await ensure_run(agent, "r", "Hi.")
    assert (await ensure_run(agent, "r", "Bye.")).output == "hello"
    with pytest.raises(ConfigError, match=r"run 'r' has another task \('Hi\.', and not 'Bye\.'\)"):
        await ensure_run(agent, "r", "Bye.", if_exists=IfExists(checks_text=True))


async def test_one_that_is_driven_elsewhere_is_an_error_or_returned() -> None:
    agent, _ = make(asyncio.CancelledError())
    with pytest.raises(asyncio.CancelledError):
        await ensure_run(agent, "r", "Hi.")
    writer = await agent.journal.acquire("r")
    with pytest.raises(LeaseHeldError):
        await ensure_run(agent, "r", "Hi.")
    run = await ensure_run(agent, "r", "Hi.", if_exists=IfExists(accepts_driven=True))
    assert run.status is Status.PAUSED
    await writer.release()


async def test_one_that_waits_for_the_user_is_asked_again_or_returned() -> None:
    agent, _ = make([call("ask_user", {"question": "Which?"})], "done", tools=["ask"])
    waiting = await ensure_run(agent, "r", "Hi.")
    assert waiting.questions
    same = await ensure_run(agent, "r", "Hi.", if_exists=IfExists(accepts_waiting=True))
    assert same.events == waiting.events
    agent.asker = lambda question: "this one"  # type: ignore[assignment, return-value]
    assert (await ensure_run(agent, "r", "Hi.")).output == "done"


def oracle_of(task: Task) -> Agent[str]:
    return Agent(named_oracle("oracle", task), journal=MemoryJournal())


async def test_a_finished_one_without_its_grade_is_graded() -> None:
    task = load_task("files:csv_sum-0001")
    agent = oracle_of(task)

    def stop(item: Any) -> None:
        if isinstance(item, e.Event) and isinstance(item.body, e.RunFinished):
            raise KeyError("the process dies here")

    with pytest.raises(KeyError):
        await ensure_run(agent, "t", task, Given(agent.answer, emit=stop))
    assert Run.load("t", agent.journal).reward is None
    run = await ensure_run(agent, "t", task)
    assert (run.reward, run.steps) == (1.0, Run.load("t", agent.journal).steps)
    assert len(agent.journal.runs(RunFilter(is_driven=True))) == 0


async def test_a_fork_is_made_once() -> None:
    agent, model = make("one", "two")
    await agent.run("Hi.", run_id="r")
    begun = next(event.seq for event in Run.load("r", agent.journal).events if event.type == "turn_started")
    fork = await ensure_run(agent, "f", Parent("r", begun))
    again = await ensure_run(agent, "f", Parent("r", begun))
    assert (fork.output, again.events, model.asked) == ("two", fork.events, 2)


async def test_retries_say_again_or_not_and_after_which_pause() -> None:
    retries = RetryPolicy(attempts=4, delay_seconds=2.0, max_delay_seconds=5.0)
    down = ServerError("down")
    assert [retries.pause_after(attempt, down) for attempt in (1, 2, 3, 4)] == [2.0, 4.0, 5.0, None]
    agent, _ = make(down, "hello")
    failed = await agent.run("Hi.", run_id="r")
    assert find_infrastructure_fault(failed) is not None
    assert retries.pause_after(1, failed.state) == 2.0
    done = await agent.resume("r")
    assert (done.stop_reason, find_infrastructure_fault(done)) == (StopReason.COMPLETED, None)


@pytest.mark.parametrize(
    ("make_error", "is_retried"),
    [
        (lambda: LeaseHeldError("held"), True),
        (lambda: KeyError("a grader's bug"), True),
        (lambda: AuthenticationError("no key"), False),
        (lambda: ConfigError("no such model"), False),
    ],
)
def test_exceptions_that_pass_are_told_from_those_that_stay(
    make_error: Callable[[], Exception], is_retried: bool
) -> None:
    assert (find_infrastructure_fault(make_error()) is not None) is is_retried
