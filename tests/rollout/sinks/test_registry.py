"""The options that every sink has: which tokens are trained on."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.trajectory.tokens.engine import TemplateModel, decode, say, think
from tests.trajectory.tokens.test_drift import agent

from treadle import Agent, ConfigError, ExportError, ScriptedModel
from treadle.core.events import Event
from treadle.core.tokens.token_record import TokenRecord
from treadle.core.types import Completion, FinishReason, StopReason
from treadle.export.groups import Group, Rollout
from treadle.renderers.registry import load_renderer
from treadle.rollout.sinks.registry import make_sinks
from treadle.trajectory.tokens import read_tokens


async def group() -> Group:
    """Return a group of one session with two turns."""
    made = agent(TemplateModel([think("Hm.", "One."), say("Two.")]))
    async with made.session("run") as session:
        await session.send("Go.")
        run = await session.send("Go on.")
    return group_of(run.events)


def group_of(events: Sequence[Event]) -> Group:
    """Return a group of one run."""
    rows = read_tokens(events).trajectories
    rollout = Rollout(run_id="run", trajectories=rows, reward=1.0, stop_reason=StopReason.COMPLETED)
    return Group(group_id="g", number=1, task="set:task", rollouts=(rollout,))


async def encode(tmp_path: Path, options: str) -> str:
    """Return the text of the tokens that a sink with these options trains on."""
    (sink,) = make_sinks([f"jsonl:{tmp_path}/rows.jsonl{options}"], group_size=1)
    row: dict[str, Any] = json.loads(sink.encode(await group()))
    return decode([item for item, weight in zip(row["token_ids"], row["loss"], strict=True) if weight])


async def test_a_sink_can_train_on_a_part_of_what_was_sampled(tmp_path: Path) -> None:
    assert await encode(tmp_path, "") == "<think>\nHm.\n</think>\n\nOne.<|end|>Two.<|end|>"
    assert await encode(tmp_path, "?loss=last_turn") == "Two.<|end|>"
    with pytest.raises(ExportError, match="give the renderer"):
        await encode(tmp_path, "?loss=no_reasoning")
    with pytest.raises(ConfigError, match="did you mean 'last_turn'"):
        await encode(tmp_path, "?loss=last_tern")


async def test_the_renderer_finds_the_reasoning(tmp_path: Path) -> None:
    renderer = load_renderer("chatml")
    output = renderer.encode("<think>\nHm.\n</think>\n\nOne.")
    record = TokenRecord.of(prompt=renderer.encode("Go."), output=output, logprobs=[-1.0] * len(output))
    done = Completion(think("Hm.", "One."), FinishReason.STOP, tokens=record)
    run = await Agent(ScriptedModel([done])).run("Go.")
    (sink,) = make_sinks([f"jsonl:{tmp_path}/r.jsonl?loss=no_reasoning&renderer=chatml"], group_size=1)
    row: dict[str, Any] = json.loads(sink.encode(group_of(run.events)))
    trained = [item for item, weight in zip(row["token_ids"], row["loss"], strict=True) if weight]
    assert renderer.decode(trained) == "One."
