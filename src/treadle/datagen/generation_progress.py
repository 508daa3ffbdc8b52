"""The progress of a generation: its notices and counts."""

from collections.abc import Callable
from typing import ClassVar, TypeAlias

import msgspec

from treadle.jobs.progress import JobNotice, JobProgress, JobWords


class TopicsReady(JobNotice, frozen=True, tag="topics_ready"):
    leaves: int
    failed: int

    def line(self) -> str:
        failed = f", {self.failed:,} could not be expanded" if self.failed else ""
        return f"{self.leaves:,} leaf topic{'' if self.leaves == 1 else 's'}{failed}"


class TopicExpanded(JobNotice, frozen=True, tag="topic_expanded"):
    """One topic got its subtopics, or failed."""

    path: tuple[str, ...]
    count: int
    done: int
    """How many topics have been expanded."""
    expected: int
    """How many topics have to be expanded, as far as is known now."""
    error: str | None = None

    def line(self) -> str | None:
        if self.error is None:
            return None
        return f"no subtopics for {' › '.join(self.path)}: {self.error}"

    def share(self) -> tuple[int, int]:
        return self.done, self.expected

    def describe(self) -> str:
        return f"{self.done:,} of {self.expected:,} topic{'' if self.expected == 1 else 's'} expanded"


class SampleBegun(JobNotice, frozen=True, tag="sample_begun"):
    sample_id: str
    topic: tuple[str, ...]
    kind: str | None


class SampleStep(JobNotice, frozen=True, tag="sample_step"):
    """One line about the sample that is being written: a message, a call or a result."""

    sample_id: str
    text: str


class SampleEnded(JobNotice, frozen=True, tag="sample_ended"):
    """A sample was kept, rejected, or failed."""

    sample_id: str
    status: str
    """`kept`, `rejected` or `failed`."""
    reasons: tuple[str, ...] = ()
    """The names of the filters that rejected the sample, each with its reason after a colon, or the error."""


class GenerationProgress(JobProgress, kw_only=True):
    WORDS: ClassVar[JobWords] = JobWords(noun="row", item="sample", in_flight="sample")

    kinds: dict[str, int] = msgspec.field(default_factory=dict)
    """The number of kept rows by kind of tool use."""

    def shares(self) -> list[str]:
        # Another thread may draw this while kinds are added.
        kinds = sorted(dict(self.kinds).items(), key=lambda item: -item[1])
        # Conversations without tools have no kind.
        return [f"{name} {count:,}" for name, count in kinds if name]


Listener: TypeAlias = Callable[[JobNotice, GenerationProgress], None]
"""A function that is called for each notice, with the counts after it."""
