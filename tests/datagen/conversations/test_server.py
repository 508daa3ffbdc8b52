"""Samples made by the built-in teacher over HTTP, with a server that refuses some requests."""

import asyncio

import pytest

from treadle import model
from treadle.core.prompts.transcript import check_transcript
from treadle.datagen.config.generation_config import GenerationConfig
from treadle.datagen.conversations.make import make_sample
from treadle.datagen.conversations.studio import Studio
from treadle.datagen.scenarios.cast import draw_persona
from treadle.datagen.scenarios.environment import open_environments
from treadle.datagen.scenarios.kinds import WEIGHTS, plan_difficulty, plan_kind
from treadle.datagen.scenarios.scenario import SampleSpec
from treadle.journal.memory import MemoryJournal
from treadle.models.wire.provider import Price
from treadle.testbed.server import ServerSettings, serve
from treadle.trajectory.run_verification import verify_run


def plan(config: GenerationConfig, number: int, turns: int) -> SampleSpec:
    return SampleSpec(
        number=number,
        topic_id="t",
        topic=("Office work", "Reports"),
        kind=plan_kind(number, WEIGHTS, seed=1),
        difficulty=plan_difficulty(number, {}, seed=1),
        persona=draw_persona(1, number, config.generation.personas),
        turns=turns,
        seed=number,
    )


@pytest.mark.parametrize("turns", [1, 4])
async def test_samples_of_all_kinds_over_http(turns: int) -> None:
    """Each row shows the kind that was planned, and its calls give the same results again."""
    config = GenerationConfig.model_validate(
        {
            "topics": {"prompt": "Office work"},
            "tools": {"use": ["files"], "files": "tasks:files", "max_steps": 20},
        }
    )
    server = await serve(settings=ServerSettings(failure_rate=0.1, seed=3))
    try:
        price = Price(input_usd_per_million=2, output_usd_per_million=8)
        teacher = model("openai:teacher", base_url=server.url, api_key="key", price=price)
        journal = MemoryJournal()
        studio = Studio(config, {"default": teacher}, journal, open_environments(config.tools, 1))
        made = await asyncio.gather(
            *[make_sample(studio, plan(config, number, turns)) for number in range(1, 25)]
        )
    finally:
        await server.close()
    shown = set()
    for item in made:
        assert item.row is not None, item.error
        info = item.row.lineage.sample
        assert info is not None
        assert info.kind in info.kinds
        assert not check_transcript(item.row.messages)
        assert (await verify_run(journal, item.run_id, studio.shared_tools)).is_verified
        assert info.is_from_teacher
        assert info.prices["agent"] == "2 USD per million input tokens, 8 USD per million output tokens"
        assert info.cost_usd == pytest.approx(info.input_tokens * 2e-6 + info.output_tokens * 8e-6)
        assert item.dialogue is not None
        if item.dialogue.environment.task is not None:
            assert item.row.lineage.reward == 1.0
        shown.add(info.kind)
    assert len(shown) == 7
