"""`treadle fork`: a new run from the first events of another."""

from contextlib import closing
from typing import Annotated

import typer

from treadle.agent.driving import make_run_id
from treadle.cli.options import shared as o
from treadle.cli.options.agent import AgentOptions, PolicyOptions
from treadle.cli.terminal.agents import RunAgents
from treadle.cli.terminal.drive import FollowUp, drive
from treadle.cli.terminal.journals import find_run, open_existing

EXAMPLES = (
    "treadle fork 1a1fb3a3 --at 12 --model openai:gpt-5-mini",
    'treadle fork last --text "Now write it to a file."',
)


def fork(
    run: o.RunId,
    at: Annotated[
        int | None,
        typer.Option(
            "--at", metavar="SEQ", help="The last event to keep; treadle show RUN --events lists them."
        ),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option("--text", metavar="TEXT", help="A message that opens a new turn after a finished one."),
    ] = None,
    *,
    agent: AgentOptions,
    journal: o.Journal = None,
    run_id: o.NewRunId = None,
    limits: PolicyOptions,
    shown: o.ViewOptions,
) -> int:
    """Start a new run from the first events of another run.

    The new run has the files of that moment, and the model, tools and limits of the other run unless others are
    given.
    """
    with closing(open_existing(journal)) as opened:
        old_id = find_run(opened, run)
        runner = RunAgents(opened, agent, limits).agent_for_run(old_id)
        new_id = run_id or make_run_id()
        return drive(
            runner,
            lambda emit: runner.fork(old_id, at, text=text, new_run_id=new_id, on_event=emit),
            shown,
            new_id,
            FollowUp(journal, agent.api_key is not None),
        )
