"""Tasks: rename an identifier in source files, only where it is a whole word."""

import re
from collections.abc import Mapping

from treadle.tasks.draws import Draw
from treadle.tasks.files.file_calls import edit_file, final, make_all, read_folder, write_file
from treadle.tasks.files.grading import Case, Items
from treadle.tasks.files.materials import add_notes, function, identifier, source_paths
from treadle.tasks.solver import Habit, Solver


def generate(draw: Draw) -> Case:
    """Draw three to seven source files. Names that only contain the old name must stay."""
    folder = draw.pick(("src", "lib", "app/code", "tools"))
    old = identifier(draw)
    new = f"{old.partition('_')[0]}_{draw.pick(('one', 'all', 'next', 'safe', 'raw'))}_{draw.between(2, 99)}"
    files: dict[str, str] = {}
    changes: dict[str, str | None] = {}
    for index, path in enumerate([*source_paths(draw, folder, draw.between(3, 7)), f"legacy/{old}.py"]):
        language = path.rpartition(".")[2]
        parts: list[list[str]] = []
        for position in range(draw.between(2, 5)):
            called = f"{old}_{draw.pick(('old', 'v2', 'fast'))}" if draw.chance(0.2) else identifier(draw)
            called = "{name}" if draw.chance(0.35) or index == position == 0 else called
            comment = "see {name} for the limits" if draw.chance(0.2) else None
            parts.append(function(draw, language, f"{identifier(draw)}_{position}", called, comment))
        template = "\n".join([line for part in parts for line in part]).replace(old + "_", "\0")
        template = template.replace(old, "{name}").replace("\0", old + "_")
        files[path] = template.replace("{name}", old)
        if path.startswith(f"{folder}/") and "{name}" in template:
            changes[path] = template.replace("{name}", new)
    expected = Items(tuple(sorted(changes)), tuple(files))
    add_notes(files, draw, draw.between(0, 2))
    return Case({"folder": folder, "old": old, "new": new}, files, expected, changes)


def solve(values: Mapping[str, str], habit: Habit) -> Solver:
    """Read all source files, and edit each that has the name as a whole word."""
    texts = yield from read_folder(values["folder"], habit)
    old, new = values["old"], values["new"]
    word = re.compile(rf"\b{re.escape(old)}\b")
    calls = []
    total = 0
    for path, text in texts.items():
        changed, count = word.subn(new, text)
        total += count
        if count and count == text.count(old):
            calls.append(edit_file(path, text, old, new, replace_all=count > 1))
        elif count:
            calls.append(write_file(path, changed))
    paths = [str(call.arguments["file_path"]) for call in calls]
    answer = final(habit, ", ".join(paths), f"{old} is called {new} in {total} places now.")
    yield from make_all(calls, habit, f"{len(calls)} of the files use {old}; I change them.")
    return answer
