"""A progress bar or a spinner on standard error, for work that takes long. It is only shown on a terminal."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from treadle.cli.terminal.output import screen, shorten, stdout


def _can_show() -> bool:
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


@contextmanager
def spinner(text: str) -> Iterator[None]:
    """Show `text` with a spinner until the end of the block."""
    if not _can_show():
        yield
        return
    from rich.live import Live
    from rich.spinner import Spinner
    from rich.text import Text

    shown = Spinner("dots", Text(text, style="dim"))
    with Live(shown, console=screen(), transient=True, redirect_stdout=screen() is stdout()):
        yield


@contextmanager
def bar(text: str, total: int | None, *, is_json: bool = False) -> Iterator[Callable[[str], None]]:
    """Show a progress bar until the end of the block. The block calls the function for each of `total` items.

    The function takes a remark, such as the item's name. If `total` is `None`, it is unknown; for one item, a
    spinner is shown. Lines that the block prints appear above the bar. With `is_json` the block prints lines of
    JSON, and no bar is shown if they go to a terminal.
    """
    if not _can_show() or (is_json and sys.stdout.isatty()):
        yield lambda remark: None
        return
    if total == 1:
        with spinner(text):
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
    # What goes into a file or a pipe must not be printed above the bar.
    is_shared = screen() is stdout()
    with Progress(*columns, console=screen(), transient=True, redirect_stdout=is_shared) as progress:
        task = progress.add_task(text, total=total, remark="")
        yield lambda remark: progress.update(task, advance=1, remark=shorten(remark, 40))
