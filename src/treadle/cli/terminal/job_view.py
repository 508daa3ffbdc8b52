"""The view of a job: live on a terminal, lines of text in a pipe, or lines of JSON. It fits any job: what is said
comes from the job's notices and counts."""

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Generic, Protocol, TypeVar

import msgspec

from treadle.cli.terminal.drawing import Drawing, append_bar, join
from treadle.cli.terminal.output import (
    clean,
    is_live,
    print_json,
    print_json_lines,
    print_line,
    print_note,
    shorten,
    write_cost,
    write_count,
    write_seconds,
)
from treadle.core.types import Json
from treadle.jobs.progress import JobNotice, JobProgress, ServerFailed, SettingsChanged

if TYPE_CHECKING:
    from rich.text import Text

N = TypeVar("N", bound=JobNotice)
_LINE_SECONDS = 5.0
"""How often a line with the counts is printed into a pipe."""
_LINE_CHARS = 500
"""The longest line about a notice. The end of an error often says what to do."""
_PACE_SECONDS, _PACE_ITEMS = 60.0, 20
_HINT = "Ctrl-C finishes the {}s in flight and stops; a second Ctrl-C stops at once"
_SHORT_HINT = "Ctrl-C: finish and stop; twice: stop now"
"""The hint on narrow terminals."""


class JobView:
    """A view of a job, which shows only how to stop at once; subclasses show more.

    The methods are called on the thread of the event loop.
    """

    def on_notice(self, notice: JobNotice, progress: JobProgress) -> None:
        """Show a notice, and the counts after it."""

    def on_stop(self, progress: JobProgress) -> None:
        """Show that items in flight are being finished, and that no new ones begin."""
        print_note(progress.stopping())

    def finish(self, progress: JobProgress, summary: Mapping[str, Json]) -> None:
        """Show the last counts; `summary` is added to the last line of `--json`."""

    def close(self) -> None:
        """Leave the terminal in order. Also called after an error, and more than once."""


class Feed(Protocol):
    """The lines below the counts on a terminal, about the newest items."""

    def note(self, notice: JobNotice) -> None:
        """Take note of what happened."""

    def lines(self, height: int) -> list["Text"]:
        """Return at most `height` lines. Called by another thread than `note`."""


class NewestFeed(Generic[N]):
    """The newest notices of one kind, each as a line; see `Feed`."""

    def __init__(self, kind: type[N], write: Callable[[N], "Text"], most: int = 6) -> None:
        """Make a feed of at most `most` lines, which `write` returns."""
        self._kind = kind
        self._write = write
        self._newest: deque[N] = deque(maxlen=most)

    def note(self, notice: JobNotice) -> None:
        if isinstance(notice, self._kind):
            self._newest.append(notice)

    def lines(self, height: int) -> list["Text"]:
        return [self._write(notice) for notice in self._newest.copy()][-height:] if height else []


def make_job_view(name: str, progress: JobProgress, feed: Feed, *, is_json: bool, is_quiet: bool) -> JobView:
    """Return the view of the job `name` for the options and the kind of standard output.

    `progress` has the counts before the first notice.
    """
    if is_json:
        return JsonLines()
    if is_quiet:
        return JobView()
    return JobBoard(name, progress, feed) if is_live() else TextLines(name)


class JsonLines(JobView):
    """A view that prints each notice as a line of JSON, and a summary as the last line."""

    def on_notice(self, notice: JobNotice, progress: JobProgress) -> None:
        print_json_lines([msgspec.json.encode(notice)])

    def finish(self, progress: JobProgress, summary: Mapping[str, Json]) -> None:
        print_json({"event": "summary", **progress.to_json(), **summary})


class TextLines(JobView):
    """A view that prints a line for each milestone, and one with the counts every few seconds, without control
    characters."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._pace = Pace()
        self._told: set[str] = set()
        """The milestones that were printed since the newest line of counts."""
        self._has_kept = False
        self._printed_at = time.monotonic()

    def on_notice(self, notice: JobNotice, progress: JobProgress) -> None:
        self._pace.note(progress)
        is_first = not self._has_kept and progress.kept > progress.resumed
        self._has_kept = self._has_kept or is_first
        if (line := notice.line()) is not None:
            if notice.key() not in self._told:
                self._told.add(notice.key())
                self._say(shorten(line, _LINE_CHARS))
        elif is_first or time.monotonic() - self._printed_at >= _LINE_SECONDS:
            self._told.clear()
            early = None if progress.wanted else notice.describe()
            self._say(early or self._write(progress))

    def finish(self, progress: JobProgress, summary: Mapping[str, Json]) -> None:
        self._say(self._write(progress, is_over=True))

    def _write(self, progress: JobProgress, *, is_over: bool = False) -> str:
        lines = write_counts(progress, self._pace, is_over=is_over)
        return " · ".join([part for line in lines for part in line])

    def _say(self, text: str) -> None:
        self._printed_at = time.monotonic()
        print_line(f"{self._name}: {text}")


class JobBoard(Drawing, JobView):
    """The live view: a bar, the counts, the newest items, and what Ctrl-C does."""

    def __init__(self, name: str, progress: JobProgress, feed: Feed) -> None:
        self._name = name
        self._progress = progress
        self._feed = feed
        self._pace = Pace()
        self._early: str | None = None
        """What is said before the number of wanted items is known; `None` before the first notice."""
        self._bar = (0, 0)
        self._is_stopping = False
        self._failure: tuple[str, int] | None = None
        """The newest failure of a server, and how many items were kept then."""
        super().__init__()

    def on_notice(self, notice: JobNotice, progress: JobProgress) -> None:
        self._progress = progress
        self._pace.note(progress)
        if not progress.wanted:
            self._early = notice.line() or notice.describe() or self._early
            self._bar = notice.share()
        self._early = self._early or ""
        if isinstance(notice, SettingsChanged):
            print_note(notice.line())  # above the view
        if isinstance(notice, ServerFailed):
            self._failure = notice.line(), progress.kept
        self._feed.note(notice)

    def on_stop(self, progress: JobProgress) -> None:
        self._is_stopping = True

    def finish(self, progress: JobProgress, summary: Mapping[str, Json]) -> None:
        self._progress = progress
        self.close()

    def lines(self, width: int, height: int, *, is_over: bool) -> list["Text"]:
        from rich.text import Text

        progress = self._progress
        head = Text(shorten(self._name, 30), style="bold")
        first, *rest = write_counts(progress, self._pace, is_over=is_over)
        is_known = bool(progress.wanted or progress.kept)
        done, total = (progress.kept, progress.wanted) if is_known else self._bar
        told = join(first if is_known else [self._early or "starting"], width - head.cell_len - 2)
        append_bar(head, done, total, width - head.cell_len - told.cell_len - 4)
        lines = [head.append("  ").append_text(told)]
        if is_known:
            lines += [
                join([clean(part) for part in parts], width - 2, indent="  ") for parts in rest if parts
            ]
        if is_over:
            return lines
        if self._failure is not None and self._failure[1] == progress.kept:
            lines.append(Text(f"  {shorten(clean(self._failure[0]), width - 2)}", style="yellow"))
        # Before the first notice, the signals are not handled yet.
        texts = [" "] if self._early is None else [_HINT.format(progress.WORDS.item), _SHORT_HINT]
        if self._is_stopping:
            said = progress.stopping()
            texts = [said, said.replace(progress.lasts, ""), progress.stopping(is_short=True)]
        text = next((text for text in texts if len(text) <= width), texts[-1])
        # On a small terminal the counts make room for what Ctrl-C does.
        del lines[max(1, height - 2) :]
        lines += self._feed.lines(max(0, height - len(lines) - 3))
        return [*lines, Text(text, style="bold yellow" if self._is_stopping else "dim")]


class Pace:
    """The rate of the last minute, or of a longer time if few items were kept in it."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()

    def note(self, progress: JobProgress) -> None:
        """Record the current counts."""
        if not self._points or progress.seconds - self._points[-1][0] >= 1:
            self._points.append((progress.seconds, progress.kept))
        while len(self._points) > 2:
            seconds, kept = self._points[1]
            if progress.seconds - seconds < _PACE_SECONDS or progress.kept - kept < _PACE_ITEMS:
                break
            self._points.popleft()

    def write(self, progress: JobProgress) -> list[str]:
        """Return the rate and the time left as texts, if they are known."""
        seconds, kept = self._points[0] if self._points else (0.0, progress.kept)
        made, passed = progress.kept - kept, progress.seconds - seconds
        if made < 3 or passed <= 0:
            return []
        rate, noun = made / passed, progress.WORDS.noun
        texts = [f"{rate:,.1f} {noun}s/s" if rate >= 1 else f"{rate * 60:,.1f} {noun}s/min"]
        if progress.wanted > progress.kept and not progress.is_stopping:
            texts.append(f"{write_seconds((progress.wanted - progress.kept) / rate)} left")
        return texts


def write_counts(progress: JobProgress, pace: Pace, *, is_over: bool = False) -> list[list[str]]:
    """Return the counts as lines of parts, the most important ones first."""
    noun = progress.WORDS.noun
    first = write_count(progress.kept, noun)
    if progress.wanted:
        first = f"{progress.kept:,} of {write_count(progress.wanted, noun)}"
    head, flight = [first, *progress.results()], []
    if not is_over:
        head += pace.write(progress)
        flight.append(f"{progress.in_flight:,} in flight")
    work = []
    if not is_over:
        if progress.on_model or progress.on_tools:  # sessions of a generation are not counted
            on_tools = f", {progress.on_tools:,} for tools" if progress.on_tools is not None else ""
            work.append(f"{progress.on_model or 0:,} wait for the model{on_tools}")
        if progress.workers > 1:
            work.append(write_count(progress.workers, "worker"))
        work += progress.work()
    tokens = progress.input_tokens + progress.output_tokens
    use = [write_count(tokens, "token"), write_cost(progress.cost_usd), write_seconds(progress.seconds)]
    return [head, [*use, *progress.use()], [*flight, *progress.faults(), *work], progress.shares()]
