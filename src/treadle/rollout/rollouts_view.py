"""What the viewer shows of rollouts: the facts of each group and rollout, and the tokens of some of them."""

from collections import Counter
from collections.abc import Iterable, Mapping
from functools import partial

from msgspec import UNSET, Raw, Struct, UnsetType

from treadle.core.events import Rewarded
from treadle.core.types import Json, Role
from treadle.export.body_sample import BodySample, write_conversation
from treadle.export.groups import Group, Rollout
from treadle.journal.protocol import Journal
from treadle.rollout.held_out_scores import HeldOutScore
from treadle.trajectory.tokens.token_map import TokenMap, make_token_maps
from treadle.trajectory.tokens.trajectories import Decode, Decoders, DriftReport, TokenGrade, Trajectory

_BODIES, _BODY_BYTES = 192, 12_000_000
"""How many rollouts have their messages and tokens in a page in one file, and how large these may be."""


class BranchFacts(Struct, frozen=True, omit_defaults=True):
    grade: TokenGrade
    tokens: int
    sampled_tokens: int = 0
    is_of_policy: bool | None = None
    """Whether its log probabilities are those of the distribution that was sampled from."""
    drift: DriftReport | None = None
    versions: dict[str, int] = {}
    """Its trained tokens by the version of the weights."""


class RolloutFacts(Struct, frozen=True, omit_defaults=True):
    run_id: str
    reward: float | None
    rewards: dict[str, float]
    advantage: float | None
    stop_reason: str
    steps: int
    input_tokens: int
    output_tokens: int
    calls: dict[str, tuple[int, int]]
    """For each tool, how many calls there are, and how many of them failed or were not run."""
    branches: list[BranchFacts]
    is_trained: bool = True
    is_solved: bool = False


class GroupFacts(Struct, frozen=True):
    number: int
    group_id: str
    task: str
    has_variance: bool
    weight_version: str | None
    rollouts: list[RolloutFacts]


class RolloutBody(Struct, frozen=True):
    """What a rollout shows when it is opened."""

    messages: list[Json]
    branches: list[TokenMap]
    reasons: dict[str, str] = {}
    """What the scorers said about the rewards, by their names."""


class RolloutsView(Struct, frozen=True, kw_only=True):
    """Rollouts as a page shows them."""

    name: str
    folder: str
    groups: list[GroupFacts]
    delivered: int
    """How many groups are delivered, of which `groups` may be a part."""
    dropped: dict[str, int]
    """The number of groups that were not delivered, by reason."""
    held_out: list[HeldOutScore] = []
    """The scores of the held-out tasks for each version of the weights."""
    bodies: dict[tuple[str, str], Raw] | UnsetType = UNSET
    """The messages and tokens of rollouts by their groups and runs, for a page in one file."""

    @property
    def title(self) -> str:
        return f"{self.name}: rollouts"


def make_rollouts_view(
    groups: Iterable[Group],
    *,
    name: str,
    folder: str = "",
    dropped: Mapping[str, int] | None = None,
    held_out: Iterable[HeldOutScore] = (),
    decode: Decode | None = None,
    journal: Journal | None = None,
) -> RolloutsView:
    """Return delivered groups for a page in one file. `journal` has the runs, and reasons of rewards."""
    facts: list[GroupFacts] = []
    sample, names = BodySample(_BODIES, _BODY_BYTES), list[tuple[str, str]]()
    newest: Group | None = None

    def add(group: Group, *, is_wanted: bool) -> None:
        for rollout in group.rollouts:
            names.append((group.group_id, rollout.run_id))
            sample.add(group.group_id, partial(write_rollout, rollout, decode, journal), is_wanted=is_wanted)

    for group in groups:
        facts.append(find_facts(group))
        if newest is not None:
            add(newest, is_wanted=len(facts) == 2)
        newest = group
    if newest is not None:
        # The first and the newest group are always whole.
        add(newest, is_wanted=True)
    bodies = {names[place]: body for place, body in sample.take()[0].items()}
    return RolloutsView(
        name=name,
        folder=folder,
        groups=facts,
        delivered=len(facts),
        dropped=dict(dropped or {}),
        held_out=list(held_out),
        bodies=bodies,
    )


def find_facts(group: Group) -> GroupFacts:
    return GroupFacts(
        group.number,
        group.group_id,
        group.task,
        group.has_variance,
        group.weight_version,
        [_find_rollout_facts(rollout) for rollout in group.rollouts],
    )


def _find_rollout_facts(rollout: Rollout) -> RolloutFacts:
    calls: dict[str, tuple[int, int]] = {}
    for item in rollout.messages:
        if item.role is Role.TOOL:
            made, failed = calls.get(item.name or "", (0, 0))
            calls[item.name or ""] = made + 1, failed + bool(item.is_error)
    return RolloutFacts(
        run_id=rollout.run_id,
        reward=rollout.reward,
        rewards=rollout.rewards,
        advantage=rollout.advantage,
        stop_reason=rollout.stop_reason.value,
        steps=rollout.steps,
        input_tokens=rollout.usage.input_tokens,
        output_tokens=rollout.usage.output_tokens,
        calls=calls,
        branches=[_find_branch_facts(item) for item in rollout.trajectories],
        is_trained=rollout.is_trained,
        is_solved=rollout.is_solved,
    )


def _find_branch_facts(branch: Trajectory) -> BranchFacts:
    versions: Counter[str] = Counter()
    for span in branch.spans if branch.grade is not TokenGrade.TEXT else ():
        for tokens, version in span.weight_versions if span.is_trained else ():
            versions[version] += tokens
    return BranchFacts(
        branch.grade,
        len(branch.token_ids_T),
        branch.sampled_tokens,
        branch.has_policy_logprobs,
        branch.drift,
        dict(versions),
    )


def write_rollout(rollout: Rollout, decoders: Decoders = None, journal: Journal | None = None) -> RolloutBody:
    """Return what a rollout shows when it is opened; `journal` has its run."""
    advantage = rollout.advantage if rollout.is_trained else None
    maps = make_token_maps(rollout.trajectories, decoders=decoders, advantage=advantage)
    bodies = [] if journal is None else [event.body for event in journal.scan(rollout.run_id)]
    reasons = {body.name: body.detail for body in bodies if isinstance(body, Rewarded) and body.detail}
    return RolloutBody(write_conversation(rollout.messages), maps, reasons)
