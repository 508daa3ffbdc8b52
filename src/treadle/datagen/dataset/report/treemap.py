"""A treemap: rectangles in a rectangle, whose areas are in proportion to weights.

Source: Bruls, Huizing and van Wijk, Squarified Treemaps, 2000.
"""

from collections.abc import Sequence

from msgspec import Struct


class Box(Struct, frozen=True):
    """A rectangle."""

    x: float
    y: float
    width: float
    height: float


def lay_out(weights: Sequence[float], room: Box) -> list[Box]:
    """Return a rectangle for each of the weights, which are positive and in descending order."""
    boxes: list[Box] = []
    scale = room.width * room.height / sum(weights) if weights else 0.0
    areas = [weight * scale for weight in weights]
    start = 0
    while start < len(areas):
        side = min(room.width, room.height)
        end = start + 1
        while end < len(areas) and _worst(areas[start : end + 1], side) <= _worst(areas[start:end], side):
            end += 1
        strip, room = _place(areas[start:end], room)
        boxes += strip
        start = end
    return boxes


def _worst(areas: Sequence[float], side: float) -> float:
    """Return the greatest ratio of the sides of rectangles in a strip along `side`."""
    total = sum(areas)
    if not total or not side:
        return 0.0
    return max(side**2 * areas[0] / total**2, total**2 / (side**2 * areas[-1]))


def _place(areas: Sequence[float], room: Box) -> tuple[list[Box], Box]:
    """Return the rectangles of a strip along the shorter side, and the room that is left."""
    total = sum(areas)
    boxes = []
    if room.width >= room.height:
        width = total / room.height if room.height else 0.0
        y = room.y
        for area in areas:
            height = area / width if width else 0.0
            boxes.append(Box(room.x, y, width, height))
            y += height
        return boxes, Box(room.x + width, room.y, max(0.0, room.width - width), room.height)
    height = total / room.width if room.width else 0.0
    x = room.x
    for area in areas:
        width = area / height if height else 0.0
        boxes.append(Box(x, room.y, width, height))
        x += width
    return boxes, Box(room.x, room.y + height, room.width, max(0.0, room.height - height))
