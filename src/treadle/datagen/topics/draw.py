"""Pictures of topics without the network: an SVG with a map and an outline in columns.

The outline has one row for each topic, so that no label covers another, and its columns are about as high as the
picture is wide. The map is a sunburst: a ring for each level, and an angle for each leaf.
"""

import math
from collections.abc import Mapping
from xml.sax.saxutils import quoteattr

from msgspec import Struct

from treadle.datagen.topics.palette import NOTHING, Palette, fit, width, xml
from treadle.datagen.topics.topic_graph import Topic, TopicGraph

_MIN_COLUMN, _MAX_COLUMN = 200, 460
"""The limits of the width of a column. The longest labels are cut."""
_ROW = 17
_INDENT = 15
_FONT = 12
_MARGIN = 20
_ASPECT = 1.4
_MAP_RADIUS = 190
_TITLE, _TITLE_WITH_SCALE = 64, 88
"""The height of the title of a picture without a map."""
_MIN_FOR_MAP = 25
"""The smallest number of topics for which a map is drawn."""
_MAX_NAMED = 22
"""How many branches the legend of the map names."""
_MAX_LINKS = 400
"""How many cross-links the map shows."""


class _Row(Struct):
    topic: Topic
    depth: int
    is_repeated: bool = False
    """True for a branch that is named again at the top of a column."""


def draw_svg(graph: TopicGraph, counts: Mapping[str, int] | None = None) -> str:
    """Return an SVG picture of topics, coloured by branch, or by the number of rows if `counts` has it by id."""
    palette = Palette(graph, counts)
    column_wide = _find_width(graph, palette)
    columns = _split(graph, column_wide)
    has_map = len(graph.topics) >= _MIN_FOR_MAP
    head = 2 * _MAP_RADIUS + 2 * _MARGIN if has_map else _TITLE if counts is None else _TITLE_WITH_SCALE
    least = 2 * _MAP_RADIUS + 460 if has_map else 320
    wide = max(len(columns) * column_wide, least) + 2 * _MARGIN
    high = head + max(map(len, columns)) * _ROW + 2 * _MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{wide}" height="{high}" viewBox="0 0 {wide} {high}" '
        f'role="img" aria-label={quoteattr(xml(graph.root.text))} font-family="system-ui, sans-serif" '
        f'font-size="{_FONT}" fill="#222">',
        f'<rect width="{wide}" height="{high}" fill="#fff"/>',
    ]
    if has_map:
        parts += draw_map(graph, palette, _MARGIN + _MAP_RADIUS, _MARGIN + _MAP_RADIUS)
        parts += _draw_legend(
            graph, palette, 3 * _MARGIN + 2 * _MAP_RADIUS, wide - 4 * _MARGIN - 2 * _MAP_RADIUS
        )
    else:
        parts += _draw_title(graph, palette, _MARGIN, wide - 2 * _MARGIN)
    for number, column in enumerate(columns):
        x = _MARGIN + number * column_wide
        parts.append(f'<svg x="{x}" y="{head}" width="{column_wide - 8}" height="{len(column) * _ROW + 4}">')
        parts += _draw_column(graph, palette, column, column_wide)
        parts.append("</svg>")
    parts.append("</svg>\n")
    return "\n".join(parts)


def _find_width(graph: TopicGraph, palette: Palette) -> int:
    """Return a width of columns that is enough for nearly all labels."""
    numbers = 0.0 if palette.totals is None else 3.0
    rooms = sorted(
        len(topic.path) * _INDENT + (width(topic.text) * 1.08 + numbers + 2) * _FONT for topic in graph.walk()
    )
    return round(min(max(_MIN_COLUMN, rooms[int(0.97 * (len(rooms) - 1))]), _MAX_COLUMN))


def _split(graph: TopicGraph, column_wide: int) -> list[list[_Row]]:
    """Return the rows of each column. A column that begins within a branch names the branch again."""
    rows = [_Row(topic, len(topic.path) - 1) for topic in graph.walk()]
    count = max(1, round(math.sqrt(_ASPECT * len(rows) * _ROW / column_wide)))
    limit = math.ceil(len(rows) / count) + 3
    columns: list[list[_Row]] = [[]]
    for position, row in enumerate(rows):
        column = columns[-1]
        is_full = len(column) >= limit
        # A main branch begins a new column if only its first few topics would fit into this one.
        is_late = row.depth == 1 and len(column) > limit - min(6, limit // 4) and len(rows) - position > 6
        if is_full or is_late:
            above = [graph.topics[key] for key in _ancestors(graph, row.topic)]
            column = [_Row(topic, len(topic.path) - 1, is_repeated=True) for topic in above if topic.parents]
            columns.append(column)
        column.append(row)
    return columns


def _ancestors(graph: TopicGraph, topic: Topic) -> list[str]:
    found: list[str] = []
    while topic.parents:
        found.insert(0, topic.parents[0])
        topic = graph.topics[topic.parents[0]]
    return found


def _draw_column(graph: TopicGraph, palette: Palette, column: list[_Row], wide: int) -> list[str]:
    """Return the rows of a column, with lines from each topic to those below it."""
    lines: list[str] = []
    marks: list[str] = []
    begins: dict[str, int] = {}
    ends: dict[str, int] = {}
    for index, row in enumerate(column):
        x, y = 8 + row.depth * _INDENT, index * _ROW + _ROW // 2
        key = row.topic.topic_id
        begins[key] = y
        if row.topic.parents:
            parent = row.topic.parents[0]
            ends[parent] = y
            lines.append(f"M{x - _INDENT} {y}H{x}")
        marks += _draw_row(graph, palette, row, (x, y), wide)
    for parent, y in ends.items():
        x = 8 + (len(graph.topics[parent].path) - 1) * _INDENT
        lines.append(f"M{x} {begins.get(parent, 0)}V{y}")
    return [f'<path d="{"".join(lines)}" stroke="#c8c8c8" fill="none"/>', *marks]


def _draw_row(graph: TopicGraph, palette: Palette, row: _Row, at: tuple[int, int], wide: int) -> list[str]:
    topic, key, (x, y) = row.topic, row.topic.topic_id, at
    number = "" if palette.totals is None else f"{palette.totals[key]:,}"
    room = (wide - 8 - x - 10) / _FONT - (width(number) + 1 if number else 0) - 0.6
    label = fit(f"… {topic.text}" if row.is_repeated else topic.text, room)
    style = ' fill="#999" font-style="italic"' if row.is_repeated else ""
    if topic.children and not row.is_repeated:
        style = ' font-weight="600"'
        label = fit(topic.text, room / 1.08)
    if topic.error is not None:
        style = f' fill="{NOTHING}" text-decoration="line-through"'
    others = "" if row.is_repeated else _name_links(graph, topic, room - width(label) * 1.08)
    radius = 4.5 if topic.children else 3.5
    drawn = [
        f"<g><title>{palette.describe(graph, key)}</title>",
        f'<circle cx="{x}" cy="{y}" r="{radius}" fill="{palette.fill(key)}" stroke="{palette.stroke(key)}"/>',
        f'<text x="{x + 9}" y="{y + 4}"{style}>{xml(label)}{others}</text>',
    ]
    if number and not row.is_repeated:
        drawn.append(f'<text x="{wide - 14}" y="{y + 4}" text-anchor="end" fill="#777">{number}</text>')
    return [*drawn, "</g>"]


def _name_links(graph: TopicGraph, topic: Topic, room: float) -> str:
    """Return the other parents of a topic, as far as there is room for them."""
    if len(topic.parents) < 2 or room < 2.5:
        return ""
    names = ", ".join(graph.topics[key].text for key in topic.parents[1:])
    return f'<tspan fill="#8a6d3b" font-weight="400"> ↗ {xml(fit(names, room - 2))}</tspan>'


def _draw_title(graph: TopicGraph, palette: Palette, x: int, room: float) -> list[str]:
    """Return the root and the counts, and the scale of the colours."""
    leaves, failed = palette.leaves_below(graph.root_id), len(list(graph.failed()))
    links = graph.count_links()
    facts = [
        f"{len(graph.topics):,} topics",
        f"{leaves:,} leaves",
        *([f"{links:,} cross-links"] if links else []),
        *([f"{failed:,} failed"] if failed else []),
        *([f"{palette.totals[graph.root_id]:,} rows"] if palette.totals is not None else []),
    ]
    drawn = [
        f'<text x="{x}" y="{_MARGIN + 14}" font-size="19" font-weight="600">'
        f"{xml(fit(graph.root.text, room / 20))}</text>",
        f'<text x="{x}" y="{_MARGIN + 34}" fill="#666">{" · ".join(facts)}</text>',
    ]
    return drawn + (_draw_scale(palette, x) if palette.totals is not None else [])


def _draw_scale(palette: Palette, x: int) -> list[str]:
    """Return the colours of the numbers of rows."""
    y = _MARGIN + 46
    steps = sorted({round(palette.most * part / 4) for part in range(5)})
    drawn = []
    for step in steps:
        outline = NOTHING if not step else "none"
        drawn.append(
            f'<circle cx="{x + 5}" cy="{y + 5}" r="4.5" fill="{palette.shade(step)}" stroke="{outline}"/>'
            f'<text x="{x + 13}" y="{y + 9}" fill="#666">{step:,}</text>'
        )
        x += 32 + round(7 * len(f"{step:,}"))
    return [*drawn, f'<text x="{x}" y="{y + 9}" fill="#666">rows of a leaf</text>']


def _draw_legend(graph: TopicGraph, palette: Palette, x: int, room: int) -> list[str]:
    """Return the title, and the main branches with their numbers on the map."""
    drawn = _draw_title(graph, palette, x, room)
    branches = graph.root.children
    per_column = math.ceil(_MAX_NAMED / 2)
    named = branches if len(branches) <= _MAX_NAMED else branches[: _MAX_NAMED - 1]
    wide = room // 2 if len(named) > per_column else room
    top = _MARGIN + 84
    for index, key in enumerate(named):
        left, y = x + wide * (index // per_column), top + 22 * (index % per_column)
        label = f"{index + 1}  {graph.topics[key].text}"
        count = f"{palette.leaves_below(key):,}"
        drawn.append(
            f'<circle cx="{left + 6}" cy="{y}" r="6" fill="{palette.fill(key)}" '
            f'stroke="{palette.stroke(key)}"/><text x="{left + 18}" y="{y + 4}">'
            f'{xml(fit(label, (wide - 30) / _FONT - width(count) - 1.5))} <tspan fill="#777">{count}</tspan></text>'
        )
    if len(named) < len(branches):
        y = top + 22 * ((_MAX_NAMED - 1) % per_column)
        left = x + wide * ((_MAX_NAMED - 1) // per_column)
        drawn.append(
            f'<text x="{left + 18}" y="{y + 4}" fill="#777">and {len(branches) - len(named)} more</text>'
        )
    return drawn


def draw_map(graph: TopicGraph, palette: Palette, x: float, y: float) -> list[str]:
    """Return the map around the point (x, y), as elements of an SVG."""
    depth = max(len(topic.path) for topic in graph.topics.values()) - 1
    ring = _MAP_RADIUS / (depth + 0.8)
    angles = _find_angles(graph, palette)
    drawn = [f'<g transform="translate({x},{y})">']
    for key, (begin, end) in angles.items():
        level = len(graph.topics[key].path) - 1
        title = f"<title>{palette.describe(graph, key)}</title>"
        if not level:
            drawn.append(f'<circle r="{0.8 * ring:.1f}" fill="#f2f2f2">{title}</circle>')
            continue
        path = _arc(begin, end, (level - 0.2) * ring, (level + 0.8) * ring)
        drawn.append(
            f'<path d="{path}" fill="{palette.fill(key)}" stroke="#fff" stroke-width="0.6">{title}</path>'
        )
    drawn += _draw_links(graph, angles, ring)
    for number, key in enumerate(graph.root.children, 1):
        begin, end = angles[key]
        if end - begin > 0.09:
            px, py = _point((begin + end) / 2, 1.3 * ring)
            drawn.append(
                f'<text x="{px:.1f}" y="{py + 4:.1f}" text-anchor="middle" font-weight="600" stroke="#fff" '
                f'stroke-width="3" paint-order="stroke">{number}</text>'
            )
    return [*drawn, "</g>"]


def _find_angles(graph: TopicGraph, palette: Palette) -> dict[str, tuple[float, float]]:
    """Return where the arc of each topic begins and ends. A topic without leaves is as wide as a leaf."""
    sizes: dict[str, int] = {}
    for topic in reversed(list(graph.walk())):
        sizes[topic.topic_id] = sum(sizes[key] for key in topic.children) or 1
    angles = {graph.root_id: (0.0, 2 * math.pi)}
    for topic in graph.walk():
        begin, end = angles[topic.topic_id]
        step = (end - begin) / sizes[topic.topic_id]
        for key in topic.children:
            angles[key] = (begin, begin + step * sizes[key])
            begin = angles[key][1]
    return angles


def _draw_links(graph: TopicGraph, angles: Mapping[str, tuple[float, float]], ring: float) -> list[str]:
    """Return curves for the cross-links, through the middle of the map."""
    links = [(key, topic.topic_id) for topic in graph.walk() for key in topic.parents[1:]][:_MAX_LINKS]
    curves = []
    for pair in links:
        ends = [_point(sum(angles[key]) / 2, (len(graph.topics[key].path) - 0.7) * ring) for key in pair]
        (x1, y1), (x2, y2) = ends
        curves.append(f"M{x1:.1f} {y1:.1f}Q{(x1 + x2) / 8:.1f} {(y1 + y2) / 8:.1f} {x2:.1f} {y2:.1f}")
    if not curves:
        return []
    opacity = max(0.15, min(0.6, 20 / len(curves)))
    return [
        f'<path d="{"".join(curves)}" fill="none" stroke="#333" stroke-opacity="{opacity:.2f}" '
        'pointer-events="none"/>'
    ]


def _arc(begin: float, end: float, inner: float, outer: float) -> str:
    """Return the path of a part of a ring."""
    end = min(end, begin + 2 * math.pi - 1e-4)
    is_large = int(end - begin > math.pi)
    (x1, y1), (x2, y2) = _point(begin, outer), _point(end, outer)
    (x3, y3), (x4, y4) = _point(end, inner), _point(begin, inner)
    return (
        f"M{x1:.1f} {y1:.1f}A{outer:.1f} {outer:.1f} 0 {is_large} 1 {x2:.1f} {y2:.1f}"
        f"L{x3:.1f} {y3:.1f}A{inner:.1f} {inner:.1f} 0 {is_large} 0 {x4:.1f} {y4:.1f}Z"
    )


def _point(angle: float, radius: float) -> tuple[float, float]:
    """Return the point at an angle from the top, clockwise."""
    return radius * math.sin(angle), -radius * math.cos(angle)
