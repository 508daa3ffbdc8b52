"""Read rows of the format `verl` with verl's own code, and print what it makes of them.

`python verl_step.py` reads lines of JSON and prints an object with two lists, each of which has for each row the
advantages, the mask, the log probabilities and the rewards of its response. `uid` is from verl's older trainer,
which groups rows by their `uid`. `session` is from the newer one, which gets the rows of a rollout as one list and
keeps them in a queue. A policy takes one step with the first list, and `change` is positive if it followed the
advantages.
"""

import asyncio
import itertools
import json
import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import ray
import torch
import transfer_queue
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM
from verl import DataProto
from verl.experimental.agent_loop.agent_loop import AgentLoopOutput, AgentLoopWorker
from verl.trainer.ppo.core_algos import AdvantageEstimator, get_policy_loss_fn
from verl.trainer.ppo.ray_trainer import compute_advantage
from verl.trainer.ppo.v1.agent_loop_tq import AgentLoopWorkerTQ
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories
from verl.utils.torch_functional import logprobs_from_logits
from verl.workers.config import ActorConfig

LENGTH = 32


def make_worker(kind: type[Any]) -> Any:
    """Return one of verl's workers without an engine. Its settings are those of a model that reads only text."""
    worker = kind.__new__(kind)
    inner = Tokenizer(models.BPE(vocab={"<pad>": 0}, merges=[]))
    worker.tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>")
    worker.processor, worker.mm_processor_kwargs = None, {}
    worker.reward_loop_worker_handles, worker.distillation_enabled = None, False
    worker.rollout_config = SimpleNamespace(prompt_length=LENGTH, response_length=LENGTH)
    return worker


def read(row: dict[str, Any]) -> AgentLoopOutput:
    """Return a row in verl's type."""
    return AgentLoopOutput(**{key: value for key, value in row.items() if key != "uid"})


async def pad(rows: list[dict[str, Any]]) -> DataProto:
    """Return the batch that the older trainer makes."""
    worker = make_worker(AgentLoopWorker)
    made = [await worker._agent_loop_postprocess(read(row), False, raw_prompt=[]) for row in rows]
    return worker._postprocess(made, {"uid": np.array([row["uid"] for row in rows], dtype=object)})


async def enqueue(rows: list[dict[str, Any]]) -> None:
    """Hand the rows of each rollout to the newer trainer's worker, which puts them into its queue."""
    worker = make_worker(AgentLoopWorkerTQ.__ray_metadata__.modified_class)
    found = itertools.groupby(rows, key=lambda row: row["extra_fields"]["run_id"])
    for number, (_, same) in enumerate(found):
        about = {"uid": "group", "session_id": number, "global_steps": 1, "raw_prompt": []}
        await worker._agent_loop_postprocess([read(row) for row in same], False, **about)


def dequeue() -> tuple[DataProto, list[str]]:
    """Return the batch that the newer trainer reads from its queue, and the keys of its rows."""
    keys = list(transfer_queue.kv_list("train")["train"])
    fields = ["uid", "response_mask", "rm_scores", "rollout_log_probs"]
    found = transfer_queue.kv_batch_get(keys=keys, partition_id="train", select_fields=fields)
    data = DataProto(batch=found.to_padded_tensor())
    data.non_tensor_batch["uid"] = np.array(data.batch.pop("uid").tolist(), dtype=object)
    return data, keys


def show(data: DataProto, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return what each row became, without padding."""
    names = ("advantages", "response_mask", "rollout_log_probs", "rm_scores")
    return [
        {name: data.batch[name][at][: len(row["response_ids"])].tolist() for name in names}
        for at, row in enumerate(rows)
    ]


def step(data: DataProto) -> float:
    """Take one step with verl's loss, and return the mean change of a log probability times its advantage."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_attention_heads": 2, "num_key_value_heads": 2}
    policy = Qwen2ForCausalLM(Qwen2Config(vocab_size=400, num_hidden_layers=2, **sizes))
    optimizer = torch.optim.SGD(policy.parameters(), 1.0)
    mask = data.batch["response_mask"]

    def logprobs() -> torch.Tensor:
        keys = ("input_ids", "attention_mask", "position_ids")
        logits = policy(**{key: data.batch[key] for key in keys}).logits
        return logprobs_from_logits(logits[:, -LENGTH - 1 : -1], data.batch["responses"])

    before = logprobs()
    config = ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1)
    loss, _ = get_policy_loss_fn("vanilla")(
        old_log_prob=before.detach(),
        log_prob=before,
        advantages=data.batch["advantages"],
        response_mask=mask,
        loss_agg_mode="token-mean",
        config=config,
    )
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        change = (logprobs() - before) * data.batch["advantages"] * mask
    return float(change.sum() / mask.sum())


def main() -> None:
    """Print what verl makes of the rows."""
    rows = [json.loads(line) for line in sys.stdin]
    data = asyncio.run(pad(rows))
    data.batch["token_level_rewards"] = data.batch["rm_scores"]
    data = compute_advantage(data, AdvantageEstimator.GRPO)
    # The queue starts one actor for each part of its storage; they need no real cores.
    ray.init(num_cpus=16, include_dashboard=False, logging_level="ERROR")
    transfer_queue.init()
    asyncio.run(enqueue(rows))
    queued, keys = dequeue()
    queued.batch["token_level_rewards"] = queued.batch["rm_scores"]
    queued = compute_advantage_for_multi_trajectories(queued, keys, AdvantageEstimator.GRPO)
    print(json.dumps({"uid": show(data, rows), "session": show(queued, rows), "change": step(data)}))
    transfer_queue.close()
    ray.shutdown()


if __name__ == "__main__":
    main()
