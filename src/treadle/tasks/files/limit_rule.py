"""Tasks: find the purchase requests that exceed a limit, and delete them."""

import json
import re
from collections.abc import Mapping

from treadle.tasks.draws import Draw
from treadle.tasks.files.file_calls import delete_file, final, make_all, read_file, read_folder
from treadle.tasks.files.grading import Case, Items
from treadle.tasks.files.materials import (
    DEPARTMENTS,
    PRODUCTS,
    add_notes,
    cents,
    date,
    money,
    people,
    to_json,
)
from treadle.tasks.solver import Habit, Solver, Step


def generate(draw: Draw) -> Case:
    """Draw five to twelve requests. One or two are above their department's limit."""
    folder = draw.pick(("requests", "purchases/open", "inbox/requests", "approvals"))
    limits = {name: draw.between(20, 400) * 1000 for name in draw.sample(DEPARTMENTS, 4)}
    rules = draw.pick(("rules/limits.json", "policy/limits.json", "limits.json"))
    files = {rules: to_json({name: money(limit) for name, limit in limits.items()})}
    changes: dict[str, str | None] = {}
    count = draw.between(5, 12)
    for index, person in enumerate(people(draw, count)):
        department = draw.pick(list(limits))
        limit = limits[department]
        is_over = index < draw.between(1, 2)
        total = limit + draw.between(1, 20_000) if is_over else draw.between(limit // 3, limit)
        path = f"{folder}/{draw.between(100, 999)}-{person.split(' ')[1].lower()}.txt"
        files[path] = _write(draw, person, department, total)
        if is_over:
            changes[path] = None
    expected = Items(tuple(sorted(changes)), tuple([path for path in files if path.startswith(f"{folder}/")]))
    add_notes(files, draw, draw.between(0, 2))
    return Case({"folder": folder, "rules": rules}, files, expected, changes)


def _write(draw: Draw, person: str, department: str, total: int) -> str:
    first = draw.between(total // 4, total // 2)
    second = draw.between(1, total - first - 1)
    parts = [first, second, total - first - second]
    products = draw.sample(PRODUCTS, 3)
    items = "".join([f"  {name}: {money(part)}\n" for name, part in zip(products, parts, strict=True)])
    heads = [f"Name: {person}\n", f"Department: {department}\n", f"Date: {date(draw)}\n"]
    return "".join(draw.shuffled(heads)) + "Items:\n" + items


def solve(values: Mapping[str, str], habit: Habit) -> Solver:
    """Read the limits and the requests, add up each request, and delete those above the limit."""
    (rules,) = yield Step([read_file(values["rules"])], "The limits first.")
    limits = {name: cents(limit) for name, limit in json.loads(rules).items()}
    texts = yield from read_folder(values["folder"], habit, ".txt")
    broken = []
    for path, text in texts.items():
        found = re.search(r"^Department: (\w+)", text, re.MULTILINE)
        total = sum([cents(amount) for amount in re.findall(r"^  \w+: (\S+)$", text, re.MULTILINE)])
        if found and total > limits[found[1]]:
            broken.append(path)
    answer = final(habit, ", ".join(broken), f"{len(broken)} of {len(texts)} requests are above the limit.")
    calls = [delete_file(path) for path in broken]
    yield from make_all(calls, habit, f"{', '.join(broken)}: above the limit of the department.", answer)
    return answer
