"""Make rollouts in verl's agent loop, train one step with them, and print what verl made of them.

`python verl_rollouts.py FOLDER`: the folder has a tokenizer. The worker and its registry are verl's; only the
servers of its engine are missing, and a transformer in this process stands for them.
"""

import asyncio
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tiny
import torch
from omegaconf import OmegaConf
from tiny import Tiny, register_tasks, tell
from verl import DataProto
from verl.experimental.agent_loop import agent_loop
from verl.experimental.agent_loop.agent_loop import AgentLoopWorker
from verl.trainer.ppo.core_algos import AdvantageEstimator, get_policy_loss_fn
from verl.trainer.ppo.ray_trainer import compute_advantage
from verl.utils.rollout_trace import RolloutTraceConfig
from verl.utils.torch_functional import logprobs_from_logits
from verl.workers.config import ActorConfig
from verl.workers.rollout.replica import TokenOutput

PROMPT, RESPONSE, TEMPERATURE, GROUP = 400, 160, 1.3, 4
LOOPS = """
- name: treadle
  _target_: treadle.rollout.trainers.verl_loop.TreadleAgentLoop
  training: {training}
  journal: {journal}
  agent: {{max_steps: 4}}
"""


class Servers:
    """What verl's client of its servers does: `generate`."""

    def __init__(self, policy: Tiny) -> None:
        self.policy = policy
        self.sessions: set[str] = set()

    async def generate(self, request_id: str, *, prompt_ids: Any, sampling_params: Any) -> TokenOutput:
        self.sessions.add(request_id)
        ids, logprobs, _ = self.policy.sample(prompt_ids, sampling_params)
        return TokenOutput(
            token_ids=ids,
            log_probs=logprobs,
            routed_experts=np.array(tiny.experts_of([*prompt_ids, *ids][:-1]), "uint8"),
            stop_reason="completed",
            extra_fields={"global_steps": 6},
        )


def make_worker(folder: Path, policy: Tiny, training: str) -> AgentLoopWorker:
    """Return verl's worker without an engine, with the agent loop that the file of a user registers."""
    rollout = {
        "name": "vllm",
        "prompt_length": PROMPT,
        "response_length": RESPONSE,
        "temperature": TEMPERATURE,
        "top_p": 1.0,
        "top_k": -1,
        "calculate_log_probs": True,
        "logprobs_mode": "processed_logprobs",
        "agent": {"default_agent_loop": "treadle"},
        "val_kwargs": {"temperature": 0.5, "top_p": 1.0, "top_k": -1},
    }
    text = LOOPS.format(training=training, journal=folder / "runs.db")
    for loop in OmegaConf.create(text):
        agent_loop._agent_loop_registry[loop.name] = loop
    worker = AgentLoopWorker.__new__(AgentLoopWorker)
    worker.config = OmegaConf.create({"actor_rollout_ref": {"rollout": rollout}, "data": {}})
    worker.rollout_config = worker.config.actor_rollout_ref.rollout
    worker.llm_client = Servers(policy)
    worker.tokenizer, worker.processor, worker.hf_model_type = policy.tokenizer, None, "qwen2"
    worker.dataset_cls, worker.tools, worker.mm_processor_kwargs = object, [], {}
    worker.reward_loop_worker_handles, worker.distillation_enabled = None, False
    RolloutTraceConfig.get_instance().max_samples_per_step_per_worker = None
    return worker


def make_batch(tasks: list[str]) -> DataProto:
    """Return a batch with a group for each task."""
    names = [name for name in tasks for _ in range(GROUP)]
    return DataProto.from_dict(
        tensors={"dummy": torch.zeros(len(names), 1)},
        non_tensors={
            "raw_prompt": np.array([[{"role": "user", "content": "-"}]] * len(names), dtype=object),
            "extra_info": np.array([{"task": name} for name in names], dtype=object),
            "uid": np.array(names, dtype=object),
            "index": np.array([tasks.index(name) for name in names], dtype=object),
        },
    )


def step(policy: Tiny, data: DataProto) -> dict[str, float]:
    """Take one step with verl's loss. Return how far its log probabilities are from those of the rollouts."""
    mask = data.batch["response_mask"].bool()

    def logprobs() -> torch.Tensor:
        keys = ("input_ids", "attention_mask", "position_ids")
        logits = policy.network(**{key: data.batch[key] for key in keys}).logits / TEMPERATURE
        return logprobs_from_logits(logits[:, -RESPONSE - 1 : -1], data.batch["responses"])

    before = logprobs()
    difference = (before.detach() - data.batch["rollout_log_probs"])[mask].abs().max()
    optimizer = torch.optim.SGD(policy.network.parameters(), 0.01)
    loss, _ = get_policy_loss_fn("vanilla")(
        old_log_prob=data.batch["rollout_log_probs"],
        log_prob=before,
        advantages=data.batch["advantages"],
        response_mask=mask,
        loss_agg_mode="token-mean",
        config=ActorConfig(strategy="fsdp", rollout_n=1, ppo_micro_batch_size_per_gpu=1),
    )
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        change = ((logprobs() - before) * data.batch["advantages"])[mask].mean()
    return {"difference": float(difference), "change": float(change), "trained": int(mask.sum())}


async def roll_as_newer(
    worker: AgentLoopWorker,
    session: int | None,
    step_number: int,
    task: str | None = None,
    temperature: float = TEMPERATURE,
) -> Any:
    """Return what the agent loop gives to verl's newer trainer; without a session, to the older one."""
    params = {"temperature": temperature, "top_p": 1.0, "top_k": -1, "logprobs": True}
    loop = agent_loop.hydra.utils.instantiate(
        config=agent_loop._agent_loop_registry["treadle"],
        trainer_config=agent_loop.DictConfigWrap(config=worker.config),
        server_manager=worker.llm_client,
        tokenizer=worker.tokenizer,
        processor=None,
        dataset_cls=object,
        data_config=agent_loop.DictConfigWrap(worker.config.data),
        tools=agent_loop.ToolListWrap([]),
    )
    prompt = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Hi."}]
    columns = {} if session is None else {"session_id": session, "global_steps": step_number, "index": 0}
    return await loop.run(params, raw_prompt=prompt, extra_info={"task": task}, **columns)


async def main(folder: Path) -> dict[str, Any]:
    """Return what verl made of the rollouts."""
    register_tasks()
    policy = Tiny(folder)
    worker = make_worker(folder, policy, "null")
    data = await worker.generate_sequences(make_batch(["lengths:0", "lengths:1"]))
    sessions = len(worker.llm_client.sessions)
    data.batch["token_level_rewards"] = data.batch["rm_scores"]
    data.non_tensor_batch["uid"] = np.array([name for name in "01" for _ in range(GROUP)], dtype=object)
    data = compute_advantage(data, AdvantageEstimator.GRPO)
    metrics = data.meta_info["metrics"]
    rows = zip(
        data.batch["routed_experts"], data.batch["input_ids"], data.batch["attention_mask"], strict=True
    )
    experts = [
        routed[attended.bool()][:-1].tolist() == tiny.experts_of(ids[attended.bool()][:-1].tolist())
        for routed, ids, attended in rows
    ]
    found = {
        "rewards": data.batch["rm_scores"].sum(-1).tolist(),
        "advantages": [row[row.abs().argmax()].item() for row in data.batch["advantages"]],
        "turns": data.non_tensor_batch["__num_turns__"].tolist(),
        "asked": len(policy.asked),
        "sessions": sessions,
        "experts": experts,
        "steps": sorted({*data.non_tensor_batch["max_global_steps"].tolist()}),
        "seconds": min(item["generate_sequences"] for item in metrics),
        **step(policy, data),
    }
    # The same steps again, by a worker that knows nothing of the first one.
    tied = make_worker(folder, policy, "tied")
    first = [await roll_as_newer(tied, session, 5) for session in (0, 1)]
    asked = len(policy.asked)
    policy.failures = 1
    other = make_worker(folder, policy, "tied")
    again = [await roll_as_newer(other, session, 5) for session in (0, 1)]
    found["again"] = [one.response_ids == two.response_ids for one, two in zip(first, again, strict=True)]
    found["differ"] = first[0].extra_fields["run_id"] != first[1].extra_fields["run_id"]
    found["asked_again"] = len(policy.asked) - asked
    found["reward"] = first[0].reward_score
    tested = await roll_as_newer(other, 0, 5, temperature=0.5)
    found["phases"] = [item.extra_fields["run_id"].split("-")[1] for item in (first[0], tested)]
    asked = len(policy.asked)
    await roll_as_newer(other, 0, 6)
    found["asked_for_next"] = len(policy.asked) - asked
    # A rollout that is compacted has several branches.
    tiny.LONG, policy.calls_below = tiny.COMPACTED
    branched = make_worker(folder, policy, "null")
    branched.rollout_config.response_length = 4000
    loop = agent_loop._agent_loop_registry["treadle"]
    loop.agent.context_tokens, loop.branches = tiny.CONTEXT, "longest"
    rows = await roll_as_newer(branched, 0, 7, "lengths:0")
    row = await roll_as_newer(branched, None, 7, "lengths:0")
    found["branched"] = {
        "rewards": [item.reward_score for item in rows],
        "rows": len(rows),
        "left_out": [item.extra_fields["left_out_tokens"] for item in (*rows, row)],
    }
    return found


if __name__ == "__main__":
    tell(asyncio.run(main(Path(sys.argv[1]))))
