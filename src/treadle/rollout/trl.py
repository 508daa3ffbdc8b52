"""Rollouts for TRL's `GRPOTrainer`: a `rollout_func` that runs agents.

    trainer = GRPOTrainer(..., rollout_func=make_rollout_func(agent), reward_funcs=reward_of_rollout)

TRL takes exactly one completion for each prompt, so that a rollout with several branches cannot be given to it as a
whole. `branches` says what happens then.

Source: TRL 1.16, `GRPOTrainer._generate` and `_calculate_rewards`.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Literal, TypeAlias

from treadle.agent.agent import Agent
from treadle.core.errors import ConfigError, ExportError
from treadle.core.types import Json
from treadle.export.groups import Rollout, load_rollout
from treadle.export.token_exporter import LossMask, read_branch, sampled_mask
from treadle.export.token_formats.trl_groups import GRPO, write_completion
from treadle.http.background import run_blocking
from treadle.runs.task import Task

Prompt: TypeAlias = str | list[dict[str, Json]]
"""A prompt as TRL has it: a text, or messages in OpenAI's form."""
RolloutFunc: TypeAlias = Callable[[list[Any], Any], dict[str, Any]]
Roll: TypeAlias = Callable[[Sequence[Prompt]], Coroutine[Any, Any, Sequence[Rollout]]]
"""A function that returns one finished rollout for each prompt."""


def make_rollout_func(
    roll: Roll | Agent,
    *,
    task_of: Callable[[Prompt], str | Task] | None = None,
    branches: Literal["refuse", "longest"] = "refuse",
    mask: LossMask = sampled_mask,
) -> RolloutFunc:
    """Return a `rollout_func` for TRL.

    `roll` is an agent, which is run once for each prompt, or a function of the prompts. `task_of` returns the task
    of a prompt; without it, the task is the text of the last message. `branches` says what happens with a rollout
    that has several branches: `refuse` raises an error, and `longest` gives the branch with the most sampled
    tokens, and the number of the tokens that are left out as `left_out_tokens`.

    The function returns `prompt_ids`, `completion_ids`, `logprobs`, `env_mask`, and for the reward functions
    `reward`, `rewards`, `run_id` and `left_out_tokens`.
    """
    collect = _agent_roll(roll, task_of or _text_of) if isinstance(roll, Agent) else roll

    def rollout_func(prompts: list[Prompt], trainer: Any) -> dict[str, list[Any]]:
        rollouts = run_blocking(collect(prompts))
        if len(rollouts) != len(prompts):
            raise ConfigError(f"TRL asked for {len(prompts)} rollouts and got {len(rollouts)}")
        rows = [_write(rollout, branches, mask) for rollout in rollouts]
        return {key: [row[key] for row in rows] for key in rows[0]} if rows else {}

    return rollout_func


def reward_of_rollout(
    prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
) -> list[float | None]:
    """Return the rewards of the rollouts, for the argument `reward_funcs` of TRL's trainer."""
    return list(columns["reward"])


def _agent_roll(agent: Agent, task_of: Callable[[Prompt], str | Task]) -> Roll:
    async def roll(prompts: Sequence[Prompt]) -> Sequence[Rollout]:
        runs = await asyncio.gather(*[agent.run(task_of(prompt)) for prompt in prompts])
        return [load_rollout(agent.journal, run.run_id)[0] for run in runs]

    return roll


def _text_of(prompt: Prompt) -> str:
    if isinstance(prompt, str):
        return prompt
    return str(prompt[-1]["content"])


def _write(rollout: Rollout, branches: str, mask: LossMask) -> dict[str, Any]:
    found = [
        read_branch(rollout, 0, item, mask, GRPO.needs)
        for item in rollout.trajectories
        if item.sampled_tokens
    ]
    if not found:
        raise ExportError(f"run {rollout.run_id!r} has no tokens that the engine returned")
    chosen = max(found, key=lambda branch: branch.trajectory.sampled_tokens)
    left_out = sum([branch.trajectory.sampled_tokens for branch in found if branch is not chosen])
    if left_out and branches == "refuse":
        kinds = ", ".join(sorted({item.trajectory.drift.kind for item in found if item.trajectory.drift}))
        raise ExportError(
            f"run {rollout.run_id!r} has {len(found)} branches ({kinds}), and TRL takes one for each prompt; use "
            f"branches='longest', which leaves out {left_out} sampled tokens, or another sink"
        )
    return {
        **write_completion(chosen),
        "reward": rollout.reward,
        "rewards": rollout.rewards,
        "run_id": rollout.run_id,
        "left_out_tokens": left_out,
    }
