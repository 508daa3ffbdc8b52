"""An agent loop of verl that runs Treadle's agents. The module needs verl.

It is registered in the file that `actor_rollout_ref.rollout.agent.agent_loop_config_path` names:

    - name: treadle
      _target_: treadle.rollout.trainers.verl_loop.TreadleAgentLoop
      training: my-training
      agent: {max_steps: 20}

The keys are those of `TrainerConfig`. A row of the data set has `agent_name: treadle` and the name of its task. A
rollout without a reward is graded by verl's own reward function. One that cannot be made raises an error: verl's
newer trainer then drops the group. Several branches are the rows of one rollout for the newer trainer, whose
statistics count the last one alone.

Source: verl 0.9.1, `experimental/agent_loop/agent_loop.py` and `trainer/ppo/v1/agent_loop_tq.py`.
"""

import time
from collections.abc import Mapping
from typing import Any
from uuid import uuid4

from omegaconf import OmegaConf
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput

from treadle.core.errors import ConfigError, ServerError
from treadle.core.tokens.logprobs_mode import LogprobsMode
from treadle.core.types import Json
from treadle.export.groups import EVALUATION, Rollout
from treadle.export.token_formats.verl import write_output
from treadle.rollout.trainers.prompted import (
    FailedRollout,
    PromptRow,
    TrainerConfig,
    TrainerStep,
    choose_branch,
    open_rollouts,
    read_sampled,
)
from treadle.rollout.trainers.trainer_engine import TrainerEngine, read_array, renderer_of, write_array
from treadle.trajectory.tokens.trajectories import TokenGrade

_SAMPLING = ("temperature", "top_p", "top_k")
_ABORTED = ("abort", "aborted")


class TreadleAgentLoop(AgentLoopBase):  # type: ignore[misc]
    """One rollout of an agent of Treadle, for verl."""

    def __init__(self, *args: Any, **options: Any) -> None:
        """Make the loop of one sample. Options are those of verl and the keys of `TrainerConfig`."""
        given = {key: options.pop(key) for key in TrainerConfig.model_fields if key in options}
        super().__init__(*args, **options)
        plain = {
            key: OmegaConf.to_container(item) if OmegaConf.is_config(item) else item
            for key, item in given.items()
        }
        self._rollouts = open_rollouts(plain)

    async def run(
        self, sampling_params: dict[str, Any], **columns: Any
    ) -> AgentLoopOutput | list[AgentLoopOutput]:
        """Return the rollout of one sample; a list if it has several branches and the trainer takes them.

        Raises: `ServerError` if it cannot be made; `ExportError` if it cannot be handed over; `ConfigError`.
        """
        config, begin = self._rollouts.config, time.monotonic()
        row = PromptRow.of(columns["raw_prompt"], columns, config.task_key)
        engine = self._make_engine(sampling_params)
        renderer = renderer_of(self.tokenizer, config.renderer)
        rollout = await self._rollouts.make(
            engine, renderer, row, self._find_place(row, sampling_params, columns)
        )
        if isinstance(rollout, FailedRollout):
            raise ServerError(f"the rollout could not be made: {rollout}")
        needs = TokenGrade.TOKEN_EXACT if sampling_params.get("logprobs") else TokenGrade.TOKEN_IDS
        branches = read_sampled(rollout, self._rollouts.mask(renderer), needs)
        left_out, takes_many = 0, "session_id" in columns
        if not takes_many:
            chosen, left_out = choose_branch(branches, config.branches, "this trainer of verl")
            branches = [chosen]
        seconds = time.monotonic() - begin
        metrics = {"generate_sequences": engine.seconds, "tool_calls": max(0.0, seconds - engine.seconds)}
        outputs = []
        for branch in branches:
            fields = write_output(branch, rollout.reward, row.task or "")
            fields["extra_fields"] |= _find_steps(rollout) | {"turn_scores": [], "tool_rewards": []}
            fields["extra_fields"]["left_out_tokens"] = left_out
            fields["routed_experts"] = write_array(branch.trajectory.routed_experts)
            outputs.append(AgentLoopOutput(**{**fields, "metrics": metrics}))
            metrics = {}
        return outputs if len(outputs) > 1 else outputs[0]

    def _make_engine(self, sampling_params: Mapping[str, Any]) -> TrainerEngine:
        settings = self.rollout_config
        request_id = uuid4().hex
        mode = LogprobsMode.SCALED if settings.name == "sglang" else LogprobsMode.RAW
        if str(settings.get("logprobs_mode", "")).startswith("processed"):
            mode = LogprobsMode.PROCESSED

        async def ask(prompt_ids: list[int], params: dict[str, Json]) -> dict[str, Any]:
            found = await self.server_manager.generate(
                request_id=request_id, prompt_ids=prompt_ids, sampling_params=params
            )
            version = found.extra_fields.get("global_steps")
            return {
                "ids": found.token_ids,
                "logprobs": found.log_probs,
                "finish": _read_finish(found.stop_reason),
                "experts": read_array(found.routed_experts),
                "weight_version": None if version is None else str(version),
                "cached_tokens": found.extra_fields.get("num_cached_tokens") or 0,
            }

        return TrainerEngine(
            f"verl {settings.name}",
            ask,
            sampling_params,
            prompt_tokens=settings.prompt_length,
            context_tokens=settings.prompt_length + settings.response_length,
            response_tokens=settings.response_length,
            logprobs_mode=mode,
        )

    def _find_place(
        self, row: PromptRow, params: Mapping[str, Any], columns: Mapping[str, Any]
    ) -> TrainerStep:
        training = self._rollouts.config.training
        if training is not None and not {"session_id", "global_steps"} <= columns.keys():
            raise ConfigError(
                "this trainer of verl does not say which step and which repetition a rollout is for, so that its "
                "steps cannot be tied to their rollouts; use verl's newer trainer, or remove the key training"
            )
        return TrainerStep(
            training=training,
            step=int(columns.get("global_steps", -1)),
            phase=_find_phase(params, self.rollout_config),
            prompt=[row.task or row.prompt, {key: str(params[key]) for key in sorted(params)}],
            instance=str(columns.get("index", "")),
            repetition=int(columns.get("session_id", 0)),
        )


def _find_phase(params: Mapping[str, Any], settings: Any) -> str:
    """Return `eval` for sampling parameters that only verl's validations have, else `train`."""
    own, tested = (
        [given.get(key) for key in _SAMPLING] for given in (settings, settings.get("val_kwargs") or {})
    )
    return EVALUATION if tested == [params.get(key) for key in _SAMPLING] != own else "train"


def _read_finish(reason: str | None) -> str | None:
    """Return why an answer ended. verl says `completed` for an answer that the limit cut off, too."""
    return "abort" if reason in _ABORTED else None if reason == "completed" else reason


def _find_steps(rollout: Rollout) -> dict[str, Json]:
    """Return the first and the last step of the trainer whose weights sampled a rollout."""
    spans = [span for item in rollout.trajectories for span in item.spans]
    steps = [int(version) for span in spans for _, version in span.weight_versions]
    return {"min_global_steps": min(steps, default=None), "max_global_steps": max(steps, default=None)}
