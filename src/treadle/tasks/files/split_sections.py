"""Tasks: split a long file into one file for each section."""

import re
from collections.abc import Mapping

from treadle.tasks.draws import Draw
from treadle.tasks.files.file_calls import delete_file, final, make_all, read_file, write_file
from treadle.tasks.files.grading import Case, Items
from treadle.tasks.files.materials import CITIES, TOPICS, add_notes, prose
from treadle.tasks.solver import Habit, Solver, Step


def generate(draw: Draw) -> Case:
    """Draw a handbook of four to nine sections, and a similar one that must stay."""
    name = draw.pick(("handbook", "manual", "rules", "guide"))
    city = draw.pick(CITIES).lower()
    source = f"{name}-{city}.md"
    folder = f"{name}/{city}"
    text, sections = _write(draw)
    files = {source: text, f"{name}-old.md": _write(draw)[0]}
    add_notes(files, draw, draw.between(1, 3), folder)
    changes: dict[str, str | None] = {f"{folder}/{slug}.md": part for slug, part in sections.items()}
    changes[source] = None
    longest = max(sections, key=lambda slug: _count_words(sections[slug]))
    lengths = sorted([_count_words(part) for part in sections.values()])
    values = {"source": source, "folder": folder}
    if lengths[-1] - lengths[-2] < 3:
        part = sections[longest].rstrip() + " And so on, with no end in sight."
        changes[f"{folder}/{longest}.md"] = part + "\n"
        files[source] = files[source].replace(sections[longest].rstrip(), part)
    return Case(values, files, Items((f"{longest}.md",), tuple([f"{slug}.md" for slug in sections])), changes)


def _write(draw: Draw) -> tuple[str, dict[str, str]]:
    sections = {}
    for title in draw.sample(TOPICS, draw.between(4, 9)):
        lines = [f"## {title}", "", prose(draw, draw.between(1, 5))]
        if draw.chance(0.4):
            lines += ["", f"### {draw.pick(TOPICS)}", "", prose(draw, draw.between(1, 3))]
        sections[title.lower().replace(" ", "-")] = "\n".join(lines) + "\n"
    head = f"# {draw.pick(CITIES)}\n\n{prose(draw, 2)}\n\n"
    return head + "\n".join(sections.values()), sections


def _count_words(text: str) -> int:
    return len(re.findall(r"\w+", text))


def solve(values: Mapping[str, str], habit: Habit) -> Solver:
    """Read the file, write its sections, and only then delete it."""
    (text,) = yield Step([read_file(values["source"])], "First the file that is to be split.")
    parts = re.split(r"^(?=## )", text, flags=re.MULTILINE)[1:]
    sections = {}
    for part in parts:
        slug = part.partition("\n")[0][3:].strip().lower().replace(" ", "-")
        sections[slug] = part.strip() + "\n"
    longest = max(sections, key=lambda slug: _count_words(sections[slug]))
    answer = final(habit, f"{longest}.md", f"{values['source']} is {len(sections)} files now.")
    calls = [write_file(f"{values['folder']}/{slug}.md", part) for slug, part in sections.items()]
    yield from make_all(calls, habit, f"It has {len(calls)} sections; I write one file for each.", answer)
    yield Step([delete_file(values["source"])], "Every section has its file, so the original can go.", answer)
    return answer
