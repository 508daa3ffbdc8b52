"""`treadle fork`: a new run from the first events of another."""

from contextlib import closing
from typing import Annotated

import typer

from treadle.cli.jobs.agents import RunAgents
from treadle.cli.jobs.drive import FollowUp, drive
from treadle.cli.jobs.journals import find_run, new_run_id, open_existing
from treadle.cli.options import shared as o
from treadle.cli.options.agent import AgentOptions, PolicyOptions
from treadle.core.errors import ConfigError
from treadle.core.events import TurnCompleted
from treadle.core.state import fold
from treadle.journal.protocol import Journal

EXAMPLES = (
    "treadle fork 1a1fb3a3 --at 12 --model openai:gpt-5-mini",
    'treadle fork last --text "Now write it to a file."',
)


def fork(
    run: o.RunId,
    at: Annotated[
        int | None,
        typer.Option(
            "--at", metavar="SEQ", min=1, help="The last event to keep; treadle show RUN --events lists them."
        ),
    ] = None,
    turn: Annotated[
        int | None,
        typer.Option(
            "--turn", metavar="N", min=1, help="The last turn of a session to keep, instead of --at."
        ),
    ] = None,
    text: Annotated[
        str | None,
        typer.Option("--text", metavar="TEXT", help="A message that opens a new turn after a finished one."),
    ] = None,
    *,
    agent: AgentOptions,
    is_trusted: o.IsTrusted = False,
    journal: o.Journal = None,
    run_id: o.NewRunId = None,
    limits: PolicyOptions,
    shown: o.ViewOptions,
) -> int:
    """Start a new run from the first events of another run.

    The new run has the files of that moment, and the model, tools and limits of the other run unless others are
    given.
    """
    new_id = new_run_id(run_id)
    with closing(open_existing(journal)) as opened:
        old_id = find_run(opened, run)
        at = at if turn is None else _find_turn(opened, old_id, turn, at)
        _check(opened, old_id, at, text)
        runner = RunAgents(opened, agent, limits, is_trusted=is_trusted).agent_for_run(old_id, at)
        return drive(
            runner,
            lambda emit: runner.fork(old_id, at, text=text, new_run_id=new_id, on_event=emit),
            shown,
            new_id,
            FollowUp(journal, agent.api_key is not None),
        )


def _find_turn(journal: Journal, run_id: str, turn: int, at: int | None) -> int:
    """Return the number of the event that ends a turn. Raises: `ConfigError` if there is none, or `at` is given."""
    if at is not None:
        raise ConfigError("give --at or --turn, not both")
    for event in journal.scan(run_id):
        if isinstance(event.body, TurnCompleted) and event.body.turn == turn:
            return event.seq
    raise ConfigError(f"--turn {turn}: run {run_id!r} has no turn {turn} that has ended")


def _check(journal: Journal, run_id: str, at: int | None, text: str | None) -> None:
    """Raise an error if a run cannot be forked at an event, with or without a text. Raises: `ConfigError`."""
    events = journal.read(run_id, until_seq=at)
    if at is not None and at > len(events):
        raise ConfigError(f"--at {at}: run {run_id!r} has the events 1 to {len(events)}")
    last = len(events) if at is None else at
    is_open = fold([event.body for event in events[:last]]).turn.is_open
    if is_open and text is not None:
        raise ConfigError(
            f"--text opens a new turn, and the turn is still open at event {last}; leave it out"
        )
    if not is_open and text is None:
        raise ConfigError(
            f"the turn is over at event {last}; give --text TEXT for the next turn, or an earlier --at SEQ"
        )
