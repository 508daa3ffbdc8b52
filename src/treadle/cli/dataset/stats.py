"""`treadle dataset stats`: counts the contents of a dataset."""

from collections.abc import Mapping, Sequence

from treadle.cli.exit import ExitCode
from treadle.cli.options import shared as o
from treadle.cli.options.datasets import DatasetPath
from treadle.cli.terminal.bar import spinner
from treadle.cli.terminal.output import clean, print_json, shorten, stdout, write_cost, write_count
from treadle.datagen.dataset.dataset_stats import Stats, Summary, collect, describe

EXAMPLES = (
    "treadle dataset stats dataset",
    "treadle dataset stats rows.jsonl --json | jq .tools",
)
_BAR_CHARS = 24
_MOST = 20
"""How many lines of a table are shown."""


def stats(path: DatasetPath, is_json: o.IsJson = False) -> int:
    """Count the contents of a dataset: rows, tools, kinds, topics, tokens, cost, duplicates and rejections."""
    with spinner("counting"):
        found = collect(path)
    if is_json:
        print_json(describe(found))
    else:
        _print(found)
    return ExitCode.DONE


def _print(found: Stats) -> None:
    console = stdout()
    tokens = found.input_tokens + found.output_tokens
    cost = None if found.rows_without_cost and not found.cost_usd else found.cost_usd
    lacking = (
        f" (without {write_count(found.rows_without_cost, 'row')} of unknown cost)"
        if (cost is not None and found.rows_without_cost)
        else ""
    )
    console.print(
        f"{write_count(found.rows, 'row')} · {write_count(len(found.topics), 'topic')} · {tokens:,} tokens · "
        f"{write_cost(cost)}{lacking}",
        style="bold",
    )
    facts = {
        "verified": f"{found.verified:,} of {write_count(found.with_calls, 'row')} with calls",
        "duplicates": f"{found.duplicates:,}",
        "repeated ids": f"{found.repeated_ids:,}" if found.repeated_ids else "",
        "simulated": f"{write_count(found.simulated, 'row')}, {write_count(found.simulated_calls, 'result')}"
        if found.simulated
        else "",
        "from the built-in teacher": write_count(found.from_teacher, "row") if found.from_teacher else "",
        "rejected": f"{found.rejected:,}" if found.rejected else "",
        "spent on rejected samples": f"{found.rejected_input_tokens + found.rejected_output_tokens:,} tokens, "
        f"{write_cost(found.rejected_cost_usd)}"
        if found.rejected
        else "",
    }
    for name, value in facts.items():
        if value:
            console.print(f"  {name}: ", style="dim", end="")
            console.print(value)
    _print_spreads(found)
    _print_counts(
        "calls by tool",
        found.tools,
        {name: f"{count:,} failed" for name, count in found.tool_errors.items() if count},
    )
    shown = {
        name: f"planned {found.kinds_planned[name]:,}, shown in {found.kinds_met[name]:,}"
        for name in found.kinds_planned
    }
    kinds = {**dict.fromkeys(found.kinds_planned, 0), **found.kinds_shown}
    _print_counts("rows that show a kind of tool use", kinds, shown)
    _print_counts("difficulty", found.difficulties)
    _print_counts("conversation", found.conversations)
    for role, names in found.models.items():
        _print_counts(f"model: {role}", names)
    _print_counts("dataset", found.datasets if len(found.datasets) > 1 else {})
    _print_counts("ended with", found.stop_reasons)
    _print_counts(
        "rejected by",
        found.rejections,
        {
            name: shorten(reasons.most_common(1)[0][0], 70)
            for name, reasons in found.reasons.items()
            if reasons
        },
    )


def _print_spreads(found: Stats) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 2), header_style="dim")
    for name in ("a row", "mean", "least", "median", "95 %", "most", "total"):
        table.add_column(name, justify="left" if name == "a row" else "right")
    for name, spread in (
        ("turns", found.turns),
        ("steps", found.steps),
        ("calls", found.calls),
        ("messages", found.messages),
        ("characters", found.chars),
    ):
        item = Summary.of(spread)
        values: Sequence[float] = (item.least, item.median, item.p95, item.most, item.total)
        table.add_row(name, f"{item.mean:,.1f}", *[f"{value:,}" for value in values])
    stdout().print()
    stdout().print(table)


def _print_counts(title: str, counts: Mapping[str, int], notes: Mapping[str, str] | None = None) -> None:
    """Print a table of counts with bars, the largest first."""
    listed = sorted(((count, name) for name, count in counts.items()), key=lambda item: (-item[0], item[1]))
    if not any(count for count, _ in listed) and not notes:
        return
    console = stdout()
    console.print(f"\n{title}", style="bold")
    most = max((count for count, _ in listed), default=1) or 1
    width = min(40, max((len(name) for _, name in listed), default=0))
    for count, name in listed[:_MOST]:
        full = count * _BAR_CHARS * 8 // most
        bar = "█" * (full // 8) + (" ▏▎▍▌▋▊▉"[full % 8] if full % 8 else "")
        console.print(f"  {shorten(clean(name), width):<{width}} {count:>8,} ", end="")
        note = (notes or {}).get(name, "")
        console.print(f"{bar:<{_BAR_CHARS}}" if note else bar, style="cyan", end="")
        console.print(f"  {note}" if note else "", style="dim", soft_wrap=True)
    if len(listed) > _MOST:
        console.print(f"  and {len(listed) - _MOST:,} more", style="dim italic")
