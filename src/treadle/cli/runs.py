"""`treadle runs`: the runs of a journal, as a table or as lines of JSON."""

from contextlib import closing
from typing import Annotated

import msgspec
import typer

from treadle.cli.options import shared as o
from treadle.cli.terminal.format import format_age, style_of
from treadle.cli.terminal.journals import open_existing
from treadle.cli.terminal.listing import Line, read_lines
from treadle.cli.terminal.output import (
    clean,
    print_lines,
    print_note,
    shorten,
    stdout,
    write_command,
    write_count,
)
from treadle.core.errors import ConfigError
from treadle.core.types import StopReason

EXAMPLES = (
    "treadle runs",
    "treadle runs --status unfinished --json",
)
_MARKS = {
    "finished": ("●", ""),
    "running": ("▶", "cyan"),
    "unfinished": ("◐", "bold yellow"),
    "waiting": ("?", "bold yellow"),
    "open": ("○", "cyan"),
    "unreadable": ("!", "bold red"),
}
"""The mark and the style of each status."""
_COLUMNS = ("run", "status", "steps", "tokens", "reward", "age", "model")
_NUMBERS = ("steps", "tokens", "reward", "age")
_WIDE = 120
"""The width of a terminal, in columns, from which the model is shown."""


def runs(
    journal: o.Journal = None,
    status: Annotated[
        str | None,
        typer.Option(
            "--status",
            metavar="STATUS",
            help="finished, running, unfinished, waiting, open, or a stop reason such as completed or max_steps.",
        ),
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=0, help="The number of runs; 0 lists all.")
    ] = 20,
    is_json: o.IsJson = False,
) -> int:
    """List the runs of a journal, the newest first."""
    known = (*_MARKS, *StopReason)
    if status is not None and status not in known:
        raise ConfigError(f"there is no status {status!r}; the statuses are {', '.join(known)}")
    with closing(open_existing(journal)) as opened:
        lines = read_lines(opened, status=status, limit=limit or None)
        total = len(opened.runs())
    if is_json:
        print_lines([msgspec.json.encode(line) for line in lines])
        return 0
    if not lines:
        print_note("no runs" if status is None else f"no runs with the status {status}")
        return 0
    _print_table(lines)
    if limit and len(lines) == limit and total > limit:
        print_note(f"{limit} of {write_count(total, 'run')}; --limit 0 shows all")
    unfinished = sum(line.status == "unfinished" for line in lines)
    if unfinished:
        print_note(
            f"◐ {unfinished} unfinished; continue with: {write_command('resume', '--all', journal=journal)}"
        )
    return 0


def _print_table(lines: list[Line]) -> None:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    console = stdout()
    columns = _COLUMNS if console.width >= _WIDE else _COLUMNS[:-1]
    rows = [_write_row(line)[: len(columns)] for line in lines]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, header_style="bold")
    taken = 0
    for index, name in enumerate(columns):
        width = max(len(name), *(len(row[index]) for row in rows))
        taken += width + 3
        table.add_column(name, no_wrap=True, min_width=width, justify="right" if name in _NUMBERS else "left")
    table.add_column("task", no_wrap=True)
    # The last column has the room that is left, so that no other column is cut.
    room = max(12, console.width - taken - 2) if console.is_terminal else 80
    for line, (run_id, status, *cells) in zip(lines, rows, strict=True):
        style = _MARKS[line.status][1] or style_of(line.stop_reason)
        task = shorten(line.task or line.input or line.error or "", room)
        table.add_row(run_id, Text(status, style), *cells, task)
    console.print(table, width=None if console.is_terminal else 200)


def _write_row(line: Line) -> tuple[str, ...]:
    """Return the cells of `_COLUMNS`."""
    outcome = line.stop_reason if line.status == "finished" else line.status
    return (
        clean(line.run_id),
        f"{_MARKS[line.status][0]} {outcome}",
        "" if line.steps is None else f"{line.steps:,}",
        "" if line.tokens is None else f"{line.tokens:,}",
        "" if line.reward is None else f"{line.reward:.3g}",
        format_age(line.updated_at),
        shorten(line.model or "", 20),
    )
