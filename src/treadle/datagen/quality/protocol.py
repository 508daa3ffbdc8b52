"""What a filter is: a question about one finished sample, answered with a reason."""

from typing import Protocol

from msgspec import Struct

from treadle.core.types import Json
from treadle.datagen.scenarios.types import Environment, SampleSpec, Scenario
from treadle.export.rows import Row
from treadle.journal.protocol import Journal


class Verdict(Struct, frozen=True, omit_defaults=True):
    """The answer of one filter about one sample."""

    filter: str
    """The name of the filter."""
    is_passed: bool
    reason: str = ""
    """Why the sample was rejected, in one sentence; for a sample that passed, a note or nothing."""
    details: dict[str, Json] = {}
    """Facts for programs, such as a score."""


class Candidate(Struct, frozen=True, kw_only=True):
    """A finished sample before it is accepted."""

    row: Row
    run_id: str
    """The run of the agent's conversation."""
    spec: SampleSpec
    scenario: Scenario
    environment: Environment
    journal: Journal
    """The journal that has the run."""


class Filter(Protocol):
    """A check of samples. Cheap filters run first; a sample that one rejects is not given to costlier ones."""

    name: str
    cost: int
    """0 for a look at the row, 1 for tool calls, 2 for a model's judgement."""

    async def check(self, candidate: Candidate) -> Verdict:
        """Return the verdict about `candidate`. An error of a server raises; it is not the sample's fault."""
        ...
