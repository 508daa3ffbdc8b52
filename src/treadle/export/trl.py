"""The row format `trl`: the columns `messages` and `tools` of TRL's SFT trainer, with arguments as objects.

Source: TRL 0.24, dataset formats, tool calling. Chat templates render the argument objects, so a run with a call
whose arguments are not a JSON object is refused. Arrow gives all rows of a column one type: a loader that infers
the type adds the arguments of other tools as nulls, and templates print them. To avoid this, read `messages` as
JSON text, or keep the rows of each tool set in their own file.
"""

import json
from collections.abc import Sequence

import msgspec

from treadle.core.errors import ExportError
from treadle.core.types import Json, Message, Role, ToolCall


class TrlRows:
    """The row format `trl`."""

    has_reasoning = True

    def write_messages(self, messages: Sequence[Message], *, with_reasoning: bool) -> list[dict[str, Json]]:
        """Return the column `messages`.

        Raises: `ExportError` if the arguments of a call are not a JSON object.
        """
        return [_write(message, with_reasoning) for message in messages]

    def read_messages(self, raw: Sequence[dict[str, Json]]) -> list[Message]:
        """Return the messages in a column that `write_messages` returned, arguments as compact JSON text."""
        return [_read(item) for item in raw]


FORMAT = TrlRows()


def _write(message: Message, with_reasoning: bool) -> dict[str, Json]:
    raw: dict[str, Json] = {"role": message.role.value, "content": message.content}
    if message.role is Role.TOOL:
        return {**raw, "name": message.name, "tool_call_id": message.call_id}
    if message.reasoning and with_reasoning:
        raw["reasoning_content"] = message.reasoning
    if message.tool_calls:
        raw["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": _parse(call)},
            }
            for call in message.tool_calls
        ]
    return raw


def _parse(call: ToolCall) -> Json:
    try:
        arguments = call.parsed
    except msgspec.DecodeError as error:
        raise ExportError(
            f"the arguments of {call.name} ({call.call_id}) are not JSON ({error}); "
            "the format openai carries them as text"
        ) from error
    if not isinstance(arguments, dict):
        raise ExportError(
            f"the arguments of {call.name} ({call.call_id}) are {arguments!r:.80}, not an object; "
            "the format openai carries them as text"
        )
    # The numbers stay exactly as the model wrote them; only white space is removed.
    return msgspec.Raw(msgspec.json.format(call.arguments.encode() or b"{}", indent=-1))


def _read(item: dict[str, Json]) -> Message:
    calls = [
        ToolCall(
            call["id"],
            call["function"]["name"],
            json.dumps(call["function"]["arguments"], ensure_ascii=False, separators=(",", ":")),
        )
        for call in item.get("tool_calls") or ()
    ]
    return Message(
        Role(item["role"]),
        item.get("content") or "",
        tuple(calls),
        item.get("tool_call_id"),
        item.get("name"),
        reasoning=item.get("reasoning_content"),
    )
