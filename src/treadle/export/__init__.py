"""Rows for training. Each format is one file; `export_rows` writes rows and `read_rows` reads them."""

from treadle.export.exporter import (
    FORMATS,
    Loss,
    RowFormat,
    encode_row,
    export_rows,
    find_losses,
    read_row,
    read_rows,
)
from treadle.export.rows import Lineage, Row, load_row

__all__ = [
    "FORMATS",
    "Lineage",
    "Loss",
    "Row",
    "RowFormat",
    "encode_row",
    "export_rows",
    "find_losses",
    "load_row",
    "read_row",
    "read_rows",
]
