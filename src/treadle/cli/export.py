"""`treadle export`: runs as rows for training, or as a journal in lines of JSON."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing
from pathlib import Path
from tempfile import SpooledTemporaryFile
from typing import Annotated

import typer

from treadle.cli.exit import ExitCode
from treadle.cli.jobs.journals import Apart, find_runs, open_existing
from treadle.cli.jobs.tokenrows import TokenOptions, export_tokens
from treadle.cli.options import shared as o
from treadle.cli.options.complete import complete_format
from treadle.cli.terminal.bar import bar
from treadle.cli.terminal.output import print_lines, print_note, write_count
from treadle.core.errors import ConfigError, ExportError
from treadle.core.registry import did_you_mean
from treadle.export import FORMATS, export_rows, load_row
from treadle.export.exporter import wants_tokens
from treadle.export.groups import GroupBy
from treadle.export.row_files import open_writer
from treadle.export.token_exporter import TOKEN_FORMATS
from treadle.export.whole import write_whole
from treadle.journal.jsonl import export_run
from treadle.journal.protocol import DAMAGED, Journal

EXAMPLES = (
    "treadle export --all --format trl -o rows.jsonl",
    "treadle export last --format journal | gzip > run.jsonl.gz",
)
JOURNAL_FORMAT = "journal"
_IN_MEMORY_BYTES = 16 * 1024 * 1024
"""How many bytes of a run's lines are kept in memory before they go to a temporary file."""
_MAX_LISTED = 3
"""How many of the runs that are left out are listed with the reason."""


def export(
    runs: o.RunIds = None,
    is_all: Annotated[
        bool, typer.Option("--all", help="All runs; for training rows, all finished runs.")
    ] = False,
    format_: Annotated[
        str,
        typer.Option(
            "--format",
            "-f",
            metavar="NAME",
            help=f"{', '.join([*FORMATS.names(), *TOKEN_FORMATS.names()])}, or journal.",
            autocompletion=complete_format,
        ),
    ] = "openai",
    out: o.Out = None,
    journal: o.Journal = None,
    group_by: Annotated[
        GroupBy, typer.Option("--group-by", help="Rows with tokens: what makes runs a group.")
    ] = GroupBy.GROUP,
    mask: Annotated[
        str,
        typer.Option(
            "--mask",
            metavar="NAME",
            help="Rows with tokens: what is trained on: all, last_turn, no_reasoning, or module:function.",
        ),
    ] = "all",
    reward: Annotated[
        str | None,
        typer.Option(
            "--reward",
            metavar="NAME",
            help="Rows with tokens: the reward. Default: the sum of all, as treadle rollout weighs them.",
        ),
    ] = None,
) -> int:
    """Export runs as rows for training, or as a journal.

    Each row is a line of JSON, or a row of a Parquet file if --out ends in .parquet. The rows of hf_trace are files
    in the folder --out. The rows of tokens, atropos, trl_grpo, trl_sft, verl, skyrl and verifiers have the token
    ids that the engine sampled, in groups. `treadle import` reads a journal.
    """
    if format_ != JOURNAL_FORMAT and format_ not in FORMATS and format_ not in TOKEN_FORMATS:
        known = [*FORMATS.names(), *TOKEN_FORMATS.names(), JOURNAL_FORMAT]
        near = did_you_mean(format_, known)
        raise ConfigError(f"there is no format {format_!r}{near or ';'} the formats are {', '.join(known)}")
    skips: list[str] = []
    apart = Apart()
    with closing(open_existing(journal)) as opened:
        run_ids = find_runs(opened, runs, is_all=is_all)
        if is_all and format_ != JOURNAL_FORMAT:
            run_ids = _keep_finished(opened, run_ids)

        def on_skip(run_id: str, why: str) -> None:
            skips.append(f"{run_id} left out: {why}")

        if format_ in TOKEN_FORMATS:
            options = TokenOptions(group_by, mask, reward)
            is_empty = not export_tokens(opened, run_ids, format_, out, options, on_skip, apart)
        else:
            _export_rows(opened, run_ids, format_, out, on_skip, apart)
            is_empty = False
    for skip in skips[:_MAX_LISTED]:
        print_note(skip)
    if len(skips) > _MAX_LISTED:
        print_note(f"and {len(skips) - _MAX_LISTED:,} more left out for such reasons")
    return ExitCode.FAILED if apart.count or (is_empty and skips) else ExitCode.DONE


def _export_rows(
    journal: Journal,
    run_ids: Sequence[str],
    format_: str,
    out: Path | None,
    on_skip: Callable[[str, str], None],
    apart: Apart,
) -> None:
    with bar("exporting", len(run_ids), is_json=out is None) as advance:
        if out is not None and format_ != JOURNAL_FORMAT:
            count = _write_rows(journal, run_ids, format_, out, on_skip, apart, advance)
        else:
            lines = write_lines(journal, run_ids, format_, on_skip, apart, advance)
            if out is None:
                print_lines(lines)
            else:
                count = write_whole(lines, out)
    if out is not None:
        print_note(
            f"{write_count(count, 'line' if format_ == JOURNAL_FORMAT else 'row')} of "
            f"{write_count(len(run_ids) - apart.count, 'run')} written to {str(out)!r}"
        )


def _keep_finished(journal: Journal, run_ids: Sequence[str]) -> list[str]:
    finished = {info.run_id for info in journal.runs() if info.status in ("finished", DAMAGED)}
    kept = [run_id for run_id in run_ids if run_id in finished]
    if len(kept) < len(run_ids):
        print_note(f"{write_count(len(run_ids) - len(kept), 'run')} left out: not finished")
    return kept


def _write_rows(
    journal: Journal,
    run_ids: Sequence[str],
    format_: str,
    out: Path,
    on_skip: Callable[[str, str], None],
    apart: Apart,
    on_done: Callable[[str], None],
) -> int:
    """Write the rows of runs to a file or folder, and return their number."""
    has_tokens = wants_tokens(FORMATS.load(format_))
    with open_writer(format_, out) as writer:
        for run_id in run_ids:
            with apart.guard(run_id):
                try:
                    writer.write(load_row(journal, run_id, with_tokens=has_tokens))
                except ExportError as error:
                    on_skip(run_id, str(error))
            on_done(run_id)
    return writer.count


def write_lines(
    journal: Journal,
    run_ids: Sequence[str],
    format_: str,
    on_skip: Callable[[str, str], None],
    apart: Apart,
    on_done: Callable[[str], None] = lambda run_id: None,
) -> Iterator[bytes]:
    """Yield the lines of an export. `on_skip` is called with each run that is left out, and the reason.

    A damaged run is left out completely. `on_done` is called with each run after its lines.
    """
    for run_id in run_ids:
        with SpooledTemporaryFile(_IN_MEMORY_BYTES) as file, apart.guard(run_id):
            if format_ == JOURNAL_FORMAT:
                file.writelines(line + b"\n" for line in export_run(journal, run_id))
            else:
                file.writelines(export_rows(journal, [run_id], format_, on_skip=on_skip))
            file.seek(0)
            yield from (line.rstrip(b"\n") for line in file)
        on_done(run_id)
