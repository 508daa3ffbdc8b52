"""Views of a generation: lines for a pipe or a file, and lines of JSON. `board` has the view for a terminal."""

from collections import deque
from collections.abc import Mapping
from typing import TypeAlias

from treadle.cli.terminal.notices import JsonLines, LinesOfText, NoticeView, Silence
from treadle.cli.terminal.output import (
    is_live,
    shorten,
    write_cost,
    write_count,
    write_seconds,
)
from treadle.core.types import Json
from treadle.datagen.generation_progress import (
    GenerationNotice,
    GenerationProgress,
    SampleEnded,
    TopicExpanded,
    TopicsReady,
)

_PACE_SECONDS = 60.0
_PACE_ROWS = 20


GenerationView: TypeAlias = NoticeView[GenerationNotice, GenerationProgress]
"""A view of one generation."""


def make_generation_view(name: str, *, is_json: bool, is_quiet: bool) -> GenerationView:
    """Return the view of the dataset `name` for the options and for the kind of standard output."""
    if is_json:
        return JsonLines(write_stopping)
    if is_quiet:
        return Silence(write_stopping)
    if not is_live():
        return PlainLines(name)
    from treadle.cli.terminal.board import Board

    return Board(name)


class PlainLines(LinesOfText[GenerationProgress]):
    """A view that prints one line every few seconds, and one for each milestone."""

    def __init__(self, name: str) -> None:
        super().__init__(name, write_stopping)
        self._pace = Pace()

    def on_notice(self, notice: GenerationNotice, progress: GenerationProgress) -> None:
        """See `NoticeView.on_notice`."""
        if isinstance(notice, TopicsReady):
            self.say(write_topics(notice))
        elif isinstance(notice, TopicExpanded) and notice.error is not None:
            self.say(
                f"no subtopics for {shorten(' › '.join(notice.path), 100)!r}: {shorten(notice.error, 200)}"
            )
        elif (
            isinstance(notice, SampleEnded)
            and progress.kept == progress.resumed + 1
            and notice.status == "kept"
        ):
            self.say(self._write(progress))
        elif self.is_due:
            text = write_expanded(notice) if isinstance(notice, TopicExpanded) else self._write(progress)
            self.say(text)

    def finish(self, progress: GenerationProgress, summary: Mapping[str, Json]) -> None:
        """See `NoticeView.finish`."""
        self.say(" · ".join([write_rows(progress), *write_faults(progress), *write_use(progress)]))

    def _write(self, progress: GenerationProgress) -> str:
        self._pace.note(progress)
        parts = [write_rows(progress), *write_faults(progress), f"{progress.in_flight} in flight"]
        return " · ".join([*parts, *self._pace.write(progress), *write_use(progress)])


class Pace:
    """The rate of the last minute, or of a longer time if few rows were made in it."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, int]] = deque()

    def note(self, progress: GenerationProgress) -> None:
        """Record the current counts."""
        if not self._points or progress.seconds - self._points[-1][0] >= 1:
            self._points.append((progress.seconds, progress.kept))
        while len(self._points) > 2:
            seconds, kept = self._points[1]
            if progress.seconds - seconds < _PACE_SECONDS or progress.kept - kept < _PACE_ROWS:
                break
            self._points.popleft()

    def rate(self, progress: GenerationProgress) -> float | None:
        """Return the rows per second; `None` if too few rows have been made."""
        if not self._points:
            return None
        seconds, kept = self._points[0]
        if progress.kept - kept < 3 or progress.seconds <= seconds:
            return None
        return (progress.kept - kept) / (progress.seconds - seconds)

    def write(self, progress: GenerationProgress) -> list[str]:
        """Return the rate and the time left as texts, if they are known."""
        rate = self.rate(progress)
        if rate is None:
            return []
        texts = [f"{rate:,.1f} rows/s" if rate >= 1 else f"{rate * 60:,.1f} rows/min"]
        if progress.wanted > progress.kept and not progress.is_stopping:
            texts.append(f"{write_seconds((progress.wanted - progress.kept) / rate)} left")
        return texts


def write_rows(progress: GenerationProgress) -> str:
    """Return the numbers of kept and of wanted rows as text."""
    if not progress.wanted:
        return write_count(progress.kept, "row")
    return f"{progress.kept:,} of {write_count(progress.wanted, 'row')}"


def write_faults(progress: GenerationProgress) -> list[str]:
    """Return the counts of rejected samples, with the most frequent reasons, and of failed ones, as texts."""
    texts = []
    if progress.rejected:
        reasons = sorted(progress.reasons.items(), key=lambda item: -item[1])
        named = ", ".join(f"{name} {count:,}" for name, count in reasons[:3])
        more = ", …" if len(reasons) > 3 else ""
        texts.append(f"{progress.rejected:,} rejected" + (f" ({named}{more})" if named else ""))
    if progress.failed:
        texts.append(f"{progress.failed:,} failed")
    return texts


def write_use(progress: GenerationProgress) -> list[str]:
    """Return the tokens, the cost and the time as texts."""
    tokens = progress.input_tokens + progress.output_tokens
    return [write_count(tokens, "token"), write_cost(progress.cost_usd), write_seconds(progress.seconds)]


def write_expanded(notice: TopicExpanded) -> str:
    """Return the progress of the topics as text."""
    return f"{notice.done:,} of {write_count(notice.expected, 'topic')} expanded"


def write_topics(notice: TopicsReady) -> str:
    """Return the number of topics as text."""
    failed = f", {notice.failed:,} could not be expanded" if notice.failed else ""
    return write_count(notice.leaves, "leaf topic") + failed


def write_stopping(progress: GenerationProgress, *, is_short: bool = False) -> str:
    """Return the text that says what the first Ctrl-C does."""
    flight = write_count(progress.in_flight, "sample")
    if is_short:
        return f"finishing {flight}; Ctrl-C: stop now"
    return f"stopping: {flight} in flight will be finished; press Ctrl-C again to stop now"
