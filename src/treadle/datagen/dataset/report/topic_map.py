"""The map of the topics: a rectangle for each topic, whose colour says how many rows it has."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from html import escape

from treadle.datagen.dataset.report.treemap import Box, lay_out
from treadle.export.html.blocks import tone

Path = tuple[str, ...]
MAX_CELLS = 1_200
"""The largest number of rectangles in the map. If there are more topics, subtopics are drawn together."""
_LAYOUTS = (("wide", 1080.0, 470.0), ("tall", 340.0, 560.0))
_HEAD = 20.0
"""The height of the name of a group, in pixels."""
_LABEL_HEIGHT, _NUMBER_HEIGHT = 32.0, 18.0
"""The heights from which a rectangle has a text or a number, in pixels."""
_CHAR, _PADDING = 5.9, 13.0
"""The approximate width of a character, and the width of the space around a text, in pixels."""
_STRONG = 0.55
"""The share of the accent from which texts on it are light."""


def draw_map(leaves: Mapping[Path, int]) -> str:
    """Return the map of topics with their numbers of rows, as HTML; nothing if there are fewer than two."""
    cells, weights = _fold(leaves)
    if len(cells) < 2:
        return ""
    root = next(iter(cells))[:1]
    has_root = all(path[:1] == root and len(path) > 1 for path in cells)
    groups: dict[Path, list[Path]] = defaultdict(list)
    for path in cells:
        # A path below the root and its first topic is drawn within the rectangle of that topic.
        start = 1 if has_root else 0
        groups[path[: start + 1] if len(path) > start + 1 else ()].append(path)
    most = max(cells.values()) or 1
    maps = [
        f'<div class="map {name}">{_draw_groups(groups, cells, weights, most, Box(0, 0, width, height))}</div>'
        for name, width, height in _LAYOUTS
    ]
    folded = ""
    if len(cells) < len(leaves):
        folded = (
            f" {len(leaves):,} topics are drawn as {len(cells):,}; the size of a rectangle is their number."
        )
    scale = (
        f'<div class="scale"><span>0 rows</span><i style="background:linear-gradient(90deg,'
        f'{tone(0)},{tone(0.5)},{tone(1)})"></i><span class="num">{most:,} rows</span>'
        f"<span>Select a topic to see its rows.{folded}</span></div>"
    )
    return "".join(maps) + scale


def _fold(leaves: Mapping[Path, int]) -> tuple[Mapping[Path, int], Mapping[Path, int]]:
    """Return the rows of each rectangle and the number of its topics, after cutting paths that are too deep."""
    depth = max(map(len, leaves), default=0)
    while depth > 1 and len({path[:depth] for path in leaves}) > MAX_CELLS:
        depth -= 1
    rows: Counter[Path] = Counter()
    topics: Counter[Path] = Counter()
    for path, count in leaves.items():
        rows[path[:depth]] += count
        topics[path[:depth]] += 1
    return rows, topics


def _draw_groups(
    groups: Mapping[Path, list[Path]],
    cells: Mapping[Path, int],
    weights: Mapping[Path, int],
    most: int,
    room: Box,
) -> str:
    sizes = {group: sum(weights[path] for path in paths) for group, paths in groups.items()}
    order = sorted(groups, key=lambda group: (-sizes[group], group))
    parts = []
    for group, box in zip(order, lay_out([sizes[group] for group in order], room), strict=True):
        paths = sorted(groups[group], key=lambda path: (-weights[path], path))
        inner = Box(0, 0, box.width, max(1.0, box.height - (_HEAD if group else 0)))
        drawn = "".join(
            _draw_leaf(path, " › ".join(path[len(group) or 1 :] or path), cells[path], most, place, inner)
            for path, place in zip(paths, lay_out([weights[path] for path in paths], inner), strict=True)
        )
        head = ""
        if group:
            rows = sum(cells[path] for path in paths)
            title = escape(f"{' › '.join(group)}: {rows:,} rows in {sizes[group]:,} topics")
            head = f'<span title="{title}">{escape(group[-1])}</span>'
        top = _HEAD if group else 0
        parts.append(
            f'<div class="{"group" if group else ""}" style="{_place(box, room)}">{head}'
            f'<div style="position:absolute;inset:{top:g}px 0 0 0" class="inner">{drawn}</div></div>'
        )
    return "".join(parts)


def _draw_leaf(path: Path, label: str, rows: int, most: int, box: Box, room: Box) -> str:
    share = (0.12 + 0.88 * rows / most) if rows else 0.0
    full = " › ".join(path)
    strong = " strong" if share > _STRONG else ""
    # Where the longest word would be cut, the number of rows says more.
    needed = _PADDING + _CHAR * max(map(len, label.split()), default=0)
    text = label if box.width >= needed and box.height >= _LABEL_HEIGHT else f"{rows:,}"
    if box.height < _NUMBER_HEIGHT or box.width < _PADDING + _CHAR * len(text):
        text = text if text == label else ""
    return (
        f'<button class="leaf{strong}" data-topic="{escape(full)}" aria-label="{escape(full)}" '
        f'title="{escape(f"{full}: {rows:,} rows")}" '
        f'style="position:absolute;{_place(box, room)};background:{tone(share)}">{escape(text)}</button>'
    )


def _place(box: Box, room: Box) -> str:
    """Return the place of a rectangle in percent, so that the map fits any width."""
    values = (
        ("left", box.x / room.width),
        ("top", box.y / room.height),
        ("width", box.width / room.width),
        ("height", box.height / room.height),
    )
    return ";".join([f"{name}:{100 * value:.3f}%" for name, value in values])
