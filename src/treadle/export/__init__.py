"""Rows for training. Each format is one file; `export_rows` writes rows and `read_rows` reads them."""

from treadle.export.exporter import FORMATS, RowFormat, export_rows, read_rows
from treadle.export.rows import Lineage, Row, load_row

__all__ = ["FORMATS", "Lineage", "Row", "RowFormat", "export_rows", "load_row", "read_rows"]
