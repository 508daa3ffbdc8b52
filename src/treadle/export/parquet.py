"""Rows as Parquet files: written from a file of JSON lines, which is never changed.

The schema of a format is always the same. Values that differ between rows, such as arguments and schemas of tools,
are JSON in Arrow's type `arrow.json`, exactly as in the JSON lines, because Arrow would otherwise give all of them
one type and fill in nulls. `datasets` 5 reads such a column as objects; other readers see JSON text. A file is
written and read in row groups, so that memory does not grow with it.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from treadle.core.errors import ConfigError, ExportError
from treadle.core.registry import require
from treadle.core.texts.documents import UNREADABLE
from treadle.core.types import Json
from treadle.export.exporter import FORMATS, ColumnType
from treadle.export.whole import whole_file

GROUP_BYTES = 4 * 1024 * 1024
"""The approximate number of bytes of JSON lines in one row group."""
_BATCH_ROWS = 128
"""How many rows are read at a time."""
_VALUES = {
    ColumnType.TEXT: str | None,
    ColumnType.BOOLEAN: bool | None,
    ColumnType.INTEGER: int | None,
    ColumnType.FLOAT: float | None,
    ColumnType.IDS: list[int] | None,
    ColumnType.FLAGS: list[int] | None,
    ColumnType.FLOATS: list[float | None] | None,
}


def write_parquet(source: Path, out: Path, format: str) -> int:
    """Write the JSON lines of `source`, rows of a format, to a Parquet file, and return their number.

    The file appears when it is complete. `source` is only read.

    Raises: `ConfigError` without pyarrow; `ExportError` if the format has no Parquet form, or if a row has a key
    or a type that the schema lacks.
    """
    row_format = FORMATS.load(format)
    if row_format.has_own_files:
        raise ExportError(f"the format {format!r} has one file for each row, and no Parquet form")
    return write_table(source, out, format, row_format.columns or find_columns(source))


def write_table(source: Path, out: Path, format: str, columns: Mapping[str, ColumnType]) -> int:
    """Write JSON lines with these columns to a Parquet file. Otherwise the same as `write_parquet`."""
    arrow, parquet = require_arrow()
    types = {
        ColumnType.TEXT: arrow.string(),
        ColumnType.JSON: arrow.json_(),
        ColumnType.LIST: arrow.list_(arrow.json_()),
        ColumnType.BOOLEAN: arrow.bool_(),
        ColumnType.INTEGER: arrow.int64(),
        ColumnType.FLOAT: arrow.float64(),
        ColumnType.IDS: arrow.list_(arrow.int32()),
        ColumnType.FLAGS: arrow.list_(arrow.int8()),
        ColumnType.FLOATS: arrow.list_(arrow.float32()),
    }
    fields = [(key, types[kind]) for key, kind in columns.items()]
    schema = arrow.schema(fields, {"treadle.format": format})
    count = 0
    try:
        with whole_file(out) as file, parquet.ParquetWriter(file, schema, compression="zstd") as writer:
            for group in _read_groups(source, columns):
                arrays = [_make_array(arrow, group[key], kind) for key, kind in fields]
                table = arrow.Table.from_arrays(arrays, schema=schema)
                writer.write_table(table)
                count += table.num_rows
    except (ConfigError, ExportError, arrow.ArrowException) as error:
        raise ExportError(
            f"{error}; the rows are in {str(source)!r}, and {str(out)!r} was not written"
        ) from error
    return count


def require_arrow() -> tuple[Any, Any]:
    """Return the modules `pyarrow` and `pyarrow.parquet`. Raises: `ConfigError` if they are not installed."""
    return require("pyarrow", "data"), require("pyarrow.parquet", "data")


def read_parquet(path: Path) -> Iterator[dict[str, Json]]:
    """Yield each row of a Parquet file as a JSON object. Nulls in Arrow's own structs are left out.

    Raises: `ConfigError` without pyarrow; `ExportError` if the file is damaged.
    """
    arrow, parquet = require_arrow()
    try:
        with parquet.ParquetFile(path) as file:
            kinds = {field.name: field.type for field in file.schema_arrow}
            for batch in file.iter_batches(batch_size=_BATCH_ROWS):
                columns = {key: batch.column(key).to_pylist() for key in kinds}
                for index in range(batch.num_rows):
                    values = {key: _take(arrow, kinds[key], columns[key][index]) for key in kinds}
                    yield {key: value for key, value in values.items() if value is not None}
    except (OSError, arrow.ArrowException, *UNREADABLE) as error:
        raise ExportError(f"{str(path)!r} cannot be read as Parquet: {error}") from error


def find_columns(source: Path) -> dict[str, ColumnType]:
    """Return the keys of all JSON lines in a file, each with the type that holds all of its values."""
    found: dict[str, ColumnType | None] = {}
    with source.open("rb") as file:
        for line in file:
            for key, value in msgspec.json.decode(line).items():
                kind, known = _kind_of(value), found.get(key)
                if kind is None or known is None:
                    found[key] = kind or known
                elif known is not kind:
                    is_number = {known, kind} == {ColumnType.INTEGER, ColumnType.FLOAT}
                    found[key] = ColumnType.FLOAT if is_number else ColumnType.JSON
    return {key: kind or ColumnType.JSON for key, kind in found.items()}


def _kind_of(value: Json) -> ColumnType | None:
    """Return the type of a column with such values; `None` for null."""
    if value is None:
        return None
    if isinstance(value, int) and not isinstance(value, bool) and not -(2**63) <= value < 2**63:
        return ColumnType.JSON
    kinds = {
        str: ColumnType.TEXT,
        bool: ColumnType.BOOLEAN,
        int: ColumnType.INTEGER,
        float: ColumnType.FLOAT,
        list: ColumnType.LIST,
    }
    return kinds.get(type(value), ColumnType.JSON)


def _read_groups(source: Path, columns: Mapping[str, ColumnType]) -> Iterator[dict[str, list[Any]]]:
    group: dict[str, list[Any]] = {key: [] for key in columns}
    size = 0
    with source.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                raw = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
                if unknown := raw.keys() - columns.keys():
                    raise ExportError(
                        f"line {number} of {str(source)!r} has the unknown key {min(unknown)!r}"
                    )
                for key, kind in columns.items():
                    group[key].append(_read_value(raw.get(key), kind))
            except UNREADABLE as error:
                raise ExportError(f"line {number} of {str(source)!r} is not such a row: {error}") from error
            size += len(line)
            if size >= GROUP_BYTES:
                yield group
                group, size = {key: [] for key in columns}, 0
    if size:
        yield group


def _read_value(raw: msgspec.Raw | None, kind: ColumnType) -> Any:
    """Return the value of a cell. Values of the type `JSON` stay JSON text."""
    if raw is None or bytes(raw) == b"null":
        return None
    if kind is ColumnType.JSON:
        return bytes(raw).decode()
    if kind is ColumnType.LIST:
        return [bytes(item).decode() for item in msgspec.json.decode(raw, type=list[msgspec.Raw])]
    return msgspec.json.decode(raw, type=_VALUES[kind])


def _make_array(arrow: Any, values: list[Any], kind: Any) -> Any:
    """Return values as an array. Arrow does not build lists of an extension type from Python values."""
    if not (arrow.types.is_list(kind) and isinstance(kind.value_type, arrow.JsonType)):
        return arrow.array(values, kind)
    plain = arrow.array(values, arrow.list_(arrow.string()))
    items = arrow.ExtensionArray.from_storage(kind.value_type, plain.flatten())
    return arrow.ListArray.from_arrays(plain.offsets, items, type=kind, mask=plain.is_null())


def _take(arrow: Any, kind: Any, value: Any) -> Json:
    """Return the JSON value of a cell that was read from Arrow."""
    if value is None:
        return None
    if isinstance(kind, arrow.JsonType):
        return msgspec.json.decode(value)
    if arrow.types.is_list(kind) or arrow.types.is_large_list(kind):
        if arrow.types.is_primitive(kind.value_type):
            return value
        return [_take(arrow, kind.value_type, item) for item in value]
    if arrow.types.is_struct(kind):
        fields = {field.name: field.type for field in kind}
        taken = {key: _take(arrow, fields[key], item) for key, item in value.items()}
        return {key: item for key, item in taken.items() if item is not None}
    return value
