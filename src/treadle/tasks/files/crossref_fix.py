"""Tasks: fix links to a renamed page. Only the page itself says what it was called before."""

import re
from collections.abc import Mapping

from treadle.tasks.draws import Draw
from treadle.tasks.files.file_calls import edit_file, final, make_all, read_folder
from treadle.tasks.files.grading import Case, Items
from treadle.tasks.files.materials import TOPICS, add_notes, prose
from treadle.tasks.solver import Habit, Solver

_LINK = re.compile(r"\]\((\S+?\.md)\)")


def generate(draw: Draw) -> Case:
    """Draw four to eight pages that link to each other. One or two links use former names."""
    folder = draw.pick(("docs", "wiki", "kb", "help/pages"))
    topics = draw.sample(TOPICS, draw.between(6, 10))
    names = [topic.lower().replace(" ", "-") + ".md" for topic in topics]
    pages, formers = names[:-2], names[-2:]
    renamed = dict(zip(draw.sample(pages, 2), formers, strict=True))
    texts: dict[str, str] = {}
    for name, topic in zip(pages, topics, strict=False):
        lines = [f"# {topic}", ""]
        if name in renamed:
            lines += [f"Formerly: {renamed[name]}", ""]
        for other in draw.sample([item for item in pages if item != name], draw.between(1, 3)):
            lines += [f"{prose(draw, 1)} See [{other[:-3].replace('-', ' ')}]({other}).", ""]
        texts[name] = "\n".join(lines)
    changes: dict[str, str | None] = {}
    for now, former in renamed.items():
        sources = [name for name in pages if f"]({now})" in texts[name]]
        if not sources or (changes and draw.chance(0.5)):
            continue
        name = draw.pick(sources)
        changes.setdefault(f"{folder}/{name}", texts[name])
        texts[name] = texts[name].replace(f"]({now})", f"]({former})")
    if not changes:
        now, former = next(iter(renamed.items()))
        name = next(item for item in pages if item != now)
        changes[f"{folder}/{name}"] = f"{texts[name]}\nMore in [this page]({now}).\n"
        texts[name] = f"{texts[name]}\nMore in [this page]({former}).\n"
    files = {f"{folder}/{name}": text for name, text in texts.items()}
    expected = Items(tuple(sorted(changes)), tuple(files))
    add_notes(files, draw, draw.between(0, 2), folder)
    return Case({"folder": folder}, files, expected, changes)


def solve(values: Mapping[str, str], habit: Habit) -> Solver:
    """Read the pages and their former names, find the broken links, and edit them."""
    texts = yield from read_folder(values["folder"], habit, ".md")
    names = {path.rpartition("/")[2] for path in texts}
    formers = {}
    for path, text in texts.items():
        for former in re.findall(r"^Formerly: (\S+)$", text, re.MULTILINE):
            formers[former] = path.rpartition("/")[2]
    calls = []
    for path, text in texts.items():
        for link in dict.fromkeys(_LINK.findall(text)):
            if link not in names and link in formers:
                old, new = f"]({link})", f"]({formers[link]})"
                calls.append(edit_file(path, text, old, new, replace_all=text.count(old) > 1))
                text = text.replace(old, new)
    fixed = sorted({str(call.arguments["file_path"]) for call in calls})
    answer = final(habit, ", ".join(fixed), f"{len(calls)} links led to former names.")
    for call in calls:
        yield from make_all([call], habit, "This link leads to a page that has another name now.", answer)
    return answer
