"""The formats by name, and writing and reading rows in them."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.metadata import entry_points
from typing import Protocol

import msgspec
from msgspec.structs import replace

from treadle.core.errors import ConfigError, ExportError
from treadle.core.types import Json, Message, StopReason
from treadle.export.rows import Lineage, Row, load_row, read_tools, write_tools
from treadle.journal.protocol import Journal

FORMATS = {"openai": "treadle.export.openai", "trl": "treadle.export.trl"}
"""Name to module. Others may come as entry points of the group `treadle.export`."""


class Format(Protocol):
    """What a format's module has."""

    HAS_REASONING: bool
    """Whether those who read the format know reasoning, so that it is written unless told otherwise."""

    def write_messages(self, messages: Sequence[Message], *, with_reasoning: bool) -> list[dict[str, Json]]:
        """The column `messages`. Raises: `ExportError` for what the format cannot carry."""
        ...

    def read_messages(self, raw: Sequence[dict[str, Json]]) -> list[Message]:
        """The messages that were written."""
        ...


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
    """The runs as JSON lines, one at a time.

    `only_completed` leaves out runs that ended at a limit, refused or were cut off; a run that failed through
    no fault of its model is always left out. `min_reward` leaves out runs with less, or with no reward.
    `with_reasoning`: `None` takes the format's own choice. `on_skip` is told of every run that is left out:
    its id and why; without it such a run raises.

    Raises: `ConfigError` for an unknown format; `RunNotFoundError`; `ExportError` without `on_skip`.
    """
    module = find_format(format)
    wants_reasoning = module.HAS_REASONING if with_reasoning is None else with_reasoning
    for run_id in run_ids:
        try:
            row = load_row(journal, run_id)
            reward, stop_reason = row.lineage.reward, row.lineage.stop_reason
            if only_completed and stop_reason != StopReason.COMPLETED:
                raise ExportError(f"run {run_id!r} ended with {stop_reason}")
            if min_reward is not None and (reward is None or reward < min_reward):
                raise ExportError(f"the reward of run {run_id!r} is {reward}, below {min_reward}")
            yield encode_row(row, module, with_reasoning=wants_reasoning) + b"\n"
        except ExportError as error:
            if on_skip is None:
                raise
            on_skip(run_id, str(error))


def encode_row(row: Row, module: Format, *, with_reasoning: bool) -> bytes:
    """One row as JSON, without the newline."""
    return msgspec.json.encode(
        {
            "messages": module.write_messages(row.messages, with_reasoning=with_reasoning),
            "tools": write_tools(row.tools),
            "lineage": row.lineage,
        }
    )


def read_rows(lines: Iterable[bytes], format: str) -> Iterator[Row]:
    """The rows that `export_rows` wrote. Raises: `ConfigError`; `ExportError` that names the line."""
    module = find_format(format)
    for number, line in enumerate(lines, 1):
        try:
            raw = msgspec.json.decode(line)
            lineage = msgspec.convert(raw["lineage"], Lineage)
            errors = set(lineage.tool_errors)
            messages = [
                replace(message, is_error=True) if message.call_id in errors else message
                for message in module.read_messages(raw["messages"])
            ]
            yield Row(tuple(messages), read_tools(raw["tools"]), lineage)
        except (msgspec.DecodeError, msgspec.ValidationError, KeyError, TypeError, ValueError) as error:
            raise ExportError(f"line {number} is not a row of the format {format!r}: {error!r}") from error


def find_format(name: str) -> Format:
    """The module of a format. Raises: `ConfigError` that names near ones."""
    if name in FORMATS:
        return import_module(FORMATS[name])
    plugins = {point.name: point for point in entry_points(group="treadle.export")}
    if name in plugins:
        found: Format = plugins[name].load()
        return found
    known = [*FORMATS, *plugins]
    near = get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ConfigError(f"there is no format {name!r}; {hint}the formats are {', '.join(known)}")
