"""Rollouts over a mock of vLLM: exact tokens, sinks, worker processes, and forks."""

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.testbed.threaded import ThreadedServer

from treadle.core.errors import TransportError
from treadle.jobs.progress import JobNotice
from treadle.rollout import Rollouts
from treadle.rollout.rollout_folder import read_groups, read_stored
from treadle.rollout.rollout_progress import RolloutProgress, RolloutRetried
from treadle.testbed.engines import ENGINES, EngineSettings


class Engine(ThreadedServer):
    """The mock of vLLM, which remembers what it sampled."""

    def __init__(self, **settings: Any) -> None:
        self.app = ENGINES["vllm"](EngineSettings(**settings))
        super().__init__(self.app)


@pytest.fixture
def engine() -> Iterator[Engine]:
    with Engine(latency_seconds=0.01) as engine:
        yield engine


def make(path: Path, server: Engine, **options: Any) -> Rollouts:
    given = {"tasks": ["files:csv_sum-*"], "groups": 3, "group_size": 4, "window": 8, "path": path, **options}
    return Rollouts(model={"model": "vllm:oracle:0.4", "base_url": server.url}, **given)


def sampled_ids(path: Path) -> list[tuple[int, ...]]:
    """The ids of each answer that the delivered groups train on."""
    found = []
    for group in read_groups(path, read_stored(path)):
        for rollout in group.rollouts:
            for branch in rollout.trajectories:
                assert branch.grade == "token_exact"
                found += [
                    tuple(branch.token_ids_T[span.start : span.end])
                    for span in branch.spans
                    if span.is_trained
                ]
    return sorted(found)


@pytest.mark.parametrize("tree", [None, {"roots": 1}])
def test_every_sampled_token_is_delivered_once(tmp_path: Path, engine: Engine, tree: Any) -> None:
    """Rules out that earlier turns are lost and that shared beginnings are trained on twice."""
    result = asyncio.run(make(tmp_path, engine, tree=tree, sinks=[f"tokens:{tmp_path}/rows.jsonl"]).run())
    answers = sorted(tuple(answer.token_ids) for answer in engine.app.sampled)
    assert sampled_ids(tmp_path) == answers
    assert result.progress.sampled_tokens == sum(map(len, answers))
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert len({(row["branch_run_id"], row["branch"]) for row in rows}) == len(rows)
    assert {row["run_id"] for row in rows} == {f"rollout-{g}-{i}" for g in (1, 2, 3) for i in range(4)}


@pytest.mark.parametrize(("mode", "is_policy"), [("processed", True), ("raw", False), (None, None)])
def test_the_grade_says_whether_logprobs_are_the_policys(
    tmp_path: Path, engine: Engine, mode: str | None, is_policy: bool | None
) -> None:
    given = {"model": "vllm:oracle:0.4", "base_url": engine.url, "temperature": 0.7, "logprobs_mode": mode}
    rollouts = Rollouts(model=given, tasks=["files:csv_sum-*"], groups=1, group_size=2, path=tmp_path)
    progress = asyncio.run(rollouts.run()).progress
    (group,) = read_groups(tmp_path, read_stored(tmp_path))
    found = {branch.has_policy_logprobs for one in group.rollouts for branch in one.trajectories}
    assert found == {is_policy}
    assert progress.other_logprobs == (progress.sampled_tokens if is_policy is False else 0)


@pytest.mark.sets(0)
def test_worker_processes_make_the_rollouts_although_one_is_killed(tmp_path: Path, engine: Engine) -> None:
    killed: list[int] = []

    def listen(notice: JobNotice, progress: RolloutProgress) -> None:
        workers = [pid for pid in children() if b"worker" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        if progress.delivered == 1 and not killed and workers:
            killed.append(workers[0])
            os.kill(workers[0], signal.SIGKILL)

    rollouts = make(tmp_path, engine, workers="local:2", groups=4, window=6)
    rollouts._listener = listen
    result = asyncio.run(rollouts.run())
    assert (result.end.reason, len(killed)) == ("done", 1)
    assert result.progress.tokens_per_second > 0
    lost = len(engine.app.sampled) - len(sampled_ids(tmp_path))
    # The answers in flight at the killed worker were sampled again.
    assert 0 <= lost <= 6


def children() -> list[int]:
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]


def test_a_rollout_that_was_cut_off_is_not_trained_on(tmp_path: Path) -> None:
    with Engine(cut_rate=0.15) as engine:
        groups = []
        for mode in ("mask", "drop"):
            path = tmp_path / mode
            asyncio.run(make(path, engine, overlong=mode, groups=1, group_size=3, max_dropped=30).run())
            groups.append(list(read_groups(path, read_stored(path))))
    masked = [rollout for group in groups[0] for rollout in group.rollouts]
    for rollout in masked:
        assert rollout.is_trained is (rollout.trajectories[-1].spans[-1].finish_reason != "length")
    assert not all(rollout.is_trained for rollout in masked)
    assert groups[1]
    assert all(rollout.is_trained for group in groups[1] for rollout in group.rollouts)


class BrokenConnection(asyncio.Protocol):
    """A connection that ends within the answer to the first request."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        assert isinstance(self._transport, asyncio.Transport)
        self._transport.write(b"HTTP/1.1 200 OK\r\ncontent-length: 500\r\n\r\n{")
        self._transport.close()


class BreakingEngine(Engine):
    """An engine whose first two connections break."""

    def _connect(self) -> Any:
        connection = super()._connect()
        return connection if self.connections > 2 else BrokenConnection()


@pytest.mark.parametrize(("attempts", "is_made"), [(4, True), (2, False)])
def test_the_first_question_to_the_engine_is_asked_again_like_every_other(
    tmp_path: Path, attempts: int, is_made: bool
) -> None:
    """One broken connection at the start ended the work, whatever `retries` said."""
    told: list[JobNotice] = []
    with BreakingEngine() as engine:
        retries = {"attempts": attempts, "delay_seconds": 0}
        rollouts = make(tmp_path, engine, groups=1, group_size=2, retries=retries)
        rollouts._listener = lambda notice, progress: told.append(notice)
        if not is_made:
            with pytest.raises(TransportError):
                asyncio.run(rollouts.run())
            return
        assert asyncio.run(rollouts.run()).end.reason == "done"
    retried = [notice.line() or "" for notice in told if isinstance(notice, RolloutRetried)]
    assert [line.partition(":")[0] for line in retried] == ["the first request is tried again"] * 2
    assert sampled_ids(tmp_path)
