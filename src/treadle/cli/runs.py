"""`treadle runs`: the runs of a journal, as a table or as lines of JSON."""

from contextlib import closing
from typing import Annotated

import msgspec
import typer

from treadle.cli.exit import ExitCode
from treadle.cli.jobs.journals import find_run, open_existing
from treadle.cli.jobs.listing import list_runs, status_of
from treadle.cli.options import shared as o
from treadle.cli.options.selection import Selection
from treadle.cli.terminal.columns import make_table, print_table
from treadle.cli.terminal.format import format_age, style_of
from treadle.cli.terminal.output import (
    clean,
    print_error,
    print_json,
    print_note,
    shorten,
    stdout,
    write_command,
)
from treadle.core.types import Json
from treadle.journal.protocol import DAMAGED, RunInfo

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
    DAMAGED: ("✗", "bold red"),
}
"""The mark and the style of each status."""
_COLUMNS = ("run", "status", "steps", "tokens", "reward", "age", "model")
_NUMBERS = ("steps", "tokens", "reward", "age")
_LIMIT = 20
"""How many runs are listed by default."""
_WIDE = 120
"""The width of a terminal, in columns, from which the model is shown."""


def runs(
    selection: Selection,
    journal: o.Journal = None,
    after: Annotated[
        str | None, typer.Option("--after", metavar="RUN", help="Only runs older than this one.")
    ] = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=0, help="The number of runs; 0 lists all.")
    ] = _LIMIT,
    is_json: o.IsJson = False,
) -> int:
    """List the runs of a journal, the newest first."""
    with closing(open_existing(journal)) as opened:
        last = None if after is None else find_run(opened, after)
        most = limit + 1 if limit else None
        found = list_runs(opened, selection.condition, status=selection.listed, after=last, limit=most)
    shown = found[:limit] if limit else found
    damaged = [info for info in shown if info.status == DAMAGED]
    if is_json:
        print_json(*[_to_line(info) for info in shown])
        return _report(damaged)
    if not shown:
        print_note("no runs" if selection.is_all else "no such runs")
        return ExitCode.DONE
    _print_table(shown)
    if len(found) > len(shown):
        given = {
            **msgspec.structs.asdict(selection),
            "limit": str(limit) if limit != _LIMIT else None,
        }
        command = write_command("runs", journal=journal, after=shown[-1].run_id, **given)
        print_note(f"there are more runs; list the next with: {command}   (--limit 0 lists all)")
    unfinished = sum(status_of(info) == "unfinished" for info in shown)
    if unfinished:
        command = write_command("resume", all=True, journal=journal)
        print_note(f"◐ {unfinished} unfinished; continue with: {command}")
    return _report(damaged)


def _report(damaged: list[RunInfo]) -> int:
    """Print the errors of damaged runs, and return the exit code."""
    for info in damaged:
        print_error(info.error or "")
    return ExitCode.FAILED if damaged else ExitCode.DONE


def _to_line(info: RunInfo) -> dict[str, Json]:
    """Return the fields of a run for `--json`."""
    return {
        "run_id": info.run_id,
        "status": status_of(info),
        "stop_reason": info.stop_reason if info.status == "finished" else None,
        "fault": info.fault,
        "error": info.error,
        "model": info.model,
        "task": _task_of(info),
        "parent_run_id": info.parent_run_id,
        "caller_run_id": info.caller_run_id,
        "input": info.input,
        "turns": info.turns,
        "steps": info.steps,
        "events": info.events,
        "tokens": info.input_tokens + info.output_tokens,
        "cost_usd": info.cost_usd,
        "reward": info.reward,
        "created_at": info.created_at,
        "updated_at": info.updated_at,
    }


def _task_of(info: RunInfo) -> str | None:
    return None if info.task_set is None else f"{info.task_set}:{info.task_id}"


def _print_table(found: list[RunInfo]) -> None:
    from rich.text import Text

    console = stdout()
    columns = _COLUMNS if console.width >= _WIDE else _COLUMNS[:-1]
    rows = [_write_row(info)[: len(columns)] for info in found]
    table = make_table(*columns, "task", numbers=_NUMBERS)
    taken = 0
    for index, name in enumerate(columns):
        width = table.columns[index].min_width = max(len(name), *(len(row[index]) for row in rows))
        taken += width + 3
    # The last column has the room that is left, so that no other column is cut.
    room = max(12, console.width - taken - 2) if console.is_terminal else 80
    for info, (run_id, status, *cells) in zip(found, rows, strict=True):
        style = _MARKS[status_of(info)][1] or style_of(info.stop_reason)
        caller = f"↳ {info.caller_run_id}: " if info.caller_run_id else ""
        task = shorten(caller + (_task_of(info) or info.input or info.error or ""), room)
        table.add_row(run_id, Text(status, style), *cells, task)
    print_table(table)


def _write_row(info: RunInfo) -> tuple[str, ...]:
    """Return the cells of `_COLUMNS`."""
    status = status_of(info)
    return (
        clean(info.run_id),
        f"{_MARKS[status][0]} {info.stop_reason if status == 'finished' else status}",
        f"{info.steps:,}",
        f"{info.input_tokens + info.output_tokens:,}",
        "" if info.reward is None else f"{info.reward:.3g}",
        format_age(info.updated_at),
        shorten(info.model or "", 20),
    )
