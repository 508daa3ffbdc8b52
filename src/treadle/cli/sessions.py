"""`treadle sessions`: the sessions of a journal, the search in their messages, and their deletion."""

import sys
from contextlib import closing
from itertools import islice
from typing import Annotated

import typer

from treadle.agent.overview import search_sessions
from treadle.cli.exit import ExitCode
from treadle.cli.jobs.journals import find_run, open_existing
from treadle.cli.jobs.listing import list_runs, status_of
from treadle.cli.options import shared as o
from treadle.cli.terminal.columns import make_table, print_table
from treadle.cli.terminal.format import format_age
from treadle.cli.terminal.output import (
    clean,
    print_error,
    print_json,
    print_note,
    shorten,
    stdout,
    write_cost,
    write_count,
)
from treadle.core.errors import ConfigError
from treadle.core.types import Json
from treadle.journal.deletion import delete_runs, find_callees
from treadle.journal.protocol import Journal, RunFilter, RunInfo

EXAMPLES = (
    "treadle sessions --grep invoice",
    "treadle sessions --delete 1a1fb3a3 --yes",
)
_LIMIT = 20
"""How many sessions, or lines that were found, are listed by default."""
_TITLE_CHARS = 200


def sessions(
    journal: o.Journal = None,
    grep: Annotated[
        str | None,
        typer.Option("--grep", metavar="TEXT", help="Show the lines of all messages that contain this text."),
    ] = None,
    delete: Annotated[
        list[str] | None,
        typer.Option("--delete", metavar="RUN", help="Delete this session; may be given several times."),
    ] = None,
    is_sure: Annotated[bool, typer.Option("--yes", "-y", help="Delete without asking.")] = False,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=0, help="How many to list; 0 lists all.")
    ] = _LIMIT,
    is_json: o.IsJson = False,
) -> int:
    """List the sessions of a journal, the newest first, search their messages, or delete some."""
    if delete and (grep is not None or is_json):
        raise ConfigError("give --delete alone, without --grep and --json")
    with closing(open_existing(journal)) as opened:
        if delete:
            return _delete(opened, [find_run(opened, text) for text in delete], is_sure=is_sure)
        if grep is not None:
            return _search(opened, grep, limit, is_json=is_json)
        found = list_runs(opened, RunFilter(is_session=True), limit=limit or None)
    if is_json:
        print_json(*[_to_line(info) for info in found])
    elif found:
        _print_table(found)
    else:
        print_note("no sessions; begin one with: treadle chat --model NAME")
    return ExitCode.DONE


def _search(journal: Journal, text: str, limit: int, *, is_json: bool) -> int:
    if not text:
        raise ConfigError("--grep needs a text that is not empty")
    count, last = 0, ""
    for match in islice(search_sessions(journal, text), limit or None):
        count += 1
        if is_json:
            print_json(
                {
                    "run_id": match.run_id,
                    "title": match.title,
                    "turn": match.turn,
                    "role": match.role,
                    "line": match.line,
                }
            )
            continue
        if match.run_id != last:
            stdout().print(
                f"{clean(match.run_id)}  {shorten(match.title, _TITLE_CHARS)}", style="bold", soft_wrap=True
            )
            last = match.run_id
        line = _around(match.line, text, max(40, stdout().width - 24))
        stdout().print(f"  turn {match.turn} {match.role}: {clean(line)}", soft_wrap=True)
    if not is_json and not count:
        print_note(f"no message contains {text!r}")
    elif not is_json and count == limit:
        print_note(f"the first {write_count(count, 'line')}; --limit 0 shows all")
    return ExitCode.DONE


def _around(line: str, text: str, width: int) -> str:
    """Return the part of a line in which `text` is, at most `width` characters."""
    start = max(0, line.casefold().find(text.casefold()) - width // 3)
    part = line[start : start + width]
    return ("…" if start else "") + part.strip() + ("…" if start + width < len(line) else "")


def _delete(journal: Journal, run_ids: list[str], *, is_sure: bool) -> int:
    for run_id in dict.fromkeys(run_ids):
        info = next(item for item in journal.runs(RunFilter(id_prefix=run_id)) if item.run_id == run_id)
        agents = len(find_callees(journal, run_id)) - 1
        and_agents = f" and {write_count(agents, 'run')} of its agents" if agents else ""
        what = f"{run_id} ({info.title!r}, {write_count(info.turns, 'turn')}){and_agents}"
        if not is_sure:
            if not sys.stdin.isatty():
                raise ConfigError(f"give --yes to delete {what}; it cannot be undone")
            if not typer.confirm(f"delete {what}? It cannot be undone", default=False):
                print_error(f"{run_id} was not deleted")
                return ExitCode.FAILED
        delete_runs(journal, run_id)
        print_note(f"deleted {what}")
    return ExitCode.DONE


def _to_line(info: RunInfo) -> dict[str, Json]:
    return {
        "run_id": info.run_id,
        "title": info.title,
        "status": status_of(info),
        "model": info.model,
        "turns": info.turns,
        "steps": info.steps,
        "tokens": info.input_tokens + info.output_tokens,
        "cost_usd": info.cost_usd,
        "created_at": info.created_at,
        "updated_at": info.updated_at,
    }


def _print_table(found: list[RunInfo]) -> None:
    console = stdout()
    table = make_table("session", "turns", "cost", "used", "title", numbers=("turns", "cost", "used"))
    room = max(20, console.width - 50) if console.is_terminal else 80
    for info in found:
        cost = "?" if info.cost_usd is None else write_cost(info.cost_usd) if info.cost_usd else ""
        table.add_row(
            clean(info.run_id),
            f"{info.turns:,}",
            cost,
            format_age(info.updated_at),
            shorten(clean(info.title or info.error or ""), room),
        )
    print_table(table)
