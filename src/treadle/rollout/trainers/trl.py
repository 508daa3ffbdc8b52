"""Rollouts for TRL's `GRPOTrainer`: a `rollout_func` that runs agents.

    trainer = GRPOTrainer(..., rollout_func=make_rollout_func(agent), reward_funcs=reward_of_rollout)

TRL takes exactly one completion for each prompt, so that a rollout with several branches cannot be given to it as a
whole. `branches` says what happens then. A rollout that cannot be made has a completion on which nothing is
trained, and no reward: TRL leaves it out of the statistics of its group.

Source: TRL 1.16, `GRPOTrainer._generate` and `_calculate_rewards`.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, TypeAlias, get_args

from msgspec.structs import replace

from treadle.agent.agent import Agent
from treadle.core.errors import ConfigError, ExportError
from treadle.export.groups import Rollout
from treadle.export.token_exporter import LossMask, sampled_mask
from treadle.export.token_formats.trl_groups import GRPO, write_completion
from treadle.http.background import run_blocking
from treadle.rollout.trainers.prompted import (
    Branches,
    FailedRollout,
    Prompt,
    TrainerStep,
    choose_branch,
    find_task,
    read_sampled,
    read_settings,
    roll,
    split_prompt,
)
from treadle.runs.retries import RetryPolicy
from treadle.runs.task import Task

RolloutFunc: TypeAlias = Callable[[list[Any], Any], dict[str, Any]]
Roll: TypeAlias = Callable[[Sequence[Prompt]], Coroutine[Any, Any, Sequence[Rollout | FailedRollout]]]
"""A function that returns one finished rollout for each prompt."""


def make_rollout_func(
    agent: Agent | Roll,
    *,
    task_of: Callable[[Prompt], str | Task] | None = None,
    branches: Branches = "refuse",
    mask: LossMask = sampled_mask,
    retries: RetryPolicy = RetryPolicy(),
    training: str | None = None,
) -> RolloutFunc:
    """Return a `rollout_func` for TRL.

    `agent` is an agent, which is run once for each prompt, or a function of the prompts. `task_of` returns the task
    of a prompt, or its reference such as `files:csv_sum-0042`; its check then gives the reward. Any other text, and
    without `task_of` the text of the prompt, is the user's message, and gives no reward; a system message before it
    is left out, because the agent has instructions of its own. `branches`
    says what happens with a rollout that has several branches: `refuse` raises an error, and `longest` gives the
    branch with the most sampled tokens, and the number of the tokens that are left out as `left_out_tokens`.

    `training` is the name of the training: if TRL goes back to a checkpoint, its next steps then get their rollouts
    again from the agent's journal. Another training needs another name or journal.

    A run of the agent that ends with a fault of the infrastructure is continued as `retries` says. If it cannot be
    finished, its row has no reward, and another completion of the batch on which nothing is trained.

    The function returns `prompt_ids`, `completion_ids`, `logprobs`, `env_mask`, and for the reward functions
    `reward`, `rewards`, `run_id` and `left_out_tokens`.
    """
    if branches not in get_args(Branches):
        raise ConfigError(f"branches is {branches!r}; give one of {', '.join(map(repr, get_args(Branches)))}")
    read_settings({"training": training})
    known = _Places(training)

    def rollout_func(prompts: list[Prompt], trainer: Any) -> dict[str, list[Any]]:
        if isinstance(agent, Agent):
            places = known.find(prompts, trainer)
            collect = _agent_roll(agent, task_of or partial(_text_of, agent), retries, places)
            rollouts = run_blocking(collect(prompts))
        else:
            rollouts = run_blocking(agent(prompts))
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

    Raises: `ConfigError` if no rollout of the batch has a reward, because nothing could be learned from it, or if
    they were not made by `make_rollout_func`.
    """
    if "reward" not in columns:
        raise ConfigError(
            "the rollouts have no rewards; give the trainer rollout_func=make_rollout_func(...) too"
        )
    rewards: list[float | None] = list(columns["reward"])
    if rewards and all(reward is None for reward in rewards):
        raise ConfigError(
            f"none of the {len(rewards)} rollouts of this batch has a reward, so that nothing would be trained; "
            "give make_rollout_func a task_of that returns tasks with a check, such as 'files:csv_sum-0042', or "
            "give the trainer a reward function of your own"
        )
    return rewards


class _Places:
    """The places of the rollouts of one training."""

    def __init__(self, training: str | None) -> None:
        self._training = training
        self._now: tuple[Any, int] = (None, -1)
        """The trainer and its step, which may ask for rollouts several times."""
        self._asked: Counter[str] = Counter()
        """How often the step has asked for a rollout of each group."""

    def find(self, prompts: Sequence[Prompt], trainer: Any) -> list[TrainerStep]:
        """Return the place of the rollout of each prompt. Equal prompts are repetitions."""
        if self._training is None:
            return [TrainerStep(training=None, step=-1, prompt=None) for _ in prompts]
        now = trainer, int(trainer.state.global_step)
        if now != self._now:
            self._now, self._asked = now, Counter()
        phase = "train" if trainer.model.training else "eval"
        process = str(trainer.accelerator.process_index)
        places = []
        for prompt in prompts:
            place = TrainerStep(
                training=self._training, step=now[1], phase=phase, prompt=prompt, instance=process
            )
            places.append(replace(place, repetition=self._asked[place.group_id]))
            self._asked[place.group_id] += 1
        return places


def _text_of(agent: Agent, prompt: Prompt) -> str:
    """Return the message of the user in a prompt. Raises: `ConfigError` if something would be lost."""
    instructions, text = split_prompt(prompt)
    if instructions is not None and agent.instructions is None:
        raise ConfigError(
            "a prompt has a system message, and the agent has no instructions; give them to the agent, or give "
            "make_rollout_func a task_of"
        )
    return text


def _agent_roll(
    agent: Agent,
    task_of: Callable[[Prompt], str | Task],
    retries: RetryPolicy,
    places: Sequence[TrainerStep],
) -> Roll:
    async def collect(prompts: Sequence[Prompt]) -> Sequence[Rollout | FailedRollout]:
        pairs = zip(prompts, places, strict=True)
        return await asyncio.gather(
            *[roll(agent, find_task(task_of(prompt)), place, retries) for prompt, place in pairs]
        )

    return collect


def _stand_in(failed: FailedRollout, other: dict[str, Any]) -> dict[str, Any]:
    """Return a row for a failed rollout: the beginning of another one, on which nothing is trained."""
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


def _write(rollout: Rollout, branches: Branches, mask: LossMask) -> dict[str, Any]:
    chosen, left_out = choose_branch(read_sampled(rollout, mask, GRPO.needs), branches, "TRL")
    return {
        **write_completion(chosen),
        "reward": rollout.reward,
        "rewards": rollout.rewards,
        "run_id": rollout.run_id,
        "left_out_tokens": left_out,
    }
