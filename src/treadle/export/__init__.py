"""Rows for training: one file a format, all behind `export_rows` and `read_rows`."""

from treadle.export.formats import FORMATS, export_rows, read_rows
from treadle.export.rows import Lineage, Row, load_row

__all__ = ["FORMATS", "Lineage", "Row", "export_rows", "load_row", "read_rows"]
