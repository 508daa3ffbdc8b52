"""`treadle resume`: go on with unfinished runs."""

from typing import Annotated

import typer

from treadle.cli.terminal import options as o

EXAMPLES = (
    "treadle resume last",
    "treadle resume --all --parallel-runs 32",
)


def resume(
    run: Annotated[
        str | None,
        typer.Argument(metavar="RUN", help="A run id, its beginning, or 'last'.", show_default=False),
    ] = None,
    is_all: Annotated[bool, typer.Option("--all", help="All runs that are unfinished.")] = False,
    is_failed: Annotated[
        bool, typer.Option("--failed", help="With --all: also the runs that ended with an error.")
    ] = False,
    answer: Annotated[
        str | None, typer.Option("--answer", metavar="TEXT", help="To the question that the run waits on.")
    ] = None,
    model: o.Model = None,
    base_url: o.BaseUrl = None,
    api_key: o.ApiKey = None,
    tools: o.Tools = None,
    journal: o.Journal = None,
    parallel_runs: o.ParallelRuns = 16,
    is_json: o.IsStreamJson = False,
    is_quiet: o.IsQuiet = False,
) -> None:
    """Go on with a run that was interrupted, failed, or waits for an answer.

    The model, its server and the tools are those that the run was started with, unless others are given.
    """
    from contextlib import closing

    from treadle.cli.resume_runs import resume_all, resume_one
    from treadle.cli.terminal.output import exit_with
    from treadle.cli.terminal.resuming import Resuming
    from treadle.cli.terminal.setup import ModelOptions, open_existing
    from treadle.core.errors import ConfigError

    if (run is None) is not is_all:
        raise ConfigError("give a run or --all" if run is None else "give a run or --all, not both")
    if is_all and answer is not None:
        raise ConfigError("--answer is for one run; give its id instead of --all")
    given = ModelOptions(model=model, base_url=base_url, tools=tuple(tools or ()))
    with closing(open_existing(journal)) as opened:
        resuming = Resuming(opened, journal, given, api_key)
        if run is None:
            code = resume_all(resuming, parallel_runs, has_failed=is_failed, is_json=is_json)
        else:
            code = resume_one(resuming, run, answer, is_json=is_json, is_quiet=is_quiet)
    exit_with(code)
