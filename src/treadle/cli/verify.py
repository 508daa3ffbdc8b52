"""`treadle verify`: run the tool calls of runs again and compare."""

from typing import Annotated

import typer

from treadle.cli.terminal import options as o

EXAMPLES = (
    "treadle verify --all",
    "treadle verify runs.jsonl",
)


def verify(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN...|FILE.jsonl", help="Run ids, or one exported journal.", show_default=False
        ),
    ] = None,
    is_all: Annotated[bool, typer.Option("--all", help="All runs of the journal.")] = False,
    tools: o.Tools = None,
    journal: o.Journal = None,
    is_json: o.IsJson = False,
) -> None:
    """Run the tool calls of runs again in a fresh sandbox, and compare the results.

    Calls of your own tools are made again if --tools names these; calls whose effect is once never are. The exit
    code is 0 if every result is the same, 1 otherwise.
    """
    from contextlib import closing

    from treadle.cli.terminal.output import exit_with
    from treadle.cli.terminal.setup import find_runs, open_existing
    from treadle.cli.verify_runs import read_file, verify_runs

    if runs and len(runs) == 1 and runs[0].endswith(".jsonl"):
        opened, run_ids = read_file(runs[0])
        exit_with(verify_runs(opened, run_ids, tools, is_json=is_json))
    with closing(open_existing(journal)) as opened:
        code = verify_runs(opened, find_runs(opened, runs, is_all=is_all), tools, is_json=is_json)
    exit_with(code)
