"""Rollouts of the prompts of a trainer whose engine is a function: limits, faults, tasks and steps."""

from pathlib import Path
from typing import Any

import pytest

from treadle.core.errors import ConfigError, ExportError
from treadle.core.types import StopReason
from treadle.export.groups import Rollout
from treadle.export.token_exporter import sampled_mask
from treadle.export.token_formats.verl import FORMAT, write_output
from treadle.renderers.registry import load_renderer
from treadle.rollout.trainers.prompted import (
    FailedRollout,
    PromptRow,
    TrainerStep,
    open_rollouts,
    read_sampled,
    split_prompt,
)
from treadle.rollout.trainers.trainer_engine import TrainerEngine
from treadle.trajectory.tokens.trajectories import TokenGrade

RENDERER = load_renderer("chatml")
END = RENDERER.stop_token_ids[0]
CALL = '<tool_call>\n{"name": "list_files", "arguments": {}}\n</tool_call>'
PARAMS = {"temperature": 0.7, "top_p": 1.0, "top_k": -1, "logprobs": True}
NO_WAIT = {"attempts": 2, "delay_seconds": 0}


class Engine:
    """A trainer's engine that gives scripted answers: texts, errors, or ids with a finish reason."""

    def __init__(self, *answers: Any) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[list[int], dict[str, Any]]] = []

    async def ask(self, prompt_ids: list[int], params: dict[str, Any]) -> dict[str, Any]:
        self.asked.append((prompt_ids, params))
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        ids, finish = ([*RENDERER.encode(answer), END], None) if isinstance(answer, str) else answer
        return {"ids": ids, "logprobs": [-0.5] * len(ids), "finish": finish, "weight_version": "3"}

    def model(self, **limits: int) -> TrainerEngine:
        return TrainerEngine(
            "engine", self.ask, PARAMS, **{"prompt_tokens": 9000, "context_tokens": 10_000, **limits}
        )


async def make(
    tmp_path: Path, engine: Engine, row: PromptRow, *, limits: Any = None, **place: Any
) -> Rollout | FailedRollout:
    rollouts = open_rollouts({"journal": str(tmp_path / "runs.db"), "retries": NO_WAIT})
    made = TrainerStep(**{"training": None, "step": 1, "prompt": "p", **place})
    return await rollouts.make(engine.model(**(limits or {})), RENDERER, row, made)


async def test_a_task_is_rolled_out_token_by_token(tmp_path):
    engine = Engine(CALL, "Done.")
    rollout = await make(
        tmp_path, engine, PromptRow.of("-", {"extra_info": {"task": "files:csv_sum-0001"}}, "task")
    )
    assert isinstance(rollout, Rollout)
    assert rollout.reward == 0
    (branch,) = read_sampled(rollout, sampled_mask, TokenGrade.TOKEN_EXACT)
    fields = write_output(branch, rollout.reward, "t")
    first, second = engine.asked
    sampled = [*RENDERER.encode(CALL), END], [*RENDERER.encode("Done."), END]
    assert fields["prompt_ids"] == first[0]
    assert fields["prompt_ids"] + fields["response_ids"] == [*second[0], *sampled[1]]
    assert sum(fields["response_mask"]) == sum(map(len, sampled))
    assert sum(fields["response_logprobs"]) == -0.5 * sum(map(len, sampled))
    assert first[1]["stop_token_ids"] == list(RENDERER.stop_token_ids)
    assert first[1]["max_tokens"] == 10_000 - len(first[0])
    settings = branch.trajectory.spans[0].settings
    assert settings is not None
    assert (settings.temperature, settings.extra) == (0.7, {"top_k": -1})
    assert branch.trajectory.spans[0].weight_versions == ((len(sampled[0]), "3"),)
    assert set(fields) == FORMAT.columns.keys() - {"uid"}


async def test_the_results_of_tools_count_towards_the_longest_response(tmp_path):
    engine, free = Engine(CALL, ([7] * 5, None)), 5
    row = PromptRow.of("-", {"task": "files:csv_sum-0001"}, "task")
    whole = Engine(CALL, "Done.")
    await make(tmp_path, whole, row)
    between = len(whole.asked[1][0]) - len(whole.asked[0][0])
    rollout = await make(tmp_path, engine, row, limits={"response_tokens": between + free})
    assert engine.asked[1][1]["max_tokens"] == free
    assert isinstance(rollout, Rollout)
    (branch,) = read_sampled(rollout, sampled_mask, TokenGrade.TOKEN_EXACT)
    assert len(branch.ids_T) - branch.begin == between + free
    full = await make(tmp_path, Engine(CALL), row, limits={"response_tokens": between})
    assert isinstance(full, Rollout)
    assert full.stop_reason is StopReason.CONTEXT_OVERFLOW


async def test_a_prompt_that_the_trainer_does_not_take_is_an_error(tmp_path):
    with pytest.raises(ExportError, match=r"has .* tokens, and the trainer takes 3"):
        await make(tmp_path, Engine("x"), PromptRow("Hello there.", None), limits={"prompt_tokens": 3})


async def test_a_failing_engine_is_asked_again_and_is_no_fault_of_the_model(tmp_path):
    engine = Engine(ConnectionError("gone"), "Yes.")
    rollout = await make(tmp_path, engine, PromptRow("Is it?", None))
    assert isinstance(rollout, Rollout)
    assert rollout.reward is None
    failed = await make(tmp_path, Engine(*[ConnectionError("gone")] * 2), PromptRow("Is it?", None))
    assert isinstance(failed, FailedRollout)
    assert "ConnectionError: gone" in str(failed)


async def test_an_aborted_answer_is_continued_and_a_cut_one_is_not(tmp_path):
    engine = Engine(([5, 6], "abort"), ([], "abort"), ([7, END], None))
    rollout = await make(tmp_path, engine, PromptRow("Is it?", None))
    assert isinstance(rollout, Rollout)
    (branch,) = read_sampled(rollout, sampled_mask, TokenGrade.TOKEN_EXACT)
    assert branch.ids_T[branch.begin :] == [5, 6, 7, END]
    cut = await make(
        tmp_path, Engine(([5] * 8, None)), PromptRow("Is it?", None), limits={"response_tokens": 8}
    )
    assert isinstance(cut, Rollout)
    assert cut.trajectories[0].spans[-1].finish_reason == "length"


async def test_a_step_that_is_taken_again_gets_its_own_rollouts_and_no_other(tmp_path):
    row = PromptRow("Is it?", None)
    tied = {"training": "t", "instance": "4"}
    first = await make(tmp_path, Engine("Yes."), row, **tied, repetition=0)
    other = await make(tmp_path, Engine("No."), row, **tied, repetition=1)
    later = await make(tmp_path, Engine("Maybe."), row, **{**tied, "step": 2}, repetition=0)
    tested = await make(tmp_path, Engine("Well."), row, **tied, phase="eval")
    asked = await make(tmp_path, Engine("Another prompt."), row, **{**tied, "prompt": "q"})
    runs = [first, other, later, tested, asked]
    assert len({run.run_id for run in runs}) == len(runs)
    again = await make(tmp_path, Engine(), row, **tied, repetition=0)
    assert isinstance(again, Rollout)
    assert isinstance(first, Rollout)
    assert again.messages == first.messages
    assert again.trajectories[0].token_ids_T == first.trajectories[0].token_ids_T
    assert isinstance(other, Rollout)
    assert first.metadata["group"] == other.metadata["group"]
    assert first.metadata["trainer_step"] == 1


def test_wrong_settings_are_named():
    with pytest.raises(ConfigError, match=r"agent\.max_step: .*; the keys are training, agent, task_key"):
        open_rollouts({"agent": {"max_step": 3}})
    assert split_prompt("a") == (None, "a")
    assert split_prompt([{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]) == ("s", "u")
    for roles in (["assistant"], ["user", "user"], ["system"]):
        with pytest.raises(ConfigError, match="one text message of the user"):
            split_prompt([{"role": role, "content": "x"} for role in roles])
