"""The row format `treadle`: the row in Treadle's types, without any loss. It is the format of `rows.jsonl`.

A message has the fields of `treadle.core.types.Message`; fields with their default value are left out.
"""

import msgspec

from treadle.core.errors import ExportError
from treadle.core.types import Json
from treadle.export.exporter import Column
from treadle.export.losses import Loss, without_reasoning
from treadle.export.rows import Row

VERSION = "treadle/1"
"""The value of the key `format`. A reader refuses another number."""


class NativeRows:
    """The row format `treadle`."""

    has_reasoning = True
    has_own_files = False
    losses: tuple[Loss, ...] = ()
    columns = {"format": Column.TEXT, "messages": Column.LIST, "tools": Column.LIST, "lineage": Column.JSON}  # noqa: RUF012
    aliases = frozenset[str]()

    def write(self, row: Row, *, with_reasoning: bool) -> dict[str, Json]:
        """Return the row in this format."""
        return {"format": VERSION, **msgspec.to_builtins(row if with_reasoning else without_reasoning(row))}

    def read(self, raw: dict[str, Json]) -> Row:
        """Return a row from this format."""
        if raw.get("format", VERSION) != VERSION:
            raise ExportError(f"the format is {raw['format']!r}, and this version reads {VERSION!r}")
        return msgspec.convert(raw, Row)

    def fits(self, raw: dict[str, Json]) -> bool:
        """Return whether an object looks like a row of this format."""
        return str(raw.get("format", "")).startswith("treadle/")


FORMAT = NativeRows()
