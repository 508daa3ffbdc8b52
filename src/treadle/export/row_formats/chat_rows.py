"""The row formats `openai` and `trl`: messages and tools as chat endpoints have them."""

import json
import re
from collections.abc import Sequence
from typing import ClassVar

import msgspec

from treadle.core.errors import ExportError
from treadle.core.types import Json, Message, Role, ToolCall
from treadle.export.exporter import COMMON_LOSSES, ColumnType, Loss, RowFormat
from treadle.export.rows import Row, make_row, read_tools, write_object, write_tools

_TRAIN = "train"


class OpenAIRows(RowFormat):
    """The row format `openai`: messages and tools for OpenAI's fine-tuning, with arguments as JSON text.

    The service refuses files with other keys, so a row has no lineage, and no reasoning unless it is asked for. A
    row that the service would refuse is refused here: with arguments that are not a JSON object, or without an
    answer at its end.
    Source: OpenAI fine-tuning guide, 2025.
    """

    has_reasoning = False
    marks_untrained = True
    losses: ClassVar[tuple[Loss, ...]] = (
        Loss.REASONING,
        Loss.ARGUMENTS,
        Loss.ERRORS,
        *COMMON_LOSSES,
        Loss.UNTRAINED,
        Loss.WEIGHT,
        Loss.LINEAGE,
    )
    columns = {"messages": ColumnType.LIST, "tools": ColumnType.LIST}  # noqa: RUF012
    aliases = frozenset(("lineage",))
    names_results: ClassVar[bool] = False
    """True if a result has the name of its tool."""
    empties_content: ClassVar[bool] = True
    """True if a message with calls and without text has null as its content."""

    def write(self, row: Row, *, with_reasoning: bool) -> dict[str, Json]:
        """Return the row in this format. Raises: `ExportError` if OpenAI would refuse the row."""
        _check_openai(row)
        messages = self.write_messages(row.messages, with_reasoning=with_reasoning)
        mark_untrained(row, messages, "weight", 0, None)
        return {"messages": messages, **({"tools": write_tools(row.tools)} if row.tools else {})}

    def read(self, raw: dict[str, Json]) -> Row:
        messages = [self.read_message(item) for item in raw["messages"]]
        untrained = read_untrained(raw["messages"])
        tools = read_tools(raw.get("tools"))
        return make_row(messages, tools, raw.get("lineage"), untrained, raw.get("weight"))

    def fits(self, raw: dict[str, Json]) -> bool:
        return has_chat(raw) and all(isinstance(item, str) for item in arguments_in(raw["messages"]))

    def write_messages(self, messages: Sequence[Message], *, with_reasoning: bool) -> list[dict[str, Json]]:
        return [self.write_message(message, with_reasoning) for message in messages]

    def write_message(self, message: Message, with_reasoning: bool) -> dict[str, Json]:
        """Return one message. Raises: `ExportError` if the arguments of a call cannot be written."""
        raw: dict[str, Json] = {"role": message.role.value, "content": message.content}
        if message.role is Role.TOOL:
            named = {"name": message.name} if self.names_results else {}
            return {**raw, **named, "tool_call_id": message.call_id}
        if message.reasoning and with_reasoning:
            raw["reasoning_content"] = message.reasoning
        if message.tool_calls:
            raw["content"] = message.content or (None if self.empties_content else "")
            raw["tool_calls"] = [write_call(call, self.write_arguments(call)) for call in message.tool_calls]
        return raw

    def write_arguments(self, call: ToolCall) -> Json:
        """Return the arguments of a call. Raises: `ExportError` if they cannot be written."""
        return call.arguments if call.arguments.strip() else "{}"

    def read_message(self, item: dict[str, Json]) -> Message:
        return Message(
            # OpenAI's newer models call the system message that of the developer.
            Role.SYSTEM if item["role"] == "developer" else Role(item["role"]),
            read_content(item.get("content")),
            tuple([read_call(call) for call in item.get("tool_calls") or ()]),
            item.get("tool_call_id"),
            item.get("name") if item["role"] == "tool" else None,
            reasoning=item.get("reasoning_content"),
        )


OPENAI = OpenAIRows()


def write_call(call: ToolCall, arguments: Json) -> dict[str, Json]:
    """Return a call in OpenAI's form."""
    return {
        "id": call.call_id,
        "type": "function",
        "function": {"name": call.name, "arguments": arguments},
    }


def read_call(raw: dict[str, Json]) -> ToolCall:
    """Return the call in an object of OpenAI's form. Arguments that are not text become compact JSON."""
    arguments = raw["function"].get("arguments")
    text = arguments if isinstance(arguments, str) else write_compact(arguments or {})
    return ToolCall(raw["id"], raw["function"]["name"], text)


def read_content(content: Json) -> str:
    """Return the text of a message's content, which is a text or a list of text parts.

    Raises: `ExportError` if there is a part without a text.
    """
    if isinstance(content, list):
        for part in content:
            if not isinstance(part, dict) or "text" not in part:
                kind = part.get("type") if isinstance(part, dict) else part
                raise ExportError(f"a message has a part of the type {kind!r}, and rows hold only texts")
        return "".join([item["text"] for item in content])
    return content or ""


_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_MAX_TOOLS = 128
_MAX_DESCRIPTION_CHARS = 1024


def _check_openai(row: Row) -> None:
    """Check the rules of OpenAI's fine-tuning. Raises: `ExportError` that names the one that a row breaks."""
    if row.messages[-1].role is not Role.ASSISTANT:
        raise ExportError("the last message is not the assistant's, and OpenAI refuses such rows")
    if len(row.tools) > _MAX_TOOLS:
        raise ExportError(
            f"the row has {len(row.tools)} tools, and OpenAI takes {_MAX_TOOLS}; see --tools of dataset convert"
        )
    known = {tool.name for tool in row.tools}
    calls = [call for message in row.messages for call in message.tool_calls]
    for name in [*known, *[call.name for call in calls]]:
        if not _NAME.fullmatch(name):
            raise ExportError(
                f"the tool {name!r} has a name that OpenAI refuses; letters, digits, _ and - are allowed"
            )
    for tool in row.tools:
        if len(tool.description) > _MAX_DESCRIPTION_CHARS:
            raise ExportError(
                f"the description of the tool {tool.name!r} has {len(tool.description):,} characters, and OpenAI "
                f"takes {_MAX_DESCRIPTION_CHARS:,}"
            )
        if tool.parameters and tool.parameters.get("type") != "object":
            raise ExportError(f"the parameters of the tool {tool.name!r} are not of the type 'object'")
    for call in calls:
        if call.name not in known:
            raise ExportError(f"the tool {call.name!r} is called, but is not among the tools of the row")
        write_object(call)  # OpenAI refuses other arguments, too
    waiting: set[str] = set()
    for message in row.messages:
        if message.role is Role.TOOL:
            waiting.discard(message.call_id or "")
        elif waiting:
            raise ExportError("a call has no result directly after it, and OpenAI refuses such rows")
        waiting |= {call.call_id for call in message.tool_calls}
        if message.role is Role.ASSISTANT and not message.content.strip() and not message.tool_calls:
            raise ExportError("an answer is empty, and OpenAI refuses such rows")


def mark_untrained(row: Row, raw: Sequence[dict[str, Json]], key: str, no: Json, yes: Json) -> None:
    """Give the assistant messages of a row the key that says whether they are trained on: `no` for those that are
    not, and `yes`, unless it is `None`, for the others."""
    said = [item for item in raw if item["role"] == "assistant"]
    for number, item in enumerate(said):
        if number in row.untrained:
            item[key] = no
        elif yes is not None:
            item[key] = yes


def read_untrained(raw: Sequence[dict[str, Json]]) -> tuple[int, ...]:
    """Return the numbers of the assistant messages whose `weight` or `train` says that they are not trained on."""
    said = [item for item in raw if item["role"] == "assistant"]
    return tuple(
        [n for n, item in enumerate(said) if item.get("weight", 1) == 0 or item.get("train") is False]
    )


def has_chat(raw: dict[str, Json]) -> bool:
    """Return whether an object has a list of messages with roles."""
    messages = raw.get("messages")
    return isinstance(messages, list) and all(isinstance(item, dict) and "role" in item for item in messages)


def arguments_in(messages: Sequence[dict[str, Json]]) -> list[Json]:
    """Return the arguments of all calls in messages of OpenAI's form."""
    calls = [call for message in messages for call in message.get("tool_calls") or ()]
    return [call.get("function", {}).get("arguments") for call in calls]


def write_compact(value: Json) -> str:
    """Return a value as JSON text without white space."""
    # msgspec refuses integers of more than 64 bits.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))


class TrlRows(OpenAIRows):
    """The row format `trl`: the columns `messages` and `tools` of TRL's SFT trainer, with arguments as objects.

    Chat templates render the argument objects, so a run with a call whose arguments are not a JSON object is
    refused. Arrow gives all rows of a column one type: a loader that infers the type may add the arguments of
    other tools as nulls, and templates print them. `datasets` 5 keeps such columns as JSON; with an older version,
    read the Parquet file that `treadle dataset convert` writes, or keep the rows of each tool set in their own
    file.
    Source: TRL 1.16, dataset formats, tool calling.
    """

    has_reasoning = True
    names_results = True
    empties_content = False
    marks_untrained = False
    losses: ClassVar[tuple[Loss, ...]] = (Loss.ARGUMENTS, *COMMON_LOSSES, Loss.UNTRAINED)
    columns = {**OpenAIRows.columns, "weight": ColumnType.FLOAT, "lineage": ColumnType.JSON}  # noqa: RUF012
    aliases = frozenset(("weight",))

    def write(self, row: Row, *, with_reasoning: bool) -> dict[str, Json]:
        messages = self.write_messages(row.messages, with_reasoning=with_reasoning)
        raw: dict[str, Json] = {"messages": messages, "tools": write_tools(row.tools)}
        if row.weight != 1 and Loss.WEIGHT not in self.losses:
            raw["weight"] = row.weight
        return {**raw, "lineage": row.lineage}

    def fits(self, raw: dict[str, Json]) -> bool:
        return has_chat(raw) and all(isinstance(item, dict) for item in arguments_in(raw["messages"]))

    def write_arguments(self, call: ToolCall) -> Json:
        """Return the arguments as an object. Raises: `ExportError` if they are none."""
        # The numbers stay exactly as the model wrote them; only white space is removed.
        return msgspec.Raw(msgspec.json.format(write_object(call), indent=-1))


TRL = TrlRows()


class AxolotlRows(TrlRows):
    """The row format `axolotl`: rows of `trl` whose assistant messages say with `train` if they are trained on.

    Source: Axolotl 0.19, datasets of the type `chat_template` with `message_field_training: train`.
    """

    marks_untrained = True
    losses = (*TrlRows.losses, Loss.WEIGHT)
    columns = {**OpenAIRows.columns, "lineage": ColumnType.JSON}  # noqa: RUF012

    def write(self, row: Row, *, with_reasoning: bool) -> dict[str, Json]:
        raw = super().write(row, with_reasoning=with_reasoning)
        mark_untrained(row, raw["messages"], _TRAIN, False, True)
        return raw

    def fits(self, raw: dict[str, Json]) -> bool:
        return super().fits(raw) and any(_TRAIN in item for item in raw["messages"])


AXOLOTL = AxolotlRows()
