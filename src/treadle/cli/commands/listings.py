"""`treadle runs`, `sessions` and `stats`: the runs of a journal."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING

import msgspec
import typer

from treadle.cli.exit import ExitCode
from treadle.cli.jobs.journals import open_existing, without_jobs
from treadle.cli.options.selection import Selection
from treadle.cli.terminal.format import format_age, style_of
from treadle.cli.terminal.output import (
    clean,
    print_error,
    print_json,
    print_line,
    print_note,
    shorten,
    spinner,
    stdout,
    write_command,
    write_cost,
    write_count,
    write_seconds,
)
from treadle.cli.terminal.printed_tables import make_table, print_table
from treadle.core.errors import ConfigError, JournalError
from treadle.core.events import LEFT
from treadle.core.tally import Tally
from treadle.core.types import Json, StopReason
from treadle.journal.protocol import Journal
from treadle.journal.run_info import DAMAGED, RunFilter, RunInfo
from treadle.runs.statuses import find_run, iterate_runs, status_of

if TYPE_CHECKING:
    from treadle.telemetry.usage_stats import Durations, UsageStats, Use

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
_RUNS_LIMIT = 20
"""How many runs are listed by default."""
_WIDE = 120
"""The width of a terminal, in columns, from which the model is shown."""


def runs(
    selection: Selection,
    journal: str | None = None,
    after: str | None = None,
    limit: int = _RUNS_LIMIT,
    is_json: bool = False,
) -> int:
    """List the runs of a journal, the newest first.

    Examples:
        treadle runs
        treadle runs --status unfinished --json
    """
    with open_existing(journal) as opened:
        last = None if after is None else find_run(opened, after)
        most = limit + 1 if limit else None
        found = list(
            iterate_runs(opened, selection.condition, status=selection.listed, after=last, limit=most)
        )
    shown = found[:limit] if limit else found
    damaged = [info for info in shown if info.status == DAMAGED]
    if is_json:
        print_json(*[_run_line(info) for info in shown])
        return _report(damaged)
    if not shown:
        print_note("no runs" if selection.is_all else "no such runs")
        return ExitCode.DONE
    _print_runs(shown)
    if len(found) > len(shown):
        given = {
            **msgspec.structs.asdict(selection),
            "label": tuple(selection.label or ()),
            "limit": str(limit) if limit != _RUNS_LIMIT else None,
        }
        command = write_command("runs", journal=journal, after=shown[-1].run_id, **given)
        print_note(f"there are more runs; list the next with: {command}   (--limit 0 lists all)")
    unfinished = [info for info in shown if status_of(info) == "unfinished"]
    if own := without_jobs(unfinished, opened.address):
        command = write_command("resume", all=True, journal=journal)
        print_note(f"◐ {len(own)} unfinished; continue with: {command}")
    return _report(damaged)


def _report(damaged: list[RunInfo]) -> int:
    """Print the errors of damaged runs, and return the exit code."""
    for info in damaged:
        print_error(info.error or "")
    return ExitCode.FAILED if damaged else ExitCode.DONE


def _run_line(info: RunInfo) -> dict[str, Json]:
    return {
        "run_id": info.run_id,
        "status": status_of(info),
        "stop_reason": _stop_reason_of(info),
        "fault": info.fault,
        "error": info.error,
        "model": info.model,
        "task": _task_of(info),
        "parent_run_id": info.parent_run_id,
        "caller_run_id": info.caller_run_id,
        "labels": dict(info.labels),
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


def _stop_reason_of(info: RunInfo) -> str | None:
    """Return why a run has ended, or that it was stopped and waits for nothing else."""
    is_shown = info.status == "finished" or info.stop_reason in (StopReason.CANCELLED, LEFT)
    return info.stop_reason if is_shown and not info.is_driven else None


def _task_of(info: RunInfo) -> str | None:
    return None if info.task_set is None else f"{info.task_set}:{info.task_id}"


def _print_runs(found: list[RunInfo]) -> None:
    from rich.text import Text

    console = stdout()
    columns = _COLUMNS if console.width >= _WIDE else _COLUMNS[:-1]
    rows = [_write_row(info)[: len(columns)] for info in found]
    table = make_table(*columns, "task", numbers=_NUMBERS)
    taken = sum([3 + max(map(len, cells)) for cells in zip(columns, *rows, strict=True)])
    # The last column has the room that is left.
    room = max(6, console.width - taken) if console.is_terminal else 80
    for info, (run_id, status, *cells) in zip(found, rows, strict=True):
        style = _MARKS[status_of(info)][1] or style_of(info.stop_reason)
        caller = f"↳ {info.caller_run_id}: " if info.caller_run_id else ""
        task = shorten(caller + (_task_of(info) or info.input or info.error or ""), room)
        table.add_row(run_id, Text(status, style), *cells, task)
    print_table(table)


def _write_row(info: RunInfo) -> tuple[str, ...]:
    status, stop_reason = status_of(info), _stop_reason_of(info)
    mark = "open" if stop_reason and status == "waiting" else status
    return (
        clean(info.run_id),
        f"{_MARKS[mark][0]} {stop_reason or status}",
        f"{info.steps:,}",
        f"{info.input_tokens + info.output_tokens:,}",
        "" if info.reward is None else f"{info.reward:.3g}",
        format_age(info.updated_at),
        shorten(info.model or "", 20),
    )


_SESSIONS_LIMIT = 20
"""How many sessions, or lines that were found, are listed by default."""
_TITLE_CHARS = 200


def sessions(
    journal: str | None = None,
    grep: str | None = None,
    delete: list[str] | None = None,
    is_sure: bool = False,
    limit: int = _SESSIONS_LIMIT,
    is_json: bool = False,
) -> int:
    """List the sessions of a journal, the newest first, search their messages, or delete some.

    Examples:
        treadle sessions --grep invoice
        treadle sessions --delete 1a1fb3a3 --yes
    """
    if delete and (grep is not None or is_json):
        raise ConfigError("give --delete alone, without --grep and --json")
    with open_existing(journal) as opened:
        if delete:
            return _delete(opened, [find_run(opened, text) for text in delete], is_sure=is_sure)
        if grep is not None:
            return _search(opened, grep, limit, is_json=is_json)
        found = list(iterate_runs(opened, RunFilter(is_session=True), limit=limit or None))
    if is_json:
        print_json(*[{**_run_line(info), "title": info.title} for info in found])
    elif found:
        _print_sessions(found)
    else:
        print_note("no sessions; begin one with: treadle chat --model NAME")
    return ExitCode.DONE


def _search(journal: Journal, text: str, limit: int, *, is_json: bool) -> int:
    from treadle.agent.overview import search_sessions

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
            print_line(f"{match.run_id}  {shorten(match.title, _TITLE_CHARS)}", "bold")
            last = match.run_id
        line = _around(match.line, text, max(40, stdout().width - 24))
        print_line(f"  turn {match.turn} {match.role}: {line}")
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
    from treadle.journal.deletion import find_callees
    from treadle.runs.recording import delete_session

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
        delete_session(journal, run_id)
        print_note(f"deleted {what}")
    return ExitCode.DONE


def _print_sessions(found: list[RunInfo]) -> None:
    console = stdout()
    table = make_table("session", "turns", "cost", "used", "title", numbers=("turns", "cost", "used"))
    room = max(20, console.width - 50) if console.is_terminal else 80
    for info in found:
        cost = "?" if info.cost_usd is None else write_cost(info.cost_usd)
        table.add_row(
            clean(info.run_id),
            f"{info.turns:,}",
            cost,
            format_age(info.updated_at),
            shorten(clean(info.title or info.error or ""), room),
        )
    print_table(table)


def stats(
    selection: Selection,
    journal: str | None = None,
    limit: int = 0,
    is_json: bool = False,
) -> int:
    """Count cost, tokens, cache hits, latency and errors by model, tool and day.

    The latency of an inference includes its retries. A cost that is not known is never counted as 0.

    Examples:
        treadle stats
        treadle stats --model openai:gpt-5-mini --json | jq .days
    """
    from treadle.telemetry.usage_stats import UsageStats

    found, damaged = UsageStats(), []
    with open_existing(journal) as opened, spinner("counting"):
        for info in iterate_runs(opened, selection.condition, status=selection.listed, limit=limit or None):
            try:
                if info.status == DAMAGED:
                    raise JournalError(info.error or info.run_id)
                found.add_run(opened.scan(info.run_id))
            except JournalError as error:
                damaged.append(str(error))
    if is_json:
        print_json(found.describe())
    else:
        _print(found)
    for text in damaged:
        print_error(text)
    return ExitCode.FAILED if damaged else ExitCode.DONE


def _print(found: "UsageStats") -> None:
    if not found.runs:
        print_note("no such runs")
        return
    usage, turns = found.all.tally.usage, sum(found.turns.values())
    print_line(
        f"{write_count(found.runs, 'run')} · {write_count(turns, 'turn')}, {found.failed_turns:,} failed · "
        f"{write_count(found.all.inferences, 'inference')} · {_tokens(found.all, usage.total_tokens)} tokens · "
        f"{_share(found.all.tally)} cached · cost {_cost(found.all.tally)}",
        "bold",
    )
    columns = ("inferences", "input", "cached", "output", "cost", "median", "p95", "errors")
    for title, uses in (("model", found.models), ("day", found.days)):
        rows = [
            (
                name or "unknown",
                f"{use.inferences:,}",
                _tokens(use, use.tally.usage.input_tokens),
                _share(use.tally),
                _tokens(use, use.tally.usage.output_tokens),
                _cost(use.tally),
                *_latency(use.durations),
                _errors(use.errors),
            )
            for name, use in sorted(uses.items())
        ]
        _print_uses((title, *columns), rows)
    tools = [
        (name, f"{use.calls:,}", *_latency(use.durations), _errors(use.errors))
        for name, use in sorted(found.tools.items(), key=lambda item: (-item[1].calls, item[0]))
    ]
    _print_uses(("tool", "calls", "median", "p95", "errors"), tools)


def _tokens(use: "Use", count: int) -> str:
    """Return a count of tokens. If a server did not report a part of it, say so."""
    unknown = use.tally.unknown_usages
    return f"{count:,}" if not unknown else f"{count:,} + {unknown:,} unknown" if count else "unknown"


def _share(tally: Tally) -> str:
    usage = tally.usage
    return f"{usage.cached_input_tokens / usage.input_tokens:.0%}" if usage.input_tokens else "-"


def _cost(tally: Tally) -> str:
    """Return the cost. If a part of it is not known, say so."""
    return write_cost(tally.known_cost_usd, tally.unknown_costs).removeprefix("cost ")


def _latency(durations: "Durations") -> tuple[str, str]:
    found = [durations.quantile(share) for share in (0.5, 0.95)]
    first, second = [
        "-" if value is None else write_seconds(value) if value >= 1 else f"{1000 * value:,.1f} ms"
        for value in found
    ]
    return first, second


def _errors(errors: Mapping[str, int]) -> str:
    return ", ".join([f"{count:,} {name}" for name, count in sorted(errors.items())]) or "-"


def _print_uses(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    found = list(rows)
    if not found:
        return
    texts = (columns[0], "errors")
    table = make_table(*columns, numbers=[name for name in columns if name not in texts], wrapped=texts)
    for row in found:
        table.add_row(shorten(row[0], 40), *[clean(cell) for cell in row[1:]])
    print_line("")
    print_table(table)
