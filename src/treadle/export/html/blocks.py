"""The building blocks of the page. Each function returns HTML in which all given texts are escaped."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape

from treadle.export.html.spread import Spread

_MAX_BINS = 40
_MOST = 16
"""How many bars are shown of a table."""


def section(name: str, title: str, lead: str, *parts: str) -> str:
    """Return a section of the page with the anchor `name`; nothing if it has no content."""
    content = "".join(parts)
    if not content:
        return ""
    about = f'<p class="lead">{escape(lead)}</p>' if lead else ""
    return f'<section id="{name}"><h2>{escape(title)}</h2>{about}{content}</section>'


def tile(value: str, label: str, kind: str = "") -> str:
    """Return a key figure. `kind` is `good`, `bad` or nothing."""
    return f'<div class="tile {kind}"><b class="num">{escape(value)}</b><span>{escape(label)}</span></div>'


def columns(*parts: str) -> str:
    """Return parts side by side where there is room; nothing if all are empty."""
    kept = [f"<div>{part}</div>" for part in parts if part]
    return f'<div class="columns">{"".join(kept)}</div>' if kept else ""


def bars(
    title: str,
    counts: Mapping[str, int],
    *,
    marked: Mapping[str, int] | None = None,
    notes: Mapping[str, str] | None = None,
    kind: str = "",
) -> str:
    """Return horizontal bars, the longest first; nothing if there are no counts.

    `marked` is the part of a count that is drawn over its bar, and `notes` has a line of text for a name. `kind` is
    `bad`, `pale` or nothing; with `pale`, the marked part is drawn in the stronger colour.
    """
    listed = sorted(((count, name) for name, count in counts.items()), key=lambda item: (-item[0], item[1]))
    most = listed[0][0] if listed else 0
    if not most:
        return ""
    lines = []
    for count, name in listed[:_MOST]:
        part = (marked or {}).get(name, 0)
        over = f'<i class="{"" if kind == "pale" else "bad"}" style="width:{100 * part / most:.2f}%"></i>'
        amount = f"{part:,} of {count:,}" if kind == "pale" else f"{count:,}"
        lines.append(
            f'<span class="name" title="{escape(name)}">{escape(name)}</span>'
            f'<span class="track"><i class="{kind}" style="width:{100 * count / most:.2f}%"></i>'
            f'{over if part else ""}</span><span class="num">{amount}</span>'
        )
        if note := (notes or {}).get(name):
            lines.append(f'<span class="why">{escape(note)}</span>')
    more = f'<p class="soft">and {len(listed) - _MOST:,} more</p>' if len(listed) > _MOST else ""
    head = f"<h3>{escape(title)}</h3>" if title else ""
    return f'{head}<div class="bars">{"".join(lines)}</div>{more}'


def spread(title: str, values: Spread, unit: str = "rows") -> str:
    """Return the distribution of a number as a picture; nothing if all values are zero.

    `unit` names what has the number, such as `rows`.
    """
    if not values.total:
        return ""
    least, most = values.quantile(0.0), values.quantile(1.0)
    # The highest values are put together, because a single one would leave no room for all others.
    top = max(least + 1, min(most, values.quantile(0.99) + max(1, values.quantile(0.99) - least) // 10))
    size = max(1, -(-(top - least + 1) // _MAX_BINS))
    bins = [0] * ((top - least) // size + 1)
    for value, count in values.counts.items():
        bins[min((value - least) // size, len(bins) - 1)] += count
    highest = max(bins)
    columns_ = []
    for index, count in enumerate(bins):
        begin = least + index * size
        end = most if index == len(bins) - 1 else begin + size - 1
        label = f"{begin:,}" if begin >= end else f"{begin:,} to {end:,}"
        style = f"height:{max(2.0, 100 * count / highest):.1f}%" if count else "height:0"
        columns_.append(
            f'<i class="{"" if count else "none"}" style="{style}" title="{label}: {count:,} {unit}"></i>'
        )
    end_label = f"{top:,}" if top >= most else f"up to {most:,}"
    return (
        f'<h3>{escape(title)} <span class="soft num">median {values.quantile(0.5):,}, '
        f"mean {values.mean:,.1f}</span></h3>"
        f'<div class="spread">{"".join(columns_)}</div>'
        f'<div class="axis num"><span>{least:,}</span><span>{end_label}</span></div>'
    )


def table(heads: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """Return a table; the columns in `numbers` are aligned to the right. Nothing if there are no rows."""
    kinds = ['class="num"' if index in numbers else "" for index in range(len(heads))]
    body = [
        "<tr>"
        + "".join(f"<td {kind}>{escape(cell)}</td>" for kind, cell in zip(kinds, row, strict=True))
        + "</tr>"
        for row in rows
    ]
    if not body:
        return ""
    head = "".join(f"<th {kind}>{escape(name)}</th>" for kind, name in zip(kinds, heads, strict=True))
    return f'<div class="scroll"><table><thead><tr>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>'


def dollars(cost_usd: float) -> str:
    """Return a cost."""
    if not cost_usd:
        return "$0"
    return f"${cost_usd:,.2f}" if cost_usd >= 1 else f"${cost_usd:.4f}"


def tone(share: float, base: str = "--faint") -> str:
    """Return a colour between the background and the accent, for a share from 0 to 1."""
    return f"color-mix(in oklab, var(--accent) {round(100 * share)}%, var({base}))"
