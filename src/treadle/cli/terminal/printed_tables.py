"""Tables as all commands print them: whole, whatever the width of the terminal."""

from collections.abc import Collection, Iterator
from copy import copy
from dataclasses import replace
from typing import TYPE_CHECKING

from treadle.cli.terminal.output import stdout

if TYPE_CHECKING:
    from rich.table import Column, Table

_GAP = 3
"""How far the columns of a table are from each other."""
_WRAPPED_CHARS = 24
"""The room for a column whose cells may have several lines."""


def make_table(*columns: str, numbers: Collection[str] = (), wrapped: Collection[str] = ()) -> "Table":
    """Return an empty table. The columns in `numbers` are aligned right, and the cells of those in `wrapped` may
    have several lines."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="bold")
    for name in columns:
        table.add_column(
            name,
            justify="right" if name in numbers else "left",
            no_wrap=name not in wrapped,
            overflow="fold" if name in wrapped else "ellipsis",
        )
    return table


def print_table(table: "Table") -> None:
    """Print a table. In a pipe it is as wide as it needs; a terminal that is too narrow gets it in parts."""
    console = stdout()
    if not console.is_terminal:
        console.print(table, width=200)
        return
    for index, part in enumerate(_split(table, console.width)):
        console.print(*[""] * (index > 0), part, sep="\n")


def _split(table: "Table", width: int) -> "Iterator[Table]":
    """Yield parts of a table that fit into `width`, so that no number is cut. Each begins with the first column,
    which says what its rows are."""
    sizes = [_GAP + _measure(column) for column in table.columns]
    part, free = table.columns[:1], width + _GAP - sizes[0]
    for column, size in zip(table.columns[1:], sizes[1:], strict=True):
        if len(part) > 1 and size > free:
            yield _frame(table, part)
            part, free = table.columns[:1], width + _GAP - sizes[0]
        part, free = [*part, column], free - size
    yield _frame(table, part)


def _measure(column: "Column") -> int:
    from rich.cells import cell_len

    chars = max([cell_len(str(text)) for text in (column.header, *column.cells)])
    return chars if column.no_wrap else min(chars, _WRAPPED_CHARS)


def _frame(table: "Table", columns: "list[Column]") -> "Table":
    """Return a table of some columns of another one."""
    part = copy(table)
    part.columns = [replace(column, _index=index) for index, column in enumerate(columns)]
    return part
