"""Read rows of the format `skyrl` with SkyRL's trainer, and print what it makes of them.

`python skyrl_step.py` reads lines of JSON, each with a `GeneratorOutput`, and prints one line for each: the ids,
masks, log probabilities, rewards and advantages of the batch that is trained on, row by row.
"""

import json
import sys
import typing
from types import SimpleNamespace
from typing import Any

import typing_extensions

if sys.version_info < (3, 12):
    # SkyRL declares its types with the one of `typing`, which pydantic takes from Python 3.12 on.
    typing.TypedDict = typing_extensions.TypedDict

from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.generators.base import TrajectoryID
from skyrl.train.trainer import RayPPOTrainer
from skyrl.train.utils.trainer_utils import validate_generator_output
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

KEYS = ("sequences", "attention_mask", "loss_mask", "rollout_logprobs", "rewards", "advantages")


def make_trainer(rollouts: int) -> RayPPOTrainer:
    """Return SkyRL's trainer for groups of so many rollouts, without the workers that hold a model."""
    trainer = RayPPOTrainer.__new__(RayPPOTrainer)
    trainer.cfg = SkyRLTrainConfig()
    trainer.cfg.generator.step_wise_trajectories = True
    trainer.cfg.generator.n_samples_per_prompt = rollouts
    trainer.cfg.trainer.train_batch_size = trainer.cfg.trainer.policy_mini_batch_size = 1
    trainer.cfg.trainer.algorithm.advantage_estimator = "grpo"
    inner = Tokenizer(models.BPE(vocab={"<pad>": 0}, merges=[]))
    trainer.tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>")
    trainer.dispatch = SimpleNamespace(get_lcm_dp_size=lambda: 1)
    trainer.all_metrics, trainer.global_step = {}, 1
    return trainer


def read(row: dict[str, Any]) -> dict[str, Any]:
    """Return what the trainer makes of the rows of one group."""
    row["trajectory_ids"] = [TrajectoryID(**item) for item in row["trajectory_ids"]]
    rollouts = sum(row["is_last_step"])
    validate_generator_output(rollouts, row, step_wise=True)
    trainer = make_trainer(rollouts)
    uids = [item.instance_id for item in row["trajectory_ids"]]
    batch = trainer.convert_to_training_input(*trainer.postprocess_generator_output(row, uids))
    batch["values"] = None
    batch = trainer.compute_advantages_and_returns(batch)
    return {key: batch[key].tolist() for key in KEYS}


if __name__ == "__main__":
    for line in sys.stdin:
        print(json.dumps(read(json.loads(line))))
