"""Treadle's own row formats: `treadle`, which loses nothing, and `custom`, only a run's structured answer."""

import msgspec

from treadle.core.answering import strip_answer
from treadle.core.errors import ExportError
from treadle.core.texts.documents import UNREADABLE
from treadle.core.types import Json, Message, Role
from treadle.export.exporter import ColumnType, Loss, RowFormat, without_reasoning
from treadle.export.row_formats.chat_rows import write_compact
from treadle.export.rows import Row, check_messages, make_row

VERSION = "treadle/1"
"""The value of the key `format`. A reader refuses another number."""
_LINEAGE = "lineage"


class NativeRows(RowFormat):
    """The row format `treadle`: the row in Treadle's types, without any loss. It is the format of `rows.jsonl`.

    A message has the fields of `treadle.core.types.Message`; fields with their default value are left out.
    """

    losses = ()
    columns = {  # noqa: RUF012
        "format": ColumnType.TEXT,
        "messages": ColumnType.LIST,
        "tools": ColumnType.LIST,
        "lineage": ColumnType.JSON,
    }

    def write(self, row: Row, *, with_reasoning: bool) -> dict[str, Json]:
        return {"format": VERSION, **msgspec.to_builtins(row if with_reasoning else without_reasoning(row))}

    def read(self, raw: dict[str, Json]) -> Row:
        if raw.get("format", VERSION) != VERSION:
            raise ExportError(f"the format is {raw['format']!r}, and this version reads {VERSION!r}")
        row = msgspec.convert(raw, Row)
        check_messages(row.messages)
        return row

    def fits(self, raw: dict[str, Json]) -> bool:
        return str(raw.get("format", "")).startswith("treadle/")


TREADLE = NativeRows()


class CustomRows(RowFormat):
    """The row format `custom`: a run's structured answer as the row, with the column `lineage` beside its keys.

    It is for runs whose agent has a schema for its answers, such as `generation.conversation.output_schema`. The
    conversation is left out.
    """

    has_reasoning = False
    losses = (Loss.CONVERSATION, Loss.TOOLS, Loss.WEIGHT)
    columns = {}  # noqa: RUF012

    def write(self, row: Row, *, with_reasoning: bool) -> dict[str, Json]:
        """Return the row in this format.

        Raises: `ExportError` if the answer is not a JSON object, or has a key `lineage`.
        """
        last = next(message for message in reversed(row.messages) if message.role is Role.ASSISTANT)
        # Some models give their answer as the arguments of a tool.
        text = last.tool_calls[-1].arguments if last.tool_calls else strip_answer(last.content)
        try:
            answer = msgspec.json.decode(text)
        except UNREADABLE as error:
            raise ExportError(f"the answer of {row.lineage.run_id!r} is not JSON ({error})") from error
        if not isinstance(answer, dict):
            raise ExportError(f"the answer of {row.lineage.run_id!r} is {answer!r:.80}, not an object")
        if _LINEAGE in answer:
            raise ExportError("the answer has a key 'lineage', which is the row's own; give it another name")
        return {**answer, _LINEAGE: row.lineage}

    def read(self, raw: dict[str, Json]) -> Row:
        """Return a row from this format, with the answer as its only message."""
        answer = {key: value for key, value in raw.items() if key != _LINEAGE}
        return make_row([Message(Role.ASSISTANT, write_compact(answer))], (), raw[_LINEAGE])

    def fits(self, raw: dict[str, Json]) -> bool:
        lineage = raw.get(_LINEAGE)
        is_other = "messages" in raw or "conversations" in raw
        return not is_other and isinstance(lineage, dict) and "run_id" in lineage


CUSTOM = CustomRows()
