"""The world of the mediocre model: mock tools whose records are drawn from seeds, and documents for a folder.

`texts` is everywhere the name of a split that the package has, or the path of a folder with another.
"""

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.core.types import Json
from treadle.tasks.draws import Draw
from treadle.tasks.draws import split as split_words
from treadle.tasks.files import materials

SPLIT = "held"
"""The split of texts that the package has."""
RECORDS = 30
"""How many records each mock tool has."""
_LISTS = {
    "city": materials.CITIES,
    "company": materials.COMPANIES,
    "product": materials.PRODUCTS,
}


class RecordTool(Struct, frozen=True):
    """A mock tool that returns one record for an id."""

    name: str
    entry: Mapping[str, Any]

    @property
    def argument(self) -> str:
        return str(self.entry["id"])

    def ids(self) -> list[str]:
        """Return the ids for which there are records."""
        draw, found = Draw(f"ids/{self.name}"), dict[str, None]()
        while len(found) < RECORDS:
            shape = re.sub(
                r"\{(\d)\}", lambda sign: str(draw.between(1, 9)) + "".join(
                    [str(draw.below(10)) for _ in range(int(sign[1]) - 1)]
                ), self.entry["shape"],
            )  # fmt: skip
            found[shape] = None
        return list(found)

    def record(self, ident: str, seed: str = "") -> dict[str, Json]:
        """Return the record with this id; another `seed` gives a record that is made up."""
        draw = Draw(f"record/{self.name}/{ident}/{seed}")
        return {self.argument: ident, **_fill(self.entry["record"], draw)}

    def owner(self, ident: str) -> str:
        """Return how an answer names the record."""
        return str(self.entry["owner"]).format(id=ident)

    def define(self) -> dict[str, Json]:
        """Return the definition of the mock tool, with its answers."""
        fixtures: list[Json] = [{"error": f"nothing is known about {{{{{self.argument}}}}}"}]
        ids = self.ids()
        for ident in ids:
            fixtures.append({"match": {self.argument: ident}, "result": self.record(ident)})
            if (wrong := misspell_id(ident)) not in ids:
                text = f"nothing is known about {wrong!r}. Did you mean {ident!r}?"
                fixtures.append({"match": {self.argument: wrong}, "error": text})
        properties = {self.argument: {"type": "string", "description": f"Such as {ids[0]!r}."}}
        return {
            "name": self.name,
            "description": self.entry["about"],
            "effect": self.entry.get("effect", "pure"),
            "parameters": {"type": "object", "properties": properties, "required": [self.argument]},
            "fixtures": fixtures,
        }


def misspell_id(ident: str) -> str:
    """Return an id with its last two digits exchanged."""
    return ident[:-2] + ident[-1] + ident[-2]


def _fill(rules: Mapping[str, Any], draw: Draw) -> dict[str, Json]:
    made: dict[str, Json] = {}
    for name, rule in rules.items():
        if isinstance(rule, str):
            made[name] = draw_value(rule, draw)
        else:
            low, high = map(int, rule["rows"].split())
            inner = {key: value for key, value in rule.items() if key != "rows"}
            made[name] = [_fill(inner, draw) for _ in range(draw.between(low, high))]
    return made


def rules_of(rules: Mapping[str, Any], field: str) -> list[str]:
    """Return the rules with a choice for a field, in a record and its rows."""
    found = []
    for name, rule in rules.items():
        if isinstance(rule, dict):
            found += rules_of(rule, field)
        elif name == field and rule.startswith("choice "):
            found.append(rule)
    return found


def draw_value(rule: str, draw: Draw) -> Json:
    """Return a value by a rule of the data file, such as `int 3 9`."""
    kind, _, rest = rule.partition(" ")
    parts = rest.split()
    if kind in _LISTS:
        return draw.pick(_LISTS[kind])
    if kind == "person":
        return f"{draw.pick(materials.FIRST_NAMES)} {draw.pick(materials.LAST_NAMES)}"
    if kind == "choice":
        return draw.pick(rest.split("|"))
    if kind == "code":
        return f"{rest}-{draw.between(100, 999)}"
    if kind == "date":
        return f"2026-{draw.between(1, 12):02d}-{draw.between(1, 28):02d}"
    if kind == "time":
        return f"{draw.between(int(parts[0]), int(parts[1])):02d}:{draw.below(60):02d}"
    if kind == "int":
        return draw.between(int(parts[0]), int(parts[1]))
    if kind == "money":
        return draw.between(100 * int(parts[0]), 100 * int(parts[1])) / 100
    if kind == "real":
        scale = 10 ** int(parts[2])
        return draw.between(scale * int(parts[0]), scale * int(parts[1])) / scale
    raise ValueError(f"{rule!r} is not a rule for a value")


@cache
def load_world(texts: str) -> dict[str, Any]:
    """Return the data of a split's world. Raises: `ConfigError` if there is none."""
    return _read(texts, "world")


@cache
def load_phrases(texts: str) -> dict[str, Any]:
    """Return the phrases of a split. Its remarks may stand in a file of their own.

    Raises: `ConfigError` if there are none.
    """
    found = _read(texts, "phrases")
    found = found if "remarks" in found else {**found, **_read(texts, "remarks")}
    known = found if texts == SPLIT else load_phrases(SPLIT)
    if missing := [sort for sort in known["remarks"] if sort not in found["remarks"]]:
        raise ConfigError(f"the texts {texts!r} have no wording for the remarks {', '.join(missing)}")
    return found


def _read(texts: str, name: str) -> dict[str, Any]:
    """Return the content of a file of a split."""
    folder = files(__package__) / "texts" / texts if texts == SPLIT else Path(texts)
    file = folder / f"{name}.toml"
    try:
        found = tomllib.loads(file.read_text("utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"there are no texts {texts!r} for 'mock:mediocre': there is no file {str(file)!r}; "
            f"write texts={SPLIT}, or the path of a folder with world.toml and phrases.toml"
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"the texts in {str(file)!r} cannot be read: {error}") from None
    # What the texts of the package have is needed. The remarks may stand in a file of their own.
    own = name == "remarks"
    needed = (name,) if own else found if texts == SPLIT else _read(SPLIT, name)
    if missing := [section for section in needed if section not in found and (own or section != "remarks")]:
        raise ConfigError(f"{str(file)!r} lacks {', '.join([f'[{section}]' for section in missing])}")
    return found


@cache
def record_tools(texts: str) -> Mapping[str, RecordTool]:
    """Return the mock tools of a split by name."""
    return {name: RecordTool(name, entry) for name, entry in load_world(texts)["tools"].items()}


def define_tools(texts: str) -> dict[str, Json]:
    """Return the content of a file with a split's mock tools and their answers."""
    return {"tools": [tool.define() for tool in record_tools(texts).values()]}


def make_documents(texts: str, seed: int = 0) -> dict[str, str]:
    """Return the files of a folder with tables and notes of a split."""
    data = load_world(texts)["documents"]
    draw = Draw(f"documents/{Path(texts).name}/{seed}")
    folders = split_words(data["folders"])
    made: dict[str, str] = {}
    for name, columns in data["tables"].items():
        rows = [_fill(columns, draw) for _ in range(draw.between(4, 12))]
        lines = [",".join(columns), *[",".join(map(str, row.values())) for row in rows]]
        made[f"{draw.pick(folders)}{name}.csv"] = "\n".join(lines) + "\n"
    for name in split_words(data["notes"]):
        lines = draw.sample(data["lines"], draw.between(4, 9))
        made[f"{draw.pick(folders)}{name}.{draw.pick(('md', 'txt', 'log'))}"] = "".join(
            [
                f"{_fill({'text': 'date'}, draw)['text'] + ' ' if draw.chance(0.3) else ''}{line}\n"
                for line in lines
            ]
        )
    record = next(iter(record_tools(texts).values()))
    made[f"{draw.pick(folders)}settings.json"] = msgspec.json.format(
        msgspec.json.encode(record.record("Z-100")), indent=1
    ).decode()
    return made
