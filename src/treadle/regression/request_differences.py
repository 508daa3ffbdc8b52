"""What differs between a recorded request to the model and the request of today, and the text that shows it.

Pure functions. A difference has a cause in words, such as "the description of the tool 'search'", and both texts.
"""

import difflib
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from treadle.core.spec import AgentSpec
from treadle.core.texts.json_text import is_deep
from treadle.core.types import Message, Request, Role, ToolSpec
from treadle.trajectory.rerun import normalize as normalize_result

_CONTEXT_LINES = 2
_MOST_LINES = 30
"""How many lines of one difference are shown."""
_WIDTH = 96
_AROUND = 24
"""How many equal characters are shown around a change in a long line."""
_OF_TOOLS = ("description", "parameters", "output_schema", "effect", "is_external")
"""The fields of a tool that the model is told, or that decide how a call is made."""

_ABSENT = object()

Normalize = Callable[[str], str]
"""A function that replaces what may differ in a text, such as times."""


class RequestDifference(Struct, frozen=True):
    """One thing that differs."""

    what: str
    """What it is, as a noun with its name."""
    before: str | None
    """The recorded text; `None`: it is new."""
    after: str | None
    """The text of today; `None`: it is gone."""
    is_hint: bool = False
    """True if it is no difference by itself, and may be the cause of the others."""


class Divergence(Struct, frozen=True):
    """The first place at which a replay differs from its recording."""

    where: str
    """What differs first, such as "request 2 of 3"."""
    seq: int
    """The number of the recorded event that it belongs to."""
    differences: tuple[RequestDifference, ...]
    is_other_agent: bool = False
    """True if the agents have neither the system prompt nor a tool in common."""

    @property
    def title(self) -> str:
        named = [item.what for item in self.differences if not item.is_hint]
        more = f" and {len(named) - 2} more" if len(named) > 2 else ""
        return f"{self.where} differs: {', '.join(named[:2])}{more}"

    def lines(self) -> Iterator[str]:
        """Yield lines that show all differences: `-` is before what is recorded, `+` before what is new."""
        for item in self.differences:
            yield item.what if not item.is_hint else f"{item.what} (also changed, and perhaps the cause)"
            yield from _diff(item.before, item.after)
            yield ""
        if self.is_other_agent:
            yield "this looks like a recording of another agent: name its agent in [test.agents] of treadle.toml"
            yield ""

    def __str__(self) -> str:
        return "\n".join([self.title, "", *self.lines()]).rstrip()


def find_differences(
    recorded: Request,
    found: Request,
    normalize: Normalize,
    may_differ: Mapping[str, Sequence[str]] = {},
) -> list[RequestDifference]:
    """Return how a request differs from the recorded one, the likeliest causes first.

    `may_differ` has the rules of `ToolSpec.may_differ` for results, by the names of tools.
    """
    old, new = list(recorded.messages), list(found.messages)
    old_said, new_said = _take_system(old), _take_system(new)
    differences: list[RequestDifference] = []

    def compare(what: str, before: str | None, after: str | None) -> None:
        if before != after and (before is None or after is None or normalize(before) != normalize(after)):
            differences.append(RequestDifference(what, before, after))

    compare("the system prompt", old_said, new_said)
    differences += _compare_tools(recorded.tools, found.tools, normalize)
    compare("the schema of the answer", _write(recorded.output_schema), _write(found.output_schema))
    compare("the tool that must be called", recorded.required_tool, found.required_tool)
    for number, (before, after) in enumerate(zip(old, new, strict=False), 1):
        what = _name(number, before, old)
        if before.role is not after.role:
            compare(what, f"{before.role.value}: {before.content}", f"{after.role.value}: {after.content}")
        else:
            texts = _text_of(before), _text_of(after)
            rules = may_differ.get(before.name or "", ())
            if not rules or normalize_result(texts[0], rules) != normalize_result(texts[1], rules):
                compare(what, *texts)
    count = min(len(old), len(new))
    for number, message in enumerate(old[count:], count + 1):
        compare(_name(number, message, old), _text_of(message), None)
    for number, message in enumerate(new[count:], count + 1):
        compare(_name(number, message, new), None, _text_of(message))
    return differences


def is_other_agent(recorded: Request, found: Request) -> bool:
    """Return whether two requests have neither the system prompt nor a tool in common."""
    names = {tool.name for tool in recorded.tools}
    said = [_take_system(list(request.messages)) for request in (recorded, found)]
    return bool(names) and said[0] != said[1] and not names & {tool.name for tool in found.tools}


def compare_models(recorded: AgentSpec, found: AgentSpec) -> list[RequestDifference]:
    """Return how the model of an agent, and the settings by which it is asked, differ from the recorded ones."""
    before, after = recorded.model, found.model
    differences = []
    if before.name != after.name:
        differences.append(RequestDifference("the model", before.name, after.name))
    if before.settings != after.settings and before.missing is None and after.missing is None:
        texts = _write(before.settings or {}), _write(after.settings or {})
        differences.append(RequestDifference("the settings of the model", *texts))
    return differences


def compare_policies(recorded: AgentSpec, found: AgentSpec) -> list[RequestDifference]:
    """Return how the policy of an agent differs from the recorded one, as hints."""
    before, after = msgspec.to_builtins(recorded.policy), msgspec.to_builtins(found.policy)
    return [
        RequestDifference(
            f"the policy's {key}", _write(before.get(key)), _write(after.get(key)), is_hint=True
        )
        for key in dict.fromkeys([*before, *after])
        if before.get(key) != after.get(key)
    ]


def _compare_tools(
    recorded: Sequence[ToolSpec], found: Sequence[ToolSpec], normalize: Normalize
) -> Iterator[RequestDifference]:
    old, new = {tool.name: tool for tool in recorded}, {tool.name: tool for tool in found}
    for name, tool in old.items():
        if name not in new:
            yield RequestDifference(f"the tool {name!r}, which is gone", tool.description, None)
            continue
        for field in _OF_TOOLS:
            before, after = _write(getattr(tool, field)), _write(getattr(new[name], field))
            if before != after and normalize(before or "") != normalize(after or ""):
                yield RequestDifference(f"the {field.replace('_', ' ')} of the tool {name!r}", before, after)
    for name, tool in new.items():
        if name not in old:
            yield RequestDifference(f"the tool {name!r}, which is new", None, tool.description)
    if old.keys() == new.keys() and list(old) != list(new):
        yield RequestDifference("the order of the tools", ", ".join(old), ", ".join(new))


def _take_system(messages: list[Message]) -> str | None:
    """Remove the system message, and return its text."""
    return messages.pop(0).content if messages and messages[0].role is Role.SYSTEM else None


def _name(number: int, message: Message, messages: Sequence[Message]) -> str:
    if message.role is Role.TOOL:
        calls = [call for item in messages for call in item.tool_calls if call.call_id == message.call_id]
        shown = f"{message.name}({calls[0].arguments:.60})" if calls else message.name
        return f"the result of {shown}"
    return f"the {'user' if message.role is Role.USER else message.role.value}'s message {number}"


def _text_of(message: Message) -> str:
    """Return a message as text: its content, its calls and its parts."""
    lines = [message.content] if message.content else []
    if message.is_error:
        lines.insert(0, "(the call failed)")
    lines += [f"calls {call.name} {call.arguments}" for call in message.tool_calls]
    lines += [f"{part.kind} {part.name or part.uri or part.digest or ''}" for part in message.parts]
    return "\n".join(lines)


def _read_object(text: str | None) -> Any:
    """Return the JSON object in a text; `None` if it has none."""
    if text is None or not text.lstrip().startswith("{") or is_deep(text):
        return None
    try:
        return json.loads(text)
    except ValueError:
        return None


def _find_changes(path: str, before: Any, after: Any) -> Iterator[str]:
    """Yield the lines of the values of two JSON objects that differ, each with its keys."""
    if isinstance(before, dict) and isinstance(after, dict):
        for key in dict.fromkeys([*before, *after]):
            yield from _find_changes(f"{path}.{key}", before.get(key, _ABSENT), after.get(key, _ABSENT))
    elif before != after or type(before) is not type(after):
        for sign, value in (("-", before), ("+", after)):
            if value is not _ABSENT:
                yield f"  {sign} {path.removeprefix('.')}: {_cut(json.dumps(value, ensure_ascii=False))}"


def _write(value: Any) -> str | None:
    """Return a value as text; `None` stays `None`."""
    if value is None or isinstance(value, str):
        return value if value is None else str(value)
    return json.dumps(msgspec.to_builtins(value), indent=2, ensure_ascii=False)


def _diff(before: str | None, after: str | None) -> Iterator[str]:
    """Yield the lines of a difference."""
    objects = _read_object(before), _read_object(after)
    if None not in objects and (changes := list(_find_changes("", *objects))):
        yield from changes
        return
    old, new = (text.splitlines() if text is not None else [] for text in (before, after))
    if len(old) <= 1 and len(new) <= 1:
        old, new = _shorten_pair("".join(old), "".join(new))
        yield from [f"  - {line}" for line in old]
        yield from [f"  + {line}" for line in new]
        return
    shown = list(difflib.unified_diff(old, new, n=_CONTEXT_LINES, lineterm=""))[2:]
    for number, line in enumerate(shown):
        if number == _MOST_LINES:
            yield f"    … {len(shown) - number} more lines"
            return
        if line.startswith("@@"):
            if number:
                yield "    …"
            continue
        yield f"  {line[0]} {_cut(line[1:])}"


def _shorten_pair(before: str, after: str) -> tuple[list[str], list[str]]:
    """Return two texts of one line each, without most of what they have in common if they are long."""
    if max(len(before), len(after)) > _WIDTH and before and after:
        pairs = enumerate(zip(before, after, strict=False))
        start = next((at for at, (one, other) in pairs if one != other), min(len(before), len(after)))
        cut = max(0, start - _AROUND)
        if cut:
            before, after = f"…{before[cut:]}", f"…{after[cut:]}"
    return [_cut(before)] if before else [], [_cut(after)] if after else []


def _cut(text: str) -> str:
    text = re.sub(r"[\x00-\x08\x0b-\x1f\x7f]", "·", text)
    return text if len(text) <= 2 * _WIDTH else f"{text[: 2 * _WIDTH]}…"
