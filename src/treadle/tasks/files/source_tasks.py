"""Tasks about source files in several languages."""

import re
from collections import Counter
from collections.abc import Mapping

from treadle.tasks.draws import Draw
from treadle.tasks.files import file_calls as f
from treadle.tasks.files import materials as m
from treadle.tasks.files.grading import Items, Number, make_case
from treadle.tasks.generated import GeneratedCase
from treadle.tasks.solver import Habit, Solver, Step


# Add a licence line at the top of the source files that lack it.
def generate_license_header(draw: Draw) -> GeneratedCase:
    """Draw four to nine source files: with the line, with an outdated line, or without one."""
    folder = draw.pick(("src", "lib", "engine", "plugins"))
    notice = draw.pick(("LICENSE-HEADER.txt", "legal/header.txt", "tools/notice.txt"))
    holder, year = draw.pick(m.COMPANIES), draw.between(2012, 2025)
    line = f"Copyright {year} {holder}"
    files = {notice: line + "\n"}
    changes: dict[str, str | None] = {}
    for index, path in enumerate(m.source_paths(draw, folder, draw.between(4, 9))):
        language = path.rpartition(".")[2]
        mark = m.COMMENT[language]
        parts = [
            m.function(draw, language, m.identifier(draw), m.identifier(draw))
            for _ in range(draw.between(1, 3))
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
    m.add_notes(files, draw, draw.between(0, 2))
    return make_case({"folder": folder, "notice": notice}, files, expected, changes)


def solve_license_header(values: Mapping[str, str], habit: Habit) -> Solver:
    """Read the line and the source files, and rewrite those that do not begin with it."""
    (text,) = yield Step([f.read_file(values["notice"])], "I need the exact line first.")
    texts = yield from f.read_folder(values["folder"], habit, *[f".{ending}" for ending in m.COMMENT])
    calls = []
    for path, source in texts.items():
        mark = m.COMMENT[path.rpartition(".")[2]]
        line = f"{mark} {text.strip()}\n"
        if not source.startswith(line):
            first, _, rest = source.partition("\n")
            body = rest if first.startswith(f"{mark} Copyright ") else source
            calls.append(f.write_file(path, line + body))
    names = ", ".join([str(call.arguments["file_path"]) for call in calls])
    answer = f.final(habit, names, f"{len(calls)} of {len(texts)} files did not begin with it.")
    yield from f.make_all(calls, habit, f"{len(calls)} files need the line.", answer)
    return answer


# Rename an identifier in source files, only where it is a whole word.
def generate_rename_identifier(draw: Draw) -> GeneratedCase:
    """Draw three to seven source files. Names that only contain the old name must stay."""
    folder = draw.pick(("src", "lib", "app/code", "tools"))
    old = m.identifier(draw)
    new = f"{old.partition('_')[0]}_{draw.pick(('one', 'all', 'next', 'safe', 'raw'))}_{draw.between(2, 99)}"
    files: dict[str, str] = {}
    changes: dict[str, str | None] = {}
    for index, path in enumerate([*m.source_paths(draw, folder, draw.between(3, 7)), f"legacy/{old}.py"]):
        language = path.rpartition(".")[2]
        parts: list[list[str]] = []
        for position in range(draw.between(2, 5)):
            called = f"{old}_{draw.pick(('old', 'v2', 'fast'))}" if draw.chance(0.2) else m.identifier(draw)
            called = "{name}" if draw.chance(0.35) or index == position == 0 else called
            comment = "see {name} for the limits" if draw.chance(0.2) else None
            parts.append(m.function(draw, language, f"{m.identifier(draw)}_{position}", called, comment))
        template = "\n".join([line for part in parts for line in part]).replace(old + "_", "\0")
        template = template.replace(old, "{name}").replace("\0", old + "_")
        files[path] = template.replace("{name}", old)
        if path.startswith(f"{folder}/") and "{name}" in template:
            changes[path] = template.replace("{name}", new)
    expected = Items(tuple(sorted(changes)), tuple(files))
    m.add_notes(files, draw, draw.between(0, 2))
    return make_case({"folder": folder, "old": old, "new": new}, files, expected, changes)


def solve_rename_identifier(values: Mapping[str, str], habit: Habit) -> Solver:
    """Read all source files, and edit each that has the name as a whole word."""
    texts = yield from f.read_folder(values["folder"], habit)
    old, new = values["old"], values["new"]
    word = re.compile(rf"\b{re.escape(old)}\b")
    calls = []
    total = 0
    for path, text in texts.items():
        changed, count = word.subn(new, text)
        total += count
        if count and count == text.count(old):
            calls.append(f.edit_file(path, text, old, new, replace_all=count > 1))
        elif count:
            calls.append(f.write_file(path, changed))
    paths = [str(call.arguments["file_path"]) for call in calls]
    answer = f.final(habit, ", ".join(paths), f"{old} is called {new} in {total} places now.")
    yield from f.make_all(calls, habit, f"{len(calls)} of the files use {old}; I change them.")
    return answer


# Count marked comments by author in source files.
_MARKERS = ("TODO", "FIXME", "HACK", "REVIEW")
_WORK = ("handle the empty case", "remove after the move", "ask support", "too slow", "add a test", "rename")
_COMMENT = re.compile(r"(?:#|//) ([A-Z]+)\((\w+)\): ")


def generate_todo_count(draw: Draw) -> GeneratedCase:
    """Draw three to eight source files with comments of four people, and some files outside the folder."""
    folder = draw.pick(("src", "app", "lib/server", "packages/main"))
    authors = [name.lower() for name in draw.sample(m.FIRST_NAMES, 4)]
    marker, *others = draw.sample(_MARKERS, 3)
    counts: Counter[str] = Counter()
    files: dict[str, str] = {}
    paths = m.source_paths(draw, folder, draw.between(3, 8)) + m.source_paths(draw, "vendor", 1)
    for path in paths:
        language = path.rpartition(".")[2]
        lines: list[str] = []
        for _ in range(draw.between(2, 5)):
            kind = marker if draw.chance(0.6) else draw.pick(others)
            author = authors[min(draw.below(4), draw.below(4))]
            comment = f"{kind}({author}): {draw.pick(_WORK)}" if draw.chance(0.8) else draw.pick(_WORK)
            lines += m.function(draw, language, m.identifier(draw), m.identifier(draw), comment)
            if path.startswith(f"{folder}/") and comment.startswith(f"{marker}("):
                counts[author] += 1
        files[path] = "\n".join(lines)
    m.add_notes(files, draw, draw.between(0, 2))
    values = {"folder": folder, "marker": marker}
    ranked = counts.most_common(2)
    if len(ranked) == 2 and ranked[0][1] > ranked[1][1]:
        report = f"reports/{marker.lower()}-by-author.json"
        changes: dict[str, str | None] = {report: m.to_json(dict(counts))}
        return make_case({**values, "report": report}, files, Items((ranked[0][0],), tuple(authors)), changes)
    report = f"reports/{marker.lower()}-{authors[0]}.txt"
    changes = {report: f"{counts[authors[0]]}\n"}
    values = {**values, "author": authors[0], "report": report}
    return make_case(values, files, Number(str(counts[authors[0]])), changes)


def solve_todo_count(values: Mapping[str, str], habit: Habit) -> Solver:
    """Read or search the files, and count."""
    counts: Counter[str] = Counter()
    if habit.batch in (2, 8):
        (hits,) = yield Step(
            [f.search_files(values["marker"] + "(", values["folder"])],
            f"A search shows every {values['marker']}.",
        )
        lines = hits.splitlines()
    else:
        texts = yield from f.read_folder(values["folder"], habit)
        lines = [line for text in texts.values() for line in text.splitlines()]
    for line in lines:
        for marker, author in _COMMENT.findall(line):
            if marker == values["marker"]:
                counts[author] += 1
    prose = f"I found {counts.total()} {values['marker']} comments of {len(counts)} people."
    if "author" in values:
        answer = f.final(habit, counts[values["author"]], prose)
        content = f"{counts[values['author']]}\n"
    else:
        answer = f.final(habit, counts.most_common(1)[0][0] if counts else "nobody", prose)
        content = m.to_json(dict(counts))
    yield Step([f.write_file(values["report"], content)], f"{prose} I write that down.", answer)
    return answer
