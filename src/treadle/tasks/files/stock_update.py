"""Tasks: update a stock list with the movements of several days."""

import json
from collections.abc import Mapping

from treadle.tasks.draws import Draw
from treadle.tasks.files.file_calls import final, read_file, read_folder, write_file
from treadle.tasks.files.grading import Case, Items
from treadle.tasks.files.materials import PRODUCTS, add_notes, to_json
from treadle.tasks.solver import Habit, Solver, Step


def generate(draw: Draw) -> Case:
    """Draw a stock list and two to six days of movements, some of them cancelled."""
    folder = draw.pick(("moves", "stock/days", "warehouse/moves", "journal"))
    stock_path = draw.pick(("stock.json", "stock/now.json", "warehouse/stock.json"))
    names = draw.sample(PRODUCTS, draw.between(5, 10))
    stock = {name: {"count": draw.between(40, 200), "minimum": draw.between(10, 60)} for name in names}
    files = {stock_path: to_json(stock)}
    counts = {name: entry["count"] for name, entry in stock.items()}
    day = draw.between(1, 20)
    for offset in range(draw.between(2, 6)):
        lines = ["time,product,change,note\n"]
        for _ in range(draw.between(3, 9)):
            name = draw.pick(names)
            change = draw.pick((draw.between(-40, -1), draw.between(1, 30)))
            note = "cancelled" if draw.chance(0.2) else draw.pick(("", "", "rush", "returned"))
            lines.append(f"{draw.between(6, 18):02d}:{draw.below(60):02d},{name},{change:+d},{note}\n")
            if note != "cancelled":
                counts[name] += change
        files[f"{folder}/2024-06-{day + offset:02d}.csv"] = "".join(lines)
    low = [name for name in names if counts[name] < stock[name]["minimum"]]
    if not low:
        low = [draw.pick(names)]
        stock[low[0]]["minimum"] = counts[low[0]] + draw.between(1, 9)
        files[stock_path] = to_json(stock)
    add_notes(files, draw, draw.between(0, 2))
    result = {name: {"count": counts[name], "minimum": stock[name]["minimum"]} for name in names}
    values = {"stock": stock_path, "folder": folder}
    return Case(values, files, Items(tuple(low), tuple(names)), {stock_path: to_json(result)})


def solve(values: Mapping[str, str], habit: Habit) -> Solver:
    """Read the list and the days, apply the movements that were not cancelled, and write the list."""
    texts = yield from read_folder(values["folder"], habit, ".csv")
    (text,) = yield Step([read_file(values["stock"])], "And the list that these apply to.")
    stock = json.loads(text)
    for path in sorted(texts):
        for line in texts[path].splitlines()[1:]:
            _, name, change, note = line.split(",")
            if note != "cancelled":
                stock[name]["count"] += int(change)
    low = [name for name, entry in stock.items() if entry["count"] < entry["minimum"]]
    answer = final(habit, ", ".join(low), f"{len(low)} of {len(stock)} products are below their minimum.")
    yield Step([write_file(values["stock"], to_json(stock))], "Now the new counts.", answer)
    return answer
