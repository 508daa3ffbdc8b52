"""The parts of an agent that its runs use."""

from typing import TYPE_CHECKING, Protocol

from treadle.agent.driving.kit import Kit
from treadle.agent.options import Instructions
from treadle.agent.spec import Files
from treadle.context.protocol import Surroundings
from treadle.core.policy import Policy
from treadle.core.spec import AgentSpec
from treadle.journal.protocol import Clock, Journal
from treadle.loop.hooks import Hooks
from treadle.models.protocol import Model
from treadle.tools.protocol import Approver, Asker

if TYPE_CHECKING:
    from treadle.context.judging import MessageJudge


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
