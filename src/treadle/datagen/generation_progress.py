"""What is reported while a dataset is generated."""

from collections.abc import Callable
from typing import TypeAlias

import msgspec
from msgspec import Struct


class GenerationNotice(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event"):
    """One thing that happened. As JSON it is one line of `treadle generate --json`."""


class TopicsReady(GenerationNotice, frozen=True, tag="topics_ready"):
    """The topics are complete."""

    leaves: int
    failed: int


class TopicExpanded(GenerationNotice, frozen=True, tag="topic_expanded"):
    """One topic got its subtopics, or failed."""

    path: tuple[str, ...]
    count: int
    done: int
    """How many topics have been expanded."""
    expected: int
    """How many topics have to be expanded, as far as is known now."""
    error: str | None = None


class SampleBegun(GenerationNotice, frozen=True, tag="sample_begun"):
    """Work on a sample has begun."""

    sample_id: str
    topic: tuple[str, ...]
    kind: str | None


class SampleStep(GenerationNotice, frozen=True, tag="sample_step"):
    """One line about the sample that is being written: a message, a call or a result."""

    sample_id: str
    text: str


class SampleEnded(GenerationNotice, frozen=True, tag="sample_ended"):
    """A sample was kept, rejected, or failed."""

    sample_id: str
    status: str
    """`kept`, `rejected` or `failed`."""
    reasons: tuple[str, ...] = ()
    """The names of the filters that rejected the sample, each with its reason after a colon, or the error."""


class GenerationProgress(Struct, kw_only=True):
    """The counts of a generation, changed in place."""

    wanted: int = 0
    """The number of rows that were asked for; 0 while it is not known yet."""
    kept: int = 0
    rejected: int = 0
    failed: int = 0
    """Samples that failed through a fault of the infrastructure."""
    in_flight: int = 0
    resumed: int = 0
    """How many of the kept rows were there when this process began."""
    reasons: dict[str, int] = msgspec.field(default_factory=dict)
    """The number of rejections by filter."""
    kinds: dict[str, int] = msgspec.field(default_factory=dict)
    """The number of kept rows by kind of tool use."""
    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float | None = 0.0
    """`None` if a price is unknown."""
    seconds: float = 0.0
    """How long this process has worked, on a monotonic clock."""
    is_stopping: bool = False
    """True after the first Ctrl-C: samples in flight are finished, and no new ones begun."""


Listener: TypeAlias = Callable[[GenerationNotice, GenerationProgress], None]
"""A function that is called for each notice, with the counts after it."""
