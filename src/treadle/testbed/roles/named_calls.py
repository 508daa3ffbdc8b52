"""Requests that name tools and their arguments, for tools that the teacher knows nothing else about. The arguments
are drawn from schemas.

    Please run get_weather with city = "Oslo" and days = 3.

Two tools can be named, to be called at once or one after the other. Names may be misspelt: the agent first makes
the call as it is written, and then the corrected call.
"""

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cache, lru_cache

from msgspec import Struct

from treadle.core.texts.documents import decode_or
from treadle.core.types import Json, ToolSpec
from treadle.tasks.draws import Draw, Wording, split
from treadle.tasks.files import materials
from treadle.tasks.solver import FailedResult, Step, WantedCall
from treadle.testbed.instance import make_instance, only_required
from treadle.testbed.play import misspell
from treadle.testbed.roles.errands import Work
from treadle.testbed.roles.words import load, wordings
from treadle.tools.schema.validation import ArgumentChecker

NO_ARGUMENTS = "no arguments"
_NAME = re.compile(r"(?<![\w$.\"-])([A-Za-z_$][\w$.-]*) = ")
FAILED = " failed: "
"""What stands between the name of a tool and its error in an answer."""
_MAX_SHOWN_CHARS = 300
_MAX_SHOWN_VALUES = 12
_MAX_TRIES = 8


class Wish(Struct, frozen=True):
    """One tool with its arguments, as a user wrote them."""

    tool: str
    arguments: dict[str, Json]


class Wishes(Struct, frozen=True):
    """The tools that a message asks for."""

    wishes: tuple[Wish, ...]
    is_chained: bool = False
    """True if the second call has to wait for the result of the first."""

    def complete(self, more: Mapping[str, Json]) -> "Wishes":
        """Return these wishes with more arguments for the first tool."""
        first = Wish(self.wishes[0].tool, {**self.wishes[0].arguments, **more})
        return Wishes((first, *self.wishes[1:]), self.is_chained)


@cache
def _wordings(sort: str) -> tuple[Wording, ...]:
    return wordings(load("words")["calls"][sort])


def write_arguments(arguments: Mapping[str, Json]) -> str:
    """Return arguments as a user writes them, such as `city = "Oslo" and days = 3`."""
    parts = [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in arguments.items()]
    head, last = parts[:-1], parts[-1:]
    return " and ".join([", ".join(head), *last] if head else last) or NO_ARGUMENTS


def read_arguments(text: str) -> dict[str, Json]:
    """Return the arguments in a text that `write_arguments` wrote, or that contains such parts."""
    found: dict[str, Json] = {}
    position = 0
    while (name := _NAME.search(text, position)) is not None:
        try:
            found[name[1]], position = json.JSONDecoder().raw_decode(text, name.end())
        except ValueError:
            position = name.end()
    return found


@lru_cache(maxsize=1024)
def find_wishes(paragraph: str) -> Wishes | None:
    """Return the tools that a paragraph asks for; `None` if it names no tools in a known wording."""
    for sort in ("both", "then", "one"):
        for wording in _wordings(sort):
            values = wording.match(paragraph)
            if values is None:
                continue
            wishes = [Wish(values["tool"], read_arguments(values["arguments"]))]
            if "other" in values:
                wishes.append(Wish(values["other"], read_arguments(values["others"])))
            return Wishes(tuple(wishes), is_chained=sort == "then")
    return None


def find_gap(wishes: Wishes, tools: Sequence[ToolSpec]) -> str | None:
    """Return the name of an argument that the first tool needs and that the user did not give; else `None`."""
    wish = wishes.wishes[0]
    tool = next((tool for tool in tools if tool.name == wish.tool), None)
    if tool is None or any(name not in _properties(tool) for name in wish.arguments):
        return None  # a name is misspelt, which the call will show
    return next((name for name in required_of(tool) if name not in wish.arguments), None)


def work_on(wishes: Wishes, tools: Sequence[ToolSpec]) -> Work:
    """Make the calls, correct those that fail because of a misspelt name, and report the results."""
    steps = [[wish] for wish in wishes.wishes] if wishes.is_chained else [list(wishes.wishes)]
    said: list[str] = []
    for wanted in steps:
        calls = [WantedCall(wish.tool, wish.arguments) for wish in wanted]
        names = " and ".join([wish.tool for wish in wanted])
        # A correct call is repeated if it was spoilt on the way; one that has to be corrected is not.
        fixed = [_correct(wish, tools) for wish in wanted]
        is_right = fixed == wanted
        results = yield Step(calls, f"The request names {names} with all arguments.", may_fail=True)
        if not is_right:
            calls = [WantedCall(wish.tool, wish.arguments) for wish in fixed]
            why = (
                "That failed because a name is not spelt as the tool expects it; I make the call with the "
                "right one."
            )
            results = yield Step(calls, why, may_fail=True)
        said += [_report(call, result) for call, result in zip(calls, results, strict=True)]
    return "\n".join(said)


def _report(call: WantedCall, result: str) -> str:
    text = result.strip()
    shown = _summarize(text) or (text if len(text) <= _MAX_SHOWN_CHARS else f"{text[:_MAX_SHOWN_CHARS]}…")
    if isinstance(result, FailedResult):
        return f"{call.name}{FAILED}{shown}"
    return f"{call.name} says: {shown or '(nothing)'}"


def _summarize(text: str) -> str:
    """Return the names and values of a JSON object in one line; empty for any other text."""
    value = decode_or(text)
    if not isinstance(value, dict):
        return ""
    parts = [f"{name} {shown}".strip() for name, shown in _leaves("", value)]
    return "; ".join(parts[:_MAX_SHOWN_VALUES]) + ("; and more" if len(parts) > _MAX_SHOWN_VALUES else "")


def _leaves(name: str, value: Json) -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(f"{name} {key}".strip(), item)
    elif isinstance(value, list):
        for item in value:
            yield from _leaves(name, item)
    else:
        yield name, value if isinstance(value, str) else json.dumps(value)


def _correct(wish: Wish, tools: Sequence[ToolSpec]) -> Wish:
    name = _nearest(wish.tool, [tool.name for tool in tools])
    tool = next((tool for tool in tools if tool.name == name), None)
    if tool is None:
        return wish
    known = list(_properties(tool))
    free = [item for item in known if item not in wish.arguments]
    arguments = {
        key if key in known or not free else _nearest(key, free): value
        for key, value in wish.arguments.items()
    }
    return Wish(name, arguments)


def _nearest(name: str, known: Sequence[str]) -> str:
    return name if name in known else (difflib.get_close_matches(name, known, n=1, cutoff=0.4) or [name])[0]


def _properties(tool: ToolSpec) -> Mapping[str, Json]:
    found = tool.parameters.get("properties")
    return found if isinstance(found, dict) else {}


def required_of(tool: ToolSpec) -> list[str]:
    """Return the names of the arguments that a tool needs."""
    found = tool.parameters.get("required")
    return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []


def _is_plain(arguments: Mapping[str, Json]) -> bool:
    """Return whether arguments can be written into a message and read back."""
    return read_arguments(write_arguments(arguments)) == arguments


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
        wording = draw.pick(_wordings("then" if kind == "chained" else "both"))
        values = {"tool": first.name, "arguments": write_arguments(arguments)}
        return Named(wording.render({**values, "other": second.name, "others": write_arguments(others)}))
    return Named(
        draw.pick(_wordings("one")).render({"tool": first.name, "arguments": write_arguments(arguments)})
    )


def _with_gap(tools: Sequence[ToolSpec], words: Sequence[str], draw: Draw) -> Named | None:
    tool = next((tool for tool in tools if required_of(tool)), None)
    if tool is None:
        return None
    arguments = dict(arguments_for(tool, words, draw) or {})
    name = draw.pick(required_of(tool))
    withheld = write_arguments({name: arguments.pop(name)})
    text = draw.pick(_wordings("one")).render({"tool": tool.name, "arguments": write_arguments(arguments)})
    return Named(text, f"Take {withheld}.")


def _misspelt(tools: Sequence[ToolSpec], words: Sequence[str], draw: Draw) -> Named | None:
    """Return a request that misspells the name of an argument that is needed."""
    tool = next((tool for tool in tools if required_of(tool)), None)
    if tool is None:
        return None
    arguments = arguments_for(tool, words, draw) or {}
    wrong = draw.pick(required_of(tool))
    spelt = {misspell(name, wrong) if name == wrong else name: value for name, value in arguments.items()}
    return Named(draw.pick(_wordings("one")).render({"tool": tool.name, "arguments": write_arguments(spelt)}))


@cache
def _values() -> dict[str, Sequence[str]]:
    """Return values for texts, by parts of the name of the argument."""
    lists = {f"{{{name.lower()}}}": getattr(materials, name) for name in _LISTS}
    return {name: lists.get(text) or split(text) for name, text in load("words")["arguments"].items()}


_LISTS = ("CITIES", "COMPANIES", "PRODUCTS", "SERVICES", "LAST_NAMES", "FIRST_NAMES")


def arguments_for(tool: ToolSpec, words: Sequence[str], draw: Draw) -> dict[str, Json] | None:
    """Return arguments that fit the schema of `tool` and can be written in a message; `None` if none are found."""
    checker = ArgumentChecker(tool.parameters)
    for attempt in range(_MAX_TRIES):
        # Later attempts leave out optional arguments; the last attempt also draws no values.
        made = make_instance(
            only_required(tool.parameters) if attempt > _MAX_TRIES // 2 else tool.parameters,
            " ".join(words[:3]) or "text",
            None if attempt == _MAX_TRIES - 1 else lambda name, schema: _fill(name, schema, words, draw),
        )
        if isinstance(made, dict) and checker.find_fault(made) is None and _is_plain(made):
            return made
    return None


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
    for pattern, values in _values().items():
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
