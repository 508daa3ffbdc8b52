"""Tasks: add a licence line at the top of the source files that lack it."""

from collections.abc import Mapping

from treadle.tasks.draws import Draw
from treadle.tasks.files.file_calls import final, make_all, read_file, read_folder, write_file
from treadle.tasks.files.grading import Case, Items
from treadle.tasks.files.materials import COMMENT, COMPANIES, add_notes, function, identifier, source_paths
from treadle.tasks.solver import Habit, Solver, Step


def generate(draw: Draw) -> Case:
    """Draw four to nine source files: with the line, with an outdated line, or without one."""
    folder = draw.pick(("src", "lib", "engine", "plugins"))
    notice = draw.pick(("LICENSE-HEADER.txt", "legal/header.txt", "tools/notice.txt"))
    holder, year = draw.pick(COMPANIES), draw.between(2012, 2025)
    line = f"Copyright {year} {holder}"
    files = {notice: line + "\n"}
    changes: dict[str, str | None] = {}
    for index, path in enumerate(source_paths(draw, folder, draw.between(4, 9))):
        language = path.rpartition(".")[2]
        mark = COMMENT[language]
        parts = [
            function(draw, language, identifier(draw), identifier(draw)) for _ in range(draw.between(1, 3))
        ]
        body = "\n".join([text for part in parts for text in part])
        kind = draw.pick(("none", "old")) if index == 0 else draw.pick(("there", "there", "none", "old"))
        head = {"there": f"{mark} {line}\n", "none": "", "old": f"{mark} Copyright {year - 3} {holder}\n"}[
            kind
        ]
        files[path] = head + body
        if kind != "there":
            changes[path] = f"{mark} {line}\n{body}"
    expected = Items(tuple(sorted(changes)), tuple([path for path in files if path != notice]))
    add_notes(files, draw, draw.between(0, 2))
    return Case({"folder": folder, "notice": notice}, files, expected, changes)


def solve(values: Mapping[str, str], habit: Habit) -> Solver:
    """Read the line and the source files, and rewrite those that do not begin with it."""
    (text,) = yield Step([read_file(values["notice"])], "I need the exact line first.")
    texts = yield from read_folder(values["folder"], habit, *[f".{ending}" for ending in COMMENT])
    calls = []
    for path, source in texts.items():
        mark = COMMENT[path.rpartition(".")[2]]
        line = f"{mark} {text.strip()}\n"
        if not source.startswith(line):
            first, _, rest = source.partition("\n")
            body = rest if first.startswith(f"{mark} Copyright ") else source
            calls.append(write_file(path, line + body))
    names = ", ".join([str(call.arguments["file_path"]) for call in calls])
    answer = final(habit, names, f"{len(calls)} of {len(texts)} files did not begin with it.")
    yield from make_all(calls, habit, f"{len(calls)} files need the line.", answer)
    return answer
