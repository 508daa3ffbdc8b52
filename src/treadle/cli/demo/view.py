"""The output of the demonstration: lines, and a progress bar while a worker works."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from msgspec import Struct

from treadle.cli.terminal.output import clean, is_live, stdout

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID

LABEL = 16


class Counts(Struct):
    """What a worker has reported so far."""

    kept: int = 0
    rejected: int = 0
    in_flight: int = 0

    def __str__(self) -> str:
        return f"{self.kept} rows · {self.rejected} rejected · {self.in_flight} in flight"


class DemoView:
    """A view that prints to standard output. A pipe gets no progress bar."""

    def __init__(self, total: int) -> None:
        self._console = stdout()
        self._begin = time.monotonic()
        self._total = total
        self._progress: Progress | None = None
        self._bar: TaskID | None = None
        self._told = 0

    def title(self, text: str, *lines: str) -> None:
        """Print the title and the lines below it."""
        self._console.print()
        self._console.print(text, style="bold")
        for line in lines:
            self._console.print(line, style="dim")
        self._console.print()

    def step(self, label: str, text: str, style: str = "bold cyan") -> None:
        """Print an event with its time."""
        self._console.print(f"{time.monotonic() - self._begin:6.1f} s  ", style="dim", end="")
        self._console.print(f"{label:<{LABEL}}", style=style, end="")
        self._console.print(clean(text), soft_wrap=True)

    def more(self, text: str, style: str = "") -> None:
        """Print another line about the last event."""
        self._console.print(" " * (10 + LABEL) + clean(text), style=style, soft_wrap=True)

    def section(self, text: str) -> None:
        """Print a heading."""
        self._console.print()
        self._console.print(text, style="bold")

    def result(self, label: str, text: str, *, is_good: bool | None = None) -> None:
        """Print one result, with a mark if `is_good` is given."""
        mark, style = {True: ("✓", "bold green"), False: ("✗", "bold red"), None: (" ", "")}[is_good]
        self._console.print(f"  {mark} ", style=style, end="")
        self._console.print(f"{label:<10}", style="bold", end="")
        self._console.print(clean(text), soft_wrap=True)

    def command(self, text: str, why: str) -> None:
        """Print a command to try, and what it does."""
        self._console.print(f"  {text}", style="cyan", soft_wrap=True)
        self._console.print(f"      {why}", style="dim", soft_wrap=True)

    @contextmanager
    def working(self, counts: Counts) -> Iterator[None]:
        """Show a progress bar, which begins at the rows that are there."""
        self._told = counts.kept
        if is_live():
            from rich.progress import BarColumn, Progress, TextColumn

            columns = (TextColumn(" " * 9), BarColumn(bar_width=44), TextColumn("{task.description}"))
            self._progress = Progress(*columns, console=self._console, transient=True)
            self._bar = self._progress.add_task("", total=self._total, completed=counts.kept)
            self._progress.start()
        try:
            yield
        finally:
            if self._progress is not None:
                self._progress.stop()
                self._progress = None

    def update(self, counts: Counts) -> None:
        """Show the progress of a worker."""
        if self._progress is not None and self._bar is not None:
            self._progress.update(self._bar, completed=counts.kept, description=str(counts))
        elif counts.kept - self._told >= max(1, self._total // 4):
            self._told = counts.kept
            self.more(str(counts), "dim")
