"""Rollouts for TRL's `GRPOTrainer`: a `rollout_func` that runs agents.

    trainer = GRPOTrainer(..., rollout_func=make_rollout_func(agent), reward_funcs=reward_of_rollout)

TRL takes exactly one completion for each prompt, so that a rollout with several branches cannot be given to it as a
whole. `branches` says what happens then. A rollout that cannot be made has a completion on which nothing is
trained, and no reward: TRL leaves it out of the statistics of its group.

Source: TRL 1.16, `GRPOTrainer._generate` and `_calculate_rewards`.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from treadle.agent.agent import Agent
from treadle.core.errors import ConfigError, ExportError
from treadle.core.types import Json
from treadle.export.groups import Rollout, load_rollout
from treadle.export.token_exporter import LossMask, read_branch, sampled_mask
from treadle.export.token_formats.trl_groups import GRPO, write_completion
from treadle.http.background import run_blocking
from treadle.runs.begin import make_run_id
from treadle.runs.ensure import ensure_run
from treadle.runs.options import Given
from treadle.runs.retries import Outcome, RetryPolicy, find_infrastructure_fault
from treadle.runs.task import TASK_SETS, Task, load_task, split_reference

Prompt: TypeAlias = str | list[dict[str, Json]]
"""A prompt as TRL has it: a text, or messages in OpenAI's form."""
RolloutFunc: TypeAlias = Callable[[list[Any], Any], dict[str, Any]]
Roll: TypeAlias = Callable[[Sequence[Prompt]], Coroutine[Any, Any, "Sequence[Rollout | FailedRollout]"]]
"""A function that returns one finished rollout for each prompt."""


def make_rollout_func(
    roll: Roll | Agent,
    *,
    task_of: Callable[[Prompt], str | Task] | None = None,
    branches: Literal["refuse", "longest"] = "refuse",
    mask: LossMask = sampled_mask,
    retries: RetryPolicy = RetryPolicy(),
) -> RolloutFunc:
    """Return a `rollout_func` for TRL.

    `roll` is an agent, which is run once for each prompt, or a function of the prompts. `task_of` returns the task
    of a prompt, or its reference such as `files:csv_sum-0042`; its check then gives the reward. Any other text, and
    without `task_of` the text of the prompt's last message, is the user's message, and gives no reward. `branches`
    says what happens with a rollout that has several branches: `refuse` raises an error, and `longest` gives the
    branch with the most sampled tokens, and the number of the tokens that are left out as `left_out_tokens`.

    A run of the agent that ends with a fault of the infrastructure is continued as `retries` says. If it cannot be
    finished, its row has no reward, and another completion of the batch on which nothing is trained.

    The function returns `prompt_ids`, `completion_ids`, `logprobs`, `env_mask`, and for the reward functions
    `reward`, `rewards`, `run_id` and `left_out_tokens`.
    """
    collect = _agent_roll(roll, task_of or _text_of, retries) if isinstance(roll, Agent) else roll

    def rollout_func(prompts: list[Prompt], trainer: Any) -> dict[str, list[Any]]:
        rollouts = run_blocking(collect(prompts))
        if len(rollouts) != len(prompts):
            raise ConfigError(f"TRL asked for {len(prompts)} rollouts and got {len(rollouts)}")
        rows = [
            rollout if isinstance(rollout, FailedRollout) else _write(rollout, branches, mask)
            for rollout in rollouts
        ]
        made = [row for row in rows if isinstance(row, dict)]
        if rows and not made:
            raise ExportError(
                f"none of {len(rows)} rollouts could be made, the last one because of: {rows[-1]}"
            )
        whole = [row if isinstance(row, dict) else _stand_in(row, made[0]) for row in rows]
        return {key: [row[key] for row in whole] for key in whole[0]} if whole else {}

    return rollout_func


def reward_of_rollout(
    prompts: Sequence[Any], completions: Sequence[Any], **columns: Any
) -> list[float | None]:
    """Return the rewards of the rollouts, for the argument `reward_funcs` of TRL's trainer.

    Raises: `ConfigError` if no rollout of the batch has a reward, because nothing could be learned from it.
    """
    rewards: list[float | None] = list(columns["reward"])
    if rewards and all(reward is None for reward in rewards):
        raise ConfigError(
            f"none of the {len(rewards)} rollouts of this batch has a reward, so that nothing would be trained; "
            "give make_rollout_func a task_of that returns tasks with a check, such as 'files:csv_sum-0042', or "
            "give the trainer a reward function of your own"
        )
    return rewards


class FailedRollout(Struct, frozen=True):
    """A rollout that could not be made because of the infrastructure."""

    run_id: str
    fault: str

    def __str__(self) -> str:
        return f"run {self.run_id}: {self.fault}"


def _agent_roll(agent: Agent, task_of: Callable[[Prompt], str | Task], retries: RetryPolicy) -> Roll:
    given = Given(agent.answer, agent.deps, retries=retries)

    async def make(prompt: Prompt) -> Rollout | FailedRollout:
        run_id, task = make_run_id(), _find_task(task_of(prompt))
        try:
            outcome: Outcome = await ensure_run(agent, run_id, task, given)
        except Exception as error:
            outcome = error
        if (fault := find_infrastructure_fault(outcome)) is not None:
            return FailedRollout(run_id, fault)
        if isinstance(outcome, Exception):
            raise outcome
        rollout, _ = await asyncio.to_thread(load_rollout, agent.journal, run_id)
        return rollout

    async def roll(prompts: Sequence[Prompt]) -> Sequence[Rollout | FailedRollout]:
        return await asyncio.gather(*[make(prompt) for prompt in prompts])

    return roll


def _find_task(given: str | Task) -> str | Task:
    """Return the task that a text refers to; a text that is no reference is the user's message."""
    if not isinstance(given, str) or any(map(str.isspace, given)):
        return given
    name, task_id = split_reference(given)
    return load_task(given) if task_id and (name in TASK_SETS or ":" in name) else given


def _stand_in(failed: FailedRollout, other: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a rollout that could not be made: the beginning of another one, on which nothing is
    trained."""
    return {
        **other,
        "completion_ids": other["completion_ids"][:1],
        "logprobs": [0.0],
        "env_mask": [0],
        "reward": None,
        "rewards": {},
        "run_id": failed.run_id,
        "left_out_tokens": 0,
    }


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
