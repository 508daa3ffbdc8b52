"""A generator of SkyRL that runs Treadle's agents. The module needs SkyRL.

A subclass of SkyRL's `BasePPOExp` returns it from `get_generator`:

    def get_generator(self, cfg, tokenizer, inference_engine_client):
        return TreadleGenerator(cfg.generator, inference_engine_client, tokenizer, training="my-training")

A row of the data set has the name of its task in a column. With `generator.step_wise_trajectories=true`, the
branches of a rollout are steps of one trajectory, whose statistics count the last one alone. A rollout that cannot
be made is replaced by a masked one with the mean reward of its group, which leaves the mean of the group as it is.

Source: SkyRL 0.4.0, `train/generators/base.py` and `train/generators/skyrl_gym_generator.py`.
"""

import asyncio
import contextlib
import time
from collections.abc import Mapping, Sequence
from itertools import groupby
from statistics import fmean
from typing import Any

from msgspec import Struct
from msgspec.structs import replace
from skyrl.train.generators.base import GeneratorInterface
from skyrl.train.generators.utils import get_rollout_metrics

from treadle.core.errors import ConfigError, ExportError
from treadle.core.types import Json
from treadle.export.groups import Rollout
from treadle.export.token_exporter import Branch, reward_of
from treadle.export.token_formats.skyrl import FORMAT, Repetition, write_output
from treadle.rollout.trainers.prompted import (
    FailedRollout,
    PromptRow,
    TrainerStep,
    choose_branch,
    open_rollouts,
    read_sampled,
)
from treadle.rollout.trainers.trainer_engine import (
    TrainerEngine,
    read_array,
    read_support,
    renderer_of,
    write_array,
    write_support,
)


class _Made(Struct, frozen=True):
    """What became of one prompt."""

    rollout: Rollout | FailedRollout
    trajectory_id: Any
    seconds: float


class TreadleGenerator(GeneratorInterface):  # type: ignore[misc]
    """Rollouts of Treadle's agents, for SkyRL."""

    def __init__(
        self,
        generator_cfg: Any,
        inference_engine_client: Any,
        tokenizer: Any,
        *,
        policy_model_name: str | None = None,
        **settings: Any,
    ) -> None:
        """Make a generator. `settings` are the keys of `TrainerConfig`.

        Raises: `ConfigError` for a key or value that is wrong, or if SkyRL has no limit of the input.
        """
        self._config = generator_cfg
        self._client = inference_engine_client
        self._model_name = policy_model_name
        self._rollouts = open_rollouts(settings)
        self._renderer = renderer_of(tokenizer, self._rollouts.config.renderer)
        if generator_cfg.max_input_length is None:
            raise ConfigError("generator.max_input_length is not set; give the longest input of an answer")

    async def generate(self, input_batch: Mapping[str, Any], disable_tqdm: bool = False) -> dict[str, Any]:
        """Return the rollouts of a batch as a `GeneratorOutput`, in the order of its prompts.

        Raises: `ExportError` if a rollout has no reward, or if it has several branches and SkyRL does not train on
        steps, or if no rollout of a prompt could be made.
        """
        count = len(input_batch["prompts"])
        made = await asyncio.gather(*[self._make(input_batch, index) for index in range(count)])
        found = [item for _, same in groupby(made, _instance_of) for item in self._write_group([*same])]
        output: dict[str, Any] = write_output(found)
        is_step_wise = self._config.step_wise_trajectories
        failed = sum([isinstance(item.rollout, FailedRollout) for item in made])
        output["rollout_metrics"] = get_rollout_metrics(
            output["response_ids"], output["rewards"], loss_masks=output["loss_masks"]
        ) | {"treadle/failed_rollouts": failed, "treadle/left_out_tokens": _count_left_out(made, found)}
        pairs = zip(made, found, strict=True)
        output["trajectory_generation_times"] = [item.seconds for item, one in pairs for _ in one.branches]
        arrays = [write_array(branch.trajectory.routed_experts) for one in found for branch in one.branches]
        if not any(item is None for item in arrays):
            output["rollout_expert_indices"] = arrays
        if self._captures_support(input_batch):
            width = (input_batch.get("sampling_params") or {}).get(
                "top_k", self._config.sampling_params.top_k
            )
            output["rollout_sample_support"] = [
                write_support(branch.trajectory.spans, branch.begin, len(branch.ids_T), width)
                for one in found
                for branch in one.branches
            ]
        if not is_step_wise:
            output |= {"is_last_step": None, "trajectory_ids": None}
        return output

    def _captures_support(self, batch: Mapping[str, Any]) -> bool:
        """Return whether SkyRL wants to know the tokens that each token was chosen from. Evaluations opt out."""
        about = batch.get("batch_metadata")
        is_wanted = self._config.inference_engine.enable_return_sample_support_set
        return bool(is_wanted) and (about is None or about.training_phase != "eval")

    async def _make(self, batch: Mapping[str, Any], index: int) -> _Made:
        begin = time.monotonic()
        ids, extras, about = (batch.get(key) for key in ("trajectory_ids", "env_extras", "batch_metadata"))
        config = self._rollouts.config
        row = PromptRow.of(
            batch["prompts"][index], (extras or [{}] * (index + 1))[index] or {}, config.task_key
        )
        params: dict[str, Json] = dict(batch.get("sampling_params") or {})
        trajectory_id = None if ids is None else ids[index]
        if config.training is not None and (about is None or trajectory_id is None):
            raise ConfigError("SkyRL did not say which step a rollout is for; remove the key training")
        place = TrainerStep(
            training=config.training,
            step=-1 if about is None else about.global_step,
            phase="train" if about is None else about.training_phase,
            prompt=[row.task or row.prompt, {key: str(params[key]) for key in sorted(params)}],
            instance="" if trajectory_id is None else str(trajectory_id.instance_id),
            repetition=0 if trajectory_id is None else trajectory_id.repetition_id,
        )
        session = (
            f"{place.phase}-{place.step}-{index}" if trajectory_id is None else trajectory_id.to_string()
        )
        try:
            rollout = await self._rollouts.make(
                self._make_engine(params, session, self._captures_support(batch)), self._renderer, row, place
            )
        finally:
            with contextlib.suppress(Exception):
                await self._client.finish_session(session)
        return _Made(rollout, trajectory_id, time.monotonic() - begin)

    def _make_engine(self, params: dict[str, Json], session: str, captures_support: bool) -> TrainerEngine:
        async def ask(prompt_ids: list[int], asked: dict[str, Json]) -> dict[str, Any]:
            given = {
                "prompt_token_ids": [prompt_ids],
                "sampling_params": asked,
                "session_ids": [session],
                "return_sample_support": captures_support,
            }
            found = await self._client.generate(given, model=self._model_name)
            logprobs, experts = found.get("response_logprobs"), found.get("rollout_expert_indices")
            return {
                "ids": found["response_ids"][0],
                "logprobs": None if logprobs is None else logprobs[0],
                "finish": found["stop_reasons"][0],
                "experts": None if experts is None else read_array(experts[0]),
                "sampling_mask": read_support(found["rollout_sample_support"][0])
                if captures_support
                else None,
            }

        longest = self._config.max_input_length
        return TrainerEngine(
            "skyrl",
            ask,
            params,
            prompt_tokens=longest,
            context_tokens=longest + self._config.sampling_params.max_generate_length,
        )

    def _write_group(self, made: Sequence[_Made]) -> list[Repetition]:
        """Return the rollouts of one prompt."""
        rewards = [reward_of(item.rollout) for item in made if isinstance(item.rollout, Rollout)]
        if not rewards:
            raise ExportError(
                f"none of {len(made)} rollouts of a prompt could be made, the last one because of: "
                f"{made[-1].rollout}"
            )
        found = [[] if isinstance(item.rollout, FailedRollout) else self._read(item.rollout) for item in made]
        stand_in = [_mask(next(branches[-1] for branches in found if branches))]
        mean = fmean(rewards)
        return [
            Repetition(
                mean if isinstance(item.rollout, FailedRollout) else reward_of(item.rollout),
                item.trajectory_id,
                branches or stand_in,
            )
            for item, branches in zip(made, found, strict=True)
        ]

    def _read(self, rollout: Rollout) -> list[Branch]:
        branches = read_sampled(rollout, self._rollouts.mask(self._renderer), FORMAT.needs)
        if self._config.step_wise_trajectories:
            return branches
        return [choose_branch(branches, self._rollouts.config.branches, "SkyRL without steps")[0]]


def _count_left_out(made: Sequence[_Made], found: Sequence[Repetition]) -> int:
    """Return how many sampled tokens are in no row."""
    left_out = 0
    for item, one in zip(made, found, strict=True):
        if isinstance(item.rollout, Rollout):
            left_out += sum([branch.sampled_tokens for branch in item.rollout.trajectories])
            left_out -= sum([branch.trajectory.sampled_tokens for branch in one.branches])
    return left_out


def _instance_of(made: _Made) -> object:
    return made if made.trajectory_id is None else made.trajectory_id.instance_id


def _mask(branch: Branch) -> Branch:
    """Return a branch on which nothing is trained."""
    return replace(branch, loss_T=[0.0] * len(branch.ids_T))
