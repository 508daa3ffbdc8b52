"""Views of rollouts: a live one for a terminal, lines for a pipe or a file, and lines of JSON."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, TypeAlias

from treadle.cli.terminal.drawing import Drawing, append_bar, join
from treadle.cli.terminal.notices import JsonLines, LinesOfText, NoticeView, Silence
from treadle.cli.terminal.output import (
    is_live,
    shorten,
    write_cost,
    write_count,
    write_seconds,
)
from treadle.core.types import Json
from treadle.rollout.rollout_progress import (
    GroupEnded,
    RolloutNotice,
    RolloutProgress,
    RolloutRetried,
    Started,
)

if TYPE_CHECKING:
    from rich.text import Text

RolloutView: TypeAlias = NoticeView[RolloutNotice, RolloutProgress]
"""A view of rollouts."""
_HINT = "Ctrl-C finishes the groups in flight and stops; a second Ctrl-C stops at once"
_SHORT_HINT = "Ctrl-C: finish and stop; twice: stop now"
_ENDED = {"dropped": "was dropped", "failed": "failed"}
"""How a group ended that is not delivered."""
_SHOWN_GROUPS = 6
"""How many of the newest groups are shown."""


def make_rollout_view(name: str, noun: str, *, is_json: bool, is_quiet: bool) -> RolloutView:
    """Return the view for the options and the kind of standard output. `noun` is what is delivered: `group` or
    `rollout`."""
    if is_json:
        return JsonLines(write_stopping)
    if is_quiet:
        return Silence(write_stopping)
    if not is_live():
        return PlainLines(name, noun)
    return RolloutBoard(name, noun)


class PlainLines(LinesOfText[RolloutProgress]):
    """A view that prints one line every few seconds, and one for each dropped group."""

    def __init__(self, name: str, noun: str) -> None:
        super().__init__(name, write_stopping)
        self._noun = noun
        self._told: set[str] = set()
        """The errors that were printed since the newest line of counts."""

    def on_notice(self, notice: RolloutNotice, progress: RolloutProgress) -> None:
        """See `NoticeView.on_notice`."""
        if isinstance(notice, GroupEnded) and notice.reason is not None:
            self.say(f"{notice.group_id} {_ENDED[notice.status]}: {shorten(notice.reason, 200)}")
        elif isinstance(notice, RolloutRetried):
            # If a server fails, all rollouts in flight fail with the same text.
            if notice.error not in self._told:
                self._told.add(notice.error)
                self.say(f"{notice.run_id} is tried again: {shorten(notice.error, 200)}")
        elif self.is_due:
            self._told.clear()
            self.say(" · ".join([part for line in write_lines(progress, self._noun) for part in line]))

    def finish(self, progress: RolloutProgress, summary: Mapping[str, Json]) -> None:
        """See `NoticeView.finish`."""
        lines = write_lines(progress, self._noun, is_over=True)
        self.say(" · ".join([part for line in lines for part in line]))


class RolloutBoard(Drawing):
    """The live view: the counts, and the newest groups with their rewards."""

    def __init__(self, name: str, noun: str) -> None:
        self._name = name
        self._noun = noun
        self._progress = RolloutProgress()
        self._is_begun = self._is_stopping = False
        self._groups: tuple[GroupEnded, ...] = ()
        """The newest groups, the newest one last."""
        super().__init__()

    def on_notice(self, notice: RolloutNotice, progress: RolloutProgress) -> None:
        """See `NoticeView.on_notice`."""
        self._progress = progress
        self._is_begun = self._is_begun or isinstance(notice, Started)
        if isinstance(notice, GroupEnded):
            self._groups = (*self._groups[1 - _SHOWN_GROUPS :], notice)

    def on_stop(self, progress: RolloutProgress) -> None:
        """See `NoticeView.on_stop`."""
        self._is_stopping = True

    def finish(self, progress: RolloutProgress, summary: Mapping[str, Json]) -> None:
        """See `NoticeView.finish`."""
        self._progress = progress
        self.close()

    def lines(self, width: int, height: int, *, is_over: bool) -> list["Text"]:
        """See `Drawing.lines`."""
        from rich.text import Text

        progress = self._progress
        first, *rest = write_lines(progress, self._noun, is_over=is_over)
        head = Text(shorten(self._name, 30), style="bold")
        told = join(first, width - head.cell_len - 2)
        append_bar(head, progress.delivered, progress.wanted, width - head.cell_len - told.cell_len - 4)
        lines = [head.append("  ").append_text(told)]
        lines += [join(parts, width - 2, indent="  ") for parts in rest if parts]
        if is_over:
            return lines
        texts = (_HINT, _SHORT_HINT) if self._is_begun else (" ",)
        if self._is_stopping:
            texts = (write_stopping(progress), "finishing; Ctrl-C: stop now")
        text = next((text for text in texts if len(text) <= width), texts[-1])
        del lines[max(1, height - 2) :]
        room = max(0, height - len(lines) - 2)
        lines += [_write_group(group) for group in self._groups[-room:]] if room else []
        return [*lines, Text(text, style="bold yellow" if self._is_stopping else "dim")]


def _write_group(group: GroupEnded) -> "Text":
    """Return one group as a line: its id, a mark for each reward, and its task."""
    from rich.text import Text

    line = Text("  ").append(f"{group.group_id} ", style="bold")
    for reward in group.rewards:
        line.append("·" if reward is None else _mark(reward), style="green" if reward else "red")
    if group.reason is not None:
        return line.append(f" {group.status}: {shorten(group.reason, 200)}", style="yellow")
    flat = "" if group.has_variance else " (no variance)"
    return line.append(f" {group.task}{flat}", style="cyan" if group.has_variance else "dim")


def _mark(reward: float) -> str:
    return "▁▂▃▄▅▆▇█"[max(0, min(7, round(reward * 7)))]


def write_lines(progress: RolloutProgress, noun: str, *, is_over: bool = False) -> list[list[str]]:
    """Return the counts as lines of parts, the most important ones first."""
    first = [f"{progress.delivered:,} of {write_count(progress.wanted, noun)}"]
    rewards, graded = progress.rewards, progress.graded_groups
    if rewards.count:
        first.append(f"reward {rewards.mean:.3f} ± {rewards.deviation:.3f}")
        first.append(f"solved once {progress.solved_once / graded:.0%}")
    work = []
    if not is_over:
        work.append(f"{progress.in_flight:,} in flight")
        if progress.on_model is not None and progress.on_tools is not None:
            work.append(f"{progress.on_model:,} wait for the model, {progress.on_tools:,} for tools")
        work += [f"{progress.waiting:,} complete"] if progress.waiting else []
        work.append(write_count(progress.workers, "worker"))
        work.append(f"{progress.tokens_per_second:,.0f} tokens/s")
    tokens = progress.input_tokens + progress.output_tokens
    use = [f"{progress.sampled_tokens:,} sampled"] if progress.sampled_tokens else []
    use += [write_count(tokens, "token"), write_cost(progress.cost_usd), write_seconds(progress.seconds)]
    if progress.weight_version is not None:
        use.append(f"weights {shorten(progress.weight_version, 30)}")
        use.append(f"staleness {progress.staleness} (at most {progress.oldest})")
    return [first, work, use, _write_faults(progress)]


def _write_faults(progress: RolloutProgress) -> list[str]:
    texts = []
    if progress.no_variance:
        texts.append(f"{progress.no_variance:,} without variance")
    if progress.dropped:
        reasons = sorted(progress.reasons.items(), key=lambda item: -item[1])
        named = ", ".join([f"{name} {count:,}" for name, count in reasons[:3]])
        texts.append(f"{progress.dropped:,} dropped ({named})")
    if progress.failed:
        texts.append(f"{progress.failed:,} failed")
    if progress.undelivered:
        texts.append(f"{progress.undelivered:,} undelivered")
    if progress.refused:
        texts.append(f"{progress.refused:,} refused by a sink")
    texts += [f"{name}: {shorten(trouble, 100)}" for name, trouble in progress.troubles.items()]
    if progress.retried:
        texts.append(f"{progress.retried:,} retried")
    return texts


def write_stopping(progress: RolloutProgress) -> str:
    """Return the text that says what the first Ctrl-C does."""
    if not progress.in_flight and progress.undelivered:
        groups = write_count(progress.undelivered, "group")
        stay = "stays" if progress.undelivered == 1 else "stay"
        return (
            f"stopping: {groups} that no sink has taken {stay} in the folder; press Ctrl-C again to stop now"
        )
    flight = write_count(progress.in_flight, "rollout")
    return f"stopping: the groups of {flight} in flight will be finished; press Ctrl-C again to stop now"
