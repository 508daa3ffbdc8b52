"""The progress of a job: counts that change in place, and notices of what happens, for views and callers."""

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, TypeAlias

import msgspec
from msgspec import Struct

from treadle.core import events as e
from treadle.core.events.narrowing import Event

_RATE_SECONDS = 30.0
"""The time over which the rate of tokens is measured."""


class JobWords(Struct, frozen=True, kw_only=True):
    """The words that views use for the parts of a job."""

    noun: str
    """The word for one wanted item, such as `row`."""
    item: str
    """The word for one planned item, such as `sample`."""
    kept: str = "kept"
    """The word for the items that count."""
    rejected: str = "rejected"
    """The word for the items that do not count."""
    in_flight: str
    """The word for the runs that hold slots of the window, such as `rollout`."""


class JobNotice(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event"):
    """One thing that happened in a job. As JSON it is one line of a command's `--json`."""

    def line(self) -> str | None:
        """Return the line that is printed at once about this notice; `None` if the counts say enough."""
        return None

    def key(self) -> str:
        """Return a key that is the same for equal lines. Views print lines with the same key only once until
        they print the counts."""
        return self.line() or ""

    def describe(self) -> str | None:
        """Return the text to show while the number of wanted items is not known yet; `None` if there is nothing
        to show."""
        return None

    def share(self) -> tuple[int, int]:
        """Return how many parts of the preparation are done, and how many there are; zeros if that is not
        known."""
        return 0, 0


class ServerFailed(JobNotice, frozen=True, tag="server_failed"):
    """A model's server did not answer, or failed, and is asked again."""

    model: str
    error: str
    retry_in_seconds: float

    def line(self) -> str:
        return f"{self.model} is asked again in {self.retry_in_seconds:.2g} s: {self.error}"

    def key(self) -> str:
        """See `JobNotice.key`."""
        return self.error


class SettingsChanged(JobNotice, frozen=True, tag="settings_changed"):
    """A job goes on with other settings than before, which its new items follow."""

    changes: tuple[str, ...]
    """What each of them was, and what it is now."""

    def line(self) -> str:
        return f"since the last call, {'; '.join(self.changes)}; what is complete stays as it is"


class JobProgress(Struct, kw_only=True):
    """The counts of a job, changed in place."""

    WORDS: ClassVar[JobWords] = JobWords(noun="run", item="run", in_flight="run")

    wanted: int = 0
    """How many items are wanted; 0 while it is not known yet."""
    kept: int = 0
    """How many items were kept."""
    resumed: int = 0
    """How many of the kept items were counted before this process began."""
    rejected: int = 0
    """How many attempts were rejected."""
    failed: int = 0
    """How many items failed through a fault of the infrastructure."""
    reasons: dict[str, int] = msgspec.field(default_factory=dict)
    """The number of rejected attempts by reason."""
    rejection: str = ""
    """The text of the newest rejection for the commonest reason; empty before the first one."""
    retried: int = 0
    """How many runs were tried again after a fault of the infrastructure."""
    in_flight: int = 0
    """How many slots of the window are used."""
    on_model: int | None = None
    """How many runs wait for the model now; `None` if it is not known."""
    on_tools: int | None = None
    """How many runs wait for tools now; `None` if it is not known."""
    workers: int = 1
    restarts: int = 0
    """How many workers died and were replaced."""
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = 0.0
    """The cost in US dollars; `None` if a price is unknown."""
    seconds: float = 0.0
    """How long this process has worked, on a monotonic clock."""
    run_seconds: float = 0.0
    """How long the runs of this process took on average; 0 before one has ended."""
    is_stopping: bool = False
    """True after the first Ctrl-C: items in flight are finished, and no new ones begun."""

    def to_json(self) -> dict[str, Any]:
        """Return the counts for programs, with the words of the job in place of `kept` and `rejected`."""
        names = {"kept": self.WORDS.kept, "rejected": self.WORDS.rejected}
        return {names.get(name, name): value for name, value in msgspec.to_builtins(self).items()}

    def stopping(self, *, is_short: bool = False) -> str:
        """Return the text that says what the first Ctrl-C does."""
        flight = f"{self.in_flight:,} {self.WORDS.in_flight}{'' if self.in_flight == 1 else 's'}"
        if is_short:
            return f"finishing {flight if self.in_flight else 'the rest'}; Ctrl-C: stop now"
        if not self.in_flight:
            return "stopping, as soon as nothing is in flight; press Ctrl-C again to stop now"
        return f"stopping: {flight} in flight will be finished{self.lasts}; press Ctrl-C again to stop now"

    @property
    def lasts(self) -> str:
        """How long the runs in flight may take, as a text in brackets."""
        if not self.in_flight:
            return ""
        if not self.run_seconds:
            return f" (none has ended yet in {self.seconds:,.1f} s)"
        return f" (so far each took {self.run_seconds:,.1f} s on average)"

    def shares(self) -> list[str]:
        """Return short texts about the composition of the kept items."""
        return []

    def results(self) -> list[str]:
        """Return short texts about the results so far."""
        return []

    def work(self) -> list[str]:
        """Return short texts about the work in flight, without its number."""
        return []

    def use(self) -> list[str]:
        """Return short texts about the use, without tokens, cost and time."""
        return []

    def faults(self) -> list[str]:
        """Return short texts about what went wrong."""
        texts = []
        if self.rejected:
            reasons = sorted(dict(self.reasons).items(), key=lambda item: -item[1])
            named = ", ".join([f"{name} {count:,}" for name, count in reasons[:3]])
            more = ", …" if len(reasons) > 3 else ""
            text = f"{self.rejected:,} {self.WORDS.rejected}" + (f" ({named}{more})" if named else "")
            shown = self.rejection if len(self.rejection) <= 120 else f"{self.rejection[:119]}…"
            texts.append(f"{text}, such as: {shown}" if shown else text)
        if self.failed:
            texts.append(f"{self.failed:,} failed")
        if self.retried:
            texts.append(f"{self.retried:,} retried")
        return texts


JobListener: TypeAlias = Callable[[Any, Any], None]
"""A function that is called for each notice, with the counts after it."""


class Average(Struct):
    """The mean and the standard deviation of numbers that come one by one."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    """The sum of the squared differences to the mean."""

    def add(self, value: float) -> None:
        self.count += 1
        delta = value - self.mean
        self.mean += delta / self.count
        self.squares += delta * (value - self.mean)

    @property
    def deviation(self) -> float:
        """The standard deviation of the numbers; 0 if there are fewer than two."""
        return math.sqrt(self.squares / (self.count - 1)) if self.count > 1 else 0.0


class TokenRate:
    """The rate of output tokens of the last half minute. It is also a hook that counts inferences."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._began = now()
        self._counts: deque[tuple[int, int]] = deque()
        """The tokens of each second that had some."""
        self._total = 0

    def take(self, run_id: str, first_seq: int, bodies: Sequence[e.DurableBody]) -> None:
        """Count events; see `loop.hooks.Hook`."""
        for body in bodies:
            if isinstance(body, e.InferenceCompleted) and body.completion.usage.is_reported:
                self.add(body.completion.usage.output_tokens)

    def __call__(self, event: Event) -> None:
        """Count an event; see `loop.hooks.Hook`."""
        self.take(event.run_id, event.seq, (event.body,))

    def add(self, tokens: int) -> None:
        """Count output tokens."""
        second = int(self._now())
        if not self._counts or self._counts[-1][0] != second:
            self._counts.append((second, 0))
        self._counts[-1] = (second, self._counts[-1][1] + tokens)
        self._total += tokens

    @property
    def per_second(self) -> float:
        now = self._now()
        while self._counts and now - self._counts[0][0] > _RATE_SECONDS:
            self._total -= self._counts.popleft()[1]
        seconds = min(_RATE_SECONDS, now - self._began)
        return self._total / seconds if seconds > 0 else 0.0
