"""`treadle chat`: a conversation."""

from pathlib import Path
from typing import Annotated

import typer

from treadle.cli.terminal import options as o

EXAMPLES = (
    "treadle chat --model openai:gpt-5-mini --mount ./notes",
    "treadle chat --session 1a1fb3a3",
)


def chat(
    session: Annotated[
        str | None,
        typer.Option("--session", "-s", metavar="RUN", help="Go on with a session: its id, or 'last'."),
    ] = None,
    model: o.Model = None,
    base_url: o.BaseUrl = None,
    api_key: o.ApiKey = None,
    tools: o.Tools = None,
    mount: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A folder that is read into the sandbox, and never written to."),
    ] = None,
    instructions: Annotated[
        str | None, typer.Option("--instructions", metavar="TEXT", help="The system message.")
    ] = None,
    journal: o.Journal = None,
    level: o.LevelOption = o.Level.PROCESS,
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
) -> None:
    """Talk with a model that has tools. Ctrl-C stops a turn, Ctrl-D leaves; limits count for each turn."""
    from contextlib import closing

    from treadle.cli.chat_session import Chat
    from treadle.cli.terminal.output import exit_with
    from treadle.cli.terminal.resuming import Resuming
    from treadle.cli.terminal.setup import (
        Limits,
        ModelOptions,
        find_run,
        make_agent,
        open_or_make,
        read_approve,
        read_tool_limits,
    )
    from treadle.core.errors import ConfigError
    from treadle.core.policy import Policy

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
    with closing(open_or_make(journal, level)) as opened:
        if session is None:
            options = given.with_files(mount)
            agent = make_agent(
                options,
                api_key,
                opened,
                policy=limits.over(Policy()),
                instructions=instructions,
                files=mount,
            )
            run_id = None
        else:
            if mount is not None or instructions is not None or limits != Limits():
                raise ConfigError(
                    "a session keeps its files, instructions and limits; give them to a new one"
                )
            run_id = find_run(opened, session)
            agent = Resuming(opened, journal, given, api_key).agent_for(run_id)
        code = Chat(agent, journal, run_id).run()
    exit_with(code)
