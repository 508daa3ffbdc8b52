"""The row format `custom`: the structured answer of a run as the row, with the column `lineage` beside its keys.

It is for runs whose agent has a schema for its answers, such as `generation.conversation.output_schema`. The
conversation is left out.
"""

import msgspec

from treadle.core.answering import strip_answer
from treadle.core.errors import ExportError
from treadle.core.types import Json, Message, Role
from treadle.export.exporter import Column
from treadle.export.losses import Loss
from treadle.export.row_formats.openai import write_compact
from treadle.export.rows import Row, make_row

_LINEAGE = "lineage"


class CustomRows:
    """The row format `custom`."""

    has_reasoning = False
    has_own_files = False
    losses: tuple[Loss, ...] = (Loss.CONVERSATION, Loss.TOOLS)
    columns: dict[str, Column] = {}  # noqa: RUF012
    aliases = frozenset[str]()

    def write(self, row: Row, *, with_reasoning: bool) -> dict[str, Json]:
        """Return the row in this format.

        Raises: `ExportError` if the answer is not a JSON object, or has a key `lineage`.
        """
        last = next(message for message in reversed(row.messages) if message.role is Role.ASSISTANT)
        # Some models give their answer as the arguments of a tool.
        text = last.tool_calls[-1].arguments if last.tool_calls else strip_answer(last.content)
        try:
            answer = msgspec.json.decode(text)
        except (msgspec.DecodeError, UnicodeError) as error:
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
        """Return whether an object looks like a row of this format."""
        lineage = raw.get(_LINEAGE)
        is_other = "messages" in raw or "conversations" in raw
        return not is_other and isinstance(lineage, dict) and "run_id" in lineage


FORMAT = CustomRows()
