"""The callback in real trainers of transformers and TRL, with a small model on the CPU that learns one answer."""

import json
import os
from types import SimpleNamespace

import pytest
from tests.environments import LateModule

from treadle.core.errors import ConfigError
from treadle.core.types import Settings
from treadle.evals.evaluation_results import read_results
from treadle.telemetry.curves import CURVES
from treadle.testbed.engines import export_tokenizer

torch = LateModule("torch")
transformers = LateModule("transformers")
training_callback = LateModule("treadle.evals.training_callback")  # it imports transformers
pytestmark = pytest.mark.xdist_group("training")
MESSAGES = [{"role": "user", "content": "Which colour?"}, {"role": "assistant", "content": "green and blue"}]
OPTIONS = {
    "per_device_train_batch_size": 4, "logging_steps": 1, "report_to": [], "use_cpu": True, "bf16": False,
    "learning_rate": 2e-2, "lr_scheduler_type": "constant", "save_strategy": "no", "disable_tqdm": True,
}  # fmt: skip


@pytest.fixture(autouse=True)
def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take back what a test registers."""
    monkeypatch.setattr(CURVES, "_loaded", {})


@pytest.fixture
def parts(tmp_path):
    """A model that knows nothing, its tokenizer, and a file of the row that it learns."""
    os.environ["WANDB_DISABLED"] = "true"
    torch.manual_seed(0)
    torch.set_num_threads(1)
    export_tokenizer("oracle", tmp_path / "tokenizer")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "tokenizer")
    tokenizer.pad_token = tokenizer.eos_token
    shape = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.LlamaConfig(vocab_size=len(tokenizer), max_position_embeddings=1024, **shape)
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"messages": MESSAGES}) + "\n")
    return transformers.LlamaForCausalLM(config), tokenizer, rows


def make(tmp_path, rows, **options):
    given = {
        "rows": [str(rows)],
        "rewards": {"response_quality": 1.0},
        "settings": Settings(temperature=0, max_output_tokens=12),
    }
    return training_callback.EvaluationCallback(tmp_path / "evaluations", **given | options)


class Kept:
    """A curve writer that keeps what it gets."""

    points: list = []  # noqa: RUF012

    def __init__(self, run):
        self.points.clear()

    def write(self, step, values):
        self.points.append((step, values))

    def close(self):
        self.points.append("closed")


def check(tmp_path, callback, trainer, steps):
    """Check that the model has learned, that all is told, and that the best model is the one of the best step."""
    scores = {step: found["score"] for step, found in callback.history}
    assert list(scores) == steps
    assert scores[steps[0]] < 1 == scores[steps[-1]]
    logged = {
        item["step"]: item["eval_treadle_score"]
        for item in trainer.state.log_history
        if "eval_treadle_score" in item
    }
    assert logged == scores
    best = callback.best[0]
    assert scores[best] == 1
    assert all(score < 1 for step, score in scores.items() if step < best)
    told = json.loads((tmp_path / "evaluations" / "best" / "treadle_score.json").read_text())
    assert told == {"step": best, "metric": "score", "value": 1.0}
    (sample,) = read_results(tmp_path / "evaluations" / f"step-{best}").samples
    assert sample.details.score == 1


@pytest.mark.sets(0)
def test_a_trainer_of_transformers_evaluates_at_steps_and_keeps_the_best(tmp_path, parts):
    datasets = pytest.importorskip("datasets")
    model, tokenizer, rows = parts
    ids = tokenizer.apply_chat_template(MESSAGES, return_dict=True)["input_ids"]
    data = datasets.Dataset.from_dict({"input_ids": [ids] * 80, "labels": [ids] * 80})
    CURVES.add("kept", Kept)
    callback = make(tmp_path, rows, every_steps=10, curves=["kept"])
    trainer = transformers.Trainer(
        model, transformers.TrainingArguments(str(tmp_path / "out"), max_steps=25, **OPTIONS), train_dataset=data,
        processing_class=tokenizer, callbacks=[callback],
    )  # fmt: skip
    trainer.train()
    check(tmp_path, callback, trainer, [10, 20, 25])
    assert trainer.model.training
    assert [point[0] for point in Kept.points[:-1]] == [10, 20, 25]
    assert Kept.points[-1] == "closed"
    assert Kept.points[-2][1]["eval/score"] == 1
    kept = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "evaluations" / "best")
    prompt = tokenizer.apply_chat_template(
        MESSAGES[:1], add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    said = kept.generate(**prompt, max_new_tokens=12, do_sample=False, pad_token_id=0)[
        0, prompt["input_ids"].shape[1] :
    ]
    assert "green and blue" in tokenizer.decode(said)

    again = make(tmp_path, rows, every_steps=25)
    worse = transformers.TrainingArguments(
        str(tmp_path / "out"), max_steps=10, **OPTIONS | {"learning_rate": 0.5}
    )
    other = transformers.Trainer(
        model, worse, train_dataset=data, processing_class=tokenizer, callbacks=[again]
    )
    other.train()
    assert again.history[0][1]["score"] < 1
    assert again.best == callback.best
    assert (tmp_path / "evaluations" / "step-10.2").is_dir()


@pytest.mark.sets(0)
def test_a_trainer_of_trl_chooses_its_best_checkpoint_by_the_score(tmp_path, parts):
    datasets = pytest.importorskip("datasets")
    trl = pytest.importorskip("trl")
    model, tokenizer, rows = parts
    data = datasets.Dataset.from_list([{"messages": MESSAGES}] * 80)
    callback = make(tmp_path, rows)
    best = {
        "eval_strategy": "steps", "eval_steps": 10, "save_strategy": "best",
        "metric_for_best_model": "eval_treadle_score", "greater_is_better": True,
    }  # fmt: skip
    trainer = trl.SFTTrainer(
        model, trl.SFTConfig(str(tmp_path / "out"), max_steps=20, **OPTIONS | best), train_dataset=data,
        eval_dataset=data.select(range(4)), processing_class=tokenizer, callbacks=[callback],
    )  # fmt: skip
    trainer.train()
    check(tmp_path, callback, trainer, [10, 20])
    assert trainer.state.best_metric == 1.0
    assert trainer.state.best_global_step == callback.best[0]


def test_a_model_of_many_processes_is_refused(tmp_path):
    callback = make(tmp_path, "rows.jsonl")
    with pytest.raises(ConfigError, match="treadle eval --model hf:FOLDER"):
        callback.on_train_begin(SimpleNamespace(fsdp="full_shard"), None, None)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"every_steps": 0}, "every_steps is 0"),
        ({"models": ["oracle"], "path": "x"}, "sets models, path of the evaluation itself"),
        ({"reports": ["json=x.json"]}, "writes curves and no reports; `treadle eval report FOLDER/step-N`"),
    ],
)
def test_what_cannot_work_is_told(tmp_path, options, text):
    with pytest.raises(ConfigError, match=text):
        make(tmp_path, "rows.jsonl", **options)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"metric": "speed"}, "has no 'speed'; metric can be score, solved, tokens, steps, response_quality"),
        ({"max_task": 3}, "max_task: there is no such key; did you mean 'max_tasks'"),
        ({"rewards": {"respons_quality": 1}}, "did you mean .response_quality"),
    ],
)
def test_a_wrong_evaluation_is_told_before_the_first_step(tmp_path, options, text):
    callback = make(tmp_path, "rows.jsonl", **options)
    with pytest.raises(ConfigError, match=text):
        callback.on_train_begin(SimpleNamespace(), SimpleNamespace(is_world_process_zero=True), None)


def test_a_model_is_not_kept_after_an_evaluation_that_is_not_whole(tmp_path, parts, caplog):
    model, tokenizer, rows = parts
    state = SimpleNamespace(global_step=1, is_world_process_zero=True, log_history=[], epoch=0)
    for limits, count in (({"max_tokens": 0}, 0), ({}, 1)):
        callback = make(tmp_path, rows, limits=limits)
        callback.on_evaluate(None, state, None, model=model, processing_class=tokenizer)
        assert (callback.best is not None) == bool(count)
        assert len(callback.history) == count
    assert "the evaluation of step 1 is not whole, so that its model is not kept: max_tokens" in caplog.text
