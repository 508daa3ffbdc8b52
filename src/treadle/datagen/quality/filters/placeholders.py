"""The filter of placeholders: arguments and answers that a writer forgot to fill in."""

import re
from collections.abc import Iterator

import msgspec

from treadle.core.types import Json, ToolSpec
from treadle.datagen.quality.protocol import BuiltinFilter, Candidate, Settings, Verdict
from treadle.datagen.quality.transcripts import answers, exchanges, quote

_MAX_CHARS = 200
"""Longer texts are documents, such as templates, in which placeholders can be intended."""
_MARK = re.compile(
    r"\{\{\s*[\w.]+\s*\}\}"
    r"|<(?:your|my|insert|enter|the|some|placeholder|example|actual)[\s_-][\w\s-]{1,40}>"
    r"|\[(?:your|insert|enter|placeholder|actual)[\s_-][\w\s-]{1,40}\]"
    r"|\$\{[A-Z_]+\}"
    r"|(?<![\w/])/?path/to/[\w./-]*"
    r"|\byour[_-](?:\w+[_-])?(?:name|file|path|key|token|email|password|value|id|folder|directory)\b"
    r"|(?<![\w.+-])(?:[\w.+-]++@)?(?:[\w-]+\.)*example\.(?:com|org|net)\b"
    r"|\blorem ipsum\b",
    re.IGNORECASE,
)
_WHOLE = re.compile(
    r"\s*(?:to-?do|tbd|tba|fixme|x{3,}|placeholder|some[_ ](?:value|text|name)|insert[_ ]here|changeme|foo|"
    r"bar|foobar|n/?a|null|none|undefined|string|value|\.{3}|…|<[\w\s-]+>)\s*",
    re.IGNORECASE,
)


class PlaceholderFilter(BuiltinFilter[Settings]):
    """No call and no final answer has a placeholder, such as `{{x}}`, `<your_name>`, `path/to/file`, `TODO` as a
    whole value, an address at `example.com`, or `null` for a required parameter that cannot be null. What the
    user or a tool wrote before is not a placeholder."""

    name = "placeholders"

    async def check(self, candidate: Candidate) -> Verdict:
        """See `Filter.check`."""
        messages = candidate.row.messages
        tools = {tool.name: tool for tool in candidate.row.tools}
        for item in exchanges(messages):
            found = _find(item.call.arguments, tools.get(item.call.name))
            seen = [message.content for message in messages[: item.index] if message.tool_calls == ()]
            for where, mark in found:
                if not any(mark in text for text in seen):
                    return self.reject(f"{item.call.name}: {where} is the placeholder {quote(mark)}")
        for index in answers(messages):
            seen = [message.content for message in messages[:index]]
            for mark in _MARK.findall(messages[index].content):
                if not any(mark in text for text in seen):
                    return self.reject(f"the answer in message {index} has the placeholder {quote(mark)}")
        return self.accept()


def _find(arguments: str, tool: ToolSpec | None) -> Iterator[tuple[str, str]]:
    """Yield the name and the text of each placeholder in the arguments of a call."""
    try:
        values = msgspec.json.decode(arguments) if arguments.strip() else {}
    except msgspec.DecodeError:
        return
    if not isinstance(values, dict):
        return
    schema = {} if tool is None else tool.parameters
    for name in schema.get("required", ()):
        if (
            name in values
            and values[name] is None
            and not _can_be_null(schema.get("properties", {}).get(name))
        ):
            yield name, "null"
    for name, value in values.items():
        for text in _texts(value):
            if _WHOLE.fullmatch(text) and text.strip():
                yield name, text
            elif len(text) <= _MAX_CHARS:
                for mark in _MARK.finditer(text):
                    yield name, mark[0]


def _can_be_null(schema: Json) -> bool:
    if not isinstance(schema, dict):
        return True
    kinds = schema.get("type")
    choices = [*schema.get("anyOf", ()), *schema.get("oneOf", ())]
    if None in schema.get("enum", ()) or any(map(_can_be_null, choices)):
        return True
    return (kinds is None and not choices) or kinds == "null" or (isinstance(kinds, list) and "null" in kinds)


def _texts(value: Json) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict | list):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _texts(item)
