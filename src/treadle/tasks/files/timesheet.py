"""Tasks: add up hours from weekly time sheets and compute the pay."""

import json
import re
from collections.abc import Mapping

from treadle.tasks.draws import Draw
from treadle.tasks.files.file_calls import final, read_file, read_folder, write_file
from treadle.tasks.files.grading import Case, Number
from treadle.tasks.files.materials import add_notes, cents, money, people, to_json
from treadle.tasks.solver import Habit, Solver, Step

_LINE = re.compile(r"(\w+ \w+), (\w+): (\d\d):(\d\d)-(\d\d):(\d\d)(?:, break (\d+) min)?")


def generate(draw: Draw) -> Case:
    """Draw two to five weeks of three to six people, and a file with the hourly rates."""
    folder = draw.pick(("timesheets", "hours", "hr/weeks", "shifts"))
    rates_path = draw.pick(("rates.json", "hr/rates.json", "pay/rates.json"))
    staff = people(draw, draw.between(3, 6))
    rates = {name: draw.between(24, 90) * 60 for name in staff}
    minutes = dict.fromkeys(staff, 0)
    files = {rates_path: to_json({name: money(rate) for name, rate in rates.items()})}
    week = draw.between(1, 45)
    for offset in range(draw.between(2, 5)):
        lines = []
        for name in draw.shuffled(staff)[: draw.between(2, len(staff))]:
            for day in draw.sample(("Mon", "Tue", "Wed", "Thu", "Fri"), draw.between(1, 3)):
                start = draw.between(6 * 4, 10 * 4) * 15
                end = start + draw.between(12, 36) * 15
                pause = draw.pick((0, 0, 15, 30, 45))
                text = f"{name}, {day}: {start // 60:02d}:{start % 60:02d}-{end // 60:02d}:{end % 60:02d}"
                lines.append(text + (f", break {pause} min" if pause else "") + "\n")
                minutes[name] += end - start - pause
        files[f"{folder}/week-{week + offset:02d}.txt"] = "".join(lines)
    add_notes(files, draw, draw.between(0, 2))
    worked = {name: count for name, count in minutes.items() if count}
    target = f"pay/{folder.rpartition('/')[2]}-{week:02d}.json"
    pay = {name: money(count * rates[name] // 60) for name, count in worked.items()}
    total = sum([count * rates[name] // 60 for name, count in worked.items()])
    values = {"folder": folder, "rates": rates_path, "target": target}
    return Case(values, files, Number(money(total)), {target: to_json(pay)})


def solve(values: Mapping[str, str], habit: Habit) -> Solver:
    """Read the weeks and the rates, add up the minutes, and write the pay."""
    texts = yield from read_folder(values["folder"], habit, ".txt")
    (text,) = yield Step([read_file(values["rates"])], "Now what an hour is worth.")
    rates = {name: cents(rate) for name, rate in json.loads(text).items()}
    minutes: dict[str, int] = {}
    for sheet in texts.values():
        for name, _, *numbers in _LINE.findall(sheet):
            from_hour, from_minute, to_hour, to_minute, pause = [int(number or 0) for number in numbers]
            worked = (to_hour - from_hour) * 60 + to_minute - from_minute - pause
            minutes[name] = minutes.get(name, 0) + worked
    pay = {name: count * rates[name] // 60 for name, count in minutes.items()}
    answer = final(habit, money(sum(pay.values())), f"{len(pay)} people worked in {len(texts)} weeks.")
    content = to_json({name: money(amount) for name, amount in pay.items()})
    yield Step([write_file(values["target"], content)], "I have the pay of everybody.", answer)
    return answer
