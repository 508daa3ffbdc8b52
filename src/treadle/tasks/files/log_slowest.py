"""Tasks: find the slowest request of a method in access logs."""

import re
from collections.abc import Mapping

from treadle.tasks.draws import Draw
from treadle.tasks.files.file_calls import final, read_folder, write_file
from treadle.tasks.files.grading import Case, Items
from treadle.tasks.files.materials import PRODUCTS, SERVICES, add_notes, date
from treadle.tasks.solver import Habit, Solver, Step

_METHODS = ("GET", "POST", "PUT", "DELETE")
_STATUS = (200, 200, 200, 201, 301, 404, 500, 503)
_LINE = re.compile(r"\S+ \S+ (\w+) (\S+) (\d+) (\d+(?:\.\d+)?)(ms|s) (\w+)")


def generate(draw: Draw) -> Case:
    """Draw two to five access logs. Some are in seconds, some in milliseconds."""
    folder = draw.pick(("access", "logs/access", "nginx", "proxy/logs"))
    method = draw.pick(_METHODS)
    count = draw.between(2, 4)
    day = date(draw)
    files: dict[str, str] = {}
    durations = iter(draw.distinct(3, 9000, 80))
    times: dict[str, int] = {}
    everything = []
    for service in draw.sample(SERVICES, draw.between(3, 5)):
        is_seconds = draw.chance(0.3)
        lines = []
        for _ in range(draw.between(6, 14)):
            kind, milliseconds, mark = draw.pick(_METHODS), next(durations), f"r{draw.below(16**7):07x}"
            if len(times) < count:
                kind = method
            took = f"{milliseconds / 1000:.3f}s" if is_seconds else f"{milliseconds}ms"
            clock = f"{draw.below(24):02d}:{draw.below(60):02d}:{draw.below(60):02d}"
            path = f"/{service}/{draw.pick(PRODUCTS)}/{draw.between(1, 999)}"
            lines.append(f"{day} {clock} {kind} {path} {draw.pick(_STATUS)} {took} {mark}\n")
            everything.append(mark)
            if kind == method:
                times[mark] = milliseconds
        files[f"{folder}/{service}.access.log"] = "".join(lines)
    add_notes(files, draw, draw.between(0, 3))
    ranked = sorted(times, key=lambda mark: -times[mark])
    values = {"folder": folder, "method": method}
    expected = Items((ranked[0],), tuple(everything))
    if draw.chance(0.4):
        return Case(values, files, expected)
    report = f"reports/slow-{method.lower()}.txt"
    content = "".join([f"{mark} {times[mark]}\n" for mark in ranked[:count]])
    return Case({**values, "report": report, "count": str(count)}, files, expected, {report: content})


def solve(values: Mapping[str, str], habit: Habit) -> Solver:
    """Read the logs and rank the requests of the method."""
    texts = yield from read_folder(values["folder"], habit, ".log")
    times: dict[str, int] = {}
    for text in texts.values():
        for method, _, _, took, unit, mark in _LINE.findall(text):
            if method == values["method"]:
                times[mark] = round(float(took) * (1000 if unit == "s" else 1))
    ranked = sorted(times, key=lambda mark: -times[mark])
    answer = final(habit, ranked[0], f"Of {len(times)} requests the slowest took {times[ranked[0]]} ms.")
    if "report" in values:
        content = "".join([f"{mark} {times[mark]}\n" for mark in ranked[: int(values["count"])]])
        yield Step([write_file(values["report"], content)], "Now I write the ranking.", answer)
    return answer
