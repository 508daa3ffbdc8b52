"""A policy-gradient loop over Treadle's rollouts, in one process, for a CPU or one GPU.

A model of two layers with random weights learns to write the characters that it is asked for. `make train-demo`
runs it. With `--model`, a model of Hugging Face takes its place, on a GPU if there is one.
"""

import argparse
import asyncio
import random
import statistics
import tempfile
from collections.abc import Sequence

import torch
from engine import TorchPolicy, find_renderer, load_large, make_tiny
from writing import LENGTH, WritingSet

from treadle import model
from treadle.export.groups import Group
from treadle.rollout import Rollouts
from treadle.runs.task import TASK_SETS
from treadle.testbed.engines import EngineSettings, VllmApp
from treadle.testbed.server import serve


def compute_loss(policy: TorchPolicy, groups: Sequence[Group]) -> torch.Tensor:
    """Return the clipped policy-gradient loss over all tokens that the policy sampled."""
    losses = []
    for rollout in (item for group in groups for item in group.rollouts):
        for row in rollout.trajectories:
            sampled = torch.tensor(list(row.sampled_T[1:]), dtype=torch.bool, device=policy.device)
            before = torch.tensor(row.logprobs_T.tolist()[1:], device=policy.device)[sampled]
            now = policy.logprobs(row.token_ids_T)[sampled]
            ratio = (now - before).exp()
            bounded = ratio.clamp(0.8, 1.2)
            losses.append(-torch.minimum(ratio * rollout.advantage, bounded * rollout.advantage).sum())
    return torch.stack(losses).sum() / (LENGTH * len(losses))


def permutation_test(first: Sequence[float], last: Sequence[float], rounds: int = 10_000) -> float:
    """Return how often a random split of all rewards has as large a difference of means as the real one."""
    values, draws = [*first, *last], random.Random(0)
    wanted = statistics.fmean(last) - statistics.fmean(first)
    extreme = 0
    for _ in range(rounds):
        draws.shuffle(values)
        found = statistics.fmean(values[len(first) :]) - statistics.fmean(values[: len(first)])
        extreme += found >= wanted
    return (extreme + 1) / (rounds + 1)


async def train(options: argparse.Namespace, folder: str) -> list[float]:
    """Train, and return the mean reward of each group."""
    policy = load_large(options.model) if options.model else make_tiny()
    optimizer = torch.optim.AdamW(policy.network.parameters(), lr=options.rate)
    app = VllmApp(EngineSettings(model="policy"), policy)
    server = await serve(app=app)
    rollouts = Rollouts(
        model=lambda task, seed: model(
            "vllm:policy",
            base_url=server.url,
            renderer=find_renderer(options.model),
            max_output_tokens=LENGTH,
            temperature=1.0,
            seed=seed,
        ),
        tasks=["writing"],
        groups=options.groups,
        group_size=options.group_size,
        window=options.group_size,
        advantages="group",
        path=folder,
        journal="memory:",
    )
    means: list[float] = []
    batch: list[Group] = []
    async for group in rollouts:
        means.append(statistics.fmean(reward for reward in group.rewards_G if reward is not None))
        batch.append(group)
        if len(batch) == options.groups_per_step:
            optimizer.zero_grad()
            compute_loss(policy, batch).backward()
            torch.nn.utils.clip_grad_norm_(policy.network.parameters(), 1.0)
            optimizer.step()
            app.set_version(str(int(app.version) + 1))
            print(
                f"version {app.version}: mean reward {statistics.fmean(means[-len(batch) :]):.3f}", flush=True
            )
            batch.clear()
    await server.close()
    return means


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--model", help="a folder or a name on the hub, in place of the tiny model")
    parser.add_argument("--groups", type=int, default=400)
    parser.add_argument("--group-size", type=int, default=16)
    parser.add_argument("--groups-per-step", type=int, default=4)
    parser.add_argument("--rate", type=float, default=3e-3, help="the learning rate")
    options = parser.parse_args()
    TASK_SETS.add("writing", WritingSet())
    with tempfile.TemporaryDirectory() as folder:
        means = asyncio.run(train(options, folder))
    share = max(1, len(means) // 5)
    first, last = means[:share], means[-share:]
    before, after = statistics.fmean(first), statistics.fmean(last)
    print(f"mean reward of the first {share} groups {before:.3f}, of the last {after:.3f}")
    print(f"p = {permutation_test(first, last):.4f} (permutation test, one-sided)")


if __name__ == "__main__":
    main()
