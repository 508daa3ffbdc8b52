"""The export of runs as rows of a format, one JSON object per line, and the import of such rows.

`Loss` names what a row loses in a format; `find_losses` finds it by comparing the row before and after.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from typing import ClassVar, Protocol

import msgspec
from msgspec.structs import replace

from treadle.core.errors import ExportError
from treadle.core.registry import Registry, did_you_mean
from treadle.core.texts.documents import UNREADABLE
from treadle.core.texts.json_text import decode_json
from treadle.core.types import Json, Message, Role, ToolCall
from treadle.export.row_changes import find_unwritable, without_untrained
from treadle.export.rows import Row, load_row, make_lineage
from treadle.journal.protocol import Journal

_ROW_LEVELS = 10
"""How many levels of a row may stand around arguments and schemas, so that what tools accept can be read again."""


class Loss(StrEnum):
    """A part of a row that a format cannot hold. The value is its name in messages."""

    CONVERSATION = "the conversation before the answer"
    REASONING = "reasoning"
    ARGUMENTS = "the exact text of arguments, whose values are kept"
    CALL_IDS = "the ids of calls"
    ERRORS = "which results are errors"
    OPAQUE = "data that only the model's provider can read"
    SERVER_CALLS = "calls that the model's server made"
    PARTS = "images, audio and documents"
    TOOLS = "the definitions of tools"
    TOOL_LIMITS = "effects, limits and output schemas of tools"
    UNTRAINED = "the turns that are not to be trained on, which are left out"
    WEIGHT = "the weight of the row"
    LINEAGE = "lineage"


COMMON_LOSSES = (Loss.OPAQUE, Loss.SERVER_CALLS, Loss.PARTS, Loss.TOOL_LIMITS)
"""The losses that all formats except `treadle` have."""


def find_losses(before: Row, after: Row) -> tuple[Loss, ...]:
    """Return what `after` lacks in comparison with `before`.

    `after` is the result of writing `before` in another format and reading it again.
    """
    shown = _find_shown(before, after)
    if shown is not before:
        found = {*find_losses(shown, after), Loss.UNTRAINED}
        return tuple([loss for loss in Loss if loss in found])
    found = {*_compare_messages(before, after)}
    # A weight of 0 is said by answers that are not trained on.
    if before.weight and before.weight != after.weight:
        found.add(Loss.WEIGHT)
    if before.lineage != after.lineage:
        found.add(Loss.LINEAGE)
    if before.tools != after.tools:
        texts = [
            [(tool.name, tool.description, tool.parameters) for tool in row.tools] for row in (before, after)
        ]
        found.add(Loss.TOOL_LIMITS if texts[0] == texts[1] else Loss.TOOLS)
    return tuple([loss for loss in Loss if loss in found])


def _find_shown(before: Row, after: Row) -> Row:
    """Return what `after` shows of `before`: all of it, or all but turns that are not trained on."""
    if before.untrained != after.untrained:
        for numbers in (find_unwritable(before), before.untrained):
            try:
                shown = without_untrained(before, numbers)
            except ExportError:
                continue
            if shown.untrained == after.untrained and len(shown.messages) == len(after.messages):
                return shown
    return before


def _compare_messages(before: Row, after: Row) -> Iterator[Loss]:
    if [_outline(message) for message in before.messages] != [
        _outline(message) for message in after.messages
    ]:
        yield Loss.CONVERSATION
        return
    for old, new in zip(before.messages, after.messages, strict=True):
        yield from (loss for loss, part_of in _PARTS.items() if part_of(old) != part_of(new))


_PARTS: Mapping[Loss, Callable[[Message], object]] = {
    Loss.REASONING: lambda item: item.reasoning or None,
    Loss.OPAQUE: lambda item: (item.opaque, [call.opaque for call in item.tool_calls]),
    Loss.SERVER_CALLS: lambda item: item.server_calls,
    Loss.PARTS: lambda item: item.parts,
    Loss.ERRORS: lambda item: item.is_error,
    Loss.ARGUMENTS: lambda item: [call.arguments for call in item.tool_calls],
    Loss.CALL_IDS: lambda item: (item.call_id, [call.call_id for call in item.tool_calls]),
}
"""The parts of a message that a format can lose."""


def _outline(message: Message) -> object:
    """Return the parts of a message that every format with messages must keep."""
    calls = [(call.name, _value(call)) for call in message.tool_calls]
    return message.role, message.content, message.name, calls


def _value(call: ToolCall) -> Json:
    try:
        # The text tells true from 1, and 1 from 1.0.
        return repr(call.parsed)
    except msgspec.DecodeError:
        return call.arguments


def find_unread(
    raw: Mapping[str, Json], again: Mapping[str, Json], row_format: "RowFormat"
) -> tuple[str, ...]:
    """Return the keys of a row that its format does not read, as texts for people.

    `again` is the row after reading and writing it. Keys within messages are compared too.
    """
    known = {*again, *row_format.aliases}
    found = []
    for key in [key for key, value in raw.items() if key not in known and _has(value)]:
        near = "" if key in row_format.columns else did_you_mean(key, row_format.columns, cutoff=0.7)
        found.append(f"the key {key!r}" + (f" ({near[2:]})" if near else ""))
    for key, value in raw.items():
        if key in again and type(value) is type(again[key]):
            kept = {name for name, _ in _pairs(again[key])}
            lost = dict.fromkeys(name for name, inner in _pairs(value) if name not in kept and _has(inner))
            found += [f"the key {name!r} in {key!r}" for name in lost]
    return tuple(found)


def _pairs(value: Json) -> Iterator[tuple[str, Json]]:
    """Yield the keys of an object with their values, or those of all objects in a list, and of objects in these."""
    for item in value if isinstance(value, list) else [value]:
        for key, inner in item.items() if isinstance(item, dict) else ():
            yield key, inner
            if isinstance(inner, dict):
                yield from inner.items()


def _has(value: Json) -> bool:
    return value not in (None, "", [], {})


def without_reasoning(row: Row) -> Row:
    return replace(row, messages=tuple([replace(message, reasoning=None) for message in row.messages]))


LINES = "lines"
"""The only key of a row of a format with `has_own_files`: the lines of the file."""


class ColumnType(StrEnum):
    """The type of a column in a Parquet file."""

    TEXT = "text"
    JSON = "json"
    """Any value, as JSON."""
    LIST = "list"
    """A list of any values, each as JSON."""
    BOOLEAN = "boolean"
    INTEGER = "integer"
    FLOAT = "float"
    IDS = "ids"
    """A list of 32-bit integers."""
    FLAGS = "flags"
    """A list of numbers that are 0 or 1."""
    FLOATS = "floats"
    """A list of 32-bit floating-point numbers; null where one is not known."""


class RowFormat(Protocol):
    """A format of rows, which writes a row as one JSON object and reads it again."""

    losses: ClassVar[tuple[Loss, ...]]
    """What a row can lose in this format."""
    columns: ClassVar[Mapping[str, ColumnType]]
    """The keys of a row and their types. Empty if the keys differ between datasets."""
    aliases: ClassVar[frozenset[str]] = frozenset()
    """Further keys that are read, and written under other names."""
    has_reasoning: ClassVar[bool] = True
    """Whether the format's readers know reasoning, which is then written unless the caller says otherwise."""
    has_own_files: ClassVar[bool] = False
    """True if each row is a separate file with several lines, which are the row's list `lines`."""

    def write(self, row: Row, *, with_reasoning: bool) -> dict[str, Json]:
        """Return the row in this format. Raises: `ExportError` if the format cannot express it."""

    def read(self, raw: dict[str, Json]) -> Row:
        """Return a row from this format, whoever wrote it.

        Raises: `ExportError`, or an error about a missing key or a wrong type, if it is not a row of this format.
        """

    def fits(self, raw: dict[str, Json]) -> bool:
        """Return whether an object looks like a row of this format."""


FORMATS: Registry[RowFormat] = Registry(
    "format",
    "treadle.export",
    {
        "treadle": "treadle.export.row_formats.treadle_rows:TREADLE",
        "deepfabric": "treadle.export.row_formats.deepfabric_rows:FORMAT",
        "axolotl": "treadle.export.row_formats.chat_rows:AXOLOTL",
        "openai": "treadle.export.row_formats.chat_rows:OPENAI",
        "trl": "treadle.export.row_formats.chat_rows:TRL",
        "hermes": "treadle.export.row_formats.conversation_rows:HERMES",
        "sharegpt": "treadle.export.row_formats.conversation_rows:SHAREGPT",
        "xlam": "treadle.export.row_formats.xlam_rows:FORMAT",
        "hf_trace": "treadle.export.row_formats.hf_trace:FORMAT",
        "atif": "treadle.export.row_formats.atif:FORMAT",
        "custom": "treadle.export.row_formats.treadle_rows:CUSTOM",
    },
)


def export_rows(
    journal: Journal,
    run_ids: Iterable[str],
    format: str,
    *,
    with_reasoning: bool | None = None,
    on_skip: Callable[[str, str], None] | None = None,
) -> Iterator[bytes]:
    """Yield one row, a line of JSON, for each run; several lines if the format's rows are files of their own.

    A run that failed is left out if its model was not at fault. If `on_skip` is given, it is called with the id of
    each run that is left out and the reason; otherwise such a run raises an error. `with_reasoning` of `None` means
    the default of the format.

    Raises: `ConfigError` if the format is unknown; `RunNotFoundError`; `ExportError` without `on_skip`.
    """
    row_format = FORMATS.load(format)
    for run_id in run_ids:
        try:
            row = load_row(journal, run_id, with_tokens=wants_tokens(row_format))
            yield encode_row(row, row_format, with_reasoning=with_reasoning) + b"\n"
        except ExportError as error:
            if on_skip is None:
                raise
            on_skip(run_id, str(error))


def wants_tokens(row_format: RowFormat) -> bool:
    """Return whether a format has a place for token ids. Formats need not say that they have none."""
    return bool(getattr(row_format, "has_tokens", False))


def encode_row(
    row: Row, row_format: RowFormat, *, with_reasoning: bool | None = None, with_lineage: bool = True
) -> bytes:
    """Return one row as JSON without a newline at the end. Raises: `ExportError`."""
    row = fit_untrained(row, row_format)
    if not with_lineage:
        row = replace(row, lineage=make_lineage(row.messages, row.tools))
    wants_reasoning = row_format.has_reasoning if with_reasoning is None else with_reasoning
    raw = row_format.write(row, with_reasoning=wants_reasoning)
    if not with_lineage:
        for part in (raw, raw.get("metadata") or {}):
            part.pop("lineage", None)
    if row_format.has_own_files:
        return b"\n".join([msgspec.json.encode(line) for line in raw[LINES]])
    return msgspec.json.encode(raw)


def fit_untrained(row: Row, row_format: RowFormat) -> Row:
    """Return the row without those turns that are not trained on and for which a format has no place.

    Formats need not say that they mark such turns. Raises: `ExportError` if nothing is left to train on.
    """
    if not row.untrained or Loss.UNTRAINED not in row_format.losses:
        return row
    marks = bool(getattr(row_format, "marks_untrained", False))
    return without_untrained(row, find_unwritable(row) if marks else None)


def decode_rows(
    lines: Iterable[bytes],
    row_format: RowFormat,
    on_damage: Callable[[int, ExportError], None] | None = None,
) -> Iterator[tuple[int, dict[str, Json]]]:
    """Yield each row in the lines as a JSON object, with the number of its first line. Empty lines are skipped.

    A line that is not a JSON object is given to `on_damage`, if there is one and rows are single lines.

    Raises: `ExportError` that names the line for another such line.
    """
    session: list[Json] = []
    first = 1
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            raw = _decode_object(line, number)
        except ExportError as error:
            if on_damage is None or row_format.has_own_files:
                raise
            on_damage(number, error)
            continue
        if not row_format.has_own_files:
            yield number, raw
            continue
        if session and row_format.fits({LINES: [raw]}):
            yield first, {LINES: session}
            session = []
        first = number if not session else first
        session.append(raw)
    if session:
        yield first, {LINES: session}


def _decode_object(line: bytes, number: int) -> dict[str, Json]:
    try:
        raw = decode_json(line, around=_ROW_LEVELS)
    except UNREADABLE as error:
        raise ExportError(f"line {number} is not JSON: {error}") from error
    if not isinstance(raw, dict):
        raise ExportError(f"line {number} is not a JSON object")
    return raw


def read_row(raw: dict[str, Json], row_format: RowFormat) -> Row:
    """Return the row in a JSON object. Raises: `ExportError` if it is not a row of the format, or has no answer."""
    try:
        row = row_format.read(raw)
        # The types of what other programs write are checked here, once for all formats.
        row = msgspec.convert(msgspec.to_builtins(row, builtin_types=(bytes,)), Row)
    except ExportError:
        raise
    except (ValueError, AttributeError, LookupError, TypeError, RecursionError) as error:
        what = (
            f"the key {error}"
            if isinstance(error, KeyError)
            else f"a part or has one of another type: {error!r}"
        )
        raise ExportError(f"it lacks {what}") from error
    if not any(message.role is Role.ASSISTANT for message in row.messages):
        raise ExportError("it has no answer of an assistant")
    return row


def read_rows(lines: Iterable[bytes], format: str) -> Iterator[Row]:
    """Yield the rows in the lines of a file.

    Raises: `ConfigError` if the format is unknown; `ExportError` that names the line if a line is not a row.
    """
    row_format = FORMATS.load(format)
    for number, raw in decode_rows(lines, row_format):
        try:
            yield read_row(raw, row_format)
        except ExportError as error:
            raise ExportError(f"line {number} is not a row of the format {format!r}: {error}") from error
