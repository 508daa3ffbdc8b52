"""Tasks: merge contact lists and keep the newest entry of each address."""

import csv
import io
from collections import Counter
from collections.abc import Mapping

from treadle.tasks.draws import Draw
from treadle.tasks.files.file_calls import final, find_paths, in_folder, read_files, write_file
from treadle.tasks.files.grading import Case, Items
from treadle.tasks.files.materials import add_notes, date, email, people, to_csv
from treadle.tasks.solver import Habit, Solver, Step

_COLUMNS = ("email", "name", "phone", "updated")


def generate(draw: Draw) -> Case:
    """Draw three to five lists. The same address occurs with different capitals and spaces."""
    folder = draw.pick(("contacts", "crm/export", "people", "lists"))
    persons = [(name, email(name, draw)) for name in people(draw, draw.between(7, 16))]
    paths = [f"{folder}/{name}.csv" for name in draw.sample(("fair", "import", "mail", "office", "web"), 5)]
    rows: dict[str, list[dict[str, str]]] = {path: [] for path in paths[: draw.between(3, 5)]}
    days = iter(
        draw.shuffled([f"20{year}-{month:02d}-17" for year in range(20, 25) for month in range(1, 13)])
    )
    kept: dict[str, dict[str, str]] = {}
    phones: Counter[str] = Counter()
    for name, address in persons:
        for _ in range(draw.pick((1, 1, 2, 3))):
            spelt = draw.pick((address, address.upper(), address.title(), f" {address}"))
            phone = f"+{draw.between(30, 99)} {draw.between(100, 999)} {draw.between(1000, 9999)}"
            row = {"email": spelt, "name": name, "phone": phone, "updated": next(days)}
            rows[draw.pick(list(rows))].append(row)
            phones[address] += 1
            if address not in kept or row["updated"] > kept[address]["updated"]:
                kept[address] = {**row, "email": address}
    files = {path: to_csv(draw.shuffled(part), draw.shuffled(_COLUMNS)) for path, part in rows.items()}
    add_notes(files, draw, draw.between(0, 3), folder)
    target = f"{folder}/{draw.pick(('all', 'merged', 'clean'))}-{date(draw)[:4]}.csv"
    content = to_csv([kept[address] for address in sorted(kept)], _COLUMNS)
    person = draw.pick([name for name, address in persons if phones[address] > 1] or [persons[0][0]])
    entry = next(row for row in kept.values() if row["name"] == person)
    expected = Items((entry["phone"],), tuple([row["phone"] for part in rows.values() for row in part]))
    values = {"folder": folder, "target": target, "person": person}
    return Case(values, files, expected, {target: content})


def solve(values: Mapping[str, str], habit: Habit) -> Solver:
    """Read the lists and keep the newest row of each address."""
    is_list = in_folder(values["folder"], ".csv")
    paths = yield from find_paths(lambda path: is_list(path) and path != values["target"])
    texts = yield from read_files(paths, habit)
    kept: dict[str, dict[str, str]] = {}
    count = 0
    for text in texts.values():
        for row in csv.DictReader(io.StringIO(text)):
            address = row["email"].strip().lower()
            count += 1
            if address not in kept or row["updated"] > kept[address]["updated"]:
                kept[address] = {**row, "email": address}
    content = to_csv([kept[address] for address in sorted(kept)], _COLUMNS)
    phone = next((row["phone"] for row in kept.values() if row["name"] == values["person"]), "unknown")
    answer = final(habit, phone, f"{len(kept)} of {count} contacts stay.")
    yield Step([write_file(values["target"], content)], "I keep the newest entry of each address.", answer)
    return answer
