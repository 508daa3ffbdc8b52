"""Tasks: follow notes from file to file, each of which names the next one, and collect their contents."""

import re
from collections.abc import Mapping

from treadle.tasks.draws import Draw
from treadle.tasks.files.file_calls import final, read_file, write_file
from treadle.tasks.files.grading import Case, Items
from treadle.tasks.files.materials import CITIES, SERVICES, add_notes, people, prose
from treadle.tasks.solver import Habit, Solver, Step

_FOLDERS = ("desk", "shelf", "attic", "cellar", "office", "garage")


def generate(draw: Draw) -> Case:
    """Draw a chain of three to ten notes among others that lead elsewhere."""
    names = draw.sample([f"{folder}/{name}.txt" for folder in _FOLDERS for name in SERVICES], 14)
    length = draw.between(3, 10)
    chain, others = names[:length], names[length:]
    cities = draw.sample(CITIES, len(names))
    writers = people(draw, len(names))
    files: dict[str, str] = {}
    for index, name in enumerate(names):
        following = chain[index + 1] if index + 1 < length else None
        if name in others:
            following = draw.pick(names)
        end = "This is the last one." if following is None else f"Go on with {following}."
        stop = f"Stop: {cities[index]} ({draw.between(1, 90)} km)"
        old = f"(It used to go on with {draw.pick(names)}, but no longer.)\n" if draw.chance(0.3) else ""
        files[name] = f"{prose(draw, 1)}\n{stop}\n{old}{end}\n{writers[index]}\n"
    add_notes(files, draw, draw.between(0, 2))
    stops = cities[:length]
    values = {"start": chain[0]}
    if draw.chance(0.5):
        return Case(values, files, Items(("-".join(stops),)))
    report = "route.txt"
    total = sum([int(re.findall(r"\((\d+) km\)", files[name])[0]) for name in chain])
    content = "".join([f"{stop}\n" for stop in stops]) + f"{total} km\n"
    return Case({**values, "report": report}, files, Items(("-".join(stops),)), {report: content})


def solve(values: Mapping[str, str], habit: Habit) -> Solver:
    """Read one note after the other up to the last."""
    path: str | None = values["start"]
    seen: list[str] = []
    stops: list[str] = []
    total = 0
    while path is not None and path not in seen:
        so_far = f"So far: {'-'.join(stops)}" if stops else ""
        why = f"The note says to go on with {path}." if seen else f"I start with {path}."
        (text,) = yield Step([read_file(path)], why, so_far)
        seen.append(path)
        stop = re.search(r"^Stop: (\w+) \((\d+) km\)", text, re.MULTILINE)
        if stop:
            stops.append(stop[1])
            total += int(stop[2])
        following = re.search(r"^Go on with (\S+?)\.$", text, re.MULTILINE)
        path = following[1] if following else None
    answer = final(habit, "-".join(stops), f"The route has {len(stops)} stops and {total} km.")
    if "report" in values:
        content = "".join([f"{stop}\n" for stop in stops]) + f"{total} km\n"
        yield Step([write_file(values["report"], content)], "That was the last note; now the route.", answer)
    return answer
