"""Tasks to runs to rows to a model, then RL, measured on tasks that the models never saw. See docs/prove.md.

`make prove` does it on one core in about 20 minutes. It
1. lets the oracle do errands with Treadle, and makes rows of its runs;
2. trains a transformer from nothing on them;
3. trains others in the same way, on as many tokens, on rows of the same tasks as DeepFabric makes them;
4. trains the first one on by RL, with rollouts of tasks to train on;
5. evaluates all of them on held-out tasks in real runs, by the final state, and writes `report.md` and pages.
"""

import argparse
import asyncio
import copy
import re
import statistics
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from errands import ErrandSet
from msgspec import Struct
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
from treadle.runs.task import TASK_SETS, load_task, task_set
from treadle.testbed.server import serve
from treadle.viewer.data_pages import make_view, write_page

OURS, REINFORCED, BLIND_NAME = "model", "model-after-rl", f"{BLIND}-model"
"""The model that learned from Treadle's rows or was given; the same after RL; and one that ignores its prompt."""
MOCK, RECORDED = "deepfabric-mock", "deepfabric-recorded"
"""The models that learned from DeepFabric's rows, made with a mock without and with recorded responses."""


class Proof(Struct):
    """What was found, and what it took."""

    evaluations: dict[str, Results] = {}
    """The evaluations by the split of the tasks."""
    rewards: tuple[float, float] = (0.0, 0.0)
    """The mean reward of the first and of the last fifth of the groups of the RL."""
    cpu_seconds: dict[str, float] = {}
    facts: list[str] = []

    def note(self, step: str) -> None:
        """Keep the CPU time of a step, which is all that was used since the last one."""
        self.cpu_seconds[step] = time.process_time() - sum(self.cpu_seconds.values())


def say(text: str) -> None:
    """Print a line with the CPU time so far."""
    print(f"{time.process_time():7.0f} CPU s  {text}", flush=True)


async def make_rows(tasks: str, count: int, folder: Path, tools: str | None = None) -> list[Row]:
    """Let the oracle do the first `count` tasks, perhaps with other tools, and return a row for each run."""
    rollouts = Rollouts(
        model="oracle",
        tasks=[tasks],
        groups=count,
        group_size=1,
        order="given",
        advantages="none",
        window=16,
        agent={"tools": [tools]} if tools else {},
        path=folder,
    )
    await rollouts.run()
    with open_journal(folder / "runs.db") as journal:
        return [load_row(journal, f"rollout-{number}-0") for number in range(1, count + 1)]


async def make_all_rows(options: argparse.Namespace) -> dict[str, list[Row]]:
    """Return the rows for each model that is trained on rows. Treadle keeps those of runs with the reward 1."""
    real = await make_rows(options.train, options.rows, options.out / "oracle")
    rows = {OURS: [row for row in real if row.lineage.reward == 1.0]}
    rows[MOCK] = [simulate(row, is_mock=True) for row in real]
    if options.recorded:
        made = await make_rows(options.train, options.rows, options.out / "recorded", options.recorded)
        rows[RECORDED] = [simulate(row, is_mock=False) for row in made]
    return rows


def learn(name: str, rows: Sequence[Row], words: Vocabulary, options: argparse.Namespace) -> Network:
    """Return a network that was trained from nothing on rows."""
    torch.manual_seed(options.seed)
    network = Network(words.size, options.width, options.layers, options.heads).to(options.device)
    found = TokenRows([tokenize(row, words.renderer) for row in rows], words.names, options.seed)
    train(
        network,
        found,
        options.tokens,
        rate=options.rate,
        size=options.batch_tokens,
        tell=lambda text: say(f"{name}: {text}"),
    )
    return network


def find_gradients(network: Any, groups: Sequence[Group], device: str, size: int) -> None:
    """Add the gradients of the clipped policy-gradient loss, the mean over all tokens that the policy sampled.

    `size` is about how many tokens pass through the network at the same time.
    """
    found = [
        (row, rollout.advantage or 0.0)
        for group in groups
        for rollout in group.rollouts
        for row in rollout.trajectories
        if group.has_variance
    ]
    found.sort(key=lambda item: len(item[0].token_ids_T))
    total = sum([sum(row.sampled_T) for row, _ in found])
    while found:
        count = max(1, size // len(found[-1][0].token_ids_T))
        part, found = found[-count:], found[:-count]
        longest = len(part[-1][0].token_ids_T)

        def stack(values: Iterable[Sequence[float]], longest: int = longest) -> Tensor:
            return torch.tensor([[*row, *[0] * (longest - len(row))] for row in values], device=device)

        ids = stack([row.token_ids_T for row, _ in part])
        mask = stack([row.sampled_T for row, _ in part])[:, 1:]
        before = stack([row.logprobs_T for row, _ in part])[:, 1:].nan_to_num()
        advantages = torch.tensor([[value] for _, value in part], device=device)
        ratios = (network.logprobs(ids) - before).exp()
        gains = torch.minimum(ratios * advantages, ratios.clamp(0.8, 1.25) * advantages)
        (-(gains * mask).sum() / total).backward()


async def reinforce(
    network: Any, app: NetworkApp, model: dict[str, Any], options: argparse.Namespace
) -> tuple[float, float]:
    """Train a network on rollouts, and return the mean reward of the first and of the last fifth of the groups."""
    optimizer = torch.optim.AdamW(network.parameters(), lr=options.rl_rate, weight_decay=0.0)
    rollouts = Rollouts(
        model=model,
        tasks=[options.train],
        groups=options.rl_steps * options.rl_groups,
        group_size=options.rl_group_size,
        window=options.rl_groups * options.rl_group_size,
        advantages="group",
        curriculum={"by": "family"},
        agent={"max_steps": options.max_steps},
        path=options.out / "rl",
        seed=options.seed + 1,
    )
    means: list[float] = []
    batch: list[Group] = []
    async for group in rollouts:
        means.append(statistics.fmean([reward for reward in group.rewards_G if reward is not None]))
        batch.append(group)
        if len(batch) < options.rl_groups:
            continue
        if any([item.has_variance for item in batch]):
            optimizer.zero_grad()
            find_gradients(network, batch, options.device, options.rl_batch_tokens)
            torch.nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
        batch.clear()
        app.set_version(str(int(app.version) + 1))
        if int(app.version) % 5 == 0:
            say(f"RL, step {app.version}: reward {statistics.fmean(means[-5 * options.rl_groups :]):.3f}")
    share = max(1, len(means) // 5)
    return statistics.fmean(means[:share]), statistics.fmean(means[-share:])


async def prove(options: argparse.Namespace) -> Proof:
    """Do all steps, write the reports, and return what was found."""
    torch.set_num_threads(options.threads)
    proof, out = Proof(), options.out
    networks: dict[str, Any] = {}
    if options.model:
        from hub import HubNetwork, find_renderer

        networks[OURS], renderer = HubNetwork(options.model, options.device), find_renderer(options.model)
        blind_text = next(iter(task_set(options.train.partition(":")[0]))).input
    else:
        rows = await make_all_rows(options)
        blind_text = load_task(str(rows[OURS][0].lineage.task)).input
        words = make_vocabulary([row for found in rows.values() for row in found], out / "tokenizer")
        renderer = words.renderer
        proof.note("rows")
        say(", ".join([f"{len(found):,} rows for {name}" for name, found in rows.items()]))
        for name, found in rows.items():
            networks[name] = learn(name, found, words, options)
            proof.note(f"training of {name}")
        proof.facts = [
            f"a vocabulary of {words.size:,}, {len(words.names):,} of which are permuted anew for each row",
            f"{len(rows[OURS]):,} rows of {options.rows:,} runs, {options.tokens:,} tokens for each model",
        ]
    networks |= {BLIND_NAME: networks[OURS], REINFORCED: copy.deepcopy(networks[OURS])}
    count = sum([item.numel() for item in networks[OURS].parameters()])
    proof.facts += [
        f"{count:,} parameters",
        f"RL: {options.rl_steps} steps of {options.rl_groups} groups of {options.rl_group_size} rollouts",
    ]
    app = NetworkApp(networks, renderer, blind_text)
    server = await serve(app=app)
    try:
        models = {name: describe(server.url, name, renderer, options.max_output_tokens) for name in networks}
        proof.rewards = await reinforce(networks[REINFORCED], app, models[REINFORCED], options)
        for name in (OURS, REINFORCED):
            torch.save(networks[name].state_dict(), out / f"{name}.pt")
        proof.note("RL")
        order = [name for name in (REINFORCED, OURS, RECORDED, MOCK, BLIND_NAME) if name in models]
        splits = {"instances": (options.instances, options.eval_tasks)}
        if options.templates:
            splits["templates"] = (options.templates, max(1, options.eval_tasks // 2))
        for split, (tasks, most) in splits.items():
            say(f"evaluating {len(order)} models on held-out {split}")
            done = await evaluate(
                name=f"held-out-{split}",
                models=[models[name] for name in order],
                tasks=tasks.split(","),
                max_tasks=most,
                agent={"max_steps": options.max_steps},
                path=out / split,
            )
            proof.evaluations[split] = done.results
            write_page(make_view(out / split), out / f"{split}.html")
        proof.note("evaluation")
    finally:
        await server.close()
    (out / "report.md").write_text(write_report(proof))
    return proof


def write_report(proof: Proof) -> str:
    """Return what was found as Markdown."""
    lines = ["# Rows, a model, and RL", "", *[f"- {fact}" for fact in proof.facts]]
    lines += [f"- {name}: {seconds:.0f} CPU seconds" for name, seconds in proof.cpu_seconds.items()]
    lines += [f"- in all {sum(proof.cpu_seconds.values()):.0f} CPU seconds"]
    lines += [f"- mean reward in the RL: {proof.rewards[0]:.3f} at first, {proof.rewards[1]:.3f} at last"]
    for split, results in proof.evaluations.items():
        solved = {item.model.partition(":")[2]: item.pass_at[1] for item in results.models}
        lines += ["", f"## In short: held-out {split}", ""]
        lines += [f"- {name} solves {found}" for name, found in solved.items()]
        for pair in results.pairs:
            one, other = pair.one.partition(":")[2], pair.other.partition(":")[2]
            if OURS in (one, other):
                found = pair.difference
                verdict = "significant" if found.is_significant else "not significant"
                lines += [
                    f"- {one} minus {other}: {found.mean:+.3f} [{found.low:+.3f}, {found.high:+.3f}], "
                    f"p = {found.p_value:.2g}, {verdict} at 0.05"
                ]
        lines += ["", re.sub("^#", "##", write_markdown(results), flags=re.MULTILINE).rstrip()]
    return "\n".join(lines) + "\n"


def count(text: str) -> int:
    """Return a number from 1, so that no step fails on nothing after minutes of work."""
    if not text.isdecimal() or not int(text):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--out", type=Path, default=Path("prove"), help="the folder of all that is made; it must be new")
    add("--train", default="errands:train", help="the tasks to train on")
    add("--instances", default="errands:instances", help="held-out tasks, with commas between patterns")
    add("--templates", default="errands:templates", help="tasks of held-out templates; empty: none")
    add(
        "--recorded",
        default="errands:RECORDED",
        help="mocks of the tools with recorded responses; empty: none",
    )
    add(
        "--model",
        help="a model of Hugging Face, a folder or a name on the hub, in place of one trained on rows",
    )
    add("--rows", type=count, default=400, help="how many runs of the oracle rows are made of")
    add("--tokens", type=count, default=480_000, help="how many tokens each model is trained on")
    add("--device", default="cpu", help="where the models are, such as cuda")
    add("--threads", type=count, default=1, help="the threads of torch")
    add("--seed", type=int, default=0)
    add("--width", type=count, default=96)
    add("--layers", type=count, default=2)
    add("--heads", type=count, default=4)
    add("--batch-tokens", type=count, default=320, help="the tokens of a step on rows")
    add("--rate", type=float, default=3e-3, help="the learning rate on rows")
    add("--rl-steps", type=count, default=300)
    add("--rl-groups", type=count, default=8, help="the groups of a step")
    add("--rl-group-size", type=count, default=8)
    add("--rl-batch-tokens", type=count, default=8192, help="the tokens of one pass in the RL")
    add("--rl-rate", type=float, default=5e-4, help="the learning rate of the RL")
    add("--eval-tasks", type=count, default=720)
    add("--max-steps", type=count, default=6, help="the most inferences of a run")
    add("--max-output-tokens", type=count, default=48)
    options = parser.parse_args(arguments)
    if options.out.exists() and any(options.out.iterdir()):
        parser.error(f"--out {options.out} is not empty; give a new folder")
    TASK_SETS.add("errands", ErrandSet())
    asyncio.run(prove(options))
    print((options.out / "report.md").read_text())


if __name__ == "__main__":
    main()
