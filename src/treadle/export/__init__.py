"""Exports from a journal: rows and groups of rollouts, in the formats of those who read them, and reports.

Read first: `rows.py` (a row with its lineage, of a run), `exporter.py` (`RowFormat`, the formats by name, and
what a row loses in one), `groups.py` (finished runs as rollouts and groups), `token_exporter.py` (rows with token
ids), `row_files.py` (files of both) and `body_sample.py` (what pages in one file hold of many rows).

To add a row format, write a class like `RowFormat` in a file of `row_formats/` and add a line to `FORMATS` in
`exporter.py`; another package registers it under an entry point of the group `treadle.export`. `losses` names what
the format cannot hold, and `tests/export` checks that it loses nothing else. Refuse a row that the format's readers
would misread. A token format is a pure function of a `Group` in a file of `token_formats/` and a line in
`TOKEN_FORMATS`. What a trainer's convention needs (-100, 1.0) is made in its format and nowhere else.
`python docs/reference.py` updates the tables in docs.
"""

from treadle.export.exporter import FORMATS as FORMATS
from treadle.export.exporter import Loss as Loss
from treadle.export.exporter import RowFormat as RowFormat
from treadle.export.exporter import encode_row as encode_row
from treadle.export.exporter import export_rows as export_rows
from treadle.export.exporter import find_losses as find_losses
from treadle.export.exporter import read_row as read_row
from treadle.export.exporter import read_rows as read_rows
from treadle.export.rows import Lineage as Lineage
from treadle.export.rows import Row as Row
from treadle.export.rows import load_row as load_row
