"""The exactness suite against real engines: every token that they sampled arrives once, as the engine sent it."""

import asyncio
import os
from collections.abc import Sequence
from statistics import fmean

import pytest
from tests.engines.engine_server import LEARNED, NAME, run_program
from tests.rollout.engines import check, connect, spread
from tests.rollout.test_exactness import (
    drive_with_kills,
    load_killed,
    load_nothing,
    quiet,
    run_tasks,
)

from treadle import Agent, Policy, Run
from treadle.journal.memory import MemoryJournal
from treadle.models.tokens.control import SglangControl, VllmControl
from treadle.models.tokens.weights import Weights
from treadle.trajectory.tokens import Drift, TokenGraph, load_tokens

IS_FULL = bool(os.environ.get("TREADLE_FULL"))
CHATS = ["vllm_chat", "sglang_chat"]
RENDERED = ["vllm_completions", "vllm_generate", "sglang_generate"]
EVERY = [*CHATS, *RENDERED]
TOLERANCE = 1e-3
"""The engine computes in 32 bits here, so that any difference that is not rounding shows. In bf16, the 99th
percentile of the differences is 0.02 to 0.1."""
TASKS = LEARNED[:2]
FAMILIES = sorted({name.rpartition("-")[0] for name in LEARNED})
pytestmark = pytest.mark.xdist_group("engines")


def model_options(endpoint, engine):
    options = {"temperature": 1.0, "max_output_tokens": 80}
    if endpoint in RENDERED:
        return options | {"renderer": f"hf:{engine.model}"}
    return options | {"logprobs": True, "return_token_ids": True, "extra": None}


def make_agent(endpoint, engine, recorder, **options):
    made = connect(endpoint, NAME, recorder.url, engine.model, **model_options(endpoint, engine) | options)
    return Agent(made, journal=MemoryJournal(), policy=Policy(max_steps=5, keep_turns=1))


def make_control(endpoint, recorder):
    return (VllmControl if endpoint.startswith("vllm") else SglangControl)(NAME, base_url=recorder.url)


async def load(control, folder, version):
    """Let the engine load weights from a folder. SGLang is told their version with them."""
    await control.load(str(folder), *([version] if isinstance(control, SglangControl) else []))


def check_ends(runs: Sequence[Run]) -> None:
    """Check that every run ended, and that none failed through a fault that is not the model's."""
    assert all(run.stop_reason and run.fault in (None, "model") for run in runs), [run.error for run in runs]


async def check_all(engine, recorder, graph: TokenGraph, *, lost: int = 0) -> None:
    """Compare what arrived with what the engine sent, and its log probabilities with those of a forward pass."""
    await recorder.settle()
    check(recorder, graph, lost=lost)
    rows, wanted = [], []
    for row in graph.trajectories:
        spans = [(span.start, span.end) for span in row.spans if span.is_trained]
        rows.append((row.token_ids_T.tolist(), spans))
        wanted.append([row.logprobs_T[at] for start, end in spans for at in range(start, end)])
    found = engine.logprobs(rows)
    pairs = [pair for one, other in zip(wanted, found, strict=True) for pair in zip(one, other, strict=True)]
    differences = sorted(abs(one - other) for one, other in pairs)
    high = differences[len(differences) * 99 // 100]
    print(f"{len(pairs):,} logprobs differ by {fmean(differences):.5f}, 99th percentile {high:.4f}")
    assert high < TOLERANCE


@pytest.mark.parametrize("is_streamed", [False, True])
@pytest.mark.parametrize("endpoint", EVERY)
async def test_runs_over_every_endpoint(engine, recorder, endpoint, is_streamed):
    """The engine's own counter says how many tokens it sampled."""
    counter = f"{endpoint.partition('_')[0]}:generation_tokens_total"
    before = engine.count(counter)
    runs, graph = await run_tasks(
        make_agent(endpoint, engine, recorder), tasks=TASKS, is_streamed=is_streamed
    )
    check_ends(runs)
    await check_all(engine, recorder, graph)
    sampled = sum(row.sampled_tokens for row in graph.trajectories)
    # How much a small model says is chance.
    assert sampled == engine.count(counter) - before > 20
    if endpoint in RENDERED:
        assert len(graph.trajectories) == len(runs)


@pytest.mark.parametrize("endpoint", ["vllm_completions", "sglang_generate"])
async def test_a_session_with_tools_compaction_and_a_fork(engine, recorder, endpoint):
    """Each turn, the summary and the fork are answers of their own, sampled by the engine and delivered once."""
    agent = make_agent(endpoint, engine, recorder)
    async with agent.session("talk", files={"a.md": "one two three"}) as session:
        await session.send("Read a.md and say what it says.")
        await session.send("And once more.")
        await session.compact()
        await session.send("What did you read?")
    events = agent.journal.read("talk")
    middle = next(event.seq for event in events if event.type == "turn_completed")
    await agent.fork("talk", middle, text="Say something else.", new_run_id="fork")
    graph = load_tokens(agent.journal, "talk", "fork")
    await check_all(engine, recorder, graph)
    assert {Drift.COMPACTION, Drift.FORK} <= {row.drift.kind for row in graph.trajectories if row.drift}


@pytest.mark.parametrize("endpoint", EVERY)
@pytest.mark.parametrize("mode", ["wait", "abort", "keep"])
async def test_pauses_for_new_weights(engine, recorder, endpoint, mode):
    """The engine is paused again and again while it samples. What an abort cut off goes on after its ids."""
    weights = Weights("0", [make_control(endpoint, recorder)])
    agent = make_agent(endpoint, engine, recorder, max_attempts=50)
    weights.attach(agent.model)
    running = asyncio.create_task(run_tasks(agent, tasks=LEARNED))
    updates = 0
    while not running.done() and updates < 6:
        while not (running.done() or recorder.under_way):
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.15)
        updates += 1
        await weights.update(str(updates), load_nothing, mode)
    runs, graph = await running
    assert updates > 1
    check_ends(runs)
    # A chat that was aborted is asked for again from its beginning.
    await check_all(engine, recorder, graph, lost=graph.conservation.thrown_away)
    if mode == "abort" and endpoint in RENDERED:
        assert any(answer.finish == "abort" for answer in recorder.sampled)


@pytest.mark.parametrize("endpoint", EVERY if IS_FULL else ["vllm_chat", "vllm_completions"])
@pytest.mark.parametrize("mode", ["wait", "abort"])
async def test_weights_that_are_loaded(engine, recorder, tmp_path, endpoint, mode):
    """Each token has the version of the weights that sampled it: a forward pass with these gives its logprob."""
    folders = {"0": engine.model, "1": tmp_path / "other"}
    run_program(engine.environment, "other_weights.py", str(engine.model), str(folders["1"]))
    control = make_control(endpoint, recorder)
    await control.set_version("0")
    weights = Weights("0", [control])
    agent = make_agent(endpoint, engine, recorder, max_attempts=50)
    weights.attach(agent.model)
    running = asyncio.create_task(run_tasks(agent, tasks=LEARNED))
    for _ in range(5):
        # An aborted chat is thrown away, so that each version needs the time for a whole answer.
        whole = recorder.whole
        while not running.done() and (recorder.whole == whole or not recorder.under_way):
            await asyncio.sleep(0.005)
        await asyncio.sleep(0.1)
        version = "1" if weights.version == "0" else "0"
        await weights.update(version, lambda to=version: load(control, folders[to], to), mode)
    runs, graph = await running
    if weights.version == "1":
        await weights.update("0", lambda: load(control, engine.model, "0"))
    check_ends(runs)
    await recorder.settle()
    check(recorder, graph, lost=graph.conservation.thrown_away)
    seen = set()
    for row in graph.trajectories:
        spans = [(span.start, span.end) for span in row.spans if span.is_trained]
        asked = [(row.token_ids_T.tolist(), spans)]
        found = {name: iter(engine.logprobs(asked, folder)[0]) for name, folder in folders.items()}
        for span in [span for span in row.spans if span.is_trained]:
            for at, name in enumerate(spread(span.weight_versions)):
                values = {version: next(logprobs) for version, logprobs in found.items()}
                assert values[name] == pytest.approx(row.logprobs_T[span.start + at], abs=TOLERANCE)
                seen.add(name)
    assert seen == {"0", "1"}


@pytest.mark.parametrize("endpoint", RENDERED)
async def test_an_answer_that_is_interrupted(engine, recorder, endpoint):
    """The connection is closed, the engine stops, and the next turn is exact."""
    agent = make_agent(endpoint, engine, recorder, max_output_tokens=400)
    async with agent.session("talk") as session:
        turn = asyncio.create_task(session.send("Tell me everything.", on_event=quiet))
        while not recorder.under_way:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.3)
        await session.send("Be brief.", delivery="interrupt")
        await turn
    await check_all(engine, recorder, load_tokens(agent.journal, "talk"), lost=1)


@pytest.mark.parametrize("endpoint", EVERY if IS_FULL else ["vllm_completions", "sglang_generate"])
async def test_processes_that_are_killed(engine, recorder, tmp_path, endpoint):
    """No token is lost and none is doubled, however often the process that drives the runs is killed."""
    kills = 100 if IS_FULL else 6
    order = {
        "journal": str(tmp_path / "runs.db"),
        "endpoint": endpoint,
        "name": NAME,
        "url": recorder.url,
        "folder": str(engine.model),
        "runs": [f"{family}-{number:04}" for number in range(2 + kills // 5) for family in FAMILIES],
        "options": {**model_options(endpoint, engine), "max_output_tokens": 60},
        "max_steps": 4,
    }
    assert await drive_with_kills(order, recorder, most=kills, least_answers=1) == kills
    runs, graph = load_killed(order)
    check_ends(runs)
    await check_all(engine, recorder, graph, lost=kills)
