"""Requests that name tools and their arguments, for tools that the teacher knows nothing else about.

    Please run get_weather with city = "Oslo" and days = 3.

Two tools can be named, to be called at once or one after the other. Names may be misspelt: the agent first makes
the call as it is written, and then the corrected call.
"""

import difflib
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from msgspec import Struct

from treadle.core.types import Json, ToolSpec
from treadle.tasks.draws import Wording
from treadle.tasks.solver import FailedResult, Step, WantedCall
from treadle.testbed.working.errands.errand import Work

NO_ARGUMENTS = "no arguments"
ONE = (
    Wording("Please run {tool} with {arguments}."),
    Wording("Use {tool} with {arguments} and tell me what you get."),
    Wording("What does {tool} give for {arguments}?"),
    Wording("I would like to see the result of {tool} with {arguments}."),
)
BOTH = (
    Wording("Please run {tool} with {arguments}, and at the same time {other} with {others}."),
    Wording("I need two things at once: {tool} with {arguments}, and {other} with {others}."),
)
THEN = (
    Wording("First run {tool} with {arguments}. When you have the result, run {other} with {others}."),
    Wording(
        "Use {tool} with {arguments} to begin with, look at what it says, and go on to {other} with {others}."
    ),
)
_NAME = re.compile(r"(?<![\w$.\"-])([A-Za-z_$][\w$.-]*) = ")
_MAX_SHOWN_CHARS = 300
_MAX_SHOWN_VALUES = 12


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
    """Return the tools that a paragraph asks for; `None` if it names none in the known ways."""
    for prompts, is_chained in ((BOTH, False), (THEN, True), (ONE, False)):
        for prompt in prompts:
            values = prompt.match(paragraph)
            if values is None:
                continue
            wishes = [Wish(values["tool"], read_arguments(values["arguments"]))]
            if "other" in values:
                wishes.append(Wish(values["other"], read_arguments(values["others"])))
            return Wishes(tuple(wishes), is_chained)
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
        return f"{call.name} failed: {shown}"
    return f"{call.name} says: {shown or '(nothing)'}"


def _summarize(text: str) -> str:
    """Return the names and values of a JSON object in one line; empty for any other text."""
    try:
        value = json.loads(text)
    except ValueError:
        return ""
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


def is_plain(arguments: Mapping[str, Json]) -> bool:
    """Return whether arguments can be written into a message and read back."""
    return read_arguments(write_arguments(arguments)) == arguments
