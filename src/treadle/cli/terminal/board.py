"""The live view of a generation on a terminal."""

import time
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from treadle.cli.terminal.drawing import Drawing, append_bar, join
from treadle.cli.terminal.generation import (
    Pace,
    write_expanded,
    write_faults,
    write_rows,
    write_stopping,
    write_topics,
    write_use,
)
from treadle.cli.terminal.output import shorten
from treadle.core.types import Json
from treadle.datagen.generation_progress import (
    GenerationNotice,
    GenerationProgress,
    SampleBegun,
    SampleEnded,
    SampleStep,
    TopicExpanded,
    TopicsReady,
)

if TYPE_CHECKING:
    from rich.text import Text

_STEPS = 5
"""How many lines of the sample that is being written are shown."""
_READ_SECONDS = 1.0
"""How long a finished sample is shown at least."""
_HINT = "Ctrl-C finishes the samples in flight and stops; a second Ctrl-C stops at once"
_SHORT_HINT = "Ctrl-C: finish and stop; twice: stop now"
"""The hint on narrow terminals."""
_STATUS_STYLES = {"kept": "green", "rejected": "yellow", "failed": "red"}


class _Sample(Struct):
    """A sample in flight, or the one that is shown."""

    begun: SampleBegun
    lines: deque[str]
    """The newest lines."""
    ended: SampleEnded | None = None
    ended_at: float = 0.0


class Board(Drawing):
    """The live view; see `GenerationView`."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._progress = GenerationProgress()
        self._pace = Pace()
        self._expanded: TopicExpanded | None = None
        self._ready: TopicsReady | None = None
        self._samples: dict[str, _Sample] = {}
        """The samples in flight, by id."""
        self._shown: _Sample | None = None
        self._is_stopping = False
        super().__init__()

    def on_notice(self, notice: GenerationNotice, progress: GenerationProgress) -> None:
        """See `GenerationView.on_notice`."""
        self._progress = progress
        if isinstance(notice, SampleStep):
            sample = self._samples.get(notice.sample_id)
            if sample is not None:
                sample.lines.append(notice.text)
                shown = self._shown
                if shown is None or (shown.ended and time.monotonic() - shown.ended_at >= _READ_SECONDS):
                    self._shown = sample
        elif isinstance(notice, SampleBegun):
            self._samples[notice.sample_id] = _Sample(notice, deque(maxlen=_STEPS))
        elif isinstance(notice, SampleEnded):
            sample = self._samples.pop(notice.sample_id, None)
            if sample is not None:
                sample.ended, sample.ended_at = notice, time.monotonic()
        elif isinstance(notice, TopicExpanded):
            self._expanded = notice
        elif isinstance(notice, TopicsReady):
            self._ready = notice

    def on_stop(self, progress: GenerationProgress) -> None:
        """See `GenerationView.on_stop`."""
        self._is_stopping = True

    def finish(self, progress: GenerationProgress, summary: Mapping[str, Json]) -> None:
        """See `GenerationView.finish`."""
        self._progress = progress
        self.close()

    def lines(self, width: int, height: int, *, is_over: bool) -> list["Text"]:
        """See `Drawing.lines`."""
        from rich.text import Text

        progress = self._progress
        # The event loop's thread changes the dictionaries while this one reads them.
        progress = replace(progress, reasons=dict(progress.reasons), kinds=dict(progress.kinds))
        lines = [self._write_bar(progress, width)]
        if progress.wanted or progress.kept:
            lines += self._write_counts(progress, width, is_over=is_over)
        if not is_over:
            # Before the first notice, the signals are not handled yet.
            is_begun = self._ready is not None or self._expanded is not None
            texts = (_HINT, _SHORT_HINT) if is_begun else (" ",)
            if self._is_stopping:
                texts = (write_stopping(progress), write_stopping(progress, is_short=True))
            text = next((text for text in texts if len(text) <= width), texts[-1])
            last = Text(text, style="bold yellow" if self._is_stopping else "dim")
            # On a small terminal the counts make room for what Ctrl-C does.
            del lines[max(1, height - 2) :]
            lines += self._write_sample(max(0, height - len(lines) - 3))
            lines.append(last)
        return lines

    def _write_bar(self, progress: GenerationProgress, width: int) -> "Text":
        from rich.text import Text

        done, total, parts = progress.kept, progress.wanted, []
        if total:
            self._pace.note(progress)
            parts = [write_rows(progress), *self._pace.write(progress)]
        elif self._ready is not None:
            parts = [write_topics(self._ready)]
        elif self._expanded is not None:
            done, total = self._expanded.done, self._expanded.expected
            parts = [write_expanded(self._expanded)]
        else:
            parts = ["starting"]
        line = Text(shorten(self._name, 30), style="bold")
        told = join(parts, width - line.cell_len - 2)
        append_bar(line, done, total, width - line.cell_len - told.cell_len - 4)
        return line.append("  ").append_text(told)

    def _write_counts(self, progress: GenerationProgress, width: int, *, is_over: bool) -> list["Text"]:
        flight = [] if is_over else [f"{progress.in_flight:,} in flight"]
        parts = [write_use(progress), [*flight, *write_faults(progress)]]
        if progress.kinds:
            kinds = sorted(progress.kinds.items(), key=lambda item: -item[1])
            parts.append([f"{name} {count:,}" for name, count in kinds])
        return [join(texts, width - 2, indent="  ") for texts in parts if texts]

    def _write_sample(self, height: int) -> list["Text"]:
        """Return the lines about the sample that is being written, at most `height`."""
        from rich.text import Text

        shown = self._shown
        if shown is None or height < 2:
            return []
        begun, ended = shown.begun, shown.ended
        kind = f" ({begun.kind})" if begun.kind else ""
        head = Text(f"  {begun.sample_id} ", style="bold").append(
            shorten(f"{' › '.join(begun.topic)}{kind}", 200), style="not bold cyan"
        )
        steps = [Text(f"    {shorten(text, 400)}", style="dim") for text in tuple(shown.lines)]
        if ended is not None:
            reasons = ": " + "; ".join(ended.reasons) if ended.reasons else ""
            told = shorten(f"{ended.status}{reasons}", 400)
            steps.append(Text(f"    {told}", style=_STATUS_STYLES.get(ended.status, "")))
        return [head, *steps[-(height - 1) :]]
