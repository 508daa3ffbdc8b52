"""`treadle show`: one run, as a transcript, as events, as tokens or as lines of JSON."""

from contextlib import closing
from typing import Annotated

import typer

from treadle.cli.exit import ExitCode
from treadle.cli.jobs.journals import find_run, open_existing
from treadle.cli.options import shared as o
from treadle.cli.terminal.output import print_lines
from treadle.cli.terminal.transcript import print_events, print_transcript, write_artifact
from treadle.trajectory.markdown import RESULT_CHARS, write_markdown

EXAMPLES = (
    "treadle show last",
    "treadle show last --context 12",
)


def show(
    run: o.RunId = "last",
    journal: o.Journal = None,
    is_events: Annotated[
        bool, typer.Option("--events", help="List the events with their seq, for treadle fork RUN --at SEQ.")
    ] = False,
    is_markdown: Annotated[
        bool, typer.Option("--markdown", help="Write the messages as a Markdown document, with folded calls.")
    ] = False,
    is_full: Annotated[bool, typer.Option("--full", help="Shorten nothing.")] = False,
    artifact: Annotated[
        str | None,
        typer.Option(
            "--artifact",
            metavar="HASH",
            help="Write one artifact to standard output: its hash, or the beginning of it.",
        ),
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(
            "--context",
            metavar="STEP",
            min=1,
            help="Show what the model saw at this step, with sizes, and what was left out and why.",
        ),
    ] = None,
    is_tokens: Annotated[
        bool,
        typer.Option(
            "--tokens",
            help="Show the token ids as branches: what was sampled, where it is trained on, and how probable each "
            "token was.",
        ),
    ] = False,
    renderer: Annotated[
        str | None,
        typer.Option(
            "--renderer",
            metavar="NAME",
            help="With --tokens: the renderer that converts token ids to text, such as chatml, hf:FOLDER or "
            "family:NAME. Default: "
            "the renderer of the run's model.",
        ),
    ] = None,
    is_json: o.IsJson = False,
) -> int:
    """Show a run's transcript, its events or its tokens.

    The transcript has the messages, the calls with their results, the usage, the cost and why the run ended.
    """
    with closing(open_existing(journal)) as opened:
        run_id = find_run(opened, run)
        if artifact is not None:
            write_artifact(opened, run_id, artifact)
        elif step is not None:
            from treadle.cli.terminal.context import print_context

            print_context(opened, run_id, step, is_full=is_full, is_json=is_json)
        elif is_tokens:
            from treadle.cli.terminal.tokens import print_tokens

            is_whole = print_tokens(opened, run_id, renderer, is_full=is_full, is_json=is_json)
            return ExitCode.DONE if is_whole else ExitCode.FAILED
        elif is_json:
            print_lines([event.to_json() for event in opened.read(run_id)])
        elif is_markdown:
            bodies = (event.body for event in opened.scan(run_id))
            limit = None if is_full else RESULT_CHARS
            print_lines("".join(write_markdown(run_id, bodies, limit)).rstrip().encode().split(b"\n"))
        elif is_events:
            print_events(opened, run_id, is_full=is_full)
        else:
            print_transcript(opened, run_id, is_full=is_full)
    return ExitCode.DONE
