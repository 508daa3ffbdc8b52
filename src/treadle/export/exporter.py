"""The export of runs as rows of a format, one JSON object per line, and the import of such rows."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Protocol

import msgspec
from msgspec.structs import replace

from treadle.core.errors import ExportError
from treadle.core.registry import Registry
from treadle.core.types import Json, Message, StopReason
from treadle.export.rows import Lineage, Row, load_row, read_tools, write_tools
from treadle.journal.protocol import Journal


class RowFormat(Protocol):
    """A format of rows, which writes messages and reads them again."""

    @property
    def has_reasoning(self) -> bool:
        """True if the format's readers know reasoning; it is then written unless the caller says otherwise."""
        ...

    def write_messages(self, messages: Sequence[Message], *, with_reasoning: bool) -> list[dict[str, Json]]:
        """Return the column `messages`.

        Raises: `ExportError` if the format cannot express a message.
        """
        ...

    def read_messages(self, raw: Sequence[dict[str, Json]]) -> list[Message]:
        """Return the messages in a column that `write_messages` returned."""
        ...


FORMATS: Registry[RowFormat] = Registry(
    "format",
    "treadle.export",
    {"openai": "treadle.export.openai:FORMAT", "trl": "treadle.export.trl:FORMAT"},
)


def export_rows(
    journal: Journal,
    run_ids: Iterable[str],
    format: str,
    *,
    only_completed: bool = False,
    min_reward: float | None = None,
    with_reasoning: bool | None = None,
    on_skip: Callable[[str, str], None] | None = None,
) -> Iterator[bytes]:
    """Yield one row, a line of JSON, for each run.

    A run that failed through no fault of its model is left out. `only_completed` also leaves out runs that reached
    a limit, were refused or were cancelled, and `min_reward` runs with a lower reward or none. If `on_skip` is
    given, it is called with the id of each run that is left out and the reason; otherwise such a run raises an
    error. `with_reasoning` of `None` means the default of the format.

    Raises: `ConfigError` if the format is unknown; `RunNotFoundError`; `ExportError` without `on_skip`.
    """
    row_format = FORMATS.load(format)
    wants_reasoning = row_format.has_reasoning if with_reasoning is None else with_reasoning
    for run_id in run_ids:
        try:
            row = load_row(journal, run_id)
            reward, stop_reason = row.lineage.reward, row.lineage.stop_reason
            if only_completed and stop_reason != StopReason.COMPLETED:
                raise ExportError(f"run {run_id!r} ended with {stop_reason}")
            if min_reward is not None and (reward is None or reward < min_reward):
                raise ExportError(f"the reward of run {run_id!r} is {reward}, below {min_reward}")
            yield encode_row(row, row_format, with_reasoning=wants_reasoning) + b"\n"
        except ExportError as error:
            if on_skip is None:
                raise
            on_skip(run_id, str(error))


def encode_row(row: Row, row_format: RowFormat, *, with_reasoning: bool) -> bytes:
    """Return one row as JSON without a newline at the end."""
    return msgspec.json.encode(
        {
            "messages": row_format.write_messages(row.messages, with_reasoning=with_reasoning),
            "tools": write_tools(row.tools),
            "lineage": row.lineage,
        }
    )


def read_rows(lines: Iterable[bytes], format: str) -> Iterator[Row]:
    """Yield the rows in the lines that `export_rows` wrote.

    Raises: `ConfigError` if the format is unknown; `ExportError` that names the line if a line is not a row.
    """
    row_format = FORMATS.load(format)
    for number, line in enumerate(lines, 1):
        try:
            raw = msgspec.json.decode(line)
            lineage = msgspec.convert(raw["lineage"], Lineage)
            errors = set(lineage.tool_errors)
            messages = [
                replace(message, is_error=True) if message.call_id in errors else message
                for message in row_format.read_messages(raw["messages"])
            ]
            yield Row(tuple(messages), read_tools(raw["tools"]), lineage)
        except (msgspec.DecodeError, msgspec.ValidationError, KeyError, TypeError, ValueError) as error:
            raise ExportError(f"line {number} is not a row of the format {format!r}: {error!r}") from error
