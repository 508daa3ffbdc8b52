"""A progress bar or a spinner on standard error, for work that takes long. It is only shown on a terminal."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from treadle.cli.terminal.output import shorten, stderr


def _can_show() -> bool:
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


@contextmanager
def spinner(text: str) -> Iterator[None]:
    """Show `text` with a spinner until the end of the block."""
    if not _can_show():
        yield
        return
    from rich.text import Text

    with stderr().status(Text(text, style="dim"), spinner="dots"):
        yield


@contextmanager
def bar(text: str, total: int | None) -> Iterator[Callable[[str], None]]:
    """Show a progress bar until the end of the block. The block calls the function for each of `total` items.

    The function takes a remark, such as the item's name. If `total` is `None`, it is unknown.
    """
    if not _can_show() or total == 1:
        yield lambda remark: None
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=30),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[remark]}", style="dim", markup=False),
    )
    with Progress(*columns, console=stderr(), transient=True) as progress:
        task = progress.add_task(text, total=total, remark="")
        yield lambda remark: progress.update(task, advance=1, remark=shorten(remark, 40))
