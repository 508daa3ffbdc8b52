"""TRL's trainers take the rows and prepare them. This needs torch, which `make test` does not install.

`pip install torch accelerate` in the environment of the tests makes them run; they take 15 s and 1 GB.
"""

import copy
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from tests.export.test_files import example, save
from tests.export.test_training import datasets, load, make_tokenizer, rows

from treadle.core.types import Message, Role
from treadle.export.preferences import pair_rows, write_pair

pytestmark = [
    pytest.mark.xdist_group("training"),
    pytest.mark.full,
]
__all__ = ["datasets", "rows"]
VALUES = {"a": 1.0, "b": 0.0}
ON_CPU: dict[str, Any] = {"use_cpu": True, "bf16": False, "report_to": [], "max_length": None}


@pytest.fixture(scope="module")
def model() -> Any:
    """Return a Qwen model with two small layers."""
    pytest.importorskip("torch")
    pytest.importorskip("trl.trainer.sft_trainer")
    os.environ["WANDB_DISABLED"] = "true"
    from transformers import Qwen2Config, Qwen2ForCausalLM

    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2}
    return Qwen2ForCausalLM(Qwen2Config(vocab_size=300, num_hidden_layers=2, **sizes))


@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_the_sft_trainer_prepares_rows(
    suffix: str, model: Any, datasets: Any, rows: Any, tmp_path: Path
) -> None:
    from trl import SFTConfig, SFTTrainer

    loaded = load(datasets, save(tmp_path / f"rows{suffix}", "trl", *rows), tmp_path)
    tokenizer = make_tokenizer("qwen2_5")
    options = {**ON_CPU, "assistant_only_loss": True, "max_steps": 1, "per_device_train_batch_size": 1}
    config = SFTConfig(str(tmp_path), **options)
    trainer = SFTTrainer(model, config, train_dataset=loaded, processing_class=tokenizer)
    for row, item in zip(rows, trainer.train_dataset, strict=True):
        trained = [
            number for number, label in zip(item["input_ids"], item["labels"], strict=True) if label != -100
        ]
        text = tokenizer.decode(trained)
        assert text.count("<tool_call>") == sum(len(message.tool_calls) for message in row.messages)
        assert "<tool_response>" not in text
        assert "<tool_response>" in tokenizer.decode(item["input_ids"])
    trainer.train()


def test_the_dpo_trainer_prepares_pairs(model: Any, datasets: Any, tmp_path: Path) -> None:
    from trl import DPOConfig, DPOTrainer

    other = replace(example("b"), messages=(*example().messages[:5], Message(Role.ASSISTANT, "no")))
    path = tmp_path / "pairs.jsonl"
    path.write_bytes(
        b"".join(write_pair(pair) + b"\n" for pair in pair_rows([example("a"), other], values=VALUES))
    )
    config = DPOConfig(str(tmp_path), use_cpu=True, bf16=False, report_to=[], max_length=None)
    tokenizer = make_tokenizer("qwen2_5")
    trainer = DPOTrainer(
        model,
        copy.deepcopy(model),
        config,
        train_dataset=load(datasets, path, tmp_path),
        processing_class=tokenizer,
    )
    (item,) = trainer.train_dataset
    assert tokenizer.decode(item["rejected_ids"]).startswith("no")
    assert "<tool_call>" in tokenizer.decode(item["chosen_ids"])
    assert tokenizer.decode(item["prompt_ids"]).endswith("<|im_start|>assistant\n")
