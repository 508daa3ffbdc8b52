"""`treadle demo`: many runs that are killed, resumed, replayed, exported and verified."""

from pathlib import Path
from typing import Annotated

import typer

from treadle.cli.demo.stages import DemoOptions, run_demo
from treadle.cli.options import shared as o
from treadle.cli.options.agent import AgentOptions

EXAMPLES = (
    "treadle demo",
    "treadle demo --model qwen3 --base-url URL --tools mine.py --prompts prompts.txt",
)


def demo(
    tasks: Annotated[int, typer.Option("--tasks", metavar="N", min=1, help="The number of runs.")] = 300,
    kill_after: Annotated[
        int | None,
        typer.Option(
            "--kill-after",
            metavar="N",
            min=0,
            help="Kill the worker after this many finished runs. Default: a third; 0 does not kill it.",
        ),
    ] = None,
    parallel_runs: o.ParallelRuns = 100,
    *,
    agent: AgentOptions,
    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts",
            metavar="FILE",
            help="A file with one text per line, run instead of tasks; for --tools.",
        ),
    ] = None,
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", metavar="DIR", help="The folder for demo.db and rows.jsonl, which are replaced."
        ),
    ] = Path("demo"),
) -> int:
    """Watch runs being killed, resumed, replayed, exported and verified, all offline.

    A server answers for the model and a worker drives the runs, each in its own process. With --model, --base-url,
    --tools and --prompts, the demo uses your own model and functions.
    """
    options = DemoOptions(
        tasks=tasks,
        kill_after=kill_after,
        parallel_runs=parallel_runs,
        agent=agent,
        prompts=prompts,
        out=out,
    )
    return run_demo(options)
