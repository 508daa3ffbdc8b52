"""`treadle stats`: what the runs of a journal cost, how long they took, and what failed."""

from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from typing import Annotated

import typer

from treadle.cli.exit import ExitCode
from treadle.cli.jobs.journals import open_existing
from treadle.cli.jobs.listing import iterate_runs
from treadle.cli.options import shared as o
from treadle.cli.options.selection import Selection
from treadle.cli.terminal.bar import spinner
from treadle.cli.terminal.columns import make_table, print_table
from treadle.cli.terminal.output import (
    clean,
    print_error,
    print_json,
    print_note,
    shorten,
    stdout,
    write_cost,
    write_count,
    write_seconds,
)
from treadle.core.errors import JournalError
from treadle.core.tally import Tally
from treadle.journal.protocol import DAMAGED
from treadle.telemetry.usage_stats import Durations, UsageStats

EXAMPLES = (
    "treadle stats",
    "treadle stats --model openai:gpt-5-mini --json | jq .days",
)


def stats(
    selection: Selection,
    journal: o.Journal = None,
    limit: Annotated[
        int, typer.Option("--limit", metavar="N", min=0, help="Only the newest N runs; 0 counts all.")
    ] = 0,
    is_json: o.IsJson = False,
) -> int:
    """Count cost, tokens, cache hits, latency and errors by model, tool and day.

    The latency of an inference includes its retries. A cost that is not known is never counted as 0.
    """
    found, damaged = UsageStats(), []
    with closing(open_existing(journal)) as opened, spinner("counting"):
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


def _print(found: UsageStats) -> None:
    if not found.runs:
        print_note("no such runs")
        return
    usage, turns = found.all.tally.usage, sum(found.turns.values())
    stdout().print(
        f"{write_count(found.runs, 'run')} · {write_count(turns, 'turn')}, {found.failed_turns:,} failed · "
        f"{write_count(found.all.inferences, 'inference')} · {usage.total_tokens:,} tokens · "
        f"{_share(found.all.tally)} cached · cost {_cost(found.all.tally)}",
        style="bold",
        soft_wrap=True,
    )
    columns = ("inferences", "input", "cached", "output", "cost", "median", "p95", "errors")
    for title, uses in (("model", found.models), ("day", found.days)):
        rows = [
            (
                name or "unknown",
                f"{use.inferences:,}",
                f"{use.tally.usage.input_tokens:,}",
                _share(use.tally),
                f"{use.tally.usage.output_tokens:,}",
                _cost(use.tally),
                *_latency(use.durations),
                _errors(use.errors),
            )
            for name, use in sorted(uses.items())
        ]
        _print_table((title, *columns), rows)
    tools = [
        (name, f"{use.calls:,}", *_latency(use.durations), _errors(use.errors))
        for name, use in sorted(found.tools.items(), key=lambda item: (-item[1].calls, item[0]))
    ]
    _print_table(("tool", "calls", "median", "p95", "errors"), tools)


def _share(tally: Tally) -> str:
    usage = tally.usage
    return f"{usage.cached_input_tokens / usage.input_tokens:.0%}" if usage.input_tokens else "-"


def _cost(tally: Tally) -> str:
    """Return the cost. If a part of it is not known, say so."""
    if not tally.unknown_costs:
        return write_cost(tally.known_cost_usd)
    if not tally.known_cost_usd:
        return "unknown"
    return f"{write_cost(tally.known_cost_usd)} + {tally.unknown_costs:,} unknown"


def _latency(durations: Durations) -> tuple[str, str]:
    found = [durations.quantile(share) for share in (0.5, 0.95)]
    first, second = ["-" if value is None else _write_latency(value) for value in found]
    return first, second


def _write_latency(seconds: float) -> str:
    return write_seconds(seconds) if seconds >= 1 else f"{1000 * seconds:,.1f} ms"


def _errors(errors: Mapping[str, int]) -> str:
    return ", ".join([f"{count:,} {name}" for name, count in sorted(errors.items())]) or "-"


def _print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    found = list(rows)
    if not found:
        return
    texts = (columns[0], "errors")
    table = make_table(*columns, numbers=[name for name in columns if name not in texts], wrapped=texts)
    for row in found:
        table.add_row(shorten(row[0], 40), *[clean(cell) for cell in row[1:]])
    stdout().print()
    print_table(table)
