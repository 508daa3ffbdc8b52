"""Tasks: reconcile two ledgers and report the differences."""

import csv
import io
from collections.abc import Mapping

from treadle.tasks.draws import Draw
from treadle.tasks.files.file_calls import final, find_paths, in_folder, read_files, write_file
from treadle.tasks.files.grading import Case, Number
from treadle.tasks.files.materials import COMPANIES, add_notes, cents, date, money, to_csv
from treadle.tasks.solver import Habit, Solver, Step


def generate(draw: Draw) -> Case:
    """Draw two ledgers over one to three months. Some entries differ, and some are in only one ledger."""
    left, right = draw.sample(("bank", "books", "shop", "warehouse", "cards", "till"), 2)
    year = draw.between(2021, 2025)
    months = draw.sample(range(1, 13), draw.between(1, 3))
    entries: dict[str, tuple[int | None, int | None]] = {}
    rows: dict[str, list[dict[str, str]]] = {}
    for month in sorted(months):
        for number in range(draw.between(5, 11)):
            reference = f"{draw.pick('KLMNPR')}{year % 100}{month:02d}{draw.between(10, 99)}{number:02d}"
            amount = draw.between(-90_000, 250_000)
            off = draw.pick((0, 0, 0, 0, -900, 9, 100, 27)) if entries else draw.between(1, 9999)
            one: int | None = amount
            two: int | None = amount + off
            if off == 0 and draw.chance(0.2):
                one, two = draw.pick(((amount, None), (None, amount)))
            entries[reference] = (one, two)
            who = draw.pick(COMPANIES)
            for side, value in ((left, one), (right, two)):
                if value is not None:
                    row = {
                        "ref": reference,
                        "date": date(draw, year, month),
                        "text": who,
                        "amount": money(value),
                    }
                    rows.setdefault(f"ledgers/{side}/{year}-{month:02d}.csv", []).append(row)
    files = {}
    for path, part in rows.items():
        columns = (
            ["date", "ref", "amount", "text"] if f"/{left}/" in path else ["ref", "text", "date", "amount"]
        )
        files[path] = to_csv(draw.shuffled(part), columns)
    add_notes(files, draw, draw.between(1, 3))
    target = f"reports/{left}-{right}.csv"
    content, difference = _compare(left, right, entries)
    values = {"left": left, "right": right, "target": target}
    return Case(values, files, Number(money(difference)), {target: content})


def _compare(left: str, right: str, entries: Mapping[str, tuple[int | None, int | None]]) -> tuple[str, int]:
    """Return the report, and the left sum minus the right sum in cents."""
    lines = [f"ref,{left},{right}\n"]
    difference = 0
    for reference, (one, two) in sorted(entries.items()):
        if one != two:
            lines.append(
                f"{reference},{'' if one is None else money(one)},{'' if two is None else money(two)}\n"
            )
        difference += (one or 0) - (two or 0)
    return "".join(lines), difference


def solve(values: Mapping[str, str], habit: Habit) -> Solver:
    """Read both ledgers, join them by reference, and write the differences."""
    paths = yield from find_paths(in_folder("ledgers", ".csv"))
    left, right = values["left"], values["right"]
    sides = {path: path.split("/")[1] for path in paths if path.split("/")[1] in (left, right)}
    texts = yield from read_files(list(sides), habit)
    amounts: dict[str, dict[str, int]] = {left: {}, right: {}}
    for path, text in texts.items():
        for row in csv.DictReader(io.StringIO(text)):
            amounts[sides[path]][row["ref"]] = cents(row["amount"])
    references = amounts[left].keys() | amounts[right].keys()
    entries = {ref: (amounts[left].get(ref), amounts[right].get(ref)) for ref in references}
    content, difference = _compare(left, right, entries)
    count = content.count("\n") - 1
    answer = final(habit, money(difference), f"{count} of {len(entries)} entries differ.")
    yield Step([write_file(values["target"], content)], f"{count} references differ; I list them.", answer)
    return answer
