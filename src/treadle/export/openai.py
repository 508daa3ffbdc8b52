"""The row format `openai`: messages and tools for OpenAI's fine-tuning, with arguments as JSON text.

Source: OpenAI fine-tuning guide, 2025. The column `lineage` is Treadle's own; drop it for a service that refuses
unknown keys (`jq -c 'del(.lineage)'`). Reasoning is left out by default for the same reason.
"""

from collections.abc import Sequence

from treadle.core.types import Json, Message, Role, ToolCall


class OpenAIRows:
    """The row format `openai`."""

    has_reasoning = False

    def write_messages(self, messages: Sequence[Message], *, with_reasoning: bool) -> list[dict[str, Json]]:
        """Return the column `messages`."""
        return [_write(message, with_reasoning) for message in messages]

    def read_messages(self, raw: Sequence[dict[str, Json]]) -> list[Message]:
        """Return the messages in a column that `write_messages` returned."""
        names: dict[str, str] = {}
        messages = []
        for item in raw:
            calls = tuple(
                [
                    ToolCall(call["id"], call["function"]["name"], call["function"]["arguments"])
                    for call in item.get("tool_calls") or ()
                ]
            )
            names.update({call.call_id: call.name for call in calls})
            call_id = item.get("tool_call_id")
            messages.append(
                Message(
                    Role(item["role"]),
                    item.get("content") or "",
                    calls,
                    call_id,
                    names.get(call_id) if call_id else None,
                    reasoning=item.get("reasoning_content"),
                )
            )
        return messages


FORMAT = OpenAIRows()


def _write(message: Message, with_reasoning: bool) -> dict[str, Json]:
    if message.role is Role.TOOL:
        return {"role": "tool", "tool_call_id": message.call_id, "content": message.content}
    raw: dict[str, Json] = {"role": message.role.value, "content": message.content}
    if message.reasoning and with_reasoning:
        raw["reasoning_content"] = message.reasoning
    if message.tool_calls:
        raw["content"] = message.content or None
        raw["tool_calls"] = [
            {
                "id": call.call_id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for call in message.tool_calls
        ]
    return raw
