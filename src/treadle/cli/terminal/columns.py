"""Tables on standard output."""

from collections.abc import Collection
from typing import TYPE_CHECKING

from treadle.cli.terminal.output import stdout

if TYPE_CHECKING:
    from rich.table import Table


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
    """Print a table. In a pipe it is as wide as it needs."""
    console = stdout()
    console.print(table, width=None if console.is_terminal else 200)
