"""`treadle show`: a run's transcript, or its events."""

from typing import Annotated

import typer

from treadle.cli.terminal import options as o

EXAMPLES = (
    "treadle show last",
    "treadle show 1a1fb3a3 --events",
)


def show(
    run: o.RunId = "last",
    journal: o.Journal = None,
    is_events: Annotated[
        bool, typer.Option("--events", help="Each event with its seq, for treadle fork RUN --at SEQ.")
    ] = False,
    is_full: Annotated[bool, typer.Option("--full", help="Nothing is shortened.")] = False,
    artifact: Annotated[
        str | None,
        typer.Option(
            "--artifact",
            metavar="HASH",
            help="Write one artifact to standard output: its hash, or its beginning.",
        ),
    ] = None,
    is_json: o.IsJson = False,
) -> None:
    """Show a run: its transcript with calls and results, usage, cost and why it ended."""
    from contextlib import closing

    from treadle.cli.terminal.setup import find_run, open_existing
    from treadle.cli.terminal.transcript import print_events, print_json, print_transcript, write_artifact

    with closing(open_existing(journal)) as opened:
        run_id = find_run(opened, run)
        if artifact is not None:
            write_artifact(opened, run_id, artifact)
        elif is_json:
            print_json(opened, run_id)
        elif is_events:
            print_events(opened, run_id, is_full=is_full)
        else:
            print_transcript(opened, run_id, is_full=is_full)
