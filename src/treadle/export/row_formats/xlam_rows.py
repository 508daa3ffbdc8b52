"""The row format `xlam`: a request, the tools, and the calls that answer it.

`tools` and `answers` are JSON text. A parameter has its description, its type in Python's words (and that it
is optional) and its default. A row has one request of the user and at most one step with calls: later calls
need results, for which this format has no place.

Source: Salesforce, xlam-function-calling-60k: the columns `id`, `query`, `answers` and `tools`.
"""

from collections.abc import Sequence

import msgspec

from treadle.core.errors import ExportError
from treadle.core.types import Effect, Json, Message, Role, ToolCall, ToolSpec
from treadle.export.exporter import ColumnType, Loss, RowFormat
from treadle.export.row_formats.chat_rows import write_compact
from treadle.export.rows import Row, make_row, write_object

_TYPES = {
    "string": "str",
    "integer": "int",
    "number": "float",
    "boolean": "bool",
    "array": "list",
    "object": "dict",
}
_WORDS = {word: kind for kind, word in _TYPES.items()} | dict.fromkeys(("set", "tuple", "sequence"), "array")
_OPTIONAL = ", optional"


class XlamRows(RowFormat):
    """The row format `xlam`: a request, the tools, and the calls that answer it, as xLAM models are trained on."""

    has_reasoning = False
    losses = (
        Loss.CONVERSATION,
        Loss.TOOLS,
        Loss.UNTRAINED,
        Loss.WEIGHT,
        Loss.LINEAGE,
    )
    columns = {  # noqa: RUF012
        "id": ColumnType.TEXT,
        "query": ColumnType.TEXT,
        "tools": ColumnType.TEXT,
        "answers": ColumnType.TEXT,
    }

    def write(self, row: Row, *, with_reasoning: bool) -> dict[str, Json]:
        """Return the row in this format. Raises: `ExportError` if it has several requests or steps with calls."""
        asked = [message.content for message in row.messages if message.role is Role.USER]
        steps = [message.tool_calls for message in row.messages if message.tool_calls]
        if len(asked) != 1:
            raise ExportError("the conversation has more than one message of the user, or none")
        if len(steps) > 1:
            raise ExportError("calls are in more than one step, and later calls need results")
        if not row.tools:
            raise ExportError("the row has no tools")
        calls = [_write_call(call) for call in (steps[0] if steps else ())]
        sample = row.lineage.sample
        return {
            "id": row.lineage.run_id if sample is None else sample.sample_id,
            "query": asked[0],
            "tools": write_compact([_write_tool(tool) for tool in row.tools]),
            "answers": f"[{','.join(calls)}]",
        }

    def read(self, raw: dict[str, Json]) -> Row:
        """Return a row from this format: the request and the calls, with empty results."""
        answers = _decode(raw["answers"])
        calls = [
            ToolCall(f"call_{number}", item["name"], write_compact(item.get("arguments") or {}))
            for number, item in enumerate(answers, 1)
        ]
        results = [Message(Role.TOOL, "", (), call.call_id, call.name) for call in calls]
        said = [Message(Role.USER, raw["query"]), Message(Role.ASSISTANT, "", tuple(calls)), *results]
        return make_row(said, tuple([_read_tool(item) for item in _decode(raw.get("tools") or "[]")]), None)

    def fits(self, raw: dict[str, Json]) -> bool:
        return "query" in raw and "answers" in raw


FORMAT = XlamRows()


def _decode(value: Json) -> Sequence[dict[str, Json]]:
    """Return a column as a list; it is JSON text, or the list itself."""
    found: Sequence[dict[str, Json]] = msgspec.json.decode(value) if isinstance(value, str) else value
    return found


def _write_call(call: ToolCall) -> str:
    name = msgspec.json.encode(call.name).decode()
    return f'{{"name":{name},"arguments":{write_object(call).decode()}}}'


def _write_tool(tool: ToolSpec) -> dict[str, Json]:
    required = tool.parameters.get("required") or ()
    parameters: dict[str, Json] = {}
    for name, schema in (tool.parameters.get("properties") or {}).items():
        raw = schema if isinstance(schema, dict) else {}
        kind = raw.get("type")
        word = _TYPES.get(kind, kind) if isinstance(kind, str) else "any"
        parameters[name] = {
            **{key: value for key, value in raw.items() if key != "title"},
            "description": raw.get("description") or "",
            "type": word if name in required else f"{word}{_OPTIONAL}",
        }
    return {"name": tool.name, "description": tool.description, "parameters": parameters}


def _read_tool(raw: dict[str, Json]) -> ToolSpec:
    properties: dict[str, Json] = {}
    required = []
    for name, given in (raw.get("parameters") or {}).items():
        text = str(given.get("type") or "")
        rest = {key: value for key, value in given.items() if key != "type"}
        if not rest.get("description"):
            rest.pop("description", None)
        properties[name] = {**_read_type(text.removesuffix(_OPTIONAL)), **rest}
        if not text.endswith(_OPTIONAL) and not text.startswith("Optional[") and "default" not in given:
            required.append(name)
    schema = {"type": "object", "properties": properties, "required": required}
    return ToolSpec(raw["name"], raw.get("description") or "", schema, Effect.ONCE)


def _read_type(text: str) -> dict[str, Json]:
    """Return the schema of a type in Python's words, such as `List[int]`; an empty one if it is not known."""
    word, bracket, inner = text.strip().partition("[")
    word, inside = word.lower(), inner.rpartition("]")[0]
    parts = [_read_type(part) for part in _split(inside)] if bracket else []
    if word in ("optional", "union") and parts:
        return parts[0] if len(parts) == 1 else {"anyOf": parts}
    kind = _WORDS.get(word)
    found: dict[str, Json] = {} if kind is None else {"type": kind}
    if kind == "array" and parts and all(part == parts[0] for part in parts) and parts[0]:
        found["items"] = parts[0]
    elif kind == "object" and len(parts) == 2 and parts[1]:
        found["additionalProperties"] = parts[1]
    return found


def _split(text: str) -> list[str]:
    """Return the parts between commas that stand in no brackets. An ellipsis is no part."""
    parts, depth = [""], 0
    for letter in text:
        depth += (letter == "[") - (letter == "]")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part for part in parts if part.strip() not in ("", "...")]
