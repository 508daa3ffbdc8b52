"""The circle closed: tasks, runs, rows, a trained model, and RL on rollouts, measured on tasks that it never saw.

`make prove` runs it on one core. It
1. lets the oracle do errands with Treadle, and makes rows of its runs;
2. trains a transformer from nothing on them;
3. trains a second one, in the same way on as many tokens, on rows of the same tasks as DeepFabric makes them;
4. trains the first on with rollouts and their rewards;
5. evaluates all of them on held-out tasks in real runs, by the final state, and writes `report.md` and `report.html`.
"""

import argparse
import asyncio
import copy
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from errands import ErrandSet
from network import Network, TokenRows, train
from rows import Vocabulary, make_vocabulary, simulate, tokenize
from serving import BLIND, NetworkApp, describe
from torch import Tensor

from treadle import open_journal
from treadle.evals import evaluate
from treadle.evals.evaluation_reports import write_markdown
from treadle.evals.evaluation_results import Results
from treadle.export.groups import Group
from treadle.export.rows import Row, load_row
from treadle.rollout import Rollouts
from treadle.runs.task import TASK_SETS
from treadle.testbed.server import serve

OURS, THEIRS, TRAINED = "treadle-rows", "deepfabric-rows", "treadle-rows-and-rl"
MODELS = (f"{BLIND}-{OURS}", THEIRS, OURS, TRAINED)


def say(text: str) -> None:
    print(f"{time.process_time():7.0f} CPU s  {text}", flush=True)


async def make_rows(count: int, folder: Path) -> list[Row]:
    """Let the oracle do the first errands to train on, and return a row for each run that solved its own."""
    rollouts = Rollouts(
        model="oracle",
        tasks=["errands:train"],
        groups=count,
        group_size=1,
        order="given",
        advantages="none",
        window=16,
        path=folder,
    )
    await rollouts.run()
    with open_journal(folder / "runs.db") as journal:
        rows = [load_row(journal, f"rollout-{number}-0") for number in range(1, count + 1)]
    return [row for row in rows if row.lineage.reward == 1.0]


def collect(groups: Sequence[Group], device: str) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the ids, the mask and the logprobs of all trajectories, each (batch, T), and the advantages (batch)."""
    found = [
        (row, rollout.advantage or 0.0)
        for group in groups
        if group.has_variance
        for rollout in group.rollouts
        for row in rollout.trajectories
    ]
    longest = max(len(row.token_ids_T) for row, _ in found)

    def pad(values: Sequence[float]) -> list[float]:
        return [*values, *[0.0] * (longest - len(values))]

    ids = torch.tensor([pad(row.token_ids_T) for row, _ in found], dtype=torch.long)
    mask = torch.tensor([pad(row.sampled_T) for row, _ in found])
    before = torch.tensor([pad(row.logprobs_T) for row, _ in found]).nan_to_num()
    return (
        ids.to(device),
        mask.to(device),
        before.to(device),
        torch.tensor([value for _, value in found]).to(device),
    )


def compute_loss(network: Network, groups: Sequence[Group], device: str) -> Tensor:
    """Return the clipped policy-gradient loss, the mean over the sampled tokens."""
    ids, mask, before, advantages = collect(groups, device)
    ratios = (network.logprobs(ids) - before[:, 1:]).exp()
    gains = torch.minimum(ratios * advantages[:, None], ratios.clamp(0.8, 1.25) * advantages[:, None])
    return -(gains * mask[:, 1:]).sum() / mask.sum()


async def reinforce(
    network: Network, app: NetworkApp, model: dict[str, Any], options: argparse.Namespace
) -> list[float]:
    """Train a network on rollouts of the tasks to train on, and return the mean reward of each group."""
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=options.rl_rate, betas=(0.9, 0.95), weight_decay=0.0
    )
    rollouts = Rollouts(
        model=model,
        tasks=["errands:train"],
        groups=options.rl_steps * options.rl_groups,
        group_size=options.rl_group_size,
        window=options.rl_groups * options.rl_group_size,
        advantages="group",
        agent={"max_steps": 6},
        path=options.out / "rl",
        seed=1,
    )
    means: list[float] = []
    batch: list[Group] = []
    async for group in rollouts:
        means.append(statistics.fmean([reward for reward in group.rewards_G if reward is not None]))
        batch.append(group)
        if len(batch) < options.rl_groups:
            continue
        if any(item.has_variance for item in batch):
            optimizer.zero_grad()
            compute_loss(network, batch, options.device).backward()
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
        app.set_version(str(int(app.version) + 1))
        if int(app.version) % 10 == 0:
            say(
                f"RL step {app.version}: mean reward {statistics.fmean(means[-10 * options.rl_groups :]):.3f}"
            )
        batch.clear()
    return means


def learn(name: str, rows: Sequence[Row], words: Vocabulary, options: argparse.Namespace) -> Network:
    """Return a network that was trained from nothing on rows."""
    torch.manual_seed(options.seed)
    network = Network(words.size, options.width, options.layers, options.heads).to(options.device)
    count = sum(item.numel() for item in network.parameters())
    say(f"{name}: {len(rows):,} rows, {count:,} parameters")
    tokens = [tokenize(row, words.renderer) for row in rows]
    train(
        network,
        TokenRows(tokens, words.names, options.seed),
        options.tokens,
        rate=options.rate,
        size=options.batch_tokens,
        tell=lambda text: say(f"{name}: {text}"),
    )
    return network


async def prove(options: argparse.Namespace) -> Results:
    """Do all steps, and return the results of the evaluation."""
    torch.set_num_threads(options.threads)
    out: Path = options.out
    rows = await make_rows(options.rows, out / "oracle")
    simulated = [simulate(row) for row in rows]
    words = make_vocabulary([*rows, *simulated], out / "tokenizer")
    say(f"{len(rows):,} rows of {options.rows:,} runs")
    ours = learn(OURS, rows, words, options)
    theirs = learn(THEIRS, simulated, words, options)
    networks = {MODELS[0]: ours, THEIRS: theirs, OURS: ours, TRAINED: copy.deepcopy(ours)}
    app = NetworkApp(networks, words.renderer, ErrandSet().get("write-0000").input)
    server = await serve(app=app)
    try:
        models = [describe(server.url, name, words.renderer, 1.0) for name in MODELS]
        means = await reinforce(networks[TRAINED], app, models[-1], options)
        share = max(1, len(means) // 5)
        say(
            f"RL: mean reward {statistics.fmean(means[:share]):.3f} at first, {statistics.fmean(means[-share:]):.3f} at last"
        )
        for split, most in (("templates", options.eval_tasks // 4), ("instances", options.eval_tasks)):
            done = await evaluate(
                name=f"held-out {split}".replace(" ", "-"),
                models=models,
                tasks=[f"errands:{split}"],
                max_tasks=most,
                agent={"max_steps": 6},
                path=out / split,
            )
            say(write_markdown(done.results))
    finally:
        await server.close()
    return done.results


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("--out", type=Path, default=Path("prove"), help="the folder of all that is made")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--rows", type=int, default=1600)
    parser.add_argument("--width", type=int, default=96)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument(
        "--tokens", type=int, default=1_000_000, help="how many tokens each of both models is trained on"
    )
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--rl-steps", type=int, default=60)
    parser.add_argument("--rl-groups", type=int, default=8)
    parser.add_argument("--rl-group-size", type=int, default=8)
    parser.add_argument("--rl-rate", type=float, default=3e-4)
    parser.add_argument("--eval-tasks", type=int, default=320)
    options = parser.parse_args(arguments)
    TASK_SETS.add("errands", ErrandSet())
    asyncio.run(prove(options))


if __name__ == "__main__":
    main()
