"""The progress of rollouts: notices and counts."""

from collections.abc import Callable, Mapping
from typing import Any, ClassVar, TypeAlias

import msgspec

from treadle.jobs.attempt import AttemptRetried
from treadle.jobs.ledger import ItemStatus
from treadle.jobs.progress import Average, JobNotice, JobProgress, JobWords
from treadle.rollout.held_out_scores import HeldOutScore


class Started(JobNotice, frozen=True, tag="started"):
    """The work begins, or goes on."""

    groups: int
    """How many groups are wanted."""
    done: int
    """How many groups were delivered before this process began."""
    tasks: int
    """How many tasks there are to choose from."""


class RolloutEnded(JobNotice, frozen=True, tag="rollout_ended"):
    run_id: str
    task: str
    reward: float | None
    steps: int
    stop_reason: str
    input_tokens: int = 0
    output_tokens: int = 0
    """The tokens that it sampled itself, without the beginning that a fork shares with its root."""
    cost_usd: float | None = 0.0


class RolloutRetried(AttemptRetried, frozen=True, tag="rollout_retried"):
    """One rollout failed because of the infrastructure and is tried again."""


class GroupEnded(JobNotice, frozen=True, tag="group_ended"):
    """One group was delivered, dropped or failed. If rollouts are delivered one by one, this is one of them."""

    group_id: str
    task: str
    status: str
    """`delivered`, `dropped` or `failed`."""
    rewards: tuple[float | None, ...] = ()
    has_variance: bool = True
    staleness: int = 0
    reason: str | None = None
    """Why the group was not delivered; `None` if it was delivered."""

    def line(self) -> str | None:
        verb = "was dropped" if self.status == "dropped" else self.status
        return None if self.reason is None else f"{self.group_id} {verb}: {self.reason}"


class HeldOutEnded(RolloutEnded, frozen=True, tag="held_out_ended"):
    """One attempt at a held-out task has ended."""


class VersionScored(JobNotice, frozen=True, tag="version_scored"):
    """One version of the weights was evaluated on the held-out tasks."""

    score: HeldOutScore | None
    """The score; `None` if there is none because of the infrastructure."""
    reason: str | None = None
    """Why there is no score; `None` if there is one."""

    def line(self) -> str:
        return f"held-out tasks: {self.score}" if self.score else f"held-out tasks failed: {self.reason}"


class Waiting(JobNotice, frozen=True, tag="waiting"):
    """A sign of life while nothing ends, and while groups wait for their receivers."""

    in_flight: int
    undelivered: int = 0
    """How many groups the receivers do not have yet."""
    troubles: dict[str, str] = msgspec.field(default_factory=dict)
    """For each sink that cannot deliver at the moment: the reason, by the name of the sink."""


class RolloutProgress(JobProgress, kw_only=True):
    """The counts of the rollouts of one configuration.

    Items are groups, or rollouts that are delivered one by one.
    """

    WORDS: ClassVar[JobWords] = JobWords(
        noun="group", item="group", kept="delivered", rejected="dropped", in_flight="rollout"
    )

    rewards: Average = msgspec.field(default_factory=Average)
    """The rewards of all graded rollouts, those of dropped groups included."""
    group_rewards: Average = msgspec.field(default_factory=Average)
    """The mean rewards of groups."""
    solved_once: int = 0
    """How many groups have a rollout that solved the task."""
    graded_groups: int = 0
    no_variance: int = 0
    """How many groups have equal rewards."""
    waiting: int = 0
    """How many complete groups wait for their receiver."""
    undelivered: int = 0
    """How many groups were counted that a sink has not delivered yet."""
    refused: int = 0
    """How many groups a sink or its receiver has refused."""
    troubles: dict[str, str] = msgspec.field(default_factory=dict)
    """For each sink that cannot deliver at the moment: the reason, by the name of the sink."""
    sampled_tokens: int = 0
    """The sampled tokens of the delivered groups. Each token is delivered once."""
    other_logprobs: int = 0
    """How many of these have log probabilities that are not those of the policy that sampled them."""
    tokens_per_second: float = 0.0
    """The rate of output tokens of the last half minute."""
    weight_version: str | None = None
    """The newest weights that are known; `None` if no answer had a version."""
    staleness: int = 0
    """How many versions the newest delivered group was behind."""
    oldest: int = 0
    """How many versions the stalest delivered group was behind."""

    held_out: list[HeldOutScore] = msgspec.field(default_factory=list)
    """The scores of the held-out tasks, the newest last."""

    @property
    def delivered(self) -> int:
        """How many items were delivered."""
        return self.kept

    @property
    def dropped(self) -> int:
        """How many items were dropped."""
        return self.rejected

    def observe(self, status: str, details: Mapping[str, Any]) -> None:
        """Add the outcome of an item; `details` has the details of this outcome in the ledger."""
        if status == ItemStatus.KEPT:
            self.oldest = max(self.oldest, details["staleness"])
            self.sampled_tokens += details["sampled_tokens"]
            self.other_logprobs += details.get("other_logprobs", 0)
        graded = [reward for reward in details["rewards"] if reward is not None]
        for reward in graded:
            self.rewards.add(reward)
        if graded:
            self.graded_groups += 1
            self.group_rewards.add(sum(graded) / len(graded))
            self.solved_once += details["solved"] > 0
            self.no_variance += len(details["rewards"]) > 1 and not details["has_variance"]

    def stopping(self, *, is_short: bool = False) -> str:
        if is_short:
            return "finishing; Ctrl-C: stop now"
        end = "press Ctrl-C again to stop now"
        if not (self.in_flight or self.undelivered):
            return super().stopping()
        if not self.in_flight:
            groups = "1 group" if self.undelivered == 1 else f"{self.undelivered:,} groups"
            stay = "stays" if self.undelivered == 1 else "stay"
            return f"stopping: {groups} that no sink has taken {stay} in the folder; {end}"
        flight = f"{self.in_flight:,} rollout{'' if self.in_flight == 1 else 's'}"
        return f"stopping: the groups of {flight} in flight will be finished{self.lasts}; {end}"

    def results(self) -> list[str]:
        newest = self.held_out[-1].score if self.held_out else None
        held_out = [] if newest is None else [f"held-out {newest}"]
        if not self.rewards.count:
            return held_out
        return [
            f"reward {self.rewards.mean:.3f} ± {self.rewards.deviation:.3f}",
            f"solved once {self.solved_once / self.graded_groups:.0%}",
            *held_out,
        ]

    def work(self) -> list[str]:
        complete = [f"{self.waiting:,} complete"] if self.waiting else []
        return [*complete, f"{self.tokens_per_second:,.0f} tokens/s"]

    def use(self) -> list[str]:
        texts = [f"{self.sampled_tokens:,} sampled"] if self.sampled_tokens else []
        if self.weight_version is not None:
            texts.append(f"weights {self.weight_version:.30}")
            texts.append(f"staleness {self.staleness} (at most {self.oldest})")
        return texts

    def faults(self) -> list[str]:
        texts = [f"{self.no_variance:,} without variance"] if self.no_variance else []
        if self.other_logprobs:
            texts.append(f"{self.other_logprobs:,} tokens with logprobs that are not the policy's")
        texts += super().faults()
        if self.undelivered:
            texts.append(f"{self.undelivered:,} undelivered")
        if self.refused:
            texts.append(f"{self.refused:,} refused by a sink")
        return texts + [f"{name}: {trouble:.100}" for name, trouble in self.troubles.items()]


class SingleProgress(RolloutProgress, kw_only=True):
    """The counts of rollouts that are delivered one by one."""

    WORDS: ClassVar[JobWords] = JobWords(
        noun="rollout", item="group", kept="delivered", rejected="dropped", in_flight="rollout"
    )


Listener: TypeAlias = Callable[[JobNotice, RolloutProgress], None]
"""A function that is called for each notice, with the counts after it."""
