"""Tasks about texts: pages with links and headings, notes that lead to each other, and calendars."""

import re
from collections.abc import Mapping
from itertools import pairwise

from treadle.tasks.draws import Draw
from treadle.tasks.files import file_calls as f
from treadle.tasks.files.grading import Items, make_case
from treadle.tasks.files.materials import CITIES, SERVICES, TOPICS, add_notes, people, prose
from treadle.tasks.generated import GeneratedCase
from treadle.tasks.solver import Habit, Solver, Step

# Fix links to a renamed page. Only the page itself says what it was called before.
_LINK = re.compile(r"\]\((\S+?\.md)\)")


def generate_crossref_fix(draw: Draw) -> GeneratedCase:
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
    return make_case({"folder": folder}, files, expected, changes)


def solve_crossref_fix(values: Mapping[str, str], habit: Habit) -> Solver:
    """Read the pages and their former names, find the broken links, and edit them."""
    texts = yield from f.read_folder(values["folder"], habit, ".md")
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
                calls.append(f.edit_file(path, text, old, new, replace_all=text.count(old) > 1))
                text = text.replace(old, new)
    fixed = sorted({str(call.arguments["file_path"]) for call in calls})
    answer = f.final(habit, ", ".join(fixed), f"{len(calls)} links led to former names.")
    for call in calls:
        yield from f.make_all([call], habit, "This link leads to a page that has another name now.", answer)
    return answer


# Build a table of contents from the headings in Markdown files.
def generate_toc_build(draw: Draw) -> GeneratedCase:
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
        files[path] = _write_page(draw, title, sections)
    add_notes(files, draw, draw.between(0, 2), folder)
    long = [path for path in pages if len(pages[path][1]) > 2]
    if not long:
        path, long = next(iter(pages)), [next(iter(pages))]
        sections = draw.sample(TOPICS, 3)
        pages[path] = (pages[path][0], sections)
        files[path] = _write_page(draw, pages[path][0], sections)
    expected = Items(tuple(sorted(long)), tuple(pages))
    return make_case({"folder": folder, "target": target}, files, expected, {target: _index(pages)})


def _write_page(draw: Draw, title: str, sections: list[str]) -> str:
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


def solve_toc_build(values: Mapping[str, str], habit: Habit) -> Solver:
    """Read every page, collect its headings, and write the table."""
    is_page = f.in_folder(values["folder"], ".md")
    paths = yield from f.find_paths(lambda path: is_page(path) and path != values["target"])
    texts = yield from f.read_files(paths, habit)
    pages = {path: _headings(text) for path, text in texts.items()}
    long = [path for path, (_, sections) in pages.items() if len(sections) > 2]
    answer = f.final(habit, ", ".join(long), f"{values['target']} lists {len(pages)} pages.")
    content = _index(pages)
    yield Step([f.write_file(values["target"], content)], "I know all the headings; now the table.", answer)
    return answer


# Split a long file into one file for each section.
def generate_split_sections(draw: Draw) -> GeneratedCase:
    """Draw a handbook of four to nine sections, and a similar one that must stay."""
    name = draw.pick(("handbook", "manual", "rules", "guide"))
    city = draw.pick(CITIES).lower()
    source = f"{name}-{city}.md"
    folder = f"{name}/{city}"
    text, sections = _write_handbook(draw)
    files = {source: text, f"{name}-old.md": _write_handbook(draw)[0]}
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
    return make_case(
        values, files, Items((f"{longest}.md",), tuple([f"{slug}.md" for slug in sections])), changes
    )


def _write_handbook(draw: Draw) -> tuple[str, dict[str, str]]:
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


def solve_split_sections(values: Mapping[str, str], habit: Habit) -> Solver:
    """Read the file, write its sections, and only then delete it."""
    (text,) = yield Step([f.read_file(values["source"])], "First the file that is to be split.")
    parts = re.split(r"^(?=## )", text, flags=re.MULTILINE)[1:]
    sections = {}
    for part in parts:
        slug = part.partition("\n")[0][3:].strip().lower().replace(" ", "-")
        sections[slug] = part.strip() + "\n"
    longest = max(sections, key=lambda slug: _count_words(sections[slug]))
    answer = f.final(habit, f"{longest}.md", f"{values['source']} is {len(sections)} files now.")
    calls = [f.write_file(f"{values['folder']}/{slug}.md", part) for slug, part in sections.items()]
    yield from f.make_all(calls, habit, f"It has {len(calls)} sections; I write one file for each.", answer)
    yield Step(
        [f.delete_file(values["source"])], "Every section has its file, so the original can go.", answer
    )
    return answer


# Follow notes from file to file, each of which names the next one, and collect their contents.
_NOTE_FOLDERS = ("desk", "shelf", "attic", "cellar", "office", "garage")


def generate_pointer_chase(draw: Draw) -> GeneratedCase:
    """Draw a chain of three to ten notes among others that lead elsewhere."""
    names = draw.sample([f"{folder}/{name}.txt" for folder in _NOTE_FOLDERS for name in SERVICES], 14)
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
        return make_case(values, files, Items(("-".join(stops),)))
    report = "route.txt"
    total = sum([int(re.findall(r"\((\d+) km\)", files[name])[0]) for name in chain])
    content = "".join([f"{stop}\n" for stop in stops]) + f"{total} km\n"
    return make_case({**values, "report": report}, files, Items(("-".join(stops),)), {report: content})


def solve_pointer_chase(values: Mapping[str, str], habit: Habit) -> Solver:
    """Read one note after the other up to the last."""
    path: str | None = values["start"]
    seen: list[str] = []
    stops: list[str] = []
    total = 0
    while path is not None and path not in seen:
        so_far = f"So far: {'-'.join(stops)}" if stops else ""
        why = f"The note says to go on with {path}." if seen else f"I start with {path}."
        (text,) = yield Step([f.read_file(path)], why, so_far)
        seen.append(path)
        stop = re.search(r"^Stop: (\w+) \((\d+) km\)", text, re.MULTILINE)
        if stop:
            stops.append(stop[1])
            total += int(stop[2])
        following = re.search(r"^Go on with (\S+?)\.$", text, re.MULTILINE)
        path = following[1] if following else None
    answer = f.final(habit, "-".join(stops), f"The route has {len(stops)} stops and {total} km.")
    if "report" in values:
        content = "".join([f"{stop}\n" for stop in stops]) + f"{total} km\n"
        yield Step(
            [f.write_file(values["report"], content)], "That was the last note; now the route.", answer
        )
    return answer


# Find two overlapping bookings of one room, and remove the later one.
_BOOKING = re.compile(r"(\S+) (\d\d):(\d\d)-(\d\d):(\d\d) \[(\w+)\] (.+)")


def generate_room_conflict(draw: Draw) -> GeneratedCase:
    """Draw three to seven calendars with exactly one conflict."""
    folder = draw.pick(("calendars", "bookings", "team/calendars", "rooms/by-person"))
    names = [name.split(" ")[0].lower() for name in people(draw, draw.between(3, 7))]
    days = [f"2025-{draw.between(1, 12):02d}-{day:02d}" for day in draw.sample(range(1, 29), 3)]
    rooms = draw.sample(CITIES, 3)
    titles = iter(
        draw.shuffled([f"{topic} {kind}" for topic in TOPICS for kind in ("review", "planning", "demo")])
    )
    bookings: list[tuple[str, str, int, int, str]] = []
    for room in rooms:
        for day in days:
            start = draw.between(8 * 4, 9 * 4)
            for _ in range(draw.between(1, 4)):
                end = start + draw.between(2, 7)
                bookings.append((day, room, start * 15, end * 15, next(titles)))
                start = end + draw.pick((0, 0, 1, 3))
    first = draw.pick(bookings)
    start = first[2] + draw.between(1, (first[3] - first[2]) // 15 - 1) * 15
    end = min(
        [item[2] for item in bookings if item[:2] == first[:2] and item[2] >= first[3]], default=19 * 60
    )
    end = max(start + 15, min(end, start + 60))
    last = (first[0], first[1], start, end, next(titles))
    owner = draw.pick(names)
    lines: dict[str, list[str]] = {name: [] for name in names}
    for index, item in enumerate(bookings):
        lines[names[index % len(names)]].append(_write_booking(item))
    spare = {name: draw.shuffled(part) for name, part in lines.items()}
    after = {name: "".join(part) for name, part in spare.items()}
    position = draw.below(len(spare[owner]) + 1)
    spare[owner].insert(position, _write_booking(last))
    files = {f"{folder}/{name}.txt": "".join(part) for name, part in spare.items()}
    add_notes(files, draw, draw.between(0, 2))
    changes: dict[str, str | None] = {f"{folder}/{owner}.txt": after[owner]}
    others = tuple([item[4] for item in bookings])
    return make_case({"folder": folder}, files, Items((last[4],), others), changes)


def _write_booking(booking: tuple[str, str, int, int, str]) -> str:
    day, room, start, end, title = booking
    return f"{day} {start // 60:02d}:{start % 60:02d}-{end // 60:02d}:{end % 60:02d} [{room}] {title}\n"


def solve_room_conflict(values: Mapping[str, str], habit: Habit) -> Solver:
    """Read the calendars, sort the bookings of each room by time, and find the one that starts too early."""
    texts = yield from f.read_folder(values["folder"], habit, ".txt")
    rows: list[tuple[str, str, int, int, str, str, str]] = []
    for path, text in texts.items():
        for line in text.splitlines(keepends=True):
            found = _BOOKING.match(line)
            if found:
                start, end = int(found[2]) * 60 + int(found[3]), int(found[4]) * 60 + int(found[5])
                rows.append((found[1], found[6], start, end, found[7].strip(), path, line))
    rows.sort()
    for before, row in pairwise(rows):
        if before[:2] == row[:2] and row[2] < before[3]:
            answer = f.final(habit, row[4], f"It overlaps with {before[4]} in {row[1]} on {row[0]}.")
            call = f.edit_file(row[5], texts[row[5]], row[6], "")
            yield Step([call], f"{before[4]} and {row[4]} overlap; the later one goes.", answer)
            return answer
    return f.final(habit, "none", "No two bookings of a room overlap.")
