"""The facts about runs that lists show, conditions on these facts, and the labels that Treadle sets itself."""

import re
from collections.abc import Collection, Mapping
from enum import StrEnum

from msgspec import Struct

from treadle.core.registry import NamedFields

CALLER = "treadle.caller"
"""The label of a sub-agent's run. Its value is the id of the run whose call drives it."""

QUEUE = "treadle.queue"
"""The label of a run that workers may drive, with the name of its queue; see `Journal.claim`."""


DEFAULT_QUEUE = "default"
"""The queue of runs and workers for which no other is named."""


def queue_of(labels: Mapping[str, str]) -> str | None:
    """Return the queue in which a run with these labels waits; `None` if it waits in none.

    A sub-agent's run waits in none, because its caller drives it.
    """
    return None if CALLER in labels else labels.get(QUEUE)


class RunInfo(Struct, frozen=True, kw_only=True):
    """The facts about one run that a listing shows. The store keeps them, so no event has to be read."""

    run_id: str
    status: str
    """`running`, `paused` or `finished`. A run whose process died stays `running` until it is resumed. `damaged`
    if the store cannot read these facts; then `error` says why, and the other fields are empty."""
    stop_reason: str | None = None
    """Why the run is finished (a `StopReason`), or why it is paused: `RunPaused.cause`."""
    fault: str | None = None
    """The party responsible for the failure of the last turn; `None` if it did not fail."""
    error: str | None = None
    """The error that ended the last turn, cut to 200 characters; `None` if it did not fail."""
    model: str | None = None
    """The name of the model that the run was started with, or resumed with last."""
    task_set: str | None = None
    task_id: str | None = None
    parent_run_id: str | None = None
    """The run that this one was forked from."""
    labels: dict[str, str] = {}
    """The entries of `RunStarted.metadata` whose values are strings, and `CALLER` for a sub-agent."""
    input: str | None = None
    """The first message of the user, cut to 200 characters."""
    is_session: bool = False
    is_turn_open: bool = False
    """True while a turn has begun and not ended."""
    is_waiting: bool = False
    """True if a question or an approval waits, or the run waits for `resume`, cancelled or set aside."""
    is_driven: bool = False
    """True if a live process holds the run's lease."""
    losses: int = 0
    """How often in a row a process ended while it drove the run, without giving the lease back."""
    reward: float | None = None
    """The newest reward with the name `check`; `None` if the last turn has no such reward."""
    turns: int = 0
    steps: int = 0
    """Inferences that were completed."""
    events: int = 0
    input_tokens: int = 0
    cached_input_tokens: int = 0
    """The part of `input_tokens` that the server had in its cache."""
    output_tokens: int = 0
    cost_usd: float | None = 0.0
    """The cost in US dollars; `None` if the cost of an inference is unknown."""
    created_at: float = 0.0
    """The time of the first event, in seconds since the epoch."""
    updated_at: float = 0.0
    """The time of the newest event, in seconds since the epoch."""
    ended_at: float | None = None
    """The time at which the newest turn ended or was paused, in seconds since the epoch. `None` if it goes on, or
    if an older Treadle wrote the run and nothing came after its end."""

    @property
    def duration_seconds(self) -> float:
        """The time from the first event to the end of the newest turn, without notes and rewards that came later.

        While the turn goes on, the time until the newest event.
        """
        return (self.updated_at if self.ended_at is None else self.ended_at) - self.created_at

    @property
    def title(self) -> str:
        """The label `title`, or the beginning of the first message; empty if there is neither."""
        return self.labels.get("title") or make_title(self.input or "")

    @property
    def is_called(self) -> bool:
        """True if a call of another run drives this run, as for a sub-agent."""
        return CALLER in self.labels

    @property
    def caller_run_id(self) -> str | None:
        """The run whose call drives this run; `None` if no call does."""
        return self.labels.get(CALLER)


_TITLE_CHARS = 60


def make_title(text: str) -> str:
    """Return a title for a conversation that begins with `text`: its first sentence or line, cut after a word."""
    lines = [line.strip(" \t#*->`") for line in text.splitlines()]
    line = next((line for line in lines if any(map(str.isalnum, line))), "")
    sentence = re.match(r".{8,}?[.?!](?=\s)", line)
    line = " ".join((sentence.group() if sentence else line).split())
    if len(line) <= _TITLE_CHARS:
        return line
    head = line[:_TITLE_CHARS]
    cut = head.rfind(" ")
    return f"{head[:cut] if cut > _TITLE_CHARS // 2 else head}…"


DAMAGED = "damaged"
"""The status of a run whose facts cannot be read."""


class RunFilter(Struct, frozen=True, kw_only=True, metaclass=NamedFields):
    """Conditions on runs, all of which must hold. A condition that is `None` or empty is not checked."""

    id_prefix: str | None = None
    """The run's id begins with this text."""
    run_ids: Collection[str] | None = None
    """The run's id is one of these; `None` is not checked."""
    status: str | None = None
    stop_reason: str | None = None
    model: str | None = None
    task_set: str | None = None
    task_id: str | None = None
    parent_run_id: str | None = None
    labels: Mapping[str, str] = {}
    """The run has all of these labels with these values."""
    is_finished: bool | None = None
    is_driven: bool | None = None
    is_waiting: bool | None = None
    is_session: bool | None = None
    is_turn_open: bool | None = None
    is_called: bool | None = None
    created_since: float | None = None
    """The run was created at this time or later (seconds since the epoch)."""
    created_before: float | None = None
    updated_since: float | None = None
    """The run's newest event is of this time or later."""

    def matches(self, info: RunInfo) -> bool:
        """Return True if `info` meets all conditions."""
        return (
            info.run_id.startswith(self.id_prefix or "")
            and (self.run_ids is None or info.run_id in self.run_ids)
            and all(getattr(self, name) in (None, getattr(info, name)) for name in EQUAL_FIELDS)
            and self.is_finished in (None, info.status == "finished")
            and self.labels.items() <= info.labels.items()
            and (self.created_since is None or info.created_at >= self.created_since)
            and (self.created_before is None or info.created_at < self.created_before)
            and (self.updated_since is None or info.updated_at >= self.updated_since)
        )


class RunOrder(StrEnum):
    """The figures that a list of runs is sorted by."""

    DURATION = "duration"
    """See `RunInfo.duration_seconds`."""
    COST = "cost"
    """The cost in US dollars. Runs whose cost is unknown are the least."""
    TOKENS = "tokens"
    """All tokens, of input and output."""

    def key_of(self, info: RunInfo) -> float:
        """Return the figure of a run."""
        if self is RunOrder.COST:
            return -1.0 if info.cost_usd is None else info.cost_usd
        is_time = self is RunOrder.DURATION
        return info.duration_seconds if is_time else info.input_tokens + info.output_tokens


EQUAL_FIELDS = (
    "status",
    "stop_reason",
    "model",
    "task_set",
    "task_id",
    "parent_run_id",
    "is_driven",
    "is_waiting",
    "is_session",
    "is_turn_open",
    "is_called",
)
"""The conditions of `RunFilter` that compare a field of `RunInfo` of the same name."""
