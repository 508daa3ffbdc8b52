"""The names, places, sentences and source files that the tasks are made of."""

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from treadle.core.texts.documents import read_data
from treadle.tasks.draws import Draw, split

LISTS = {name: split(text) for name, text in read_data(__package__, "materials").items()}
CITIES = LISTS["cities"]
COMPANIES = LISTS["companies"]
DEPARTMENTS = LISTS["departments"]
FIRST_NAMES = LISTS["first_names"]
LANGUAGES = LISTS["languages"]
LAST_NAMES = LISTS["last_names"]
NOTE_NAMES = LISTS["note_names"]
PRODUCTS = LISTS["products"]
REGIONS = LISTS["regions"]
SENTENCES = LISTS["sentences"]
SERVICES = LISTS["services"]
TOPICS = LISTS["topics"]
VERBS = LISTS["verbs"]


def money(cents: int) -> str:
    """Format an amount in cents as a decimal, such as `-12.05`."""
    sign = "-" if cents < 0 else ""
    return f"{sign}{abs(cents) // 100}.{abs(cents) % 100:02d}"


def cents(text: str) -> int:
    """Return an amount in cents, written as `money` does or as people do: `1,204.5`, `12`, `-3.20`."""
    digits = text.strip().replace(",", "")
    sign = -1 if digits.startswith("-") else 1
    whole, _, part = digits.lstrip("+-").partition(".")
    return sign * (int(whole or "0") * 100 + int(part.ljust(2, "0")[:2] or "0"))


def to_json(value: object) -> str:
    """Encode a value as indented JSON."""
    # The encoder of the standard library is written in Python if it indents, and takes four times as long.
    return msgspec.json.format(json.dumps(value), indent=2) + "\n"


def to_csv(rows: Iterable[Mapping[str, str]], columns: Sequence[str], delimiter: str = ",") -> str:
    """Return rows as a table with a head."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, columns, delimiter=delimiter, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


def people(draw: Draw, count: int) -> list[str]:
    """Return different full names. No two have the same first name."""
    lasts = draw.sample(LAST_NAMES, count)
    return [f"{first} {last}" for first, last in zip(draw.sample(FIRST_NAMES, count), lasts, strict=True)]


def email(name: str, draw: Draw) -> str:
    """Return an e-mail address for a full name."""
    first, last = name.lower().split(" ")[:2]
    host = draw.pick(COMPANIES).split(" ")[0].lower()
    return f"{first}.{last}@{host}.example"


def date(draw: Draw, year: int | None = None, month: int | None = None) -> str:
    """Return a date such as `2024-03-09`."""
    return f"{year or draw.between(2021, 2025)}-{month or draw.between(1, 12):02d}-{draw.between(1, 28):02d}"


def prose(draw: Draw, count: int) -> str:
    """Return a few sentences without relevant information."""
    return " ".join(draw.sample(SENTENCES, count))


def add_notes(files: dict[str, str], draw: Draw, count: int, folder: str = "-") -> None:
    """Add `count` files that have nothing to do with the task. None of them is in `folder`."""
    names = [name for name in NOTE_NAMES if name not in files and not name.startswith(f"{folder}/")]
    for name in draw.sample(names, count):
        title = draw.pick(TOPICS)
        owner = draw.pick(FIRST_NAMES)
        files[name] = f"{title}\n\n{prose(draw, draw.between(1, 4))}\n{owner}, {date(draw)}\n"


COMMENT = {"py": "#", "js": "//", "go": "//"}


def identifier(draw: Draw) -> str:
    """Return an identifier such as `merge_pump`."""
    return f"{draw.pick(VERBS)}_{draw.pick(PRODUCTS)}"


def function(draw: Draw, language: str, name: str, called: str, comment: str | None = None) -> list[str]:
    """Return the lines of a function that calls another one."""
    value, number = draw.pick(PRODUCTS), draw.between(2, 99)
    notes = [] if comment is None else [f"    {COMMENT[language]} {comment}"]
    if language == "py":
        head, end = f"def {name}({value}):", []
        body = [f"    {value} = {called}({value})", f"    return {value} + {number}"]
    elif language == "js":
        head, end = f"function {name}({value}) {{", ["}"]
        body = [f"    const result = {called}({value});", f"    return result + {number};"]
    else:
        head, end = f"func {name}({value} int) int {{", ["}"]
        body = [f"    result := {called}({value})", f"    return result + {number}"]
    return [head, *notes, *body, *end, ""]


def source_paths(draw: Draw, folder: str, count: int) -> list[str]:
    """Return different paths of source files, some of them in subfolders."""
    paths = []
    for service in draw.sample(SERVICES, count):
        below = draw.pick(("", "", "core/", "web/", "jobs/"))
        paths.append(f"{folder}/{below}{service}.{draw.pick(LANGUAGES)}")
    return paths
