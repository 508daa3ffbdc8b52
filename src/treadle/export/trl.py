"""The format `trl`: the columns `messages` and `tools` of TRL's SFT trainer, arguments as objects.

Source: TRL 0.24, dataset formats, tool calling. Chat templates render the objects themselves, so a call
whose text is not a JSON object cannot be carried, and its run is refused rather than mended. Arrow gives
all rows of a column one type: a loader that infers it adds the arguments of other tools as nulls, which
templates print; read `messages` as JSON text, or one tool set a file, to be safe.
"""

import json
from collections.abc import Sequence

import msgspec

from treadle.core.errors import ExportError
from treadle.core.types import Json, Message, Role, ToolCall

HAS_REASONING = True


def write_messages(messages: Sequence[Message], *, with_reasoning: bool) -> list[dict[str, Json]]:
    """The messages of a row. Raises: `ExportError` for arguments that are not a JSON object."""
    return [_write(message, with_reasoning) for message in messages]


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
    # As it was written, number for number, but on one line.
    return msgspec.Raw(msgspec.json.format(call.arguments.encode() or b"{}", indent=-1))


def read_messages(raw: Sequence[dict[str, Json]]) -> list[Message]:
    """The messages that `write_messages` wrote, arguments as compact JSON text."""
    return [
        Message(
            Role(item["role"]),
            item.get("content") or "",
            tuple(
                [
                    ToolCall(
                        call["id"],
                        call["function"]["name"],
                        json.dumps(call["function"]["arguments"], ensure_ascii=False, separators=(",", ":")),
                    )
                    for call in item.get("tool_calls") or ()
                ]
            ),
            item.get("tool_call_id"),
            item.get("name"),
            reasoning=item.get("reasoning_content"),
        )
        for item in raw
    ]
