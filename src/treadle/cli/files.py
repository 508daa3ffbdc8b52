"""`treadle files`: the files of a run's sandbox."""

from contextlib import closing
from pathlib import Path
from typing import Annotated

import typer

from treadle.cli.exit import ExitCode
from treadle.cli.jobs.changes import find_changes, write_files
from treadle.cli.jobs.journals import find_run, open_existing
from treadle.cli.options import shared as o
from treadle.cli.terminal.output import clean, print_json, print_note, stdout, write_count
from treadle.core.errors import ConfigError
from treadle.core.state import fold
from treadle.runs.run import Run

EXAMPLES = (
    "treadle files last",
    "treadle files 1a1fb3a3 --changed --out ./result",
)


def files(
    run: o.RunId = "last",
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="DIR", help="Write the files to this folder. Default: list them."
        ),
    ] = None,
    at: Annotated[
        int | None,
        typer.Option("--at", metavar="SEQ", min=1, help="The files after this event. Default: the last one."),
    ] = None,
    is_changed: Annotated[
        bool, typer.Option("--changed", help="Only the files that the run added or changed.")
    ] = False,
    is_forced: Annotated[bool, typer.Option("--force", help="Replace files that exist in DIR.")] = False,
    journal: o.Journal = None,
    is_json: o.IsJson = False,
) -> ExitCode:
    """List the files of a run, or write them to a folder.

    These are the files in the run's sandbox: those that it began with, and those that its tools wrote.
    """
    with closing(open_existing(journal)) as opened:
        run_id = find_run(opened, run)
        events = opened.read(run_id)
        if at is not None and at > len(events):
            raise ConfigError(f"--at {at}: run {run_id!r} has the events 1 to {len(events)}")
        found = Run(run_id, fold([event.body for event in events[:at]]), opened)
        paths = find_changes(found).written if is_changed else sorted(found.state.sandbox.files)
        if out is not None:
            write_files(found, paths, out, is_forced=is_forced)
            print_note(f"{write_count(len(paths), 'file')} written to {str(out)!r}")
            return ExitCode.DONE
        for path in paths:
            size = len(found.read_artifact(found.state.sandbox.files[path]))
            if is_json:
                print_json({"path": path, "bytes": size, "sha256": found.state.sandbox.files[path]})
            else:
                stdout().print(f"{clean(path)}  {write_count(size, 'byte')}", soft_wrap=True)
    if not paths:
        print_note("no files")
    return ExitCode.DONE
