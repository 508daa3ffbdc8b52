"""Tasks: add up a column over the rows that match a filter, in several CSV files with different layouts."""

import csv
import io
from collections.abc import Mapping

from treadle.tasks.draws import Draw
from treadle.tasks.files.file_calls import final, read_folder, write_file
from treadle.tasks.files.grading import Case, Number
from treadle.tasks.files.materials import COMPANIES, REGIONS, add_notes, cents, date, money, to_csv
from treadle.tasks.solver import Habit, Solver, Step

_COLUMNS = ("amount", "net", "total", "price", "value")
_STATUS = ("paid", "open", "refunded", "disputed", "cancelled")
_FOLDERS = ("sales", "orders", "exports/sales", "finance/orders", "data/orders")


def generate(draw: Draw) -> Case:
    """Draw two to five order lists, and one in an archive that must not be counted."""
    folder = draw.pick(_FOLDERS)
    column = draw.pick(_COLUMNS)
    key = draw.pick(("status", "region"))
    statuses, regions = draw.sample(_STATUS, 3), draw.sample(REGIONS, 3)
    wanted = draw.pick(statuses if key == "status" else regions)
    files: dict[str, str] = {}
    total = 0
    names = [f"{folder}/{draw.between(2021, 2023)}-{month:02d}.csv" for month in range(1, 13)]
    paths = [*draw.sample(names, draw.between(2, 5)), f"archive/{folder}/2019-12.csv"]
    for path in paths:
        rows = []
        year, month = int(path[-11:-7]), int(path[-6:-4])
        for number in range(draw.between(4, 12)):
            row = {
                "order": f"{draw.pick('ABCDEF')}{draw.between(100, 999)}{number}",
                "date": date(draw, year, month),
                "customer": draw.pick(COMPANIES) + draw.pick(("", ", Inc.", " Ltd")),
                "status": draw.pick(statuses),
                "region": draw.pick(regions),
                column: money(draw.between(150, 250_000)),
            }
            rows.append(row)
            if path.startswith(f"{folder}/") and row[key] == wanted:
                total += cents(row[column])
        files[path] = to_csv(rows, draw.shuffled(list(rows[0])), draw.pick(",,;"))
    add_notes(files, draw, draw.between(0, 3))
    values = {"folder": folder, "column": column, "key": key, "value": wanted}
    if draw.chance(0.5):
        return Case(values, files, Number(money(total)))
    report = f"reports/{wanted}-{column}.txt"
    changes: dict[str, str | None] = {report: money(total) + "\n"}
    return Case({**values, "report": report}, files, Number(money(total)), changes)


def solve(values: Mapping[str, str], habit: Habit) -> Solver:
    """Read every CSV file in the folder and add up the rows that match."""
    texts = yield from read_folder(values["folder"], habit, ".csv")
    total = count = 0
    for text in texts.values():
        delimiter = ";" if ";" in text.partition("\n")[0] else ","
        for row in csv.DictReader(io.StringIO(text), delimiter=delimiter):
            if row[values["key"]] == values["value"]:
                total += cents(row[values["column"]])
                count += 1
    prose = f"{count} rows in {len(texts)} files have {values['key']} {values['value']}."
    answer = final(habit, money(total), prose)
    if "report" in values:
        yield Step([write_file(values["report"], money(total) + "\n")], f"{prose} Now the report.", answer)
    return answer
