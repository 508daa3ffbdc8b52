"""Make rollouts with SkyRL's generator interface, train one step with them, and print what SkyRL made of them.

`python skyrl_rollouts.py FOLDER`: the folder has a tokenizer. The input, the checks, the batches, the advantages
and the loss are SkyRL's; a transformer in this process stands for the servers of its engine and for its workers.
"""

import asyncio
import sys
import typing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import typing_extensions

if sys.version_info < (3, 12):
    # SkyRL declares its types with the one of `typing`, which pydantic takes from Python 3.12 on.
    typing.TypedDict = typing_extensions.TypedDict

import numpy as np
import tiny
import torch
from skyrl.backends.skyrl_train.inference_servers.engine_utils import get_vllm_sampling_params
from skyrl.backends.skyrl_train.utils.ppo_utils import PolicyLossRegistry
from skyrl.train.config import SkyRLTrainConfig
from skyrl.train.generators.utils import prepare_generator_input
from skyrl.train.trainer import RayPPOTrainer
from tiny import Tiny, register_tasks, tell

from treadle.rollout.trainers.skyrl_generator import TreadleGenerator

GROUP, TEMPERATURE, TOP_K = 4, 1.3, 3


def support_of(number: int) -> list[int]:
    """Return the tokens that a token was chosen from, as SkyRL's engine tells them: at most `TOP_K`, then -1."""
    found = [number + at for at in range(1 + number % TOP_K)]
    return found + [-1] * (TOP_K - len(found))


class Client:
    """What SkyRL's client of its servers does: `generate` and `finish_session`."""

    def __init__(self, policy: Tiny) -> None:
        self.policy = policy
        self.open: set[str] = set()
        self.finished: list[str] = []

    async def generate(self, given: Any, model: str | None = None) -> dict[str, Any]:
        (prompt,), (session,) = given["prompt_token_ids"], given["session_ids"]
        self.open.add(session)
        ids, logprobs, reason = self.policy.sample(prompt, given["sampling_params"])
        answer = {
            "response_ids": [ids],
            "response_logprobs": [logprobs],
            "stop_reasons": [reason],
            "rollout_expert_indices": [np.array(tiny.experts_of([*prompt, *ids][:-1]), "uint8")],
        }
        if given["return_sample_support"]:
            answer["rollout_sample_support"] = [np.array(list(map(support_of, ids)), "int32")]
        return answer

    async def finish_session(self, session: str) -> None:
        self.finished.append(session)


def make_trainer(policy: Tiny, is_step_wise: bool) -> RayPPOTrainer:
    """Return SkyRL's trainer, without the workers that hold a model."""
    trainer = RayPPOTrainer.__new__(RayPPOTrainer)
    trainer.cfg = config = SkyRLTrainConfig()
    config.generator.step_wise_trajectories = is_step_wise
    config.generator.n_samples_per_prompt = GROUP
    config.generator.max_input_length = 460
    config.generator.sampling_params.max_generate_length = 80
    config.generator.sampling_params.temperature = TEMPERATURE
    config.generator.sampling_params.logprobs = 1
    config.generator.sampling_params.top_k = TOP_K
    config.generator.inference_engine.enable_return_sample_support_set = True
    config.trainer.train_batch_size = config.trainer.policy_mini_batch_size = 2
    config.trainer.algorithm.advantage_estimator = "grpo"
    trainer.tokenizer = policy.tokenizer
    trainer.dispatch = SimpleNamespace(get_lcm_dp_size=lambda: 1)
    trainer.all_metrics, trainer.global_step = {}, 5
    return trainer


async def roll(trainer: RayPPOTrainer, policy: Tiny, **settings: Any) -> tuple[Any, Any, Client]:
    """Return the batch that the trainer makes of the rollouts of two tasks, and what the generator returned."""
    client = Client(policy)
    trainer.generator = TreadleGenerator(trainer.cfg.generator, client, policy.tokenizer, **settings)
    prompts = [
        {
            "prompt": [{"role": "user", "content": "-"}],
            "env_class": None,
            "env_extras": {"task": f"lengths:{at}"},
            "uid": str(at),
        }
        for at in range(2)
    ]
    params = get_vllm_sampling_params(trainer.cfg.generator.sampling_params)
    given, uids = prepare_generator_input(prompts, GROUP, params, "none", "train", trainer.global_step)
    output = await trainer.generate(given)
    if trainer.cfg.generator.step_wise_trajectories:
        uids = [item.instance_id for item in output["trajectory_ids"]]
    output, uids = trainer.postprocess_generator_output(output, uids)
    batch = trainer.convert_to_training_input(output, uids)
    batch["values"] = None
    return trainer.compute_advantages_and_returns(batch), output, client


async def evaluate(policy: Tiny) -> list[str]:
    """Return which optional parts an evaluation hands over, for which SkyRL asks for no support."""
    trainer = make_trainer(policy, is_step_wise=False)
    generator = TreadleGenerator(trainer.cfg.generator, Client(policy), policy.tokenizer)
    prompt = {
        "prompt": [{"role": "user", "content": "-"}],
        "env_class": None,
        "env_extras": {"task": "lengths:0"},
        "uid": "0",
    }
    params = get_vllm_sampling_params(trainer.cfg.generator.sampling_params)
    given, _ = prepare_generator_input([prompt], 1, params, "none", "eval", trainer.global_step)
    output = await generator.generate(given)
    return [name for name in ("rollout_expert_indices", "rollout_sample_support") if name in output]


def step(trainer: RayPPOTrainer, policy: Tiny, batch: Any) -> dict[str, float]:
    """Take one step with SkyRL's loss. Return how far its log probabilities are from those of the rollouts."""
    mask, responses = batch["loss_mask"].bool(), batch["response_mask"].shape[1]

    def logprobs() -> torch.Tensor:
        attended = batch["attention_mask"]
        places = (attended.cumsum(-1) - 1).clamp(min=0)
        logits = policy.network(
            input_ids=batch["sequences"], attention_mask=attended, position_ids=places
        ).logits
        found = (logits[:, :-1] / TEMPERATURE).log_softmax(-1)
        return found.gather(-1, batch["sequences"][:, 1:, None])[..., 0][:, -responses:]

    before = logprobs()
    difference = (before.detach() - batch["rollout_logprobs"])[mask].abs().max()
    optimizer = torch.optim.SGD(policy.network.parameters(), 0.01)
    loss, _ = PolicyLossRegistry.get("regular")(
        log_probs=before,
        old_log_probs=before.detach(),
        advantages=batch["advantages"],
        config=trainer.cfg.trainer.algorithm,
        loss_mask=batch["loss_mask"],
        rollout_logprobs=batch["rollout_logprobs"],
    )
    loss.backward()
    optimizer.step()
    with torch.no_grad():
        change = ((logprobs() - before) * batch["advantages"])[mask].mean()
    return {"difference": float(difference), "change": float(change), "trained": int(mask.sum())}


def follow_experts(batch: Any) -> list[bool]:
    """Return for each sequence whether each token but the last one has the experts that the engine told."""
    pairs = zip(batch["sequences"], batch["attention_mask"], strict=True)
    packed = batch["rollout_expert_indices"]
    return [
        packed.segment(at)[:-1].tolist() == tiny.experts_of(ids[mask.bool()][:-1].tolist())
        for at, (ids, mask) in enumerate(pairs)
    ]


def follow_support(batch: Any) -> list[bool]:
    """Return for each sequence whether each sampled token, and no other one, has the tokens it was chosen from."""
    packed, found = batch["rollout_sample_support"], []
    for at, (ids, trained, mask) in enumerate(
        zip(batch["sequences"], batch["loss_mask"], batch["response_mask"], strict=True)
    ):
        given = packed.segment(at).tolist()
        responses = ids[-len(mask) :][mask.bool()].tolist()
        wanted = [
            support_of(number) if is_trained else [-1] * TOP_K
            for number, is_trained in zip(responses, trained[mask.bool()].tolist(), strict=True)
        ]
        found.append(given == wanted)
    return found


async def main(folder: Path) -> dict[str, Any]:
    """Return what SkyRL made of the rollouts."""
    register_tasks()
    policy = Tiny(folder)
    found: dict[str, Any] = {}
    settings = {"training": "tied", "journal": str(folder / "skyrl.db"), "agent": {"max_steps": 4}}
    for is_step_wise in (True, False):
        trainer = make_trainer(policy, is_step_wise)
        before = len(policy.asked)
        batch, output, client = await roll(trainer, policy, **settings)
        found["steps" if is_step_wise else "rows"] = {
            "asked": len(policy.asked) - before,
            "rewards": batch["rewards"].sum(-1).tolist(),
            "advantages": [row[row.abs().argmax()].item() for row in batch["advantages"]],
            "digest": hash(str(output["response_ids"])),
            "finished": len(client.finished),
        }
        found["experts"] = [*found.get("experts", ()), *follow_experts(batch)]
        found["support"] = [*found.get("support", ()), *follow_support(batch)]
    trainer = make_trainer(policy, is_step_wise=True)
    trainer.global_step = 6
    policy.failures = 1
    retries = {"attempts": 1}
    batch, output, _ = await roll(trainer, policy, **settings, retries=retries)
    found["failed"] = {
        "metric": trainer.all_metrics["treadle/failed_rollouts"],
        "rewards": batch["rewards"].sum(-1).tolist(),
        "advantages": [row[row.abs().argmax()].item() for row in batch["advantages"]],
        "trained": batch["loss_mask"].sum(-1).tolist(),
    }
    # Rollouts that are compacted have several branches.
    tiny.LONG, policy.calls_below = tiny.COMPACTED
    found["branched"] = {}
    for is_step_wise in (True, False):
        branched = make_trainer(policy, is_step_wise)
        branched.cfg.generator.max_input_length = 4000
        agent = {"max_steps": 4, "context_tokens": tiny.CONTEXT}
        made, output, _ = await roll(branched, policy, agent=agent, branches="longest")
        found["experts"] += follow_experts(made)
        found["support"] += follow_support(made)
        ids = output["trajectory_ids"] or range(2 * GROUP)
        found["branched"]["steps" if is_step_wise else "rows"] = {
            "rollouts": [item.to_string() if is_step_wise else str(item) for item in ids],
            "rewards": made["rewards"].sum(-1).tolist(),
            "advantages": [row[row.abs().argmax()].item() for row in made["advantages"]],
            "left_out": branched.all_metrics["treadle/left_out_tokens"],
        }
    found["evaluated"] = await evaluate(policy)
    return {**found, **step(trainer, policy, batch)}


if __name__ == "__main__":
    tell(asyncio.run(main(Path(sys.argv[1]))))
