"""The estimate of calls, tokens, cost and time, and the plan that shows it."""

import json
from pathlib import Path
from typing import Any

import pytest

from treadle import Agent, ScriptedModel
from treadle.cli.terminal.generation_plan import print_plan
from treadle.datagen.config.estimate import (
    Estimate,
    RoleEstimate,
    estimate,
    expected_leaves,
    measure,
    measure_folder,
    wanted_rows,
)
from treadle.datagen.config.generation_config import GenerationConfig
from treadle.datagen.config.roles import try_models
from treadle.datagen.dataset.dataset_folder import DatasetFolder
from treadle.journal.memory import MemoryJournal
from treadle.journal.registry import open_journal

PRICE = {"input_usd_per_million": 1.0, "output_usd_per_million": 10.0}


def make(**sections: Any) -> GenerationConfig:
    value = {"models": {"default": "mock:teacher"}, "topics": {"prompt": "a"}, "tools": {"use": ["files"]}}
    return GenerationConfig.model_validate(value | sections)


def role_of(plan: Estimate, name: str) -> RoleEstimate:
    return next(item for item in plan.roles if item.role == name)


@pytest.mark.parametrize(
    ("number", "leaves", "rows"),
    [("auto", 9, 9), ("50%", 9, 4), ("1%", 9, 1), ("250%", 4, 10), (30, 9, 30)],
)
def test_the_number_of_rows(number: int | str, leaves: int, rows: int) -> None:
    assert wanted_rows(make(generation={"num_samples": number}), leaves) == rows


def test_topics_are_expanded_once_each_and_not_if_they_are_there(tmp_path: Path) -> None:
    config = make(topics={"prompt": "a", "degree": 3, "depth": 3})
    assert expected_leaves(config) == 27
    assert role_of(estimate(config), "topics").calls == 1 + 3 + 9
    assert role_of(estimate(config, 20), "topics").calls == 0
    assert estimate(config, 20).rows == 20
    file = tmp_path / "topics.jsonl"
    file.write_text('{"path": ["tea", "green"]}\n{"path": ["tea", "black"]}\n')
    plan = estimate(make(topics={"load": str(file)}))
    assert (plan.leaves, plan.rows) == (2, 2)
    assert "topics" not in [item.role for item in plan.roles]


def test_more_work_takes_more() -> None:
    base = estimate(make(), 10)
    assert base.samples > base.rows, "some samples are rejected"
    assert role_of(base, "user").calls == 0, "a single turn needs no simulated user"
    turns = estimate(make(generation={"conversation": {"min_turns": 3, "max_turns": 5}}), 10)
    assert role_of(turns, "agent").calls > 3 * role_of(base, "agent").calls
    assert role_of(turns, "agent").input_tokens > 4 * role_of(base, "agent").input_tokens, "prompts grow"
    assert role_of(turns, "user").calls == 3 * turns.samples
    chained = estimate(make(generation={"kinds": {"chained": 1}}), 10)
    assert chained.calls > estimate(make(generation={"kinds": {"no_tool": 1}}), 10).calls
    limited = estimate(
        make(generation={"kinds": {"chained": 1}}, tools={"use": ["files"], "max_steps": 3}), 10
    )
    assert limited.calls < chained.calls
    many = estimate(make(tools={"use": ["files", "python"]}), 10)
    assert role_of(many, "agent").input_tokens > role_of(base, "agent").input_tokens
    wide = estimate(make(generation={"window": 1}), 10)
    assert wide.seconds > 5 * base.seconds


def test_costs_come_from_prices_and_are_unknown_without_one() -> None:
    def plan_with(table: Any) -> Estimate:
        config = make(models={"default": "mock:teacher", "agent": table})
        return estimate(config, 10, models=try_models(config, needs_keys=False)[0])

    table = {"model": "vllm:m", "base_url": "http://localhost:1/v1"}
    unknown = plan_with(table)
    assert role_of(unknown, "agent").cost_usd is None
    assert unknown.cost_usd is None
    plan = plan_with(table | {"price": PRICE})
    agent = role_of(plan, "agent")
    assert plan.cost_usd == pytest.approx((agent.input_tokens + 10 * agent.output_tokens) / 1e6)
    assert plan_with("mock:teacher").cost_usd == 0
    plan = plan_with({"model": "openai:x", "api_key_env": "NOT_SET", "price": PRICE})
    assert plan.cost_usd is not None, "the plan of a configuration needs no keys"


async def test_measured_runs_take_the_place_of_assumptions(tmp_path: Path) -> None:
    folder = DatasetFolder(tmp_path)
    assert measure_folder(folder) == (None, 0)
    folder.rows.write_text("{}\n" * 50)
    folder.rejected.write_text("{}\n" * 10)
    with open_journal(folder.journal) as journal:
        for number in range(10):
            agent = Agent(ScriptedModel(["a" * 400]), journal=journal)
            await agent.run("x" * 40, run_id=f"s{number}-1", metadata={"part": "sample"})
        for number in range(5):
            agent = Agent(ScriptedModel(["b" * 40]), journal=journal)
            await agent.run("x" * 40, run_id=f"s{number}-1-user", metadata={"part": "user"})
        agent = Agent(ScriptedModel(["no"]), journal=journal)
        await agent.run("x", run_id="t", metadata={"part": "topic"})
        info = next(run for run in journal.runs() if run.run_id == "s0-1")
    measured, kept = measure_folder(folder)
    assert kept == 50
    assert measured is not None
    assert [*measured.loads] == ["agent", "user"], "a single run of a role is no measurement"
    plan = estimate(make(generation={"num_samples": 100}), 10, measured=measured, kept=kept)
    assert (plan.rows, plan.samples) == (50, 60)
    agent_part, user_part = role_of(plan, "agent"), role_of(plan, "user")
    assert agent_part.is_measured
    assert not role_of(plan, "scenarios").is_measured
    assert (agent_part.calls, agent_part.output_tokens) == (60, 60 * info.output_tokens)
    assert user_part.calls == 30, "every second conversation had further turns"
    assert plan.spread < estimate(make(), 10).spread
    assert not any("a conversation has" in text for text in plan.assumptions)
    assert measure(MemoryJournal()) is None


def test_the_plan_is_printed_for_people_and_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    config = make(topics={"prompt": "Work with files", "degree": 3, "depth": 2})
    plan = estimate(config, models=try_models(config)[0])
    print_plan(config, plan, notes=["c.yaml:1: a note"])
    shown = capsys.readouterr()
    for expected in (
        "9 rows",
        "a tree with 9 leaf topics: 'Work with files'",
        "agent, 1 turn; tools: files",
        "$0",
    ):
        assert expected in shown.out, expected
    for role in ("topics", "scenarios", "agent", "user", "all"):
        assert f"\n{role} " in shown.out
    assert "assumed: " in shown.out
    assert "a note" in shown.err
    print_plan(config, plan, is_json=True)
    value = json.loads(capsys.readouterr().out)
    assert value["estimate"]["rows"] == 9
    assert value["estimate"]["calls"] == sum(item["calls"] for item in value["estimate"]["roles"])
    assert value["estimate"]["cost_usd"] == 0
    assert value["config"]["topics"]["prompt"] == "Work with files"
