"""The row format `hf_trace`: sessions, each in its own file, for the trace viewer of the Hugging Face Hub.

Source: Hugging Face Hub documentation, "Session Traces Format" (Session Trace Simple Format), August 2026: a header
line with `type`, `harness` and `id`, then a line for each message. The viewer ignores further keys of the header;
`treadle` has the tools and the lineage, as JSON text, so that all headers have the same type in Arrow. The sessions
of Claude Code, Codex and Pi, which the Hub shows too, have other formats, which are neither written nor read.
"""

import msgspec

from treadle.core.errors import ExportError
from treadle.core.types import Json, Message, Role
from treadle.export.exporter import COMMON_LOSSES, LINES, ColumnType, RowFormat
from treadle.export.row_formats.chat_rows import read_call
from treadle.export.rows import Row, make_row, read_tools, write_tools

HARNESS = "treadle"
_OWN = "treadle"
_MAX_NAME = 80
"""The most characters of a session's name."""


class HfTraceRows(RowFormat):
    """The row format `hf_trace`: sessions, each in its own file, for the trace viewer of the Hugging Face Hub."""

    has_own_files = True
    losses = COMMON_LOSSES
    columns = {LINES: ColumnType.LIST}  # noqa: RUF012

    def write(self, row: Row, *, with_reasoning: bool) -> dict[str, Json]:
        asked = next((message.content for message in row.messages if message.role is Role.USER), "")
        own: dict[str, Json] = {"tools": write_tools(row.tools), "lineage": row.lineage}
        if row.untrained:
            own["untrained"] = row.untrained
        if row.weight != 1:
            own["weight"] = row.weight
        header = {
            "type": "session",
            "harness": HARNESS,
            "id": row.lineage.run_id,
            "name": " ".join(asked[: 4 * _MAX_NAME].split())[:_MAX_NAME],
            _OWN: msgspec.json.encode(own).decode(),
        }
        model = row.lineage.model
        lines = [_write(message, model, with_reasoning) for message in row.messages]
        return {LINES: [header, *[{"type": "message", "message": line} for line in lines]]}

    def read(self, raw: dict[str, Json]) -> Row:
        header, *lines = raw[LINES]
        if header.get("type") != "session":
            raise ExportError(f"the first line has the type {header.get('type')!r}, not 'session'")
        messages = [_read(line["message"]) for line in lines if line["type"] == "message"]
        own = msgspec.json.decode(header.get(_OWN) or "{}")
        tools, untrained = read_tools(own.get("tools")), tuple(own.get("untrained") or ())
        return make_row(messages, tools, own.get("lineage"), untrained, own.get("weight"))

    def fits(self, raw: dict[str, Json]) -> bool:
        lines = raw.get(LINES) or [raw]
        return isinstance(lines[0], dict) and lines[0].get("type") == "session"


FORMAT = HfTraceRows()


def _write(message: Message, model: str | None, with_reasoning: bool) -> dict[str, Json]:
    raw: dict[str, Json] = {"role": message.role.value, "content": message.content}
    if message.role is Role.TOOL:
        raw["toolCallId"] = message.call_id
    if message.role is Role.ASSISTANT and model is not None:
        raw["model"] = model
    if message.reasoning and with_reasoning:
        raw["reasoningContent"] = message.reasoning
    if message.tool_calls:
        raw["toolCalls"] = [
            {"id": call.call_id, "function": {"name": call.name, "arguments": call.arguments}}
            for call in message.tool_calls
        ]
    return raw


def _read(raw: dict[str, Json]) -> Message:
    return Message(
        Role(raw["role"]),
        raw["content"],
        tuple([read_call(call) for call in raw.get("toolCalls") or ()]),
        raw.get("toolCallId"),
        reasoning=raw.get("reasoningContent"),
    )
