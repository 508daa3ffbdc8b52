"""What `treadle export` does."""

import os
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from treadle.cli.terminal.output import print_lines, print_note, write_count
from treadle.core.errors import ConfigError, ExportError
from treadle.journal.jsonl import export_run
from treadle.journal.protocol import Journal

JOURNAL_FORMAT = "journal"
_TOLD = 3
"""How many of the runs that are left out are told one by one."""


def export_runs(
    journal: Journal, run_ids: Sequence[str], format_: str, out: Path | None, *, is_all: bool
) -> None:
    """Write runs to `out`, or to standard output. Raises: `ConfigError` for an unknown format."""
    if format_ != JOURNAL_FORMAT:
        _refuse_unknown(format_)
    if is_all and format_ != JOURNAL_FORMAT:
        finished = {info.run_id for info in journal.runs() if info.status == "finished"}
        left_out = len(run_ids) - len(finished)
        run_ids = [run_id for run_id in run_ids if run_id in finished]
        if left_out:
            print_note(f"{write_count(left_out, 'run')} left out: not finished")
    skips: list[str] = []
    lines = write_lines(
        journal, run_ids, format_, lambda run_id, why: skips.append(f"{run_id} left out: {why}")
    )
    if out is None:
        print_lines(lines)
        _print_skips(skips)
        return
    count = write_file(lines, out)
    _print_skips(skips)
    print_note(f"{write_count(count, 'line')} of {write_count(len(run_ids), 'run')} written to {str(out)!r}")


def _print_skips(skips: Sequence[str]) -> None:
    for skip in skips[:_TOLD]:
        print_note(skip)
    if len(skips) > _TOLD:
        print_note(f"and {write_count(len(skips) - _TOLD, 'run')} more left out for such reasons")


def _refuse_unknown(format_: str) -> None:
    from treadle.export import FORMATS

    if format_ not in FORMATS:
        known = ", ".join([*FORMATS.names(), JOURNAL_FORMAT])
        raise ConfigError(f"there is no format {format_!r}; there are {known}")


def write_lines(
    journal: Journal, run_ids: Sequence[str], format_: str, on_skip: Callable[[str, str], None]
) -> Iterator[bytes]:
    """The lines of an export, without their newlines; `on_skip` is told which run is left out, and why."""
    if format_ == JOURNAL_FORMAT:
        for run_id in run_ids:
            yield from export_run(journal, run_id)
    else:
        from treadle.export import export_rows

        for row in export_rows(journal, run_ids, format_, on_skip=on_skip):
            yield row.rstrip(b"\n")


def write_file(lines: Iterator[bytes], out: Path) -> int:
    """Write lines to a file, which is there when it is whole and not before; how many there were.

    Raises: `ExportError` if the file cannot be written.
    """
    part = out.with_name(f"{out.name}.{os.getpid()}.part")
    count = 0
    try:
        try:
            with part.open("wb") as file:
                for line in lines:
                    file.write(line + b"\n")
                    count += 1
            part.replace(out)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise ExportError(f"cannot write {str(out)!r}: {error}") from error
    return count
