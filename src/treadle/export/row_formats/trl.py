"""The row format `trl`: the columns `messages` and `tools` of TRL's SFT trainer, with arguments as objects.

Source: TRL 1.16, dataset formats, tool calling. Chat templates render the argument objects, so a run with a call
whose arguments are not a JSON object is refused. Arrow gives all rows of a column one type: a loader that infers
the type may add the arguments of other tools as nulls, and templates print them. `datasets` 5 keeps such columns as
JSON; with an older version, read the Parquet file that `treadle dataset convert` writes, or keep the rows of each
tool set in their own file.
"""

import msgspec

from treadle.core.types import Json, Message, Role
from treadle.export.losses import COMMON_LOSSES, Loss
from treadle.export.row_formats.openai import OpenAIRows, arguments_in, has_chat, write_call
from treadle.export.rows import write_object


class TrlRows(OpenAIRows):
    """The row format `trl`."""

    has_reasoning = True
    losses = (Loss.ARGUMENTS, *COMMON_LOSSES)

    def fits(self, raw: dict[str, Json]) -> bool:
        """Return whether an object looks like a row of this format."""
        return has_chat(raw) and all(isinstance(item, dict) for item in arguments_in(raw["messages"]))

    def write_message(self, message: Message, with_reasoning: bool) -> dict[str, Json]:
        """Return one message. Raises: `ExportError` if the arguments of a call are not a JSON object."""
        raw: dict[str, Json] = {"role": message.role.value, "content": message.content}
        if message.role is Role.TOOL:
            return {**raw, "name": message.name, "tool_call_id": message.call_id}
        if message.reasoning and with_reasoning:
            raw["reasoning_content"] = message.reasoning
        if message.tool_calls:
            # The numbers stay exactly as the model wrote them; only white space is removed.
            raw["tool_calls"] = [
                write_call(call, msgspec.Raw(msgspec.json.format(write_object(call, "openai"), indent=-1)))
                for call in message.tool_calls
            ]
        return raw


FORMAT = TrlRows()
