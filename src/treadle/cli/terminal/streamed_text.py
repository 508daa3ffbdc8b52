"""Text that is written to a terminal while it comes, in lines that break between words.

Whole blocks of Markdown are printed once. The block that is being written is drawn anew a few times a second, at
most as many lines of it as the terminal has.
"""

import re
import time
from collections.abc import Iterator
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from treadle.cli.terminal.output import clean, stdout

if TYPE_CHECKING:
    from rich.console import Console, RenderableType
    from rich.live import Live

_DRAW_SECONDS = 0.1
_SHARE = 0.05
"""The share of the processor time that drawings may take."""
_FENCE = re.compile(r" {0,3}(`{3,}|~{3,})")


_MARK = re.compile(r"\s*(?:[-*+]|\d+[.)])\s*")
"""The mark of an item of a list."""


class StreamedText:
    """One text of a model: an answer in Markdown, or reasoning, which is plain text in one style."""

    def __init__(self, style: str | None = None, console: "Console | None" = None) -> None:
        """Begin a text, on standard output unless a console is given. One with a style is plain."""
        self._console = console or stdout()
        self._style = style
        self._rest = ""
        """The part of the text that is not printed: the block that is being written."""
        self._has_printed = False
        self._live: Live | None = None
        self._draws_at = 0.0

    def add(self, text: str) -> None:
        """Add a piece of text, and draw what has changed if it is time."""
        self._rest += clean(text)
        now = time.monotonic()
        if now < self._draws_at:
            return
        begin = time.thread_time()
        end = self._find_end()
        if end:
            self._print(self._rest[:end])
            self._rest = self._rest[end:]
        self._draw()
        self._draws_at = now + max(_DRAW_SECONDS, (time.thread_time() - begin) / _SHARE)

    def pause(self) -> None:
        """Leave what has come on the screen, up to the last whole word, and go on below it later."""
        at = _find_cut(self._rest)
        done, self._rest = self._rest[:at], self._rest[at:]
        if fence := _open_fence(done):
            self._rest = f"{fence}\n{self._rest}"
        self._print(done)
        self._has_printed = False
        self._draws_at = 0.0

    def end(self) -> None:
        """Print what is left."""
        self._print(self._rest)
        self._rest = ""

    def _find_end(self) -> int:
        """Return where the last block begins, which is not whole yet."""
        if self._style is not None:
            return self._rest.rfind("\n") + 1
        return _find_starts(self._rest)[-1]

    def _print(self, text: str) -> None:
        if self._live is not None:
            self._live.stop()
            self._live = None
        if self._style is not None:
            if text.strip():
                self._console.print(self._render(text.rstrip("\n")))
            return
        starts = _find_starts(text)
        for start, end in zip(starts, [*starts[1:], len(text)], strict=True):
            if text[start:end].strip():
                self._console.print(self._frame(text[start:end]), end="")
                self._has_printed = True

    def _draw(self) -> None:
        if not self._rest.strip():
            return
        height = max(2, self._console.size.height - 2)
        # More lines are never shown, and would take long to render.
        before, shown = "", self._rest
        lines = self._rest.split("\n")
        if len(lines) > 2 * height:
            before, shown = "\n".join(lines[: -2 * height]), "\n".join(lines[-2 * height :])
        fence = _open_fence(before)
        tail = self._frame(f"{fence}\n{shown}" if fence else shown, height)
        if self._live is None:
            from rich.live import Live

            self._live = Live(tail, console=self._console, auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(tail, refresh=True)

    def _frame(self, text: str, height: int | None = None) -> "_Block":
        return _Block(self._render(text), height, has_gap=self._has_printed and self._style is None)

    def _render(self, text: str) -> "RenderableType":
        if self._style is not None:
            from rich.text import Text

            return Text(text, self._style)
        return render_markdown(text)


class _Block:
    """The lines of one block, or the last of them if it is higher than the terminal."""

    def __init__(self, whole: "RenderableType", height: int | None, *, has_gap: bool) -> None:
        """Make a block, below an empty line if it `has_gap`."""
        self._whole = whole
        self._height = height
        self._has_gap = has_gap

    def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
        from rich.segment import Segment

        lines = console.render_lines(self._whole, options, pad=False)
        while lines and _is_empty(lines[0]):
            lines.pop(0)
        while lines and _is_empty(lines[-1]):
            lines.pop()
        if self._has_gap:
            yield Segment.line()
        for line in lines if self._height is None else lines[-self._height :]:
            yield from line
            yield Segment.line()


def _is_empty(line: list[Any]) -> bool:
    has_color = any([part.style is not None and part.style.bgcolor is not None for part in line])
    return not has_color and not "".join([part.text for part in line]).strip()


def render_markdown(text: str) -> "RenderableType":
    """Return Markdown for a terminal. Line ends stay, HTML is shown as it is written, and links with their URLs."""
    from rich.markdown import Markdown

    shown = Markdown("", hyperlinks=False)
    shown.parsed = _parse(text)
    return shown


def _parse(text: str) -> list[Any]:
    from markdown_it import MarkdownIt

    found = MarkdownIt("commonmark", {"html": False}).enable(["table", "strikethrough"]).parse(text)
    for token in found:
        for child in token.children or ():
            if child.type == "softbreak":
                child.type = "hardbreak"
    return found


def _find_starts(text: str) -> list[int]:
    """Return where each block of Markdown begins; 0 for the first."""
    starts = [token.map[0] for token in _parse(text) if token.level == 0 and token.map is not None]
    lines = text.split("\n")
    offsets = list(accumulate([len(line) + 1 for line in lines], initial=0))
    # The tokens that open and close a block have the same lines.
    return [0, *[offsets[start] for start in dict.fromkeys(starts)][1:]]


def _find_cut(text: str) -> int:
    """Return where a text can be cut, as near to its end as possible: between two words, and not within code, a
    link or bold text."""
    line = text.rfind("\n") + 1
    if _open_fence(text):
        return line
    last = text[line:]
    ends = [re.search(r"\S*\Z", last).start()]  # type: ignore[union-attr]
    ends += [last.rfind(mark) for mark in ("`", "**") if last.count(mark) % 2]
    if last.rfind("[") > last.rfind(")"):
        ends.append(last.rfind("["))
    return line + (0 if _MARK.fullmatch(last[: min(ends)]) else min(ends))


def _open_fence(text: str) -> str:
    """Return the line that began the block of code in which a text ends; empty if it ends in none."""
    opened = ""
    for line in text.split("\n"):
        found = _FENCE.match(line)
        if found is None:
            continue
        if not opened:
            opened = line.strip()
        elif found[1].startswith(opened[:3]) and line.strip() == found[1]:
            opened = ""
    return opened
