"""Tasks: count marked comments by author in source files."""

import re
from collections import Counter
from collections.abc import Mapping

from treadle.tasks.draws import Draw
from treadle.tasks.files.file_calls import final, read_folder, search_files, write_file
from treadle.tasks.files.grading import Case, Items, Number
from treadle.tasks.files.materials import FIRST_NAMES, add_notes, function, identifier, source_paths, to_json
from treadle.tasks.solver import Habit, Solver, Step

_MARKERS = ("TODO", "FIXME", "HACK", "REVIEW")
_WORK = ("handle the empty case", "remove after the move", "ask support", "too slow", "add a test", "rename")
_COMMENT = re.compile(r"(?:#|//) ([A-Z]+)\((\w+)\): ")


def generate(draw: Draw) -> Case:
    """Draw three to eight source files with comments of four people, and some files outside the folder."""
    folder = draw.pick(("src", "app", "lib/server", "packages/main"))
    authors = [name.lower() for name in draw.sample(FIRST_NAMES, 4)]
    marker, *others = draw.sample(_MARKERS, 3)
    counts: Counter[str] = Counter()
    files: dict[str, str] = {}
    paths = source_paths(draw, folder, draw.between(3, 8)) + source_paths(draw, "vendor", 1)
    for path in paths:
        language = path.rpartition(".")[2]
        lines: list[str] = []
        for _ in range(draw.between(2, 5)):
            kind = marker if draw.chance(0.6) else draw.pick(others)
            author = authors[min(draw.below(4), draw.below(4))]
            comment = f"{kind}({author}): {draw.pick(_WORK)}" if draw.chance(0.8) else draw.pick(_WORK)
            lines += function(draw, language, identifier(draw), identifier(draw), comment)
            if path.startswith(f"{folder}/") and comment.startswith(f"{marker}("):
                counts[author] += 1
        files[path] = "\n".join(lines)
    add_notes(files, draw, draw.between(0, 2))
    values = {"folder": folder, "marker": marker}
    ranked = counts.most_common(2)
    if len(ranked) == 2 and ranked[0][1] > ranked[1][1]:
        report = f"reports/{marker.lower()}-by-author.json"
        changes: dict[str, str | None] = {report: to_json(dict(counts))}
        return Case({**values, "report": report}, files, Items((ranked[0][0],), tuple(authors)), changes)
    report = f"reports/{marker.lower()}-{authors[0]}.txt"
    changes = {report: f"{counts[authors[0]]}\n"}
    values = {**values, "author": authors[0], "report": report}
    return Case(values, files, Number(str(counts[authors[0]])), changes)


def solve(values: Mapping[str, str], habit: Habit) -> Solver:
    """Read or search the files, and count."""
    counts: Counter[str] = Counter()
    if habit.batch in (2, 8):
        (hits,) = yield Step(
            [search_files(values["marker"] + "(", values["folder"])],
            f"A search shows every {values['marker']}.",
        )
        lines = hits.splitlines()
    else:
        texts = yield from read_folder(values["folder"], habit)
        lines = [line for text in texts.values() for line in text.splitlines()]
    for line in lines:
        for marker, author in _COMMENT.findall(line):
            if marker == values["marker"]:
                counts[author] += 1
    prose = f"I found {counts.total()} {values['marker']} comments of {len(counts)} people."
    if "author" in values:
        answer = final(habit, counts[values["author"]], prose)
        content = f"{counts[values['author']]}\n"
    else:
        answer = final(habit, counts.most_common(1)[0][0] if counts else "nobody", prose)
        content = to_json(dict(counts))
    yield Step([write_file(values["report"], content)], f"{prose} I write that down.", answer)
    return answer
