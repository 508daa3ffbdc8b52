"""Tasks: find two overlapping bookings of one room, and remove the later one."""

import re
from collections.abc import Mapping
from itertools import pairwise

from treadle.tasks.draws import Draw
from treadle.tasks.files.file_calls import edit_file, final, read_folder
from treadle.tasks.files.grading import Case, Items
from treadle.tasks.files.materials import CITIES, TOPICS, add_notes, people
from treadle.tasks.solver import Habit, Solver, Step

_LINE = re.compile(r"(\S+) (\d\d):(\d\d)-(\d\d):(\d\d) \[(\w+)\] (.+)")


def generate(draw: Draw) -> Case:
    """Draw three to seven calendars with exactly one conflict."""
    folder = draw.pick(("calendars", "bookings", "team/calendars", "rooms/by-person"))
    names = [name.split(" ")[0].lower() for name in people(draw, draw.between(3, 7))]
    days = [f"2025-{draw.between(1, 12):02d}-{day:02d}" for day in draw.sample(range(1, 29), 3)]
    rooms = draw.sample(CITIES, 3)
    titles = iter(
        draw.shuffled([f"{topic} {kind}" for topic in TOPICS for kind in ("review", "planning", "demo")])
    )
    bookings: list[tuple[str, str, int, int, str]] = []
    for room in rooms:
        for day in days:
            start = draw.between(8 * 4, 9 * 4)
            for _ in range(draw.between(1, 4)):
                end = start + draw.between(2, 7)
                bookings.append((day, room, start * 15, end * 15, next(titles)))
                start = end + draw.pick((0, 0, 1, 3))
    first = draw.pick(bookings)
    start = first[2] + draw.between(1, (first[3] - first[2]) // 15 - 1) * 15
    end = min(
        [item[2] for item in bookings if item[:2] == first[:2] and item[2] >= first[3]], default=19 * 60
    )
    end = max(start + 15, min(end, start + 60))
    last = (first[0], first[1], start, end, next(titles))
    owner = draw.pick(names)
    lines: dict[str, list[str]] = {name: [] for name in names}
    for index, item in enumerate(bookings):
        lines[names[index % len(names)]].append(_write(item))
    spare = {name: draw.shuffled(part) for name, part in lines.items()}
    after = {name: "".join(part) for name, part in spare.items()}
    position = draw.below(len(spare[owner]) + 1)
    spare[owner].insert(position, _write(last))
    files = {f"{folder}/{name}.txt": "".join(part) for name, part in spare.items()}
    add_notes(files, draw, draw.between(0, 2))
    changes: dict[str, str | None] = {f"{folder}/{owner}.txt": after[owner]}
    others = tuple([item[4] for item in bookings])
    return Case({"folder": folder}, files, Items((last[4],), others), changes)


def _write(booking: tuple[str, str, int, int, str]) -> str:
    day, room, start, end, title = booking
    return f"{day} {start // 60:02d}:{start % 60:02d}-{end // 60:02d}:{end % 60:02d} [{room}] {title}\n"


def solve(values: Mapping[str, str], habit: Habit) -> Solver:
    """Read the calendars, sort the bookings of each room by time, and find the one that starts too early."""
    texts = yield from read_folder(values["folder"], habit, ".txt")
    rows: list[tuple[str, str, int, int, str, str, str]] = []
    for path, text in texts.items():
        for line in text.splitlines(keepends=True):
            found = _LINE.match(line)
            if found:
                start, end = int(found[2]) * 60 + int(found[3]), int(found[4]) * 60 + int(found[5])
                rows.append((found[1], found[6], start, end, found[7].strip(), path, line))
    rows.sort()
    for before, row in pairwise(rows):
        if before[:2] == row[:2] and row[2] < before[3]:
            answer = final(habit, row[4], f"It overlaps with {before[4]} in {row[1]} on {row[0]}.")
            call = edit_file(row[5], texts[row[5]], row[6], "")
            yield Step([call], f"{before[4]} and {row[4]} overlap; the later one goes.", answer)
            return answer
    return final(habit, "none", "No two bookings of a room overlap.")
