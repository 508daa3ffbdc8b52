"""The row format `deepfabric`: rows as DeepFabric 4.x writes them, which are also read.

Results are joined with calls by id. A row whose results, executions and reasoning contradict each other is
refused, with a message that says what is wrong: DeepFabric skips a call that repeats an earlier one and then
counts on by position, so that in such rows calls are in steps in which they were not made. `lineage` is in
`metadata`.

Source: DeepFabric 4.4 and 4.13, `Conversation`, whose validation all rows pass. Therefore `executions` is empty if
one of them has no result, or an argument that is null or an empty text; the messages have them all. Only rows of
one turn have `agent_context`, because 4.13 knows no other mode.
"""

import hashlib
import json
import re
import string
from collections.abc import Iterator, Sequence

import msgspec
from msgspec.structs import replace

from treadle.core.errors import ExportError
from treadle.core.texts.documents import UNREADABLE
from treadle.core.texts.json_text import decode_json
from treadle.core.types import Json, Message, Role, ToolCall
from treadle.export.exporter import COMMON_LOSSES, ColumnType, Loss, RowFormat
from treadle.export.row_formats.chat_rows import OpenAIRows, has_chat
from treadle.export.rows import (
    Row,
    call_ids_of,
    lineage_with_ids,
    make_row,
    read_tools,
    rename_calls,
    write_object,
    write_tools,
)

READY = "Ready to respond to user"
"""The action of a step without calls."""
_ID = re.compile(r"[A-Za-z0-9]{9}")
_DIGITS = string.ascii_letters + string.digits
_CALL = re.compile(r"\s*(?:;\s*)?([\w.:/-]+)\(")
_OWN_KEYS = ("reasoning", "tool_context", "agent_context", "structured_data", "question", "final_answer")


class DeepFabricRows(RowFormat):
    """The row format `deepfabric`: rows as DeepFabric 4.x writes them, which are also read."""

    losses = (Loss.ARGUMENTS, *COMMON_LOSSES, Loss.UNTRAINED, Loss.WEIGHT)
    columns = {  # noqa: RUF012
        "messages": ColumnType.LIST,
        "metadata": ColumnType.JSON,
        "reasoning": ColumnType.JSON,
        "tool_context": ColumnType.JSON,
        "tools": ColumnType.LIST,
        "agent_context": ColumnType.JSON,
        "structured_data": ColumnType.JSON,
        "question": ColumnType.TEXT,
        "final_answer": ColumnType.TEXT,
    }

    def write(self, row: Row, *, with_reasoning: bool) -> dict[str, Json]:
        """Return the row in this format. Raises: `ExportError` if the arguments of a call are not a JSON object."""
        messages = rename_calls(row.messages, _short_ids(call_ids_of(row.messages)))
        said = [message for message in messages if message.role is Role.ASSISTANT]
        has_calls = any(message.tool_calls for message in said)
        asked = [message.content for message in messages if message.role is Role.USER]
        sample = row.lineage.sample
        metadata: dict[str, Json] = {
            "conversation_type": "chain_of_thought" if has_calls or _thinks(said) else "basic",
        }
        if has_calls:
            metadata["react_steps"] = len(said)
        if sample is not None and sample.topic:
            metadata["topic"] = " -> ".join(sample.topic)
        raw: dict[str, Json] = {
            "messages": _MESSAGES.write_messages(messages, with_reasoning=False),
            "metadata": {**metadata, "lineage": lineage_with_ids(row)},
        }
        if with_reasoning and (has_calls or _thinks(said)):
            raw["reasoning"] = _write_reasoning(said)
        if has_calls:
            executions = list(_write_executions(messages))
            raw["tool_context"] = {"executions": executions if all(map(_is_full, executions)) else []}
        if row.tools:
            raw["tools"] = write_tools(row.tools)
        if has_calls and len(asked) < 2:
            raw["agent_context"] = {"mode": "single_turn"}
        return {
            **raw,
            "question": asked[0] if asked else "",
            "final_answer": said[-1].content if said else "",
        }

    def read(self, raw: dict[str, Json]) -> Row:
        """Return a row from this format.

        Raises: `ExportError` if the parts of the row contradict each other.
        """
        messages = [_MESSAGES.read_message(item) for item in raw["messages"]]
        context = raw.get("tool_context") or {}
        metadata = raw.get("metadata") or {}
        tools = read_tools(raw.get("tools") or context.get("available_tools"))
        faults = [
            f"message {index} has an empty list of tool_calls"
            for index, item in enumerate(raw["messages"])
            if item.get("tool_calls") == []
        ]
        if context.get("executions"):
            faults += _compare_executions(messages, context["executions"])
            messages = _take_texts(messages, context["executions"])
        reasoning = raw.get("reasoning") or {}
        steps = reasoning.get("content") or ()
        if isinstance(steps, str):
            said = [index for index, message in enumerate(messages) if message.role is Role.ASSISTANT]
            messages[said[-1]] = replace(messages[said[-1]], reasoning=steps)
        else:
            faults += _compare_steps(messages, steps)
            messages = _take_thoughts(messages, steps)
        if faults:
            raise ExportError(f"its parts contradict each other: {'; '.join(faults[:3])}")
        return make_row(messages, tools, metadata.get("lineage"))

    def fits(self, raw: dict[str, Json]) -> bool:
        return has_chat(raw) and any(key in raw for key in _OWN_KEYS)


FORMAT = DeepFabricRows()


class _Messages(OpenAIRows):
    """The column `messages`, whose calls have compact arguments."""

    empties_content = False

    def write_arguments(self, call: ToolCall) -> Json:
        return msgspec.json.format(write_object(call), indent=-1).decode()


_MESSAGES = _Messages()


def _short_ids(ids: Sequence[str]) -> dict[str, str]:
    """Return an id of nine letters and digits for each call id, always the same one for the same ids."""
    names = {call_id: call_id for call_id in ids if _ID.fullmatch(call_id)}
    taken = set(names)
    for call_id in ids:
        salt = 0
        while call_id not in names:
            number = int.from_bytes(hashlib.sha256(f"{salt}:{call_id}".encode()).digest())
            short = "".join([_DIGITS[number // 62**place % 62] for place in range(9)])
            if short not in taken:
                names[call_id] = short
                taken.add(short)
            salt += 1
    return names


def _thinks(said: Sequence[Message]) -> bool:
    return any(message.reasoning for message in said)


def _write_reasoning(said: Sequence[Message]) -> dict[str, Json]:
    if len(said) == 1 and not said[0].tool_calls:
        return {"style": "freetext", "content": said[0].reasoning}
    steps = [
        {
            "step_number": number,
            "thought": message.reasoning or "",
            "action": "; ".join([f"{call.name}({call.arguments})" for call in message.tool_calls]) or READY,
        }
        for number, message in enumerate(said, 1)
    ]
    return {"style": "agent", "content": steps}


def _write_executions(messages: Sequence[Message]) -> Iterator[dict[str, Json]]:
    results = {message.call_id: message.content for message in messages if message.role is Role.TOOL}
    for message in messages:
        for call in message.tool_calls:
            yield {
                "function_name": call.name,
                "arguments": call.arguments if call.arguments.strip() else "{}",
                "reasoning": message.reasoning or message.content or f"Call {call.name}.",
                "result": results.get(call.call_id, ""),
            }


def _is_full(execution: dict[str, Json]) -> bool:
    """Return whether DeepFabric accepts an execution, whose result and arguments must not be empty."""
    values = msgspec.json.decode(execution["arguments"]).values()
    return bool(execution["result"]) and not any(value is None or value == "" for value in values)


def _compare_executions(messages: Sequence[Message], executions: Sequence[dict[str, Json]]) -> list[str]:
    """Return the faults of the executions, which have no ids: there must be one for each call, in order."""
    calls = [call for message in messages for call in message.tool_calls]
    results = {message.call_id: message.content for message in messages if message.role is Role.TOOL}
    if len(calls) != len(executions):
        return [
            f"there are {len(executions)} executions in tool_context for {len(calls)} calls in the messages"
        ]
    faults = []
    for number, (call, execution) in enumerate(zip(calls, executions, strict=True), 1):
        what = f"execution {number} of tool_context"
        if execution["function_name"] != call.name:
            faults.append(
                f"{what} is of {execution['function_name']!r}, and call {number} is of {call.name!r}"
            )
        elif _plain(execution["arguments"]) != _plain(call.arguments):
            faults.append(f"{what} has other arguments than the call {call.call_id!r} of {call.name!r}")
        elif execution["result"] != results.get(call.call_id, ""):
            faults.append(f"{what} has another result than the message for the call {call.call_id!r}")
    return faults


def _plain(arguments: Json) -> Json:
    """Return arguments as a value that can be compared. DeepFabric leaves out nulls in messages."""
    try:
        value = decode_json(arguments) if isinstance(arguments, str) else arguments
    except UNREADABLE:
        return arguments
    return (
        {key: item for key, item in value.items() if item is not None} if isinstance(value, dict) else value
    )


def _take_texts(messages: Sequence[Message], executions: Sequence[dict[str, Json]]) -> list[Message]:
    """Return the messages with the arguments of the executions, which have the exact text that the model wrote."""
    texts = iter([item["arguments"] for item in executions if isinstance(item["arguments"], str)])
    return [
        replace(
            message,
            tool_calls=tuple(
                [replace(call, arguments=next(texts, call.arguments)) for call in message.tool_calls]
            ),
        )
        for message in messages
    ]


def _compare_steps(messages: Sequence[Message], steps: Sequence[dict[str, Json]]) -> list[str]:
    """Return the steps of the reasoning whose calls differ from those of the messages, one sentence each."""
    made = [
        [(call.name, _plain(call.arguments)) for call in item.tool_calls]
        for item in messages
        if item.tool_calls
    ]
    named = [step for step in steps if _is_action(step)]
    if steps and len(made) != len(named):
        return [f"the reasoning has {len(named)} steps with calls, and the messages have {len(made)}"]
    faults = []
    for calls, step in zip(made, named, strict=False):
        action = _read_action(step["action"])
        if action is not None and action != calls:
            wanted, got = (", ".join([name for name, _ in found]) for found in (action, calls))
            faults.append(
                f"step {step.get('step_number')} of the reasoning calls {wanted}, and its message {got}"
                + (" with other arguments" if wanted == got else "")
                + ", so results may belong to other steps"
            )
    return faults


def _is_action(step: dict[str, Json]) -> bool:
    return bool(step.get("action")) and not step["action"].startswith("Ready to respond")


def _read_action(action: str) -> list[tuple[str, Json]] | None:
    """Return the calls in an action; `None` if the text has another form."""
    decoder, calls, position = json.JSONDecoder(), [], 0
    while position < len(action):
        match = _CALL.match(action, position)
        if match is None:
            return None
        try:
            value, position = decoder.raw_decode(action, match.end())
        except ValueError:
            return None
        if not action.startswith(")", position):
            return None
        position += 1
        calls.append((match[1], _plain(value)))
    return calls


def _take_thoughts(messages: Sequence[Message], steps: Sequence[dict[str, Json]]) -> list[Message]:
    """Return the messages with the thoughts of the steps. Each thought is put in the next message with calls, or
    without calls, like its step."""
    waiting = list(steps)
    taken = []
    for message in messages:
        if message.role is Role.ASSISTANT and waiting and _is_action(waiting[0]) is bool(message.tool_calls):
            message = replace(message, reasoning=waiting.pop(0).get("thought") or None)
        taken.append(message)
    return taken
