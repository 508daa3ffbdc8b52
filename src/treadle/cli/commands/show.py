"""`treadle show` and `treadle files`: one run."""

from pathlib import Path

from treadle.cli.exit import ExitCode
from treadle.cli.jobs.journals import open_existing
from treadle.cli.terminal.output import (
    clean,
    print_json,
    print_json_lines,
    print_line,
    print_lines,
    print_note,
    write_count,
)
from treadle.cli.terminal.transcripts import print_events, print_transcript, write_artifact
from treadle.core.errors import ConfigError
from treadle.core.state import fold
from treadle.runs.run import Run, find_changes, write_files
from treadle.runs.statuses import find_run
from treadle.trajectory.markdown import RESULT_CHARS, write_markdown


def show(
    run: str = "last",
    journal: str | None = None,
    is_events: bool = False,
    is_markdown: bool = False,
    is_full: bool = False,
    artifact: str | None = None,
    step: int | None = None,
    is_tokens: bool = False,
    renderer: str | None = None,
    is_json: bool = False,
) -> int:
    """Show a run's transcript, its events or its tokens.

    The transcript has the messages, the calls with their results, the usage, the cost and why the run ended.

    Examples:
        treadle show last
        treadle show last --context 12
    """
    with open_existing(journal) as opened:
        run_id = find_run(opened, run)
        if artifact is not None:
            write_artifact(opened, run_id, artifact)
        elif step is not None:
            from treadle.cli.terminal.prompts import print_context

            print_context(opened, run_id, step, is_full=is_full, is_json=is_json)
        elif is_tokens:
            from treadle.cli.terminal.prompts import print_tokens

            is_whole = print_tokens(opened, run_id, renderer, is_full=is_full, is_json=is_json)
            return ExitCode.DONE if is_whole else ExitCode.FAILED
        elif is_json:
            print_json_lines([event.to_json() for event in opened.read(run_id)])
        elif is_markdown:
            bodies = (event.body for event in opened.scan(run_id))
            limit = None if is_full else RESULT_CHARS
            text = "".join(write_markdown(run_id, bodies, limit)).rstrip()
            print_lines([clean(text).encode()])
        elif is_events:
            print_events(opened, run_id, is_full=is_full)
        else:
            print_transcript(opened, run_id, is_full=is_full)
    return ExitCode.DONE


def files(
    run: str = "last",
    out: Path | None = None,
    at: int | None = None,
    is_changed: bool = False,
    is_forced: bool = False,
    journal: str | None = None,
    is_json: bool = False,
) -> None:
    """List the files of a run, or write them to a folder.

    These are the files in the run's sandbox: those that it began with, and those that its tools wrote.

    Examples:
        treadle files last
        treadle files 1a1fb3a3 --changed --out ./result
    """
    with open_existing(journal) as opened:
        run_id = find_run(opened, run)
        events = opened.read(run_id)
        if at is not None and at > len(events):
            raise ConfigError(f"--at {at}: run {run_id!r} has the events 1 to {len(events)}")
        found = Run(run_id, fold([event.body for event in events[:at]]), opened)
        paths = find_changes(found).written if is_changed else sorted(found.state.sandbox.files)
        if out is not None:
            write_files(found, paths, out, is_forced=is_forced)
            print_note(f"{write_count(len(paths), 'file')} written to {str(out)!r}")
            return
        for path in paths:
            size = len(found.read_artifact(found.state.sandbox.files[path]))
            if is_json:
                print_json({"path": path, "bytes": size, "sha256": found.state.sandbox.files[path]})
            else:
                print_line(f"{path}  {write_count(size, 'byte')}")
    if not paths:
        print_note("no files")
