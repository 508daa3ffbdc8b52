"""Live views on a terminal.

Callers only change the values of a view; a thread draws them a few times a second, and rests longer if drawing
is slow. The last state stays on the screen.
"""

import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import suppress
from typing import TYPE_CHECKING

from treadle.cli.terminal.output import stdout
from treadle.core.errors import TreadleError

if TYPE_CHECKING:
    from rich.text import Text

DRAW_SECONDS = 0.1
"""The shortest time between two drawings."""
_SHARE = 0.01
"""The share of the processor time that drawings may take."""
_BAR_CELLS = 30


class Drawing(ABC):
    """A live view, which is drawn from its making until it is closed."""

    def __init__(self) -> None:
        from rich.live import Live

        self._drawn: list[Text] = []
        self._is_over = threading.Event()
        self._console = stdout()
        self._live = Live(
            get_renderable=self._render, console=self._console, auto_refresh=False, vertical_overflow="crop"
        )
        self._live.start()
        self._thread = threading.Thread(target=self._draw_often, name="treadle-board", daemon=True)
        self._thread.start()

    @abstractmethod
    def lines(self, width: int, height: int, *, is_over: bool) -> list["Text"]:
        """Return the lines to draw. Called by the thread, while other threads change values."""

    def close(self) -> None:
        """Draw the last state, and leave the terminal in order. May be called more than once."""
        if self._is_over.is_set():
            return
        self._is_over.set()
        self._thread.join()
        with suppress(OSError, TreadleError):
            self._clear_wrapped()
            self._live.stop()

    def _draw_often(self) -> None:
        """Draw until the view is closed, or the terminal is gone."""
        pause = 0.0
        while not self._is_over.wait(pause):
            begin = time.thread_time()
            try:
                self._clear_wrapped()
                self._live.refresh()
            except (OSError, TreadleError):
                return
            pause = max(DRAW_SECONDS, (time.thread_time() - begin) / _SHARE)

    def _clear_wrapped(self) -> None:
        """Erase the lines that a terminal has wrapped because it became narrower, which `Live` does not know of."""
        from rich.cells import chop_cells
        from rich.control import Control
        from rich.segment import ControlType

        width = self._console.size.width
        rows = sum([len(chop_cells(line.plain, width)) or 1 for line in self._drawn])
        if rows <= len(self._drawn):
            return
        erase = (ControlType.ERASE_IN_LINE, 2)
        upwards = ((ControlType.CURSOR_UP, 1), erase) * (rows - 1)
        down = (ControlType.CURSOR_DOWN, len(self._drawn) - 1)
        self._console.control(Control(ControlType.CARRIAGE_RETURN, erase, *upwards, down))

    def _render(self) -> "Text":
        """Return the text of the view, in lines that fit the terminal."""
        from rich.text import Text

        width, height = self._console.size
        is_over = self._is_over.is_set()
        # The width of a line that fills the terminal depends on whether the terminal wraps it.
        lines = self.lines(width - 1, height, is_over=is_over)
        for line in lines:
            line.truncate(max(1, width - 1), overflow="ellipsis")
        # Ctrl-C is echoed at the cursor, which is on the blank line at the end.
        self._drawn = lines = lines if is_over else [*lines, Text(" ")]
        return Text("\n", no_wrap=True, overflow="crop", end="").join(lines)


def append_bar(line: "Text", done: int, total: int, cells: int) -> None:
    """Append a progress bar of at most `cells` cells to a line, if there is room for one."""
    cells = min(_BAR_CELLS, cells) if total else 0
    if cells >= 5:
        full = min(cells, cells * done // total)
        line.append("  " + "━" * full, style="not bold green")
        line.append("━" * (cells - full), style="not bold dim")


def join(parts: Sequence[str], cells: int, indent: str = "") -> "Text":
    """Return the parts in one line. Parts at the end are left out if there is no room for them."""
    from rich.cells import cell_len
    from rich.text import Text

    line = indent + (parts[0] if parts else "")
    for part in parts[1:]:
        longer = f"{line} · {part}"
        if cell_len(longer) > cells + len(indent):
            break
        line = longer
    return Text(line, style="not bold")
