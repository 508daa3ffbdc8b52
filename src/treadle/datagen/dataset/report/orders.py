"""The order of tool calls: which tool follows which one, and the most frequent sequences."""

from collections import Counter
from html import escape

from treadle.datagen.dataset.dataset_stats import END, START, DatasetStats
from treadle.export.html.blocks import tone

_MAX_TOOLS = 14
_OTHERS = "(other tools)"
_CELL = 46
_CHAR = 6.7
"""The approximate width of a character, in pixels."""
_MAX_NAME = 26
_STRONG = 0.55
_SEQUENCES = 8


def draw_orders(stats: DatasetStats) -> str:
    """Return a matrix, as SVG, of how often one tool follows another; nothing if there are no calls."""
    if not stats.tools:
        return ""
    names = [name for name, _ in stats.tools.most_common(_MAX_TOOLS)]
    others = len(stats.tools) > _MAX_TOOLS
    known = {START, END, *names}
    orders: Counter[tuple[str, str]] = Counter()
    for (one, two), count in stats.orders.items():
        orders[one if one in known else _OTHERS, two if two in known else _OTHERS] += count
    extra = [_OTHERS] if others else []
    rows, heads = [START, *names, *extra], [*names, *extra, END]
    left = 14 + _CHAR * min(_MAX_NAME, max(map(len, rows)))
    top = 22 + 0.72 * _CHAR * min(_MAX_NAME, max(map(len, heads)))
    parts = []
    for column, name in enumerate(heads):
        x, y = left + column * _CELL + _CELL / 2 - 2, top - 8
        parts.append(
            f'<text class="soft" x="{x:.0f}" y="{y:.0f}" transform="rotate(-42 {x:.0f} {y:.0f})">'
            f"{_cut(name)}</text>"
        )
    for line, one in enumerate(rows):
        total = sum(orders[one, two] for two in heads)
        y = top + line * _CELL
        parts.append(
            f'<text class="soft" x="{left - 8:.0f}" y="{y + _CELL / 2 + 4:.0f}" text-anchor="end">'
            f"{_cut(one)}</text>"
        )
        parts += [
            _draw_cell(left + column * _CELL, y, one, two, orders[one, two], total)
            for column, two in enumerate(heads)
        ]
    slope = _CHAR * min(_MAX_NAME, len(heads[-1])) * 0.75
    width, height = left + len(heads) * _CELL + slope, top + len(rows) * _CELL + 4
    return (
        f'<div class="scroll"><svg width="{width:.0f}" height="{height:.0f}" role="img" '
        f'aria-label="how often one tool follows another">{"".join(parts)}</svg></div>'
    )


def _draw_cell(x: float, y: float, one: str, two: str, count: int, total: int) -> str:
    share = count / total if total else 0.0
    level = 0.1 + 0.9 * share if count else 0.0
    label = ""
    if count:
        kind = ' class="over"' if level > _STRONG else ""
        text = f"{share:.0%}" if share >= 0.005 else "<1%"
        label = (
            f'<text{kind} x="{x + _CELL / 2:.0f}" y="{y + _CELL / 2 + 4:.0f}" text-anchor="middle">'
            f"{escape(text)}</text>"
        )
    title = escape(f"{count:,} times {two} after {one}, of {total:,}")
    return (
        f'<g><title>{title}</title><rect x="{x + 1:.0f}" y="{y + 1:.0f}" width="{_CELL - 2}" height="{_CELL - 2}" '
        f'rx="4" style="fill:{tone(level)}"/>{label}</g>'
    )


def list_sequences(stats: DatasetStats) -> str:
    """Return the most frequent orders of the tools of a turn; nothing if there are none."""
    total = stats.sequences.total()
    lines = []
    for names, count in stats.sequences.most_common(_SEQUENCES):
        path = " <span>→</span> ".join(map(escape, names)) if names else '<span class="soft">no tool</span>'
        lines.append(f'<li><b class="num">{count / total:.1%}</b><span>{path}</span></li>')
    return f'<ul class="order">{"".join(lines)}</ul>' if lines else ""


def _cut(name: str) -> str:
    return escape(name if len(name) <= _MAX_NAME else name[: _MAX_NAME - 1] + "…")
