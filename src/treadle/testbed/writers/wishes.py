"""Requests that name tools, for tools that the teacher knows nothing else about: arguments are drawn from
schemas."""

import re
from collections.abc import Mapping, Sequence

from msgspec import Struct

from treadle.core.types import Json, ToolSpec
from treadle.tasks.draws import Draw
from treadle.tasks.files.materials import CITIES, COMPANIES, FIRST_NAMES, LAST_NAMES, PRODUCTS, SERVICES
from treadle.testbed.instance import make_instance
from treadle.testbed.play import misspell
from treadle.testbed.working.calls import BOTH, ONE, THEN, is_plain, required_of, write_arguments
from treadle.tools.schema.validation import ArgumentChecker

_MAX_TRIES = 8
_WORDS: Mapping[str, Sequence[str]] = {
    "time_?zone|^tz$": ("Europe/Oslo", "Asia/Tokyo", "America/New_York", "Africa/Cairo", "Australia/Sydney"),
    "^time$|_time$": ("08:15", "09:30", "12:00", "14:45", "18:20"),
    "city|town|place|location|destination|origin": CITIES,
    "company|customer|supplier|vendor|organi[sz]ation": COMPANIES,
    "product|item|article|sku": PRODUCTS,
    "service|component|system|project": SERVICES,
    "last_?name|surname": LAST_NAMES,
    "name|user|author|owner|person|assignee": FIRST_NAMES,
    "lang|language|locale": ("en", "de", "fr", "es", "it", "nl"),
    "country": ("NO", "DE", "FR", "IT", "ES", "PT", "NL", "DK"),
    "currency": ("EUR", "USD", "NOK", "GBP", "CHF"),
    "colou?r": ("red", "green", "blue", "grey", "yellow"),
    "unit": ("kg", "m", "hours", "pieces"),
}
"""Values for texts, by parts of the name of the argument."""


class Named(Struct, frozen=True):
    """A request that names tools."""

    text: str
    withheld: str = ""


def draw_wishes(kind: str, tools: Sequence[ToolSpec], words: Sequence[str], draw: Draw) -> Named | None:
    """Return a request that shows this kind of tool use; `None` if the tools do not offer one."""
    usable = [tool for tool in draw.shuffled(tools) if arguments_for(tool, words, draw) is not None]
    if not usable:
        return None
    first = usable[0]
    arguments = arguments_for(first, words, draw) or {}
    if kind == "missing_parameter":
        return _with_gap(usable, words, draw)
    if kind == "recovery":
        return _misspelt(usable, words, draw)
    if kind in ("chained", "parallel"):
        second = usable[1 % len(usable)]
        others = arguments_for(second, words, draw) or {}
        if kind == "parallel" and (second.name, others) == (first.name, arguments):
            return None
        wording = draw.pick(THEN if kind == "chained" else BOTH)
        values = {"tool": first.name, "arguments": write_arguments(arguments)}
        return Named(wording.render({**values, "other": second.name, "others": write_arguments(others)}))
    return Named(draw.pick(ONE).render({"tool": first.name, "arguments": write_arguments(arguments)}))


def _with_gap(tools: Sequence[ToolSpec], words: Sequence[str], draw: Draw) -> Named | None:
    tool = next((tool for tool in tools if required_of(tool)), None)
    if tool is None:
        return None
    arguments = dict(arguments_for(tool, words, draw) or {})
    name = draw.pick(required_of(tool))
    withheld = write_arguments({name: arguments.pop(name)})
    text = draw.pick(ONE).render({"tool": tool.name, "arguments": write_arguments(arguments)})
    return Named(text, f"Take {withheld}.")


def _misspelt(tools: Sequence[ToolSpec], words: Sequence[str], draw: Draw) -> Named | None:
    """Return a request that misspells the name of an argument that is needed."""
    tool = next((tool for tool in tools if required_of(tool)), None)
    if tool is None:
        return None
    arguments = arguments_for(tool, words, draw) or {}
    wrong = draw.pick(required_of(tool))
    spelt = {misspell(name, wrong) if name == wrong else name: value for name, value in arguments.items()}
    return Named(draw.pick(ONE).render({"tool": tool.name, "arguments": write_arguments(spelt)}))


def arguments_for(tool: ToolSpec, words: Sequence[str], draw: Draw) -> dict[str, Json] | None:
    """Return arguments that fit the schema of `tool` and can be written in a message; `None` if none are found."""
    checker = ArgumentChecker(tool.parameters)
    for attempt in range(_MAX_TRIES):
        # Later attempts leave out optional arguments; the last attempt also draws no values.
        made = make_instance(
            _only_required(tool.parameters) if attempt > _MAX_TRIES // 2 else tool.parameters,
            " ".join(words[:3]) or "text",
            None if attempt == _MAX_TRIES - 1 else lambda name, schema: _fill(name, schema, words, draw),
        )
        if isinstance(made, dict) and checker.find_fault(made) is None and is_plain(made):
            return made
    return None


def _only_required(schema: dict[str, Json]) -> dict[str, Json]:
    known, required = schema.get("properties"), schema.get("required")
    if not isinstance(known, dict) or not isinstance(required, list):
        return {**schema, "properties": {}}
    return {**schema, "properties": {name: known[name] for name in known if name in required}}


def _fill(name: str, schema: Mapping[str, Json], words: Sequence[str], draw: Draw) -> Json:
    """Return a value for a text or number of this name; `None` leaves it to `make_instance`."""
    if isinstance(choices := schema.get("enum"), list) and choices:
        return draw.pick(choices)
    kind = schema.get("type")
    if kind in ("integer", "number"):
        low, high = _bound(schema, "minimum", 1), _bound(schema, "maximum", 50)
        return draw.between(low, max(low, high))
    if kind == "boolean":
        return draw.chance(0.5)
    if kind != "string" or {"format", "pattern", "const"} & schema.keys():
        return None
    for pattern, values in _WORDS.items():
        if re.search(pattern, name, re.IGNORECASE):
            return draw.pick(values)
    if re.search("date|day", name, re.IGNORECASE):
        return f"2026-{draw.between(1, 12):02d}-{draw.between(1, 28):02d}"
    if re.search("(^|_)id$|code|number", name, re.IGNORECASE):
        return f"{draw.pick('ABCDEFGH')}{draw.between(100, 999)}"
    return " ".join(draw.sample(words, min(len(words), draw.between(2, 4)))) if words else None


def _bound(schema: Mapping[str, Json], name: str, default: int) -> int:
    value = schema.get(name)
    return int(value) if isinstance(value, int | float) and not isinstance(value, bool) else default
