"""The row formats `sharegpt` and `hermes`: conversations of messages with the keys `from` and `value`."""

import re
from collections.abc import Iterator, Mapping, Sequence

import msgspec
from msgspec import Struct

from treadle.core.errors import ExportError, FormatError
from treadle.core.texts.documents import UNREADABLE
from treadle.core.types import Json, Message, Role, ToolCall, ToolSpec
from treadle.export.exporter import COMMON_LOSSES, ColumnType, Loss, RowFormat
from treadle.export.rows import (
    Row,
    lineage_with_ids,
    make_row,
    read_tools,
    write_functions,
    write_object,
    write_tools,
)
from treadle.formats import parse, render, render_result, render_tools

_THINK, _THOUGHT = "<think>\n", "\n</think>\n\n"
_CALL, _CALLED = "<tool_call>", "</tool_call>"
_BETWEEN_RESULTS = "\n</tool_response>\n<tool_response>\n"
"""The text that LLaMA-Factory puts between the results of parallel calls when it reads OpenAI's format."""
_ROLES = {
    "system": Role.SYSTEM,
    "human": Role.USER,
    "user": Role.USER,
    "gpt": Role.ASSISTANT,
    "assistant": Role.ASSISTANT,
    "model": Role.ASSISTANT,
    "function_call": Role.ASSISTANT,
    "observation": Role.TOOL,
    "tool": Role.TOOL,
    "function_response": Role.TOOL,
}


class _Call(Struct, frozen=True):
    """A call as JSON, with its arguments as they were written."""

    name: str
    arguments: msgspec.Raw = msgspec.Raw(b"{}")


class ConversationRows(RowFormat):
    """A row format with a column of conversations."""

    losses = (Loss.ARGUMENTS, *COMMON_LOSSES, Loss.UNTRAINED, Loss.WEIGHT)
    columns = {"conversations": ColumnType.LIST, "tools": ColumnType.TEXT, "lineage": ColumnType.JSON}  # noqa: RUF012


class ShareGptRows(ConversationRows):
    """The row format `sharegpt`: conversations of `from` and `value`, as LLaMA-Factory reads them.

    The tags are `system`, `human`, `gpt`, `function_call` (a JSON object, or a list of them for parallel calls) and
    `observation` (the result; for parallel calls a JSON list with their results, in the order of the calls).
    `tools` is JSON text. Reasoning precedes a value within `<think>`; a text that stands beside calls precedes
    them, and the calls are then within `<tool_call>`. LLaMA-Factory skips rows that do not alternate, so they are
    refused here.

    Source: LLaMA-Factory 0.9.5, `data/README.md` and its function formatter.
    """

    aliases = frozenset(("system",))

    def write(self, row: Row, *, with_reasoning: bool) -> dict[str, Json]:
        """Return the row in this format.

        Raises: `ExportError` if users and assistant do not alternate, or a text contains a mark of this format.
        """
        return {
            "conversations": list(_write(row.messages, with_reasoning)),
            "tools": msgspec.json.encode(write_functions(row.tools)).decode() if row.tools else "",
            "lineage": lineage_with_ids(row),
        }

    def read(self, raw: dict[str, Json]) -> Row:
        messages = list(_read(raw["conversations"]))
        if raw.get("system") and messages[0].role is not Role.SYSTEM:
            messages.insert(0, Message(Role.SYSTEM, raw["system"]))
        return make_row(messages, read_tools(raw.get("tools")), raw.get("lineage"))

    def fits(self, raw: dict[str, Json]) -> bool:
        if (items := _find_conversations(raw, _ROLES)) is None:
            return False
        # Calls within a text of `gpt` are those of the format hermes.
        has_texts = any(item.get("from") == "gpt" and _CALL in str(item.get("value")) for item in items)
        return not has_texts or any(item.get("from") == "function_call" for item in items)


SHAREGPT = ShareGptRows()


def _write(messages: Sequence[Message], with_reasoning: bool) -> Iterator[dict[str, Json]]:
    calls: tuple[ToolCall, ...] = ()
    results: list[str] = []
    is_users_turn = True
    for message in messages:
        if message.role is Role.TOOL:
            results.append(message.content)
            if len(results) < len(calls):
                continue
            text = results[0] if len(calls) == 1 else msgspec.json.encode(results).decode()
            yield {"from": "observation", "value": text}
            calls, results = (), []
            is_users_turn = False
            continue
        if message.role is Role.SYSTEM:
            yield {"from": "system", "value": message.content}
            continue
        if (message.role is Role.USER) is not is_users_turn:
            raise ExportError(
                "users and assistant do not alternate, and readers of this format skip such rows"
            )
        is_users_turn = message.role is Role.ASSISTANT
        if message.role is Role.USER:
            yield {"from": "human", "value": message.content}
            continue
        calls = message.tool_calls
        yield {"from": "function_call" if calls else "gpt", "value": _write_said(message, with_reasoning)}
    if not is_users_turn:
        raise ExportError(
            "the last message is not the assistant's, and readers of this format skip such rows"
        )


def _write_said(message: Message, with_reasoning: bool) -> str:
    """Return the text of an assistant message. Raises: `ExportError` if it would be read as another message."""
    reasoning = (message.reasoning or "") if with_reasoning else ""
    head = f"{_THINK}{reasoning}{_THOUGHT}" if reasoning else ""
    if _THOUGHT in reasoning or message.content.startswith(_THINK):
        raise ExportError(f"a text contains {_THINK.strip()!r}, which marks reasoning in this format")
    if not message.tool_calls:
        return head + message.content
    items = [
        f'{{"name": {msgspec.json.encode(call.name).decode()}, "arguments": {write_object(call).decode()}}}'
        for call in message.tool_calls
    ]
    text = items[0] if len(items) == 1 else f"[{', '.join(items)}]"
    if _CALL in text or _CALL in message.content or (message.content and _CALLED in text):
        raise ExportError(f"a text contains {_CALL!r}, which marks calls in this format")
    return head + (f"{message.content}{_CALL}{text}{_CALLED}" if message.content else text)


def _find_conversations(raw: dict[str, Json], roles: Mapping[str, Role]) -> list[dict[str, Json]] | None:
    """Return the column `conversations` of an object; `None` if there is none, or one with tags not in `roles`."""
    items = raw.get("conversations")
    if not isinstance(items, list) or not all(isinstance(item, dict) for item in items):
        return None
    return items if {item.get("from") for item in items} <= roles.keys() else None


def _role_of(tag: str, roles: Mapping[str, Role], index: int) -> Role:
    """Return the role of the message number `index`, which has the tag `tag`. Raises: `ExportError`."""
    if tag not in roles:
        raise ExportError(f"conversation {index}: unknown tag {tag!r}; the tags are {', '.join(roles)}")
    return roles[tag]


def _unclear_results(index: int, results: Sequence[str], calls: Sequence[ToolCall]) -> ExportError:
    """Return the error for a message whose results do not fit the calls before it."""
    return ExportError(
        f"conversation {index}: {len(results)} results for {len(calls)} calls, so it is not certain which result "
        "belongs to which call"
    )


def _read(items: Sequence[dict[str, Json]]) -> Iterator[Message]:
    waiting: list[ToolCall] = []
    count = 0
    for index, item in enumerate(items):
        tag, text = item["from"], item["value"] or ""
        role = _role_of(tag, _ROLES, index)
        if role is Role.TOOL:
            following = items[index + 1]["from"] if index + 1 < len(items) else ""
            results = _split_results(text, len(waiting), is_last=_ROLES.get(following) is not Role.TOOL)
            if not waiting or len(results) > len(waiting):
                raise _unclear_results(index, results, waiting)
            for result in results:
                call = waiting.pop(0)
                yield Message(Role.TOOL, result, (), call.call_id, call.name)
            continue
        if role is not Role.ASSISTANT:
            yield Message(role, text)
            continue
        reasoning = None
        if text.startswith(_THINK) and _THOUGHT in text:
            reasoning, _, text = text.removeprefix(_THINK).partition(_THOUGHT)
        if tag == "function_call":
            content, waiting = _read_calls(text, count)
            count += len(waiting)
            yield Message(role, content, tuple(waiting), reasoning=reasoning)
        else:
            yield Message(role, text, reasoning=reasoning)


def _read_calls(text: str, count: int) -> tuple[str, list[ToolCall]]:
    """Return the text beside calls, and the calls, with ids that begin at `count`."""
    content = ""
    if text.endswith(_CALLED) and _CALL in text:
        content, _, text = text.removesuffix(_CALLED).partition(_CALL)
    found = msgspec.json.decode(text, type=_Call | list[_Call])
    calls = []
    for number, call in enumerate(found if isinstance(found, list) else [found], count + 1):
        # Some data sets have the arguments as JSON text within JSON.
        raw = bytes(call.arguments)
        arguments = msgspec.json.decode(raw, type=str) if raw.startswith(b'"') else raw.decode()
        calls.append(ToolCall(f"call_{number}", call.name, arguments))
    return content, calls


def _split_results(text: str, count: int, *, is_last: bool) -> list[str]:
    """Return the results of `count` calls from one value; the whole value as one result if it does not have `count`
    parts."""
    if count < 2:
        return [text]
    try:
        found = msgspec.json.decode(text, type=list[msgspec.Raw])
    except UNREADABLE:
        found = []
    if len(found) == count and is_last:
        return [
            msgspec.json.decode(item, type=str) if bytes(item).startswith(b'"') else bytes(item).decode()
            for item in found
        ]
    parts = text.split(_BETWEEN_RESULTS)
    return parts if len(parts) == count else [text]


_HERMES = "hermes"
_RESULT = re.compile(r"<tool_response>\n?(.*?)\n?</tool_response>", re.DOTALL)
_TAGS = ("<tool_response>", "</tool_response>")
_TOOLS = "<tools>"
_HERMES_ROLES = {
    "system": Role.SYSTEM,
    "human": Role.USER,
    "user": Role.USER,
    "gpt": Role.ASSISTANT,
    "tool": Role.TOOL,
}


class HermesRows(ConversationRows):
    """The row format `hermes`: conversations as the text that Hermes and Qwen models read and write.

    The system message describes the tools within `<tools>`, calls are within `<tool_call>`, and the results of a
    step are one turn of `tool` with a `<tool_response>` for each call, in the order of the calls. A text that would
    be read as something else is refused.

    Source: NousResearch, hermes-function-calling-v1: the columns `conversations` and `tools`.
    """

    def write(self, row: Row, *, with_reasoning: bool) -> dict[str, Json]:
        """Return the row in this format. Raises: `ExportError` if a text would be read as something else."""
        return {
            "conversations": list(_write_hermes(row, with_reasoning)),
            "tools": msgspec.json.encode(write_tools(row.tools)).decode() if row.tools else "",
            "lineage": lineage_with_ids(row),
        }

    def read(self, raw: dict[str, Json]) -> Row:
        tools = read_tools(raw.get("tools"))
        return make_row(list(_read_hermes(raw["conversations"], tools)), tools, raw.get("lineage"))

    def fits(self, raw: dict[str, Json]) -> bool:
        texts = [str(item.get("value")) for item in _find_conversations(raw, _HERMES_ROLES) or ()]
        return any(mark in text for text in texts for mark in ("<tool_call>", "<tool_response>", _TOOLS))


HERMES = HermesRows()


def _write_hermes(row: Row, with_reasoning: bool) -> Iterator[dict[str, Json]]:
    messages = list(row.messages)
    system = messages.pop(0).content if messages[0].role is Role.SYSTEM else ""
    manual = render_tools(row.tools, _HERMES) if row.tools and _TOOLS not in system else ""
    if system or manual:
        yield {"from": "system", "value": f"{system}\n\n{manual}" if system and manual else system or manual}
    results: list[str] = []
    expected = 0
    for message in messages:
        if message.role is Role.USER:
            yield {"from": "human", "value": message.content}
        elif message.role is Role.ASSISTANT:
            expected = len(message.tool_calls)
            said = message if with_reasoning else msgspec.structs.replace(message, reasoning=None)
            try:
                yield {"from": "gpt", "value": render(said, _HERMES, row.tools)}
            except FormatError as error:
                raise ExportError(str(error)) from error
        else:
            if any(tag in message.content for tag in _TAGS):
                raise ExportError(f"the result of {message.name} contains a tag of this format")
            results.append(render_result(message.content, message.name or "", _HERMES))
            if len(results) == expected:
                yield {"from": "tool", "value": "\n".join(results)}
                results = []


def _read_hermes(items: Sequence[dict[str, Json]], tools: tuple[ToolSpec, ...]) -> Iterator[Message]:
    waiting: list[ToolCall] = []
    count = 0
    for index, item in enumerate(items):
        tag, text = item["from"], item["value"] or ""
        role = _role_of(tag, _HERMES_ROLES, index)
        if role is Role.SYSTEM:
            if tools:
                # The description of the tools is what this format has added.
                manual = render_tools(tools, _HERMES)
                text = text.removesuffix(f"\n\n{manual}").removesuffix(manual)
            if text:
                yield Message(role, text)
        elif role is Role.USER:
            yield Message(role, text)
        elif role is Role.ASSISTANT:
            said = parse(text, _HERMES, tools)
            if said.errors:
                raise ExportError(f"conversation {index}: {said.errors[0].reason}")
            waiting = [
                ToolCall(f"call_{number}", call.name, call.arguments_text)
                for number, call in enumerate(said.tool_calls, count + 1)
            ]
            count += len(waiting)
            yield Message(role, said.content, tuple(waiting), reasoning=said.reasoning or None)
        else:
            results = [match[1] for match in _RESULT.finditer(text)]
            if len(results) != len(waiting):
                raise _unclear_results(index, results, waiting)
            for call, result in zip(waiting, results, strict=True):
                yield Message(Role.TOOL, result, (), call.call_id, call.name)
