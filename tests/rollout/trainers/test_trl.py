"""The `rollout_func` for TRL: what TRL's trainer gets, and that nothing is left out silently."""

import os
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.export.test_training import make_tokenizer
from tests.export.token_formats.groups import make_rollout

from treadle import Agent, ExportError, load_task
from treadle.core.errors import ConfigError, TransportError
from treadle.core.tokens.token_record import TokenRecord
from treadle.core.types import Completion, FinishReason, Message, Request, Role
from treadle.export.groups import Rollout
from treadle.models.protocol import Watch
from treadle.models.scripted import ScriptedModel
from treadle.rollout.trainers.trl import make_rollout_func, reward_of_rollout
from treadle.runs.retries import RetryPolicy
from treadle.tasks import SimpleTask


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


class Teller:
    """A model with tokens that solves nothing, and whose requests fail as often as `failures` says for a prompt."""

    name = "teller"

    def __init__(self, failures: dict[str, int] | None = None) -> None:
        self.asked: list[str] = []
        self._failures = failures or {}

    async def infer(self, request: Request, watch: Watch) -> Completion:
        text = request.messages[-1].content
        self.asked.append(text)
        if self.asked.count(text) <= self._failures.get(text, 0):
            raise TransportError("the connection was lost")
        tokens = TokenRecord.of(prompt=[1, 2], output=[3, 4], logprobs=[-0.5, -0.25])
        return Completion(Message(Role.ASSISTANT, "x"), FinishReason.STOP, tokens=tokens)


@pytest.mark.parametrize("is_object", [False, True])
def test_a_task_is_run_and_graded_by_its_name_too(is_object: bool) -> None:
    """The documented example gave its name to the model as the user's message, and trained on nothing."""
    model = Teller()
    task = load_task("files:csv_sum-0001")
    func = make_rollout_func(Agent(model), task_of=lambda prompt: task if is_object else f"files:{prompt}")
    found = func(["csv_sum-0001"] * 2, None)
    assert model.asked == [task.input] * 2
    assert reward_of_rollout([], [], **found) == [0.0, 0.0]


@pytest.mark.parametrize("text", ["Say: hello", "files:", "nothing:here", "hello"])
def test_any_other_text_is_the_message_of_the_user(text: str) -> None:
    model = Teller()
    found = make_rollout_func(Agent(model), task_of=lambda prompt: text)(["a"], None)
    assert model.asked == [text]
    with pytest.raises(ConfigError, match="none of the 1 rollouts of this batch has a reward"):
        reward_of_rollout([], [], **found)
    assert reward_of_rollout([], [], reward=[None, 1.0]) == [None, 1.0]


def test_a_rollout_that_fails_is_tried_again_and_ends_no_training() -> None:
    """One lost connection ended the training. A rollout that cannot be made is trained on by nobody."""
    model = Teller({"once": 1, "often": 9})
    func = make_rollout_func(Agent(model), retries=RetryPolicy(attempts=3, delay_seconds=0))
    found = func(["a", "once", "often"], None)
    assert sorted(model.asked) == ["a", "often", "often", "often", "once", "once"]
    assert found["completion_ids"] == [[3, 4], [3, 4], [3]]
    assert found["env_mask"] == [[1, 1], [1, 1], [0]]
    assert found["logprobs"] == [[-0.5, -0.25], [-0.5, -0.25], [0.0]]
    assert found["reward"] == [None] * 3
    assert len(set(found["run_id"])) == 3
    with pytest.raises(ExportError, match=r"none of 1 rollouts could be made, .*: the connection was lost"):
        make_rollout_func(Agent(Teller({"a": 9})), retries=RetryPolicy(attempts=1))(["a"], None)


def test_a_trainer_that_goes_back_to_a_checkpoint_gets_the_rollouts_of_its_steps_again(
    tmp_path: Path,
) -> None:
    def train(model: Teller, *steps: tuple[int, bool]) -> list[list[str]]:
        func = make_rollout_func(Agent(model, journal=tmp_path / "runs.db"), training="t")
        found = []
        for step, is_training in steps:
            trainer = SimpleNamespace(
                state=SimpleNamespace(global_step=step),
                model=SimpleNamespace(training=is_training),
                accelerator=SimpleNamespace(process_index=0),
            )
            found.append(func(["a", "a", "b"], trainer)["run_id"])
        return found

    first, second, tested = train(Teller(), (1, True), (2, True), (2, False))
    assert len({*first, *second, *tested}) == 9
    model = Teller()
    again = train(model, (2, True), (3, True))
    assert again[0] == second
    assert model.asked == ["a", "a", "b"]
    assert not {*again[1]} & {*first, *second, *tested}


@pytest.mark.xdist_group("training")
def test_the_trainer_still_reads_these_fields() -> None:
    """TRL calls the function experimental; this fails if its names change."""
    trainer = pytest.importorskip("trl.trainer.grpo_trainer")
    import inspect

    text = inspect.getsource(trainer.GRPOTrainer)
    for name in ("prompt_ids", "completion_ids", "logprobs", "env_mask"):
        assert f'"{name}"' in text


@pytest.mark.full
@pytest.mark.xdist_group("training")
def test_a_real_trainer_takes_steps_with_the_rollouts(tmp_path: Path) -> None:
    """The documented example, with a small model on the CPU: rewards differ, one rollout fails, weights change."""
    os.environ["WANDB_DISABLED"] = "true"
    datasets = pytest.importorskip("datasets")
    torch = pytest.importorskip("torch")
    trl = pytest.importorskip("trl")
    from transformers import Qwen2Config, Qwen2ForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2}
    torch.manual_seed(0)
    policy = Qwen2ForCausalLM(Qwen2Config(vocab_size=300, num_hidden_layers=2, **sizes))
    before = policy.model.embed_tokens.weight.detach().clone()
    asked: list[str] = []

    class Varied(Teller):
        async def infer(self, request: Request, watch: Watch) -> Completion:
            asked.append(request.messages[-1].content)
            if len(asked) % 5 == 0:
                raise TransportError("the connection was lost")
            number = len(asked) % 3
            text = "Answer: 4" if number else "I do not know"
            output = [40 + number, 50, 60]
            with torch.no_grad():
                odds = policy(torch.tensor([[1, 2, 3, *output]])).logits[0, 2:-1].log_softmax(-1)
            logprobs = odds.gather(-1, torch.tensor(output)[:, None])[:, 0].tolist()
            tokens = TokenRecord.of(prompt=[1, 2, 3], output=output, logprobs=logprobs)
            return Completion(Message(Role.ASSISTANT, text), FinishReason.STOP, tokens=tokens)

    tasks = [
        SimpleTask(task_id=f"t-{at}", input=f"2 + {at}?", grader=lambda task, said, files: "4" in said)
        for at in range(4)
    ]
    by_id = {task.task_id: task for task in tasks}
    func = make_rollout_func(
        Agent(Varied()), task_of=lambda prompt: by_id[str(prompt)], retries=RetryPolicy(attempts=1)
    )
    config = trl.GRPOConfig(
        str(tmp_path), per_device_train_batch_size=4, num_generations=4, max_steps=2, logging_steps=1, beta=0.0,
        report_to=[], use_cpu=True, bf16=False, learning_rate=1e-2, max_completion_length=16, save_strategy="no",
    )  # fmt: skip
    differences: list[float] = []

    class Compared(trl.GRPOTrainer):  # type: ignore[misc]
        """A trainer that compares its log probabilities with those of the rollouts, before each step."""

        def _compute_loss(self, model: Any, inputs: Any) -> Any:
            ids = torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1)
            mask = torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1)
            count = inputs["completion_ids"].size(1)
            own, *_ = self._get_per_token_logps_and_entropies(model, ids, mask, count)
            kept = (inputs["completion_mask"] * inputs["tool_mask"]).bool()
            differences.append((own.detach() - inputs["sampling_per_token_logps"])[kept].abs().max().item())
            return super()._compute_loss(model, inputs)

    trainer = Compared(
        model=policy,
        reward_funcs=reward_of_rollout,
        args=config,
        rollout_func=func,
        train_dataset=datasets.Dataset.from_dict({"prompt": list(by_id)}),
        processing_class=make_tokenizer("qwen2_5"),
    )
    trainer.train()
    steps = [line for line in trainer.state.log_history if "reward_std" in line]
    assert len(steps) == 2
    assert len(differences) == 2
    assert max(differences) < 1e-4
    assert all(0 < line["reward"] < 1 for line in steps)
    assert any(line["reward_std"] > 0 for line in steps)
    assert len(asked) == 8
    assert not torch.equal(before, trainer.model.model.embed_tokens.weight.detach())


def three(prompt: Any) -> Any:
    return 3


def test_a_wrong_setting_is_told_before_anything_is_sampled() -> None:
    with pytest.raises(ConfigError, match="branches is 'shortest'; give one of 'refuse', 'longest'"):
        func(branches="shortest")
    for training in ("my/run", "", "a b"):
        with pytest.raises(ConfigError, match=r"the settings of the adapter cannot be used: training: "):
            func(training=training)
    with pytest.raises(ConfigError, match="the task of a prompt is 3; give a Task"):
        make_rollout_func(Agent(ScriptedModel(["a"])), task_of=three)(["a"], None)
    with pytest.raises(ConfigError, match="give the trainer rollout_func"):
        reward_of_rollout(["a"], ["b"])


SYSTEM = {"role": "system", "content": "Be brief."}
USER = {"role": "user", "content": [{"type": "text", "text": "Add "}, {"type": "text", "text": "1 and 2."}]}


def test_nothing_of_a_prompt_is_lost_or_changed_in_silence() -> None:
    """The model got the parts of a message as Python writes them, and earlier messages were left out."""
    model = Teller()
    make_rollout_func(Agent(model))([[USER]], None)
    make_rollout_func(Agent(model, instructions="Add."))([[SYSTEM, USER]], None)
    assert model.asked == ["Add 1 and 2."] * 2
    image = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]}
    said = {"role": "assistant", "content": "3"}
    for prompt, why in (
        ([SYSTEM, USER], "the agent has no instructions; give them to the agent"),
        ([image], "give one text message of the user"),
        (
            [USER, said, USER],
            r"messages with the roles \['user', 'assistant', 'user'\]; give one text message",
        ),
        ([], "give one text message of the user"),
    ):
        with pytest.raises(ConfigError, match=why):
            make_rollout_func(Agent(model))([prompt], None)
