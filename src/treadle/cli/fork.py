"""`treadle fork`: what if."""

from typing import Annotated

import typer

from treadle.cli.terminal import options as o

EXAMPLES = (
    "treadle fork 1a1fb3a3 --at 12 --model openai:gpt-5-mini",
    'treadle fork last --text "Now write it to a file."',
)


def fork(
    run: o.RunId,
    at: Annotated[
        int | None,
        typer.Option(
            "--at", metavar="SEQ", help="The last event to keep; treadle show RUN --events has them."
        ),
    ] = None,
    text: Annotated[
        str | None, typer.Option("--text", metavar="TEXT", help="Opens a new turn, where one is over.")
    ] = None,
    model: o.Model = None,
    base_url: o.BaseUrl = None,
    api_key: o.ApiKey = None,
    tools: o.Tools = None,
    journal: o.Journal = None,
    run_id: Annotated[
        str | None, typer.Option("--run-id", metavar="ID", help="Made up unless given.")
    ] = None,
    max_steps: o.MaxSteps = None,
    max_tokens: o.MaxTokens = None,
    max_tool_calls: o.MaxToolCalls = None,
    max_cost: o.MaxCost = None,
    deadline: o.Deadline = None,
    parallel: o.Parallel = None,
    approve: o.Approve = None,
    tool_limit: o.ToolLimit = None,
    temperature: o.Temperature = None,
    max_output_tokens: o.MaxOutputTokens = None,
    seed: o.Seed = None,
    is_json: o.IsStreamJson = False,
    is_quiet: o.IsQuiet = False,
) -> None:
    """Make a new run from the beginning of another, with its files of that moment, and go on from there."""
    from contextlib import closing

    from treadle.cli.fork_run import fork_run
    from treadle.cli.terminal.output import exit_with
    from treadle.cli.terminal.resuming import Resuming
    from treadle.cli.terminal.setup import Limits, ModelOptions, open_existing, read_approve, read_tool_limits

    given = ModelOptions(
        model=model,
        base_url=base_url,
        tools=tuple(tools or ()),
        temperature=temperature,
        max_output_tokens=max_output_tokens,
        seed=seed,
    )
    limits = Limits(
        max_steps=max_steps,
        max_tokens=max_tokens,
        max_tool_calls=max_tool_calls,
        max_cost_usd=max_cost,
        deadline_seconds=deadline,
        parallel_tool_calls=parallel,
        approve=read_approve(approve),
        tool_limits=read_tool_limits(tool_limit),
    )
    with closing(open_existing(journal)) as opened:
        resuming = Resuming(opened, journal, given, api_key, limits)
        code = fork_run(resuming, run, at, text, run_id, is_json=is_json, is_quiet=is_quiet)
    exit_with(code)
