"""The listing of `treadle runs`."""

import msgspec

from treadle.cli.terminal.format import format_age, style_of
from treadle.cli.terminal.listing import Line, read_lines
from treadle.cli.terminal.output import clean, print_lines, print_note, shorten, stdout, write_count
from treadle.core.errors import ConfigError
from treadle.core.types import StopReason
from treadle.journal.protocol import Journal

STATUSES = ("finished", "running", "unfinished", "waiting", "open", "unreadable")

_MARKS = {
    "finished": ("●", ""),
    "running": ("▶", "cyan"),
    "unfinished": ("◐", "bold yellow"),
    "waiting": ("?", "bold yellow"),
    "open": ("○", "cyan"),
    "unreadable": ("!", "bold red"),
}


_COLUMNS = ("run", "status", "steps", "tokens", "reward", "age", "model")
_WIDE = 120
"""The columns of a terminal that has room for the model."""
_NUMBERS = ("steps", "tokens", "reward", "age")


def print_runs(journal: Journal, status: str | None, limit: int | None, *, is_json: bool) -> None:
    """Print the newest runs. Raises: `ConfigError` for a status that does not exist."""
    known = (*STATUSES, *StopReason)
    if status is not None and status not in known:
        raise ConfigError(f"there is no status {status!r}; there are {', '.join(known)}")
    lines = read_lines(journal, status=status, limit=limit)
    if is_json:
        print_lines([msgspec.json.encode(line) for line in lines])
        return
    if not lines:
        print_note("no runs" if status is None else f"no runs that are {status}")
        return
    _print_table(lines)
    total = len(journal.runs())
    if limit is not None and len(lines) == limit and total > limit:
        print_note(f"{limit} of {write_count(total, 'run')}; --limit 0 shows all")
    unfinished = sum(line.status == "unfinished" for line in lines)
    if unfinished:
        print_note(f"◐ {unfinished} unfinished: treadle resume --all goes on with them")


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
    # The last column has what the others leave, so that none of them is cut.
    room = max(12, console.width - taken - 2) if console.is_terminal else 80
    for line, (run_id, status, *cells) in zip(lines, rows, strict=True):
        style = _MARKS[line.status][1] or style_of(line.stop_reason)
        task = shorten(line.task or line.input or line.error or "", room)
        table.add_row(run_id, Text(status, style), *cells, task)
    console.print(table, width=None if console.is_terminal else 200)


def _write_row(line: Line) -> tuple[str, ...]:
    """The cells of `_COLUMNS`."""
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
