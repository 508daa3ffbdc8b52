"""Groups of rollouts, as sinks and token formats get them, and the reading of finished runs as groups."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from typing import Any, TypeAlias

from msgspec import Struct
from msgspec.structs import asdict, replace

from treadle.core.errors import ExportError
from treadle.core.prompts.foreign import as_seen
from treadle.core.types import Fault, Json, Message, StopReason, ToolSpec, Usage
from treadle.journal.protocol import Journal
from treadle.journal.run_info import CALLER
from treadle.runs.run import Run
from treadle.scoring.grade import read_subject
from treadle.scoring.registry import RewardSpec, mean_reward, total_reward
from treadle.scoring.statistics import reaches
from treadle.trajectory.tokens.token_graph import Conservation, TokenGraph, load_tokens
from treadle.trajectory.tokens.trajectories import Decoders, Trajectory


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
    is_solved: bool = False
    """True if the weighted mean of `rewards` reaches `solved_at` of the rollouts; 1 if their job is not known."""
    step_rewards: tuple[float, ...] | None = None
    """The rewards of the run's completed inferences, in their order; `None` if the task does not reward steps."""
    advantage: float | None = None
    """The advantage within the group; `None` if it was not computed."""
    is_trained: bool = True
    """False if nothing of the rollout is trained on, although its reward counts in its group."""
    stop_reason: StopReason
    messages: tuple[Message, ...] = ()
    """The whole transcript; if a program was the agent, those of its conversations, one after another."""
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
        return tuple([rollout.reward for rollout in self.rollouts])


Advantages: TypeAlias = Callable[[Sequence[float | None]], Sequence[float | None]]
"""A function that returns the advantages of a group, aligned with its rewards."""

GROUP_LABEL = "group"
"""The label of a run that says which group it belongs to."""

PHASE_LABEL, EVALUATION = "phase", "eval"
"""The label of a run of a training that says what it is for, and its value for an evaluation."""

WEIGHTS_LABEL = "reward_weights"
"""The label of a run with the weights of its rewards by name."""


class GroupBy(StrEnum):
    """The property that the runs of one group have in common."""

    GROUP = "group"
    """The label `group`, which `treadle rollout` gives to runs. A run without it is a group of its own."""
    TASK = "task"
    """The task. A run without one is a group of its own."""
    RUN = "run"
    """Each run is a group of its own."""


def load_rollout(journal: Journal, run_id: str, reward: str | None = None) -> tuple[Rollout, Conservation]:
    """Return a finished run as a rollout, and the comparison of the sampled tokens with the delivered tokens.

    The reward is the one that is called `reward`; `None` means the sum of all, with the weights that `treadle
    rollout` has recorded. It blocks.

    Raises: `RunNotFoundError`; `ExportError` if the run is not finished, failed through no fault of its model, or
    would lose a token.
    """
    run = Run.load(run_id, journal)
    if run.stop_reason is None:
        raise ExportError(f"run {run_id!r} is not finished; go on with it: treadle resume {run_id}")
    if run.fault in (Fault.INFRASTRUCTURE, Fault.USER):
        raise ExportError(f"run {run_id!r} failed through no fault of its model ({run.error}); resume it")
    rollout, graph = read_rollout(journal, run)
    total, mean = _weigh(rollout) if reward is None else (rollout.rewards.get(reward),) * 2
    is_solved = mean is not None and reaches(mean, 1.0)
    return replace(rollout, reward=total, is_solved=is_solved), graph.conservation


def _weigh(rollout: Rollout) -> tuple[float | None, float | None]:
    """Return the weighted sum of the rewards and their weighted mean; `None` if there are none."""
    known, weights = rollout.rewards, rollout.metadata.get(WEIGHTS_LABEL)
    given = weights if isinstance(weights, dict) else dict.fromkeys(known, 1.0)
    specs = [RewardSpec(name, name, weight) for name, weight in given.items()]
    return total_reward(known, specs), mean_reward(known, specs)


def read_rollout(journal: Journal, run: Run[Any], decode: Decoders = None) -> tuple[Rollout, TokenGraph]:
    """Return a finished run as a rollout, without the sum of its rewards, and the run's token graph. Blocks.

    `decode` is that of `load_tokens`. Raises: `ExportError` if a sampled token would be lost or delivered twice.
    """
    assert run.stop_reason is not None
    graph = load_tokens(journal, run.run_id, decode=decode)
    if graph.conservation.faults:
        raise ExportError(f"the tokens of run {run.run_id!r} cannot be delivered: {graph.conservation}")
    messages, steps = run.messages, run.steps
    tools = () if run.state.started is None else run.state.started.tools
    if run.state.is_relayed:  # a program was the agent, and its conversations are runs of their own
        subject = read_subject(run, None, journal)
        messages, steps = subject.messages, subject.steps
        tools = tuple({spec.name: spec for spec in subject.tools}.values())
    rollout = Rollout(
        run_id=run.run_id,
        trajectories=graph.trajectories,
        reward=None,
        rewards=dict(run.state.turn.rewards),
        step_rewards=run.state.turn.step_rewards,
        stop_reason=run.stop_reason,
        messages=as_seen(messages),
        tools=tools,
        usage=run.usage,
        steps=steps,
        metadata=dict(run.metadata),
    )
    return rollout, graph


class ExportedTokens:
    """The sums over the runs of an export, and the check that no token is in the export twice."""

    def __init__(self) -> None:
        self.total = Conservation()
        self._seen: set[tuple[str, int]] = set()
        """The inferences that are delivered."""

    def add(self, rollout: Rollout, conservation: Conservation) -> None:
        """Count one rollout. Raises: `ExportError` if it has tokens that another rollout delivers."""
        trained = _find_trained(rollout)
        if shared := trained & self._seen:
            run_id, seq = min(shared)
            raise ExportError(
                f"the tokens of event {seq} of run {run_id!r} are in this export already, so run "
                f"{rollout.run_id!r} cannot deliver them again"
            )
        self._seen |= trained
        one, other = asdict(self.total), asdict(conservation)
        self.total = Conservation(**{key: one[key] + other[key] for key in one})

    def leave_out(self, rollouts: Iterable[Rollout]) -> None:
        """Count what rollouts have sampled, which were added before, as not delivered."""
        for rollout in rollouts:
            self._seen -= _find_trained(rollout)
            lost = sum(item.sampled_tokens for item in rollout.trajectories)
            self.total = replace(
                self.total,
                delivered=self.total.delivered - lost,
                faults=("the rest is in groups that were left out",),
            )


def _find_trained(rollout: Rollout) -> set[tuple[str, int]]:
    """Return the inferences that a rollout delivers, each as a run with the number of its event."""
    return {
        (span.run_id, span.seq) for item in rollout.trajectories for span in item.spans if span.is_trained
    }


def find_groups(journal: Journal, run_ids: Iterable[str], by: GroupBy) -> dict[str, list[str]]:
    """Return the ids of runs by the id of their group, in the order of the first run of each.

    The runs of sub-agents are left out: their tokens are delivered with those of their callers. Raises:
    `ExportError` for a run that was made to evaluate.
    """
    groups: dict[str, list[str]] = {}
    for run_id in run_ids:
        run = Run.load(run_id, journal)
        if CALLER in run.metadata:
            continue
        if run.metadata.get(PHASE_LABEL) == EVALUATION:
            raise ExportError(f"run {run_id!r} was made to evaluate a model under training, not to train on")
        key: object = run_id
        if by is GroupBy.GROUP:
            key = run.metadata.get(GROUP_LABEL, run_id)
        elif by is GroupBy.TASK:
            key = _task_of(run) or run_id
        groups.setdefault(str(key), []).append(run_id)
    return groups


def load_groups(
    journal: Journal,
    groups: dict[str, list[str]],
    tally: ExportedTokens,
    *,
    reward: str | None = None,
    advantages: Advantages | None = None,
) -> Iterator[Group | tuple[str, str]]:
    """Yield the groups that `find_groups` found; for one that cannot be delivered, its id and the reason.

    `advantages` computes those of a group from its rewards; without it, rollouts have none.
    """
    for number, (group_id, run_ids) in enumerate(groups.items(), 1):
        rollouts: list[Rollout] = []
        try:
            for rollout, conservation in [load_rollout(journal, run_id, reward) for run_id in run_ids]:
                tally.add(rollout, conservation)
                rollouts.append(rollout)
        except ExportError as error:
            tally.leave_out(rollouts)
            yield group_id, str(error)
            continue
        task = _task_of(Run.load(run_ids[0], journal))
        yield make_group(rollouts, advantages, group_id=group_id, number=number, task=task)


def make_group(
    rollouts: Sequence[Rollout],
    advantages: Advantages | None,
    *,
    group_id: str,
    number: int,
    task: str,
    weight_version: str | None = None,
) -> Group:
    """Return a group of rollouts with their advantages, if `advantages` computes some."""
    rewards = [rollout.reward for rollout in rollouts]
    if advantages is not None:
        pairs = zip(rollouts, advantages(rewards), strict=True)
        rollouts = [replace(item, advantage=value) for item, value in pairs]
    return Group(
        group_id=group_id,
        number=number,
        task=task,
        rollouts=tuple(rollouts),
        has_variance=len({reward for reward in rewards if reward is not None}) > 1,
        weight_version=weight_version,
    )


def _task_of(run: Run[Any]) -> str:
    task = None if run.state.started is None else run.state.started.task
    return "" if task is None else f"{task.task_set}:{task.task_id}"
