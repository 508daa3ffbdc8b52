"""Views of long work that tells what happens in notices. Silence and lines of JSON fit any work; the views in lines
of text and on a terminal are made of the classes here."""

import time
from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

import msgspec
from msgspec import Struct

from treadle.cli.terminal.output import clean, print_json, print_lines, print_note, stdout
from treadle.core.types import Json

_LINE_SECONDS = 5.0
"""How often a line with the counts is printed into a pipe."""
N = TypeVar("N", bound=Struct, contravariant=True)
P = TypeVar("P", bound=Struct, contravariant=True)


class NoticeView(Protocol[N, P]):
    """A view of work with notices of type `N` and counts of type `P`. Its methods are called on the thread of the
    event loop."""

    def on_notice(self, notice: N, progress: P) -> None:
        """Show a notice, and the counts after it."""
        ...

    def on_stop(self, progress: P) -> None:
        """Show that the work in flight is finished, and no new one begun."""
        ...

    def finish(self, progress: P, summary: Mapping[str, Json]) -> None:
        """Show the last counts; `summary` is added to the last line of `--json`."""
        ...

    def close(self) -> None:
        """Leave the terminal in order. Also called after an error, and more than once."""
        ...


class Silence(Generic[P]):
    """A view that shows only how to stop at once."""

    def __init__(self, write_stopping: Callable[[P], str]) -> None:
        """Make the view. `write_stopping` returns what the first Ctrl-C does."""
        self._write_stopping = write_stopping

    def on_notice(self, notice: Any, progress: P) -> None:
        """See `NoticeView.on_notice`."""

    def on_stop(self, progress: P) -> None:
        """See `NoticeView.on_stop`."""
        print_note(self._write_stopping(progress))

    def finish(self, progress: P, summary: Mapping[str, Json]) -> None:
        """See `NoticeView.finish`."""

    def close(self) -> None:
        """See `NoticeView.close`."""


class LinesOfText(Silence[P]):
    """The base of views that print one line every few seconds, and one for each milestone, without control
    characters."""

    def __init__(self, name: str, write_stopping: Callable[[P], str]) -> None:
        super().__init__(write_stopping)
        self._name = name
        self._printed_at = time.monotonic()

    @property
    def is_due(self) -> bool:
        """Whether a line with the counts is to be printed now."""
        return time.monotonic() - self._printed_at >= _LINE_SECONDS

    def say(self, text: str) -> None:
        """Print a line."""
        self._printed_at = time.monotonic()
        stdout().print(clean(f"{self._name}: {text}"), soft_wrap=True)


class JsonLines(Silence[P]):
    """A view that prints each notice as a line of JSON, and a summary as the last line."""

    def on_notice(self, notice: Any, progress: P) -> None:
        """See `NoticeView.on_notice`."""
        print_lines([msgspec.json.encode(notice)])

    def finish(self, progress: P, summary: Mapping[str, Json]) -> None:
        """See `NoticeView.finish`."""
        print_json({"event": "summary", **msgspec.to_builtins(progress), **summary})
