"""`treadle run`: one run, from its text or task to its end."""

from pathlib import Path
from typing import Annotated

import typer

from treadle.cli.terminal import options as o

EXAMPLES = (
    'treadle run "Which files are empty?" --model openai:gpt-5-mini --mount ./data',
    "treadle run --task files:csv_sum-0001 --model oracle",
)


def run(
    text: Annotated[
        str | None, typer.Argument(help="What to do; - reads it from standard input.", show_default=False)
    ] = None,
    task: Annotated[
        str | None, typer.Option("--task", metavar="SET:ID", help="A task, which is graded.")
    ] = None,
    model: o.Model = None,
    base_url: o.BaseUrl = None,
    api_key: o.ApiKey = None,
    tools: o.Tools = None,
    mount: Annotated[
        Path | None,
        typer.Option(
            metavar="DIR",
            help="A folder that is read into the run's sandbox, and never written to. Brings --tools files "
            "if no tools are given.",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A new folder, for the files that the run changed."),
    ] = None,
    instructions: Annotated[
        str | None, typer.Option("--instructions", metavar="TEXT", help="The system message.")
    ] = None,
    schema: Annotated[
        Path | None,
        typer.Option(
            "--schema", metavar="FILE", help="A JSON Schema that the answer must fit, as JSON or YAML."
        ),
    ] = None,
    journal: o.Journal = None,
    level: o.LevelOption = o.Level.PROCESS,
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
    """Run a model with tools on a text or a task, with every step kept in a journal."""
    from treadle.cli.run_once import RunRequest, run_once
    from treadle.cli.terminal.output import exit_with
    from treadle.cli.terminal.setup import Limits, ModelOptions, read_approve, read_tool_limits

    request = RunRequest(
        text=text,
        task=task,
        options=ModelOptions(
            model=model,
            base_url=base_url,
            tools=tuple(tools or ()),
            temperature=temperature,
            max_output_tokens=max_output_tokens,
            seed=seed,
        ),
        api_key=api_key,
        mount=mount,
        out=out,
        instructions=instructions,
        schema=schema,
        journal=journal,
        level=level,
        run_id=run_id,
        limits=Limits(
            max_steps=max_steps,
            max_tokens=max_tokens,
            max_tool_calls=max_tool_calls,
            max_cost_usd=max_cost,
            deadline_seconds=deadline,
            parallel_tool_calls=parallel,
            approve=read_approve(approve),
            tool_limits=read_tool_limits(tool_limit),
        ),
    )
    exit_with(run_once(request, is_json=is_json, is_quiet=is_quiet))
