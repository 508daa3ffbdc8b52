"""The `rollout_func` for TRL: what TRL's trainer gets, and that nothing is left out silently."""

from collections.abc import Sequence
from typing import Any

import pytest
from tests.export.token_formats.groups import make_rollout

from treadle import Agent, ExportError
from treadle.core.errors import ConfigError
from treadle.core.types import Completion, FinishReason, Message, Role, TokenRecord
from treadle.export.groups import Rollout
from treadle.models.scripted import ScriptedModel
from treadle.rollout.trl import make_rollout_func, reward_of_rollout


def func(*rollouts: Rollout, **options: Any) -> dict[str, list[Any]]:
    async def roll(prompts: Sequence[Any]) -> Sequence[Rollout]:
        return rollouts

    return make_rollout_func(roll, **options)(["a"] * len(rollouts), None)


def test_the_fields_are_those_that_the_trainer_requires() -> None:
    """The trainer takes 0 in `env_mask` as a token of the environment; the log probability there is padding."""
    found = func(make_rollout("r1", 1.0), make_rollout("r2", 0.0))
    assert found["prompt_ids"] == [[10, 11, 12, 13]] * 2
    assert found["completion_ids"] == [[14, 15, 16, 17, 18, 19, 20]] * 2
    assert found["env_mask"] == [[1, 1, 1, 0, 0, 1, 1]] * 2
    assert found["logprobs"] == [[-0.125, -0.25, -0.375, 0.0, 0.0, -0.125, -0.25]] * 2
    assert reward_of_rollout([], [], **found) == [1.0, 0.0]


def test_a_branch_is_left_out_only_if_the_user_says_so() -> None:
    with pytest.raises(ExportError, match=r"2 branches \(compaction\).*leaves out 5 sampled tokens"):
        func(make_rollout("r1", branches=2))
    assert func(make_rollout("r1", branches=2), branches="longest")["left_out_tokens"] == [5]


def test_the_number_of_rollouts_is_that_of_the_prompts() -> None:
    async def roll(prompts: Sequence[Any]) -> Sequence[Rollout]:
        return []

    with pytest.raises(ConfigError, match="asked for 1 rollouts and got 0"):
        make_rollout_func(roll)(["a"], None)


def test_an_agent_is_run_once_for_each_prompt() -> None:
    def answer(request: Any) -> Completion:
        tokens = TokenRecord.of(prompt=[1, 2], output=[3, 4], logprobs=[-0.5, -0.25])
        return Completion(
            Message(Role.ASSISTANT, request.messages[-1].content), FinishReason.STOP, tokens=tokens
        )

    found = make_rollout_func(Agent(ScriptedModel(answer)))(["a", [{"role": "user", "content": "b"}]], None)
    assert found["completion_ids"] == [[3, 4]] * 2
    assert found["reward"] == [None, None]
    with pytest.raises(ExportError, match="no tokens that the engine returned"):
        make_rollout_func(Agent(ScriptedModel(["text only"])))(["a"], None)


@pytest.mark.xdist_group("training")
def test_the_trainer_still_reads_these_fields() -> None:
    """TRL calls the function experimental; this fails if its names change."""
    trainer = pytest.importorskip("trl.trainer.grpo_trainer")
    import inspect

    text = inspect.getsource(trainer.GRPOTrainer)
    for name in ("prompt_ids", "completion_ids", "logprobs", "env_mask"):
        assert f'"{name}"' in text
