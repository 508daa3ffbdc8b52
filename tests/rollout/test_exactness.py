"""Every token that an engine sampled arrives once, with the engine's id and logprob, whatever happens on the way.

The mock engines keep a log of what they sampled, with which the trajectories are compared.
"""

import asyncio
import json
import os
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from tests.forks.process import FORKS, ROOT
from tests.rollout.engines import ENDPOINTS, check, check_rows, connect, engine, recompute

from treadle import Agent, Policy, Run, open_journal
from treadle.journal.memory import MemoryJournal
from treadle.journal.protocol import Journal
from treadle.models.tokens.control import SglangControl, VllmControl
from treadle.models.tokens.weights import Weights
from treadle.rollout import Rollouts
from treadle.tasks.files import TASK_SET
from treadle.trajectory.tokens import Drift, TokenGraph, load_tokens

IS_FULL = bool(os.environ.get("TREADLE_FULL"))
TASKS = [task.task_id for task in islice(TASK_SET, 22)] if IS_FULL else ["csv_sum-0001", "json_merge-0002"]
VARIANTS = ("", "+strip_thinking", "+sort_arguments", "+prefill_thinking+strip_thinking")
TOKENS = [name for name in ENDPOINTS if not name.endswith("chat")]


def quiet(event: object) -> None:
    """Make the run stream its answers."""


async def run_tasks(
    agent: Agent, *, tasks: Sequence[str] = TASKS, is_streamed: bool = False
) -> tuple[list[Run], TokenGraph]:
    runs = [
        await agent.run(TASK_SET.get(name), run_id=f"{index}-{name}", on_event=quiet if is_streamed else None)
        for index, name in enumerate(tasks)
    ]
    return runs, load_tokens(agent.journal, *[run.run_id for run in runs])


@pytest.mark.sets(4)
@pytest.mark.parametrize(
    ("endpoint", "variants", "is_streamed"),
    [
        (endpoint, variants, is_streamed)
        for endpoint in ENDPOINTS
        for variants in VARIANTS
        for is_streamed in (False, True)
        # The chat of SGLang returns no ids in a stream.
        if not is_streamed or (endpoint != "sglang_chat" and (IS_FULL or variants == VARIANTS[-1]))
    ],
)
async def test_runs_over_every_endpoint_and_template(tmp_path, endpoint, variants, is_streamed):
    """Ambiguous merges, stripped thinking, reordered arguments and mistakes.

    The reference kept only the last branch, doubled the token that ends a turn, and trained nothing before a
    template's change.
    """
    name = f"oracle:0.2{variants}"
    async with engine(endpoint, name) as (app, server):
        agent = Agent(connect(endpoint, name, server.url, tmp_path), journal=MemoryJournal())
        runs, graph = await run_tasks(agent, is_streamed=is_streamed)
    assert all(run.stop_reason == "completed" for run in runs)
    check(app, graph)
    recompute(app, graph, name)
    branches = len(graph.trajectories)
    if endpoint in TOKENS:
        # What was sampled is never rendered again, so nothing can drift.
        assert branches == len(runs)
        ends = [row.token_ids_T[span.end - 1] for row in graph.trajectories for span in row.spans]
        assert set(ends) == {app.policy(name).template.end}
    else:
        assert branches > len(runs)
        assert len({(row.run_id, *row.token_ids_T) for row in graph.trajectories}) == branches


@pytest.mark.sets(2)
@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("endpoint", list(ENDPOINTS))
async def test_failing_and_repeated_requests(tmp_path, endpoint, is_streamed):
    """Answers that were lost on the way are delivered in no trajectory. What arrived of a stream that broke off is
    kept if the endpoint takes ids, and goes on from there."""
    if endpoint == "sglang_chat" and is_streamed:
        return
    failures: dict[str, Any] = {"failure_rate": 0.6, "failure_kinds": ("dropped", "truncated", "overloaded")}
    async with engine(endpoint, "oracle:0.2", **failures) as (app, server):
        made = connect(endpoint, "oracle:0.2", server.url, tmp_path, max_attempts=20)
        runs, graph = await run_tasks(Agent(made, journal=MemoryJournal()), is_streamed=is_streamed)
    assert all(run.stop_reason == "completed" for run in runs)
    assert graph.conservation.thrown_away
    # A transport may repeat a request on another connection by itself.
    check(app, graph, lost=app.lost)
    recompute(app, graph, "oracle:0.2")


@pytest.mark.parametrize("endpoint", list(ENDPOINTS))
async def test_answers_that_are_cut_off(tmp_path, endpoint):
    async with engine(endpoint, "oracle", cut_rate=0.5) as (app, server):
        agent = Agent(connect(endpoint, "oracle", server.url, tmp_path), journal=MemoryJournal())
        _, graph = await run_tasks(agent)
        async with agent.session("talk") as session:
            for _ in range(4):
                await session.send(TASK_SET.get(TASKS[0]).input)
    assert any(answer.finish == "length" for answer in app.sampled)
    check(app, load_tokens(agent.journal, *[run.run_id for run in agent.journal.runs()]))
    reasons = {span.finish_reason for row in graph.trajectories for span in row.spans}
    assert "length" in reasons


@pytest.mark.parametrize("endpoint", TOKENS)
async def test_answers_that_the_engine_aborts_go_on(tmp_path, endpoint):
    async with engine(endpoint, "oracle:0.1", abort_rate=0.4) as (app, server):
        agent = Agent(connect(endpoint, "oracle:0.1", server.url, tmp_path), journal=MemoryJournal())
        runs, graph = await run_tasks(agent)
    assert all(run.stop_reason == "completed" for run in runs)
    assert sum(answer.finish == "abort" for answer in app.sampled) > 2
    check(app, graph)
    recompute(app, graph, "oracle:0.1")


@pytest.mark.parametrize("endpoint", list(ENDPOINTS))
async def test_groups_of_rollouts(tmp_path, endpoint):
    """The rollouts of a group have seeds of their own, so they differ, and so do their rewards."""
    name = "oracle:0.4"
    async with engine(endpoint, name, latency_seconds=0.001) as (app, server):
        rollouts = Rollouts(
            model=lambda task, seed: connect(endpoint, name, server.url, tmp_path / "tokenizer", seed=seed),
            tasks=[f"files:{name}" for name in TASKS[:2]],
            groups=3,
            group_size=4,
            path=tmp_path / "rollouts",
            journal="memory:",
        )
        groups = [group async for group in rollouts]
    assert [len(group.rollouts) for group in groups] == [4, 4, 4]
    check_rows(app, [row for group in groups for item in group.rollouts for row in item.trajectories])
    assert any(group.has_variance for group in groups)


@pytest.mark.sets(2)
@pytest.mark.parametrize("mode", ["wait", "abort", "keep"])
@pytest.mark.parametrize("endpoint", list(ENDPOINTS))
async def test_weights_that_change_again_and_again(tmp_path, endpoint, mode):
    """Each token has the version of the weights that the engine sampled it with."""
    async with engine(endpoint, "oracle", latency_seconds=0.01) as (app, server):
        control = (VllmControl if endpoint.startswith("vllm") else SglangControl)(
            "oracle", base_url=server.url
        )
        weights = Weights("0", [control])
        made = connect(endpoint, "oracle", server.url, tmp_path, max_attempts=50)
        weights.attach(made)
        agent = Agent(made, journal=MemoryJournal())
        mixes = mode == "keep" and endpoint == "sglang_generate"
        running = asyncio.create_task(run_tasks(agent, is_streamed=mixes))
        updates = 0
        # On a busy machine an update may come too late for the answer that was under way.
        while updates < 6 or (mixes and not any(len(answer.versions) > 1 for answer in app.sampled)):
            if running.done():
                break
            updates += 1
            seen = len(app.sampled)
            await weights.update(str(int(app.version) + 1), load_nothing, mode)
            while not (running.done() or (len(app.sampled) > seen and app.is_working)):
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.005)  # An answer takes twice as long.
        runs, graph = await running
    assert all(run.stop_reason == "completed" for run in runs)
    # A chat that was aborted is asked for again from its beginning.
    check(app, graph, lost=graph.conservation.thrown_away, has_versions=True)
    versions = [
        version for row in graph.trajectories for span in row.spans for _, version in span.weight_versions
    ]
    assert len(set(versions)) > 1
    if mixes:
        assert any(len(answer.versions) > 1 for answer in app.sampled)
    recompute(app, graph, "oracle")


async def load_nothing() -> None:
    """Stand for the loading of weights, which the mock engines do not have."""


@pytest.mark.parametrize("endpoint", list(ENDPOINTS))
async def test_sessions_with_compaction_forks_and_sub_agents(tmp_path, endpoint):
    """The reference rendered the last answer again after each of these, and lost all turns before it."""
    async with engine(endpoint, "echo") as (app, server):
        made = connect(endpoint, "echo", server.url, tmp_path)
        journal = MemoryJournal()
        helper = Agent(made, journal=journal).as_tool("helper", "Helps.")
        agent = Agent(made, tools=[helper, "files"], journal=journal, policy=Policy(keep_turns=1))
        async with agent.session("talk", files={"a.md": "one two three " * 60}) as session:
            await session.send(
                'call read_file {"file_path": "a.md"}\nthen\ncall helper {"task": "say Yes, é."}'
            )
            await session.send('call list_files {}\ncall read_file {"file_path": "a.md"}')
            await session.compact()
            await session.send("say Well then.")
        events = journal.read("talk")
        middle = next(event.seq for event in events if event.body.__class__.__name__ == "TurnCompleted")
        fork = await agent.fork("talk", middle, text="say Something else.", new_run_id="fork")
        assert fork.output.strip() == "Something else."
    graph = load_tokens(journal, "talk", "fork")
    check(app, graph)
    # The summary is an answer too, in a branch of its own.
    spans = [span for row in graph.trajectories for span in row.spans if span.is_trained]
    (compacted,) = [event.seq for event in events if event.type == "context_compacted"]
    assert [span.seq for span in spans if span.run_id == "talk"].count(compacted) == 1
    recompute(app, graph, "echo")
    kinds = {row.drift.kind for row in graph.trajectories if row.drift}
    assert {Drift.COMPACTION, Drift.SUBAGENT, Drift.FORK} <= kinds
    assert graph.conservation.elsewhere > 0


# Killed processes

DRIVE = "from tests.rollout.test_exactness import drive; drive()"


def drive() -> None:
    """Drive the runs of an order in this process, and resume those that have begun."""
    import sys

    order = json.loads(sys.argv[1])

    async def work() -> None:
        journal: Journal = open_journal(order["journal"])
        options = order.get("options", {})
        made = connect(order["endpoint"], order["name"], order["url"], Path(order["folder"]), **options)
        agent = Agent(made, journal=journal, policy=Policy(max_steps=order.get("max_steps", 50)))
        begun = {info.run_id for info in journal.runs()}
        for run_id in order["runs"]:
            if run_id in begun:
                await agent.resume(run_id)
            else:
                await agent.run(TASK_SET.get(run_id), run_id=run_id)
        await agent.close()
        journal.close()

    asyncio.run(work())


@pytest.mark.parametrize("endpoint", list(ENDPOINTS) if IS_FULL else ["vllm_chat", "sglang_generate"])
async def test_processes_that_are_killed(tmp_path, endpoint):
    """The worker is killed with SIGKILL while it waits for an answer or has just received one, again and again."""
    name = "oracle:0.1+strip_thinking"
    async with engine(endpoint, name, latency_seconds=0.01) as (app, server):
        runs = ["json_merge-0002", "limit_rule-0002"] if IS_FULL else ["json_merge-0002"]
        order: dict[str, Any] = {
            "journal": str(tmp_path / "runs.db"),
            "endpoint": endpoint,
            "name": name,
            "url": server.url,
            "folder": str(tmp_path / "tokenizer"),
            "runs": runs,
        }
        kills = await drive_with_kills(order, app)
    found, graph = load_killed(order)
    assert all(run.stop_reason == "completed" for run in found)
    assert kills >= (3 if IS_FULL else 2)
    check(app, graph, lost=kills)
    recompute(app, graph, name)


async def drive_with_kills(
    order: dict[str, Any], app: Any, *, most: int | None = None, least_answers: int = 3
) -> int:
    """Drive an order in one process after another, and return how many were killed.

    Each is killed once the engine has sampled `least_answers` more answers, or one or two more than these, until
    `most` were killed.
    """
    kills = 0
    limit = 2
    while True:
        process = FORKS.start("-c", DRIVE, json.dumps(order), cwd=ROOT)
        may_kill = most is None or kills < most
        while process.poll() is None and not (may_kill and len(app.sampled) >= limit):
            await asyncio.sleep(0.002)
        if process.poll() is None:
            process.kill()
            kills += 1
        code = await asyncio.to_thread(process.wait)
        limit = len(app.sampled) + least_answers + kills % 3
        if code == 0:
            return kills
        assert code == -9


def load_killed(order: dict[str, Any]) -> tuple[list[Run], TokenGraph]:
    """Return the runs of an order, and their tokens."""
    with open_journal(order["journal"]) as journal:
        return [Run.load(name, journal) for name in order["runs"]], load_tokens(journal, *order["runs"])
