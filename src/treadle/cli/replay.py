"""`treadle replay`: decide a run again, without a model or a tool."""

from typing import Annotated

import typer

from treadle.cli.terminal import options as o

EXAMPLES = (
    "treadle replay --all",
    "treadle replay last --max-steps 3",
)


def replay(
    runs: Annotated[
        list[str] | None,
        typer.Argument(metavar="RUN...", help="Run ids, their beginnings, or 'last'.", show_default=False),
    ] = None,
    is_all: Annotated[bool, typer.Option("--all", help="All runs of the journal.")] = False,
    journal: o.Journal = None,
    max_steps: o.MaxSteps = None,
    max_tokens: o.MaxTokens = None,
    max_tool_calls: o.MaxToolCalls = None,
    max_cost: o.MaxCost = None,
    deadline: o.Deadline = None,
    parallel: o.Parallel = None,
    is_json: o.IsJson = False,
) -> None:
    """Decide runs again from their journal, and say where a decision differs.

    A limit that is given takes the place of the recorded one: the first decision that it would have changed is
    the divergence. The exit code is 0 if all are exact, 1 otherwise.
    """
    from contextlib import closing

    from treadle.cli.replay_runs import replay_runs
    from treadle.cli.terminal.output import exit_with
    from treadle.cli.terminal.setup import Limits, find_runs, open_existing

    limits = Limits(
        max_steps=max_steps,
        max_tokens=max_tokens,
        max_tool_calls=max_tool_calls,
        max_cost_usd=max_cost,
        deadline_seconds=deadline,
        parallel_tool_calls=parallel,
    )
    with closing(open_existing(journal)) as opened:
        code = replay_runs(opened, find_runs(opened, runs, is_all=is_all), limits, is_json=is_json)
    exit_with(code)
