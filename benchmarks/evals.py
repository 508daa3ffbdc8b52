"""Evaluations: samples per second of the harness against Inspect with its mock model, on the same tasks, and how
often intervals have the true mean.

Inspect is not among the packages of the tests. `INSPECT_PYTHON` names the Python of an environment that has
inspect_ai; without it, only the rate of Treadle is printed.
"""

import asyncio
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.common import Figure
from benchmarks.generate import open_folder
from treadle import tool
from treadle.evals import evaluate
from treadle.runs.task import SimpleTask
from treadle.scoring.statistics import estimate_mean

SAMPLES, CALLS, ROUNDS, WINDOW = 100, 2, 3, 64
EVALUATIONS = 1000
SETTINGS = [
    (tasks, epochs, alike, rates)
    for tasks in (5, 10, 20, 50, 200)
    for epochs in ((1, 1), (4, 4), (1, 8))
    for alike in (0.5, 2.0)
    for rates in ((0.02, 0.1), (0.1, 0.9))
]
"""The numbers of tasks, the least and the most samples of each task, how little samples of a task are alike (the
sum of the two parameters of the Beta distribution of their rates), and the range of the true means."""


@tool(effect="pure")
async def add(a: int, b: int) -> str:
    """Add two numbers."""
    return str(a + b)


def _is_right(task: SimpleTask, output: str, files: object) -> float:
    return float(output.strip() == str(task.data))


def make_tasks() -> list[SimpleTask]:
    """Return tasks in which the model calls a tool twice, in two steps, and gives the answer."""
    tasks = []
    for number in range(SAMPLES):
        script = "\nthen\n".join([f'call add {{"a": {number}, "b": {step}}}' for step in range(CALLS)])
        task = SimpleTask(
            task_id=f"add-{number:04d}",
            input=f"{script}\nsay {number + CALLS - 1}",
            tools=("benchmarks.evals:add",),
            grader=_is_right,
            data=number + CALLS - 1,
        )
        tasks.append(task)
    return tasks


_INSPECT = """
import json, os, re, sys, tempfile, time
from inspect_ai import Task, eval as run_eval, task
from inspect_ai.dataset import Sample
from inspect_ai.model import ModelOutput, ModelUsage, get_model
from inspect_ai.scorer import match
from inspect_ai.solver import generate, use_tools
from inspect_ai.tool import tool

if hasattr(os, "sched_setaffinity"):
    os.sched_setaffinity(0, {0})
samples, calls, window = map(int, sys.argv[1:])

@tool
def add():
    async def execute(a: int, b: int) -> str:
        '''Add two numbers.

        Args:
            a: The first number.
            b: The second number.
        '''
        return str(a + b)
    return execute

def answer(messages, tools, choice, config):
    number = int(re.search(r"\\d+", messages[0].text)[0])
    made = sum(item.role == "assistant" for item in messages)
    if made < calls:
        output = ModelOutput.for_tool_call("mockllm/model", "add", {"a": number, "b": made})
    else:
        output = ModelOutput.from_content("mockllm/model", str(number + calls - 1))
    output.usage = ModelUsage(input_tokens=20, output_tokens=10, total_tokens=30)  # else it loads a tokenizer
    return output

dataset = [Sample(input=f"add to {n}", target=str(n + calls - 1), id=n + 1) for n in range(samples)]
work = Task(dataset=dataset, solver=[use_tools(add()), generate()], scorer=match(location="exact"))
with tempfile.TemporaryDirectory() as folder:
    for count in (10, None):
        begin = time.perf_counter()
        model = get_model("mockllm/model", custom_outputs=answer, memoize=False)
        (log,) = run_eval(work, model=model, log_dir=folder, display="none", max_samples=window,
                          max_connections=window, limit=count)
        seconds = time.perf_counter() - begin
assert log.status == "success" and log.results.scores[0].metrics["accuracy"].value == 1.0, log.error
print(json.dumps(seconds))
"""


async def measure() -> list[Figure]:
    """Compare the samples per second of an evaluation with those of Inspect, in turns, each on one core."""
    python = os.environ.get("INSPECT_PYTHON") or None
    ours: list[float] = []
    theirs: list[float] = []
    for number in range(ROUNDS + 1):
        with open_folder() as folder:
            begin = time.perf_counter()
            made = await evaluate(
                models=["mock:echo"], tasks=["benchmarks.evals:make_tasks"], window=WINDOW, path=str(folder)
            )
            seconds = time.perf_counter() - begin
        score = made.results.models[0].score
        assert score is not None
        assert (score.mean, score.samples) == (1.0, SAMPLES), made.results.failures
        if python is not None:
            command = [python, "-c", _INSPECT, *map(str, (SAMPLES, CALLS, WINDOW))]
            done = await asyncio.to_thread(
                subprocess.run, command, capture_output=True, text=True, check=True, cwd=Path.home()
            )
            theirs += [float(json.loads(done.stdout.splitlines()[-1]))] if number else []
        ours += [seconds] if number else []  # the first round loads modules
    rate = SAMPLES / median(ours)
    detail = f"{rate:,.0f} samples/s of {CALLS + 1} steps, each run and grade stored"
    if not theirs:
        print("INSPECT_PYTHON names no Python with inspect_ai, so there is no comparison", file=sys.stderr)
        return [Figure("samples/s of an evaluation", rate, ">= 0", detail)]
    ratio = median(theirs) / median(ours)
    detail += f", against {SAMPLES / median(theirs):,.0f}; {ROUNDS} rounds in turns"
    return [Figure("samples/s of an evaluation over those of inspect_ai", ratio, ">= 10", detail)]


async def measure_coverage() -> list[Figure]:
    """Simulate evaluations whose true mean is known, and count how many have it in their interval of 95 %."""
    found: list[tuple[float, str]] = []
    for tasks, epochs, alike, rates in SETTINGS:
        draw = random.Random(f"{tasks}/{epochs[1]}/{alike}/{rates}")
        hits = sum([is_covered(draw, tasks, epochs, alike, rates) for _ in range(EVALUATIONS)])
        sizes = "-".join(map(str, sorted({*epochs})))
        name = f"{tasks} tasks x {sizes}, alike {alike:g}, means {rates[0]:g} to {rates[1]:g}"
        found.append((hits / EVALUATIONS, name))
    inside = [share for share, _ in found if 0.93 <= share <= 0.97]
    (low, lowest), (high, highest) = min(found), max(found)
    total = sum([share for share, _ in found]) / len(found)
    outside = "; ".join([f"{share:.3f} for {name}" for share, name in found if not 0.93 <= share <= 0.97])
    return [
        Figure("least coverage of the true mean at 95 %", low, ">= 0.93", f"{lowest}; mean {total:.4f}"),
        Figure("most coverage of the true mean at 95 %", high, "<= 0.97", highest),
        Figure("share of settings within 0.93 to 0.97", len(inside) / len(found), ">= 1", outside or "all"),
    ]


def is_covered(
    draw: random.Random, tasks: int, epochs: tuple[int, int], alike: float, rates: tuple[float, float]
) -> bool:
    """Return whether the interval of one simulated evaluation has its true mean."""
    mean = draw.uniform(*rates)
    scores: list[Any] = []
    for _ in range(tasks):
        rate = draw.betavariate(mean * alike, (1 - mean) * alike)
        least, most = epochs
        size = least if least == most else draw.randint(least, most)
        scores.append([float(draw.random() < rate) for _ in range(size)])
    found = estimate_mean(scores)
    assert found is not None
    return found.low <= mean <= found.high
