"""`treadle demo`: many runs, killed and resumed, replayed, exported and verified."""

from pathlib import Path
from typing import Annotated

import typer

from treadle.cli.terminal import options as o

EXAMPLES = (
    "treadle demo",
    "treadle demo --model qwen3 --base-url URL --tools mine.py --prompts prompts.txt",
)


def demo(
    tasks: Annotated[int, typer.Option("--tasks", metavar="N", min=1, help="How many runs.")] = 300,
    kill_after: Annotated[
        int | None,
        typer.Option(
            "--kill-after", metavar="N", min=0, help="Finished runs; a third unless given, 0 kills nothing."
        ),
    ] = None,
    parallel_runs: o.ParallelRuns = 100,
    model: o.Model = None,
    base_url: o.BaseUrl = None,
    api_key: o.ApiKey = None,
    tools: o.Tools = None,
    prompts: Annotated[
        Path | None,
        typer.Option(
            "--prompts", metavar="FILE", help="One text a line, instead of tasks; goes with --tools."
        ),
    ] = None,
    out: Annotated[
        Path, typer.Option("--out", metavar="DIR", help="For demo.db and rows.jsonl, which are replaced.")
    ] = Path("demo"),
) -> None:
    """Watch runs being killed in the middle, resumed, replayed, exported and verified, all offline.

    A server plays the model and a worker runs the tasks, each in a process of its own. With --model,
    --base-url, --tools and --prompts the same is done with a model and functions of yours.
    """
    from treadle.cli.demo.stages import DemoOptions, run_demo
    from treadle.cli.terminal.output import exit_with
    from treadle.cli.terminal.setup import ModelOptions

    options = DemoOptions(
        tasks=tasks,
        kill_after=kill_after,
        parallel_runs=parallel_runs,
        model=ModelOptions(model=model, base_url=base_url, tools=tuple(tools or ())),
        api_key=api_key,
        prompts=prompts,
        out=out,
    )
    exit_with(run_demo(options))
