"""The protocol of filters. A filter checks one finished sample and gives a verdict with a reason."""

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from msgspec import Struct
from msgspec.structs import replace
from pydantic import BaseModel, ConfigDict

from treadle.core.events import Event
from treadle.core.types import Json, Usage
from treadle.export.rows import Row
from treadle.journal.protocol import Journal
from treadle.models.config.described import Described
from treadle.models.protocol import Model
from treadle.tools.protocol import ToolLike

if TYPE_CHECKING:
    from treadle.datagen.config.generation_config import GenerationConfig
    from treadle.datagen.scenarios.scenario import Environment, SampleSpec, Scenario
    from treadle.workers.protocol import Workers


class FilterVerdict(Struct, frozen=True, omit_defaults=True):
    """The answer of one filter about one sample."""

    filter: str
    """The name of the filter."""
    is_passed: bool
    reason: str = ""
    """Why the sample was rejected, in one sentence; for a sample that passed, a note or nothing."""
    details: dict[str, Json] = {}
    """Facts for programs, such as a score."""
    weight: float | None = None
    """The weight with which a sample that did not pass is kept all the same; `None` if it is rejected."""
    can_repair: bool = False
    """True if another last answer, after the same calls, could pass. It is then asked for with the reason."""
    usage: Usage = Usage()
    """The tokens of the filter's own model."""
    cost_usd: float | None = 0.0
    """The cost of these tokens; `None` if a price is unknown."""

    @property
    def is_kept(self) -> bool:
        """True if the sample passed, or is kept with a lower weight."""
        return self.is_passed or self.weight is not None


class Candidate(Struct, frozen=True, kw_only=True):
    """A finished sample before it is accepted."""

    row: Row
    run_id: str
    """The run of the agent's conversation."""
    spec: "SampleSpec"
    scenario: "Scenario"
    environment: "Environment"
    events: Sequence[Event]
    """The events of the run."""
    journal: Journal
    """The journal that has the run."""
    workers: "Workers | None" = None
    """Where runs of filters are driven; `None`: in this process."""


class FilterSettings(Described, BaseModel):
    """The settings of a filter. Unknown settings are errors."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Resources(Struct, frozen=True, kw_only=True):
    """The objects that filters can use, besides their settings."""

    config: "GenerationConfig"
    tools: Sequence[ToolLike] | None = None
    """The agent's tools, with which calls are made again; `None`: those that the runs name."""
    judge: Model | None = None


S = TypeVar("S", bound=FilterSettings)


class Filter(Generic[S]):
    """A check of samples. Cheap filters run first; a sample that they reject is not given to costlier ones.

    A subclass sets `name` and `settings_type`, and implements `check`. Its docstring describes it in the
    documentation.
    """

    name: ClassVar[str]
    cost: ClassVar[int] = 0
    """0 if the filter only reads the row, 1 if it makes tool calls or reads files, 2 if it asks a model."""
    reads_turns: ClassVar[bool] = False
    """True if a verdict about the first turns of a conversation holds for all of it. The filter then also checks
    each answer before the user goes on."""
    settings_type: ClassVar[type[FilterSettings]] = FilterSettings

    def __init__(self, settings: S, resources: Resources) -> None:
        self.settings = settings
        self.resources = resources

    @classmethod
    def is_on(cls, config: "GenerationConfig") -> bool:
        """Return whether the filter is used if `quality.filters` does not name it."""
        return False

    async def check(self, candidate: Candidate) -> FilterVerdict:
        """Return the verdict about `candidate`.

        An error of a server is raised, because it is not the sample's fault.
        """
        raise NotImplementedError

    def accept(self, note: str = "", **details: Json) -> FilterVerdict:
        """Return the verdict about a sample that passed."""
        return FilterVerdict(self.name, True, note, details)

    def reject(self, reason: str, **details: Json) -> FilterVerdict:
        """Return the verdict about a sample that did not pass."""
        return FilterVerdict(self.name, False, reason, details)

    def reject_answer(
        self, candidate: Candidate, indexes: Iterable[int], reason: str, **details: Json
    ) -> FilterVerdict:
        """Return the verdict about a sample for which the messages at `indexes` are to blame. If that is its last
        answer alone, another one may pass."""
        can_repair = set(indexes) == {len(candidate.row.messages) - 1}
        return replace(self.reject(reason, **details), can_repair=can_repair)


class BuiltinFilter(Filter[S]):
    """A filter that is used unless `quality.filters` switches it off."""

    @classmethod
    def is_on(cls, config: "GenerationConfig") -> bool:
        return True


Settings, Verdict = FilterSettings, FilterVerdict
"""The names under which filters of other packages may import these classes."""
