"""Rows, tokens and cost over time, from the ledger of a dataset."""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from html import escape
from itertools import accumulate
from pathlib import Path
from time import gmtime, strftime

from msgspec import Struct

from treadle.export.html.blocks import columns, dollars
from treadle.jobs.ledger import ItemStatus, Ledger

_BINS = 120


class _Bin(Struct):
    """What was counted in a part of the time."""

    kept: int = 0
    rejected: int = 0
    tokens: int = 0
    cost_usd: float = 0.0


def draw_time(ledger: Path) -> str:
    """Return the pictures over time; nothing if there is no ledger, or if it has fewer than two attempts."""
    if not ledger.exists():
        return ""
    with Ledger(ledger, is_readonly=True) as opened:
        times = sorted(entry.at for entry in opened.entries())
        if len(times) < 2 or times[0] == times[-1]:
            return ""
        edges = [times[0] + (times[-1] - times[0]) * (index + 1) / _BINS for index in range(_BINS - 1)]
        bins = [_Bin() for _ in range(_BINS)]
        for entry in opened.entries():
            found = bins[bisect_right(edges, entry.at)]
            found.kept += entry.status == ItemStatus.KEPT
            found.rejected += entry.status == ItemStatus.REJECTED
            found.tokens += entry.input_tokens + entry.output_tokens
            found.cost_usd += entry.cost_usd or 0.0
    ends = strftime("%Y-%m-%d %H:%M UTC", gmtime(times[0])), f"after {_write_seconds(times[-1] - times[0])}"
    kept, rejected = _sum(bins, lambda item: item.kept), _sum(bins, lambda item: item.rejected)
    tokens, cost = _sum(bins, lambda item: item.tokens), _sum(bins, lambda item: item.cost_usd)
    return columns(
        _draw("Rows", f"{kept[-1]:,.0f} kept, {rejected[-1]:,.0f} rejected", kept, rejected, ends),
        _draw("Tokens", f"{tokens[-1]:,.0f}", tokens, None, ends),
        _draw("Cost", dollars(cost[-1]), cost, None, ends) if cost[-1] else "",
    )


def _write_seconds(seconds: float) -> str:
    for size, unit in ((7200.0, "h"), (120.0, "min")):
        if seconds >= size:
            return f"{seconds / (3600 if unit == 'h' else 60):,.1f} {unit}"
    return f"{seconds:.1f} s"


def _sum(bins: Sequence[_Bin], value: Callable[[_Bin], float]) -> list[float]:
    return list(accumulate(map(value, bins)))


def _draw(
    title: str, total: str, values: list[float], others: list[float] | None, ends: tuple[str, str]
) -> str:
    most = max(values[-1], others[-1] if others else 0.0) or 1.0
    other = f'<path class="area bad" d="{_line(others, most)}"/>' if others and others[-1] else ""
    legend = ""
    if other:
        legend = (
            '<p class="legend"><span><i style="background:var(--accent)"></i>kept</span>'
            '<span><i style="background:var(--bad)"></i>rejected</span></p>'
        )
    return (
        f'<div class="time"><h3>{escape(title)} <span class="soft num">{escape(total)}</span></h3>'
        f'<svg viewBox="0 0 {_BINS} 100" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(title)} over time">'
        f'<path class="area" d="{_line(values, most)} V100 H0 Z"/>{other}</svg>'
        f'<div class="axis num"><span>{ends[0]}</span><span>{ends[1]}</span></div>{legend}</div>'
    )


def _line(values: Sequence[float], most: float) -> str:
    points = [f"{index + 1} {100 - 100 * value / most:.2f}" for index, value in enumerate(values)]
    return "M0 100 L" + " L".join(points)
