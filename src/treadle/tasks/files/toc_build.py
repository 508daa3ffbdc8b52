"""Tasks: build a table of contents from the headings in Markdown files."""

from collections.abc import Mapping

from treadle.tasks.draws import Draw
from treadle.tasks.files.file_calls import final, find_paths, in_folder, read_files, write_file
from treadle.tasks.files.grading import Case, Items
from treadle.tasks.files.materials import SERVICES, TOPICS, add_notes, prose
from treadle.tasks.solver import Habit, Solver, Step


def generate(draw: Draw) -> Case:
    """Draw three to eight pages. Code blocks contain lines that look like headings."""
    folder = draw.pick(("docs", "wiki", "handbook", "manual/pages"))
    target = f"{folder}/{draw.pick(('index', 'contents', 'toc'))}.md"
    pages: dict[str, tuple[str, list[str]]] = {}
    files: dict[str, str] = {}
    for title in draw.sample(TOPICS, draw.between(3, 8)):
        below = draw.pick(("", "", "guide/", "reference/"))
        path = f"{folder}/{below}{title.lower().replace(' ', '-')}.md"
        sections = draw.sample(TOPICS, draw.between(1, 4))
        pages[path] = (title, sections)
        files[path] = _write(draw, title, sections)
    add_notes(files, draw, draw.between(0, 2), folder)
    long = [path for path in pages if len(pages[path][1]) > 2]
    if not long:
        path, long = next(iter(pages)), [next(iter(pages))]
        sections = draw.sample(TOPICS, 3)
        pages[path] = (pages[path][0], sections)
        files[path] = _write(draw, pages[path][0], sections)
    expected = Items(tuple(sorted(long)), tuple(pages))
    return Case({"folder": folder, "target": target}, files, expected, {target: _index(pages)})


def _write(draw: Draw, title: str, sections: list[str]) -> str:
    parts = [f"# {title}\n", prose(draw, 1) + "\n"]
    for section in sections:
        parts.append(f"## {section}\n")
        if draw.chance(0.3):
            parts.append(f"```sh\n## {draw.pick(SERVICES)}\n# restart\nmake {draw.pick(SERVICES)}\n```\n")
        parts.append(prose(draw, draw.between(1, 2)) + "\n")
        if draw.chance(0.3):
            parts += [f"### {draw.pick(TOPICS)}\n", prose(draw, 1) + "\n"]
    return "\n".join(parts)


def _index(pages: Mapping[str, tuple[str, list[str]]]) -> str:
    lines = []
    for path, (title, sections) in sorted(pages.items()):
        lines.append(f"- {title} ({path})\n")
        lines += [f"  - {section}\n" for section in sections]
    return "".join(lines)


def _headings(text: str) -> tuple[str, list[str]]:
    title, sections, is_code = "", [], False
    for line in text.splitlines():
        if line.startswith("```"):
            is_code = not is_code
        elif line.startswith("# ") and not is_code:
            title = title or line[2:].strip()
        elif line.startswith("## ") and not is_code:
            sections.append(line[3:].strip())
    return title, sections


def solve(values: Mapping[str, str], habit: Habit) -> Solver:
    """Read every page, collect its headings, and write the table."""
    is_page = in_folder(values["folder"], ".md")
    paths = yield from find_paths(lambda path: is_page(path) and path != values["target"])
    texts = yield from read_files(paths, habit)
    pages = {path: _headings(text) for path, text in texts.items()}
    long = [path for path, (_, sections) in pages.items() if len(sections) > 2]
    answer = final(habit, ", ".join(long), f"{values['target']} lists {len(pages)} pages.")
    content = _index(pages)
    yield Step([write_file(values["target"], content)], "I know all the headings; now the table.", answer)
    return answer
