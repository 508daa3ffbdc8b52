"""Groups of rollouts, as sinks and token formats get them."""

from msgspec import Struct

from treadle.core.types import Json, Message, StopReason, ToolSpec, Usage
from treadle.trajectory.tokens.types import Trajectory


class Rollout(Struct, frozen=True, kw_only=True):
    """One finished run of a task, with its tokens and its reward."""

    run_id: str
    trajectories: tuple[Trajectory, ...]
    """All branches of the run and of its sub-agents; the last one has the final answer."""
    reward: float | None
    """The weighted sum of `rewards`; `None` if the rollout was not graded. A fault of the infrastructure is never
    a reward of 0."""
    rewards: dict[str, float] = {}
    """The rewards by name, without weights."""
    advantage: float | None = None
    """The advantage within the group; `None` if it was not computed."""
    is_trained: bool = True
    """False if nothing of the rollout is trained on, although its reward counts in its group."""
    stop_reason: StopReason
    messages: tuple[Message, ...] = ()
    """The whole transcript."""
    tools: tuple[ToolSpec, ...] = ()
    usage: Usage = Usage()
    steps: int = 0
    metadata: dict[str, Json] = {}


class Group(Struct, frozen=True, kw_only=True):
    """The rollouts of one task."""

    group_id: str
    """The id of the group, unique in its journal."""
    number: int
    """The position of the group in the plan, from 1."""
    task: str
    """The task as `SET:ID`."""
    rollouts: tuple[Rollout, ...]
    has_variance: bool = True
    """False if all rewards are equal, so that all advantages are 0."""
    weight_version: str | None = None
    """The version of the weights when the group was delivered; `None` if it is not known."""
    metadata: dict[str, Json] = {}

    @property
    def rewards_G(self) -> tuple[float | None, ...]:
        """The rewards of the rollouts."""
        return tuple([rollout.reward for rollout in self.rollouts])
