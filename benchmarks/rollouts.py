"""Rollouts: the window over rollouts of groups, against one that does nothing else."""

import asyncio
import os
import time
from collections import Counter
from pathlib import Path

from benchmarks.common import Figure, serving
from benchmarks.generate import ROUNDS, WINDOW, ask_bare, open_folder, reset, simulate
from treadle.core.events import InferenceCompleted
from treadle.journal.registry import open_journal
from treadle.rollout import Rollouts

GROUPS, GROUP_SIZE = 100, 8


async def measure_window() -> list[Figure]:
    """Compare rollouts in groups with a window that does nothing but the same number of calls for each rollout."""
    os.environ["OPENAI_API_KEY"] = "none"
    ratios, details = [], []
    with serving("benchmarks.generate_server") as url:
        for number in range(ROUNDS + 1):
            with open_folder() as folder:
                await reset(url)
                rollouts = Rollouts(
                    model={"model": "openai:oracle", "base_url": url},
                    tasks=["files"],
                    groups=GROUPS,
                    group_size=GROUP_SIZE,
                    window=WINDOW,
                    path=folder,
                )
                begin, cpu = time.perf_counter(), time.process_time()
                result = await rollouts.run()
                ours, cpu = time.perf_counter() - begin, time.process_time() - cpu
                assert result.progress.rewards.mean == 1.0, result
                calls = await asyncio.to_thread(_count_calls, folder)
            await reset(url)
            bare = await ask_bare(url, calls)
            if number:  # the first round fills the server's memory
                ratios.append(bare / ours)
                each = sum(calls) / len(calls)
                details.append(
                    f"{ours:.2f} s to the last group (of processor time {cpu:.2f} s), against {bare:.2f} s "
                    f"(computed {simulate(calls):.2f} s); {len(calls)} rollouts, {each:.1f} calls each"
                )
    best = sorted(zip(ratios, details, strict=True))[len(ratios) // 2]
    name = f"a perfect window's time over that of {GROUPS} groups of {GROUP_SIZE} rollouts"
    rounds = ", ".join([f"{ratio:.2f}" for ratio in ratios])
    return [Figure(name, best[0], ">= 0.9", f"{best[1]}; {ROUNDS} rounds: {rounds}")]


def _count_calls(path: Path) -> list[int]:
    """Return how many answers each rollout needed, in the order of the plan."""
    found: Counter[tuple[int, int]] = Counter()
    with open_journal(path / "runs.db", must_exist=True) as journal:
        for info in journal.runs():
            _, group, index = info.run_id.split("-")
            answers = sum(isinstance(event.body, InferenceCompleted) for event in journal.read(info.run_id))
            found[int(group), int(index)] += answers
    return [found[key] for key in sorted(found)]
