"""What the mediocre model sees in the results of a turn: facts, tables, texts, paths and deeds."""

import csv
import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from treadle.core.texts.documents import decode_or
from treadle.core.types import Json, Message, Role, ToolCall
from treadle.tasks.solver import is_failure
from treadle.testbed.mediocre.figures import FIGURES
from treadle.testbed.mediocre.mock_world import RecordTool, load_world, record_tools
from treadle.testbed.roles.file_kit import paths_in

_TIME = re.compile(r"\d\d:\d\d")
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_PATH = re.compile(r"[\w./-]+\.[a-z]{1,5}")
_PAIR = re.compile(r"([\w /-]{2,30}): (-?\d+(?:\.\d+)?)")


class Sighting(Struct, frozen=True):
    """One value with its name, and whose it is."""

    field: str
    label: str
    owner: str
    value: str | int | float
    sort: str
    """`number`, `time`, `date` or `text`."""
    unit: str = ""


class Grid(Struct, frozen=True):
    """Rows with the same fields."""

    owner: str
    things: str
    """What the rows are, in the plural."""
    rows: tuple[Mapping[str, Json], ...]
    labels: Mapping[str, str] = {}
    """How answers name fields."""

    @property
    def names(self) -> str:
        """The field by which a row is named."""
        texts = [name for name, value in self.rows[0].items() if isinstance(value, str)]
        best = [name for name in texts if not _DATE.fullmatch(str(self.rows[0][name]))]
        return next(iter(best or texts), "")

    @property
    def numbers(self) -> list[str]:
        """The fields with numbers."""
        return [name for name in self.rows[0] if all([is_number(row.get(name)) for row in self.rows])]

    @property
    def choices(self) -> list[str]:
        """The fields with few different texts."""
        found = []
        for name in self.rows[0]:
            values = [row.get(name) for row in self.rows]
            is_text = all([isinstance(value, str) for value in values])
            if is_text and 1 < len(set(values)) <= len(values) / 2:
                found.append(name)
        return found


class Observed(Struct):
    """What the results of one turn show."""

    facts: list[Sighting]
    grids: list[Grid]
    texts: dict[str, list[str]]
    """The lines of files that were read, by path."""
    paths: list[str]
    """The paths of listings."""
    deeds: list[tuple[str, str]]
    """What was changed: a verb and a path."""
    hits: dict[str, int]
    """The numbers of lines that a search found, by path."""
    failures: list[str]
    said: str
    """All results, calls and requests, in one text."""
    world: Mapping[str, Any] = {}
    """The world of the split; empty if it is not known."""
    is_empty: bool = True
    """True if no call succeeded, or none found anything."""

    @property
    def labels(self) -> Mapping[str, str]:
        """How answers name fields, where a name is not readable enough."""
        found: Mapping[str, str] = self.world.get("labels", {})
        return found


def is_number(value: Json) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def observe(messages: Sequence[Message], texts: str) -> Observed:
    """Return what the calls of a turn show; `messages` begin with the user's."""
    seen = Observed([], [], {}, [], [], {}, [], "", load_world(texts))
    known = record_tools(texts)
    calls: dict[str, ToolCall] = {}
    said = []
    done: set[tuple[str, str]] = set()
    for message in messages:
        said.append(message.content)
        said += [call.arguments for call in message.tool_calls]
        calls |= {call.call_id: call for call in message.tool_calls}
        if message.role is not Role.TOOL or message.call_id not in calls:
            continue
        call = calls[message.call_id or ""]
        if is_failure(message):
            seen.failures.append(message.content)
        elif (call.name, call.arguments) not in done:
            done.add((call.name, call.arguments))
            _take(call, message.content, seen, known)
            seen.is_empty &= call.name == "search_files" and not seen.hits
    seen.said = "\n".join(said)
    return seen


def _take(call: ToolCall, text: str, seen: Observed, known: Mapping[str, RecordTool]) -> None:
    arguments = _arguments(call)
    first = next((str(value) for value in arguments.values()), "")
    if call.name in known:
        _take_object(msgspec.json.decode(text), known[call.name].owner(first), seen)
    elif call.name.startswith("read"):
        _take_file(first, text, seen)
    elif call.name.startswith("list"):
        seen.paths += paths_in(text)
    elif call.name.startswith(("write", "delete", "edit")):
        seen.deeds.append((call.name.partition("_")[0], first))
    elif call.name == "search_files":
        for line in text.splitlines():
            if ":" in line:
                path = line.partition(":")[0]
                seen.hits[path] = seen.hits.get(path, 0) + 1
    else:
        _take_output(text, seen)


def _arguments(call: ToolCall) -> dict[str, Json]:
    found = call.parsed_or({})
    return found if isinstance(found, dict) else {}


def _take_object(value: Json, owner: str, seen: Observed) -> None:
    """Note the fields of a record."""
    if not isinstance(value, dict):
        return
    for name, item in value.items():
        if isinstance(item, list) and item and all([isinstance(row, dict) for row in item]):
            seen.grids.append(Grid(owner, read_label(name, seen.labels), tuple(item), seen.labels))
        elif isinstance(item, str | int | float) and not isinstance(item, bool) and str(item) not in owner:
            seen.facts.append(to_fact(name, owner, item, seen.labels))


def to_fact(name: str, owner: str, value: str | int | float, labels: Mapping[str, str] = {}) -> Sighting:
    """Return a fact with its label, sort and unit."""
    sort = "number" if not isinstance(value, str) else "text"
    if isinstance(value, str) and _TIME.fullmatch(value):
        sort = "time"
    elif isinstance(value, str) and _DATE.fullmatch(value):
        sort = "date"
    return Sighting(
        name, read_label(name, labels), owner, value, sort, unit_of(name) if sort == "number" else ""
    )


def unit_of(field: str) -> str:
    """Return the unit that the name of a field ends with; empty if it has none."""
    return str(FIGURES["units"].get(field.rpartition("_")[2], ""))


def read_label(field: str, labels: Mapping[str, str]) -> str:
    """Return how an answer names a field."""
    if field in labels:
        return labels[field]
    stem, line, unit = field.rpartition("_")
    return (stem if line and unit in FIGURES["units"] else field).replace("_", " ")


def _take_file(path: str, text: str, seen: Observed) -> None:
    lines = text.splitlines()
    seen.texts[path] = lines
    rows = list(csv.reader(io.StringIO(text)))
    widths = {len(row) for row in rows}
    if len(rows) > 2 and len(widths) == 1 and widths.pop() > 1:
        made = [dict(zip(rows[0], map(_to_value, row), strict=True)) for row in rows[1:]]
        seen.grids.append(Grid(path, "rows", tuple(made), seen.labels))
    elif text.lstrip().startswith("{"):
        _take_object(decode_or(text), path, seen)


def _to_value(text: str) -> str | int | float:
    try:
        return float(text) if "." in text else int(text)
    except ValueError:
        return text


def _take_output(text: str, seen: Observed) -> None:
    """Note what a command or a program printed."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    for line in lines:
        if found := _PAIR.fullmatch(line):
            seen.facts.append(to_fact(found[1], "", _to_value(found[2]), seen.labels))
        elif _PATH.fullmatch(line):
            seen.paths.append(line)
