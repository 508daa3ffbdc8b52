"""Tasks: find the nth line with a certain log level in several logs sorted by time, and count the levels."""

import re
from collections import Counter
from collections.abc import Mapping

from treadle.tasks.draws import Draw
from treadle.tasks.files.file_calls import final, find_paths, in_folder, read_files, write_file
from treadle.tasks.files.grading import Case, Items
from treadle.tasks.files.materials import SERVICES, add_notes, date, to_json
from treadle.tasks.solver import Habit, Solver, Step

_LEVELS = ("DEBUG", "INFO", "INFO", "WARN", "ERROR")
_TEXTS = (
    "connection reset",
    "retrying",
    "cache miss",
    "job done",
    "no ERROR seen so far",
    "slow answer",
    "started",
)
_ORDINALS = ("1st", "2nd", "3rd", "4th", "5th")
_LINE = re.compile(r"(\S+) (\S+) (\w+) +\[(\w+)\] (.*) id=(\w+)")


def generate(draw: Draw) -> Case:
    """Draw two to five logs of one day whose lines interleave."""
    folder = draw.pick(("logs", "var/log", "run/logs", "logs/app"))
    day = date(draw)
    services = draw.sample(SERVICES, draw.between(2, 5))
    level = draw.pick(("WARN", "ERROR"))
    seconds = draw.distinct(1000, 86_000, draw.between(24, 60))
    lines: dict[str, list[str]] = {service: [] for service in services}
    counts: Counter[str] = Counter()
    ids: list[str] = []
    everything: list[str] = []
    for index, second in enumerate(sorted(seconds)):
        service = draw.pick(services)
        kind = level if index < 3 else draw.pick(_LEVELS)
        mark = f"{draw.below(16**6):06x}"
        clock = f"{second // 3600:02d}:{second // 60 % 60:02d}:{second % 60:02d}"
        lines[service].append(f"{day} {clock} {kind:<5} [{service}] {draw.pick(_TEXTS)} id={mark}\n")
        counts[kind] += 1
        everything.append(mark)
        if kind == level:
            ids.append(mark)
    files = {f"{folder}/{service}.log": "".join(part) for service, part in lines.items()}
    files[f"{folder}/old/{services[0]}.log.1"] = f"{day} 00:00:01 {level:<5} [{services[0]}] gone id=000001\n"
    add_notes(files, draw, draw.between(0, 2))
    rank = draw.below(min(len(ids), 5))
    values = {"folder": folder, "level": level, "rank": _ORDINALS[rank]}
    expected = Items((ids[rank],), tuple(everything))
    if draw.chance(0.5):
        return Case(values, files, expected)
    report = f"reports/levels-{day}.json"
    return Case({**values, "report": report}, files, expected, {report: to_json(dict(counts))})


def solve(values: Mapping[str, str], habit: Habit) -> Solver:
    """Read the logs, sort their lines by time, and count."""
    prefix = values["folder"] + "/"
    paths = yield from find_paths(
        lambda path: in_folder(prefix, ".log")(path) and "/" not in path[len(prefix) :]
    )
    texts = yield from read_files(paths, habit)
    found = [_LINE.match(line) for text in texts.values() for line in text.splitlines()]
    rows = sorted([hit.groups() for hit in found if hit is not None])
    hits = [row for row in rows if row[2] == values["level"]]
    rank = _ORDINALS.index(values["rank"])
    prose = f"There are {len(hits)} {values['level']} lines; the {values['rank']} came at {hits[rank][1]}."
    answer = final(habit, hits[rank][5], prose)
    if "report" in values:
        content = to_json(dict(Counter([row[2] for row in rows])))
        yield Step([write_file(values["report"], content)], "Now the counts of the levels.", answer)
    return answer
