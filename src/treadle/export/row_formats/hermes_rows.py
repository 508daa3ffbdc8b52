"""The row format `hermes`: conversations as the text that Hermes and Qwen models read and write.

The system message describes the tools within `<tools>`, calls are within `<tool_call>`, and the results of a step
are one turn of `tool` with a `<tool_response>` for each call, in the order of the calls. A text that would be read
as something else is refused.

Source: NousResearch, hermes-function-calling-v1: the columns `conversations` and `tools`.
"""

import re
from collections.abc import Iterator, Sequence

import msgspec

from treadle.core.errors import ExportError, FormatError
from treadle.core.types import Json, Message, Role, ToolCall, ToolSpec
from treadle.export.exporter import COMMON_LOSSES, ColumnType, Loss, RowFormat
from treadle.export.row_formats.sharegpt import find_conversations, role_of, unclear_results
from treadle.export.rows import Row, lineage_with_ids, make_row, read_tools, write_tools
from treadle.formats import parse, render, render_result, render_tools

NAME = "hermes"
_RESULT = re.compile(r"<tool_response>\n?(.*?)\n?</tool_response>", re.DOTALL)
_TAGS = ("<tool_response>", "</tool_response>")
_TOOLS = "<tools>"
_ROLES = {
    "system": Role.SYSTEM,
    "human": Role.USER,
    "user": Role.USER,
    "gpt": Role.ASSISTANT,
    "tool": Role.TOOL,
}


class HermesRows(RowFormat):
    """The row format `hermes`: conversations as the text that Hermes and Qwen models read and write."""

    losses = (Loss.ARGUMENTS, *COMMON_LOSSES, Loss.UNTRAINED, Loss.WEIGHT)
    columns = {"conversations": ColumnType.LIST, "tools": ColumnType.TEXT, "lineage": ColumnType.JSON}  # noqa: RUF012

    def write(self, row: Row, *, with_reasoning: bool) -> dict[str, Json]:
        """Return the row in this format. Raises: `ExportError` if a text would be read as something else."""
        return {
            "conversations": list(_write(row, with_reasoning)),
            "tools": msgspec.json.encode(write_tools(row.tools)).decode() if row.tools else "",
            "lineage": lineage_with_ids(row),
        }

    def read(self, raw: dict[str, Json]) -> Row:
        """Return a row from this format."""
        tools = read_tools(raw.get("tools"))
        return make_row(list(_read(raw["conversations"], tools)), tools, raw.get("lineage"))

    def fits(self, raw: dict[str, Json]) -> bool:
        """Return whether an object looks like a row of this format."""
        texts = [str(item.get("value")) for item in find_conversations(raw, _ROLES) or ()]
        return any(mark in text for text in texts for mark in ("<tool_call>", "<tool_response>", _TOOLS))


FORMAT = HermesRows()


def _write(row: Row, with_reasoning: bool) -> Iterator[dict[str, Json]]:
    messages = list(row.messages)
    system = messages.pop(0).content if messages[0].role is Role.SYSTEM else ""
    manual = render_tools(row.tools, NAME) if row.tools and _TOOLS not in system else ""
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
                yield {"from": "gpt", "value": render(said, NAME, row.tools)}
            except FormatError as error:
                raise ExportError(str(error)) from error
        else:
            if any(tag in message.content for tag in _TAGS):
                raise ExportError(f"the result of {message.name} contains a tag of this format")
            results.append(render_result(message.content, message.name or "", NAME))
            if len(results) == expected:
                yield {"from": "tool", "value": "\n".join(results)}
                results = []


def _read(items: Sequence[dict[str, Json]], tools: tuple[ToolSpec, ...]) -> Iterator[Message]:
    waiting: list[ToolCall] = []
    count = 0
    for index, item in enumerate(items):
        tag, text = item["from"], item["value"] or ""
        role = role_of(tag, _ROLES, index)
        if role is Role.SYSTEM:
            text = _without_manual(text, tools)
            if text:
                yield Message(role, text)
        elif role is Role.USER:
            yield Message(role, text)
        elif role is Role.ASSISTANT:
            said = parse(text, NAME, tools)
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
                raise unclear_results(index, results, waiting)
            for call, result in zip(waiting, results, strict=True):
                yield Message(Role.TOOL, result, (), call.call_id, call.name)


def _without_manual(system: str, tools: tuple[ToolSpec, ...]) -> str:
    """Return a system message without the description of the tools that this format adds."""
    manual = render_tools(tools, NAME) if tools else ""
    return system.removesuffix(manual).removesuffix("\n\n") if manual and system.endswith(manual) else system
