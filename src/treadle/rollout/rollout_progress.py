"""What is reported while rollouts are made."""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

import msgspec
from msgspec import Struct

from treadle.core import events as e
from treadle.core.events.narrowing import Event
from treadle.jobs.ledger import ItemStatus

_RATE_SECONDS = 30.0
"""The time over which the rate of tokens is measured."""


class RolloutNotice(Struct, frozen=True, kw_only=True, omit_defaults=True, tag_field="event"):
    """One thing that happened. As JSON it is one line of `treadle rollout --json`."""


class Started(RolloutNotice, frozen=True, tag="started"):
    """The work begins, or goes on."""

    groups: int
    """How many groups are wanted."""
    done: int
    """How many were delivered before."""
    tasks: int
    """How many tasks there are to choose from."""


class RolloutEnded(RolloutNotice, frozen=True, tag="rollout_ended"):
    """One rollout has ended."""

    run_id: str
    task: str
    reward: float | None
    steps: int
    stop_reason: str
    input_tokens: int = 0
    output_tokens: int = 0
    """What it sampled itself; the beginning that a fork shares with its root is not counted again."""
    cost_usd: float | None = 0.0


class RolloutRetried(RolloutNotice, frozen=True, tag="rollout_retried"):
    """One rollout failed because of the infrastructure and is tried again."""

    run_id: str
    attempt: int
    """The number of the attempt that failed, from 1."""
    error: str


class GroupEnded(RolloutNotice, frozen=True, tag="group_ended"):
    """One group was delivered, dropped or failed. If rollouts are delivered one by one, this is one of them."""

    group_id: str
    task: str
    status: str
    """`delivered`, `dropped` or `failed`."""
    rewards: tuple[float | None, ...] = ()
    has_variance: bool = True
    staleness: int = 0
    reason: str | None = None
    """Why it was not delivered."""


class Waiting(RolloutNotice, frozen=True, tag="waiting"):
    """A sign of life while nothing ends, and while groups wait for their receivers."""

    in_flight: int
    undelivered: int = 0
    """How many groups the receivers do not have yet."""
    troubles: dict[str, str] = {}
    """Why a sink cannot deliver at the moment, by its name."""


class Average(Struct):
    """The mean and the standard deviation of numbers that come one by one."""

    count: int = 0
    mean: float = 0.0
    squares: float = 0.0
    """The sum of the squared differences to the mean."""

    def add(self, value: float) -> None:
        """Add a number."""
        self.count += 1
        delta = value - self.mean
        self.mean += delta / self.count
        self.squares += delta * (value - self.mean)

    @property
    def deviation(self) -> float:
        """The standard deviation of the numbers; 0 if there are fewer than two."""
        return math.sqrt(self.squares / (self.count - 1)) if self.count > 1 else 0.0


class RolloutProgress(Struct, kw_only=True):
    """The counts of the rollouts of one configuration, changed in place."""

    wanted: int = 0
    """How many items are wanted: groups, or rollouts if they are delivered one by one."""
    delivered: int = 0
    resumed: int = 0
    """How many of them were delivered before this process began."""
    dropped: int = 0
    failed: int = 0
    """How many could not be completed because of the infrastructure."""
    reasons: dict[str, int] = msgspec.field(default_factory=dict)
    """The number of dropped ones by reason."""
    retried: int = 0
    """How many rollouts were tried again after a fault of the infrastructure."""
    rewards: Average = msgspec.field(default_factory=Average)
    """The rewards of all graded rollouts, those of dropped groups included."""
    group_rewards: Average = msgspec.field(default_factory=Average)
    """The mean rewards of groups."""
    solved_once: int = 0
    """How many groups have a rollout that solved the task."""
    graded_groups: int = 0
    no_variance: int = 0
    """How many groups have equal rewards."""
    in_flight: int = 0
    """How many rollouts are driven now."""
    waiting: int = 0
    """How many complete groups wait for their receiver."""
    undelivered: int = 0
    """How many groups were counted that a sink has not delivered yet."""
    refused: int = 0
    """How many groups a sink or its receiver has refused."""
    troubles: dict[str, str] = msgspec.field(default_factory=dict)
    """Why a sink cannot deliver at the moment, by its name."""
    on_model: int | None = None
    """How many rollouts wait for the model now; `None` if it is not known."""
    on_tools: int | None = None
    """How many wait for tools."""
    workers: int = 1
    restarts: int = 0
    """How many workers died and were replaced."""
    sampled_tokens: int = 0
    """The sampled tokens of the delivered groups. Each of them is delivered once."""
    input_tokens: int = 0
    output_tokens: int = 0
    tokens_per_second: float = 0.0
    """The rate of output tokens of the last half minute."""
    cost_usd: float | None = 0.0
    """`None` if a price is unknown."""
    weight_version: str | None = None
    """The newest weights that are known; `None` if no answer had a version."""
    staleness: int = 0
    """How many versions the newest delivered group was behind."""
    oldest: int = 0
    """How many versions the stalest delivered group was behind."""
    seconds: float = 0.0
    """How long this process has worked."""
    is_stopping: bool = False
    """True after the first Ctrl-C: groups in flight are finished, and no new ones begun."""

    def count(self, status: str, reasons: Sequence[str], details: Mapping[str, Any]) -> None:
        """Add the outcome of an item; `details` are those of its outcome in the ledger."""
        if status == ItemStatus.KEPT:
            self.delivered += 1
            self.oldest = max(self.oldest, details["staleness"])
            self.sampled_tokens += details["sampled_tokens"]
        elif status == ItemStatus.REJECTED:
            self.dropped += 1
            name = reasons[0].partition(":")[0]
            self.reasons[name] = self.reasons.get(name, 0) + 1
        else:
            self.failed += 1
        graded = [reward for reward in details["rewards"] if reward is not None]
        for reward in graded:
            self.rewards.add(reward)
        if graded:
            self.graded_groups += 1
            self.group_rewards.add(sum(graded) / len(graded))
            self.solved_once += details["solved"] > 0
            self.no_variance += not details["has_variance"]


Listener: TypeAlias = Callable[[RolloutNotice, RolloutProgress], None]
"""A function that is called for each notice, with the counts after it."""


class TokenRate:
    """The rate of output tokens of the last half minute. It is also a hook that counts inferences."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._began = now()
        self._counts: deque[tuple[int, int]] = deque()
        """The tokens of each second that had some."""
        self._total = 0

    def take(self, run_id: str, first_seq: int, bodies: Sequence[e.DurableBody]) -> None:
        """Count events; see `loop.hooks.Hook`."""
        for body in bodies:
            if isinstance(body, e.InferenceCompleted) and body.completion.usage is not None:
                self.add(body.completion.usage.output_tokens)

    def __call__(self, event: Event) -> None:
        """Count an event; see `loop.hooks.Hook`."""
        self.take(event.run_id, event.seq, (event.body,))

    def add(self, tokens: int) -> None:
        """Count output tokens."""
        second = int(self._now())
        if not self._counts or self._counts[-1][0] != second:
            self._counts.append((second, 0))
        self._counts[-1] = (second, self._counts[-1][1] + tokens)
        self._total += tokens

    @property
    def per_second(self) -> float:
        """The output tokens per second."""
        now = self._now()
        while self._counts and now - self._counts[0][0] > _RATE_SECONDS:
            self._total -= self._counts.popleft()[1]
        seconds = min(_RATE_SECONDS, now - self._began)
        return self._total / seconds if seconds > 0 else 0.0
