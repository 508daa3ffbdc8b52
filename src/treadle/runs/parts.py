"""The parts of an agent that its runs use."""

from typing import TYPE_CHECKING, Protocol

from treadle.core.policy import Policy
from treadle.core.spec import AgentSpec
from treadle.journal.protocol import Clock, Journal
from treadle.knowledge.protocol import Surroundings
from treadle.loop.hooks import Hooks
from treadle.models.protocol import Model
from treadle.runs.kit import Kit
from treadle.runs.options import Instructions
from treadle.runs.spec import Files
from treadle.tools.protocol import Approver, Asker

if TYPE_CHECKING:
    from treadle.routing.judging import MessageJudge


class AgentParts(Protocol):
    """The attributes of an agent that its runs use."""

    model: Model
    instructions: Instructions | None
    policy: Policy
    has_policy: bool
    kit: Kit
    files: Files | None
    approver: Approver | None
    asker: Asker | None
    deps: object
    clock: Clock
    known: Surroundings | None
    judge: "MessageJudge | None"
    hooks: Hooks

    @property
    def spec(self) -> AgentSpec:
        """The agent as a value."""
        ...

    @property
    def journal(self) -> Journal:
        """The journal that the runs are kept in."""
        ...
