"""The limits of a job count answers that were lost on the way, and with processes that were stopped."""

import asyncio
import pickle
import re
import signal
import socket
import subprocess
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.forks.process import FORKS
from tests.rollout.students import School
from tests.rollout.test_rollouts import make

from treadle import Agent
from treadle.core.errors import (
    ConfigError,
    LimitReachedError,
    ProviderError,
    ScoringError,
    ServerError,
    TransportError,
)
from treadle.core.log import Log
from treadle.core.types import Message, Request, Role
from treadle.evals import EvaluationConfig, evaluate
from treadle.export.groups import Group
from treadle.jobs.ledger import Ledger
from treadle.jobs.meter import JobMeter, LostUse, explain_limit
from treadle.jobs.progress import JobNotice, JobProgress, ServerFailed
from treadle.jobs.sections import LimitSection
from treadle.models import RetryModel, ScriptedModel
from treadle.models.protocol import Watch
from treadle.rollout.sinks.protocol import BaseSink, Receipt, SinkMemory
from treadle.runs.retries import is_cut_off
from treadle.runs.run import Run

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.parametrize(
    ("error", "is_billed"),
    [(TransportError("broke"), True), (ServerError("down", status=503), False)],
    ids=["lost", "refused"],
)
@pytest.mark.parametrize("is_retried", [True, False])
async def test_an_answer_that_was_lost_counts_for_the_limit_of_tokens(
    error: ProviderError, is_billed: bool, is_retried: bool
) -> None:
    meter = JobMeter(LimitSection(max_tokens=3000))
    model: Any = ScriptedModel([error] * 99)
    told: list[int] = []
    if is_retried:
        model = RetryModel(model, max_attempts=3, min_delay_seconds=0.0)
    watch = Watch(on_failure=lambda error, attempt, delay: told.append(attempt))
    request = Request(Log([Message(Role.USER, "x" * 300)]))
    with pytest.raises(type(error)):
        await meter.measure(model).infer(request, watch)
    attempts = 3 if is_retried else 1
    assert len(told) == attempts - 1
    assert meter.lost.tokens == (600 * attempts if is_billed else 0)
    assert (meter.input_tokens, meter.output_tokens) == (0, 0)
    for _ in range(5):
        with pytest.raises((type(error), LimitReachedError)):
            await meter.measure(model).infer(request, watch)
    assert (meter.find_limit() == "max_tokens") is is_billed
    assert meter.lost.tokens <= 3000 + 2 * 600


def test_a_server_that_does_not_answer_is_told_at_once(tmp_path: Path) -> None:
    """Before, nothing was heard of it until all attempts of a run had failed."""
    told: list[ServerFailed] = []

    def listen(notice: JobNotice, progress: JobProgress) -> None:
        if isinstance(notice, ServerFailed):
            assert not progress.retried
            told.append(notice)

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))  # nobody listens there
        model = {
            "model": "vllm:m",
            "base_url": f"http://127.0.0.1:{taken.getsockname()[1]}",
            "max_attempts": 2,
        }
        settings = {
            "tasks": ["files:csv_sum-0001"],
            "models": [model],
            "path": tmp_path,
            "retries": {"attempts": 1},
        }
        found = asyncio.run(evaluate(EvaluationConfig.model_validate(settings), listener=listen))
    assert found.end.reason == "failures"
    assert [(notice.model, notice.key()) for notice in told] == [("vllm:m", told[0].error)]
    assert re.fullmatch(r"vllm:m is asked again in 0\.\d+ s: cannot connect to http://.*", told[0].line())


def test_ctrl_c_says_how_long_runs_in_flight_take() -> None:
    assert (
        JobProgress().stopping()
        == "stopping, as soon as nothing is in flight; press Ctrl-C again to stop now"
    )
    progress = JobProgress(in_flight=2, seconds=8)
    assert "2 runs in flight will be finished (none has ended yet in 8.0 s); press" in progress.stopping()
    progress.run_seconds = 12.3
    assert (
        "2 runs in flight will be finished (so far each took 12.3 s on average); press" in progress.stopping()
    )


async def test_a_limit_is_known_by_its_type() -> None:
    async def run(model: Any, limit: int) -> Run[Any]:
        return await Agent(JobMeter(LimitSection(max_tokens=limit)).measure(model)).run("hello")

    text = "the limit max_tokens of the plan is reached"
    cut_off = await run(ScriptedModel(["hi"]), 1)
    assert cut_off.error == text
    assert is_cut_off(cut_off)
    assert not is_cut_off(await run(ScriptedModel([ServerError(text)]), 10_000))
    error = pickle.loads(pickle.dumps(explain_limit("max_tokens")))
    assert (str(error), error.may_be_billed, is_cut_off(error)) == (text, False, True)
    with pytest.raises(ScoringError) as caught:
        raise ScoringError("no judgement") from error
    assert is_cut_off(caught.value)
    assert not is_cut_off(ScoringError(text))


class Hanging(School):
    """Models whose requests are answered by nobody."""

    begun: int = 0

    def hang(self) -> "Hanging":
        async def pause(seed: int) -> None:
            self.begun += 1
            await asyncio.Event().wait()

        self.pause = pause
        return self


def stop_in_flight(path: Path, max_tokens: int) -> Any:
    """Work until a request is in flight, and end as a process that is stopped at once."""
    school = Hanging().hang()

    async def work() -> Any:
        rollouts = make(path, school, groups=1, limits={"max_tokens": max_tokens})
        working = asyncio.ensure_future(rollouts.run())
        while not school.begun and not working.done():
            await asyncio.sleep(0.005)
        working.cancel()
        return (await asyncio.gather(working, return_exceptions=True))[0]

    return asyncio.run(work())


def lost_in(path: Path) -> int:
    with Ledger(path / "ledger.db", is_readonly=True) as ledger:
        return msgspec.json.decode(ledger.get("lost") or "{}", type=LostUse).tokens


def test_answers_that_were_lost_with_a_process_count_for_the_limit_once(tmp_path: Path) -> None:
    """Each process that was stopped could use up the whole limit again."""
    losses = [0]
    for _ in range(20):
        result = stop_in_flight(tmp_path, 5_000)
        losses.append(lost_in(tmp_path))
        if not isinstance(result, BaseException):
            break
    assert result.end.reason == "max_tokens"
    assert 2 < len(losses) < 40
    assert losses == sorted(losses)
    again = stop_in_flight(tmp_path, 5_000)
    assert (again.end.reason, lost_in(tmp_path)) == ("max_tokens", losses[-1])
    done = asyncio.run(make(tmp_path, groups=1, limits={"max_tokens": 100_000}).run())
    assert done.end.reason == "done"
    assert lost_in(tmp_path) >= losses[-1]


class Refusing(BaseSink):
    """A sink that cannot be opened, so that the work ends before anything is asked."""

    name = "refusing"

    def open(self, memory: SinkMemory) -> None:
        raise ConfigError("too small")

    def encode(self, group: Group) -> bytes:
        raise AssertionError

    async def deliver(self, key: str, data: bytes) -> Receipt:
        raise AssertionError


def test_answers_that_were_lost_with_a_killed_process_count_for_the_limit_once(tmp_path: Path) -> None:
    for _ in range(2):
        process = FORKS.start("-m", "tests.jobs.stuck", str(tmp_path), stdout=subprocess.PIPE, cwd=ROOT)
        assert process.stdout is not None
        assert process.stdout.readline() == "asked\n"
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    lost = lost_in(tmp_path)
    assert lost > 0
    with pytest.raises(ConfigError, match="too small"):
        asyncio.run(make(tmp_path, groups=1, limits={"max_tokens": 5_000}, sinks=[Refusing()]).run())
    both = lost_in(tmp_path)
    assert both > lost
    with pytest.raises(ConfigError, match="too small"):
        asyncio.run(make(tmp_path, groups=1, limits={"max_tokens": 5_000}, sinks=[Refusing()]).run())
    assert lost_in(tmp_path) == both
