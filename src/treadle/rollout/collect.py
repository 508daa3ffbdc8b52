"""Finished runs as rollouts and groups, and the versions of the weights that sampled their tokens."""

import itertools
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from treadle.core import events as e
from treadle.core.lineage import Parent
from treadle.core.tally import Charge, Tally
from treadle.core.types import FinishReason, StopReason, Usage
from treadle.export.groups import Group, Rollout, make_group, read_rollout
from treadle.jobs.ledger import Ledger
from treadle.journal.protocol import Journal
from treadle.rollout.rollout_config import GroupSpec, RolloutConfig
from treadle.rollout.rollout_progress import RolloutEnded
from treadle.runs.run import Run
from treadle.scoring.advantages import compute_advantages
from treadle.scoring.registry import mean_reward, read_rewards, total_reward
from treadle.scoring.statistics import reaches
from treadle.tasks.draws import fraction
from treadle.trajectory.tokens.nodes import Node

_NUMBER = re.compile(r"(\d+)$")
_FACT = "versions"
"""The fact of the ledger with the known versions."""
_STEP_SECONDS = 1e-6
"""The time between two versions that sampled the same answer."""


class KnownVersion(Struct):
    version: str
    since: float
    """When the version was announced, or when an answer with it first arrived, in seconds since the epoch."""
    is_announced: bool = False
    """True if it was announced before an answer had it, so that other weights sampled the answers before."""


class SampledVersions(Struct, frozen=True):
    """The versions of the weights that sampled the tokens of a rollout."""

    versions: Mapping[str, float] = {}
    """The versions that answers have, each with the time at which the first such answer arrived."""
    unsigned_at: float | None = None
    """The time of the oldest request whose answer has no known version; `None` if there is none."""


class Versions:
    """The known versions, the oldest first.

    Versions that are numbers, or end in one, are ordered by it. Others are ordered by when they were first seen or
    announced. An answer without a version is taken to be of the weights that were the newest when it was asked for.
    """

    def __init__(self, ledger: Ledger | None = None) -> None:
        """Read the known versions from a ledger, if there is one."""
        self._ledger = ledger
        self._saved = "[]" if ledger is None else ledger.get(_FACT) or "[]"
        self.known = msgspec.json.decode(self._saved, type=list[KnownVersion])
        """All versions, the oldest first."""
        self.on_change: Callable[[], None] = lambda: None
        """Called when there is another version."""

    def save(self) -> None:
        """Store the known versions in the ledger, if they have changed."""
        known = msgspec.json.encode(self.known).decode()
        if self._ledger is not None and known != self._saved:
            self._saved = known
            self._ledger.set(_FACT, known)

    @property
    def current(self) -> str | None:
        """The newest version; `None` if none is known."""
        return self.known[-1].version if self.known else None

    def announce(self, version: str) -> None:
        """Add a version that the trainer announces."""
        self._note(version, time.time(), is_announced=True)

    def note(self, sampled: SampledVersions) -> None:
        """Add the versions that a rollout has."""
        for version, at in sampled.versions.items():
            self._note(version, at, is_announced=False)

    def _note(self, version: str, at: float, *, is_announced: bool) -> None:
        found = next((item for item in self.known if item.version == version), None)
        if found is None:
            self.known.append(KnownVersion(version, at, is_announced))
        else:
            found.since = min(found.since, at)
        numbers = [_NUMBER.search(item.version) for item in self.known]
        if all(numbers):
            self.known.sort(key=lambda item: int(_NUMBER.search(item.version)[1]))  # type: ignore[index]
        else:
            self.known.sort(key=lambda item: item.since)
        if found is None:
            self.on_change()

    def age(self, sampled: Iterable[SampledVersions]) -> int:
        """Return how many versions the current weights are ahead of the oldest that sampled something.

        Versions that are plain numbers are subtracted from each other. Between others, the known versions are
        counted.
        """
        if not self.known:
            return 0
        places = {item.version: place for place, item in enumerate(self.known)}
        found = [places[version] for one in sampled for version in one.versions if version in places]
        found += [self._find(one.unsigned_at) for one in sampled if one.unsigned_at is not None]
        oldest = min(found, default=len(self.known) - 1)
        names = [item.version for item in self.known]
        if all(name.isdecimal() for name in names):
            return int(names[-1]) - (int(names[oldest]) if oldest >= 0 else int(names[0]) - 1)
        return len(names) - 1 - oldest

    def find_version(self, answer: tuple[str, ...] | float) -> str | None:
        """Return the oldest version that sampled an answer; see `read_answers`. `None` if it is not known."""
        if isinstance(answer, tuple):
            return next((item.version for item in self.known if item.version in answer), answer[0])
        place = self._find(answer) if self.known else -1
        return None if place < 0 else self.known[place].version

    def _find(self, at: float) -> int:
        """Return the position of the newest version at a time; -1 for the weights before the first known ones."""
        before = [place for place, item in enumerate(self.known) if item.since <= at]
        return before[-1] if before else -1 if self.known[0].is_announced else 0


def read_answers(nodes: Iterable[Node]) -> tuple[tuple[str, ...] | float, ...]:
    """Return for each sampled answer of a run the versions of the weights, or else when it was asked for."""
    return tuple(
        [
            tuple([version for _, version in node.versions]) or node.asked_at
            for node in nodes
            if node.is_sampled
        ]
    )


def read_sampled(nodes: Iterable[Node]) -> SampledVersions:
    """Return the versions of the weights that sampled the answers of a rollout."""
    sampled = [node for node in nodes if not node.is_cached]
    signed = [
        SampledVersions({version: node.at + index * _STEP_SECONDS})
        for node in sampled
        for index, (_, version) in enumerate(node.versions)
    ]
    return merge_sampled(
        [*signed, *[SampledVersions(unsigned_at=node.asked_at) for node in sampled if not node.versions]]
    )


def merge_sampled(sampled: Iterable[SampledVersions]) -> SampledVersions:
    """Return the versions of several rollouts as one value."""
    versions: dict[str, float] = {}
    times: list[float] = []
    for one in sampled:
        for version, at in one.versions.items():
            versions[version] = min(at, versions.get(version, at))
        times += [] if one.unsigned_at is None else [one.unsigned_at]
    return SampledVersions(versions, min(times, default=None))


_LIMITS = frozenset(
    (
        StopReason.MAX_STEPS,
        StopReason.MAX_TOKENS,
        StopReason.MAX_TOOL_CALLS,
        StopReason.DEADLINE,
        StopReason.CONTEXT_OVERFLOW,
    )
)
"""The stop reasons of rollouts that a limit cut off."""


class Rolled(Struct, frozen=True):
    """One finished rollout, with the tokens and the cost that it used."""

    run: Run[Any]
    rollout: Rollout
    usage: Usage
    """The tokens that the rollout used itself, without the beginning that a fork shares with its root."""
    cost_usd: float | None
    """The cost of these tokens in US dollars; `None` if a price is unknown."""
    sampled: SampledVersions
    """The versions of the weights that sampled its tokens, those of a shared beginning included."""
    is_overlong: bool
    answers: tuple[tuple[str, ...] | float, ...] = ()
    """See `read_answers`."""

    def notice(self, kind: type[RolloutEnded], task: str) -> RolloutEnded:
        """Return the notice that the rollout of a task has ended."""
        return kind(
            run_id=self.rollout.run_id,
            task=task,
            reward=self.rollout.reward,
            steps=self.rollout.steps,
            stop_reason=self.rollout.stop_reason.value,
            input_tokens=self.usage.input_tokens,
            output_tokens=self.usage.output_tokens,
            cost_usd=self.cost_usd,
        )


class GroupReader:
    """The rollouts and groups of one configuration, read from the journal. Its methods block."""

    def __init__(self, config: RolloutConfig, journal: Journal) -> None:
        self.config = config
        self.journal = journal
        self.rewards = read_rewards(config.rewards)
        self._decode = config.find_decode()

    def read(self, run: Run[Any]) -> Rolled:
        """Return the rollout of a finished run.

        Raises: `ExportError` if a sampled token would be lost or delivered twice.
        """
        rollout, graph = read_rollout(self.journal, run, self._decode)
        trajectories, known = rollout.trajectories, rollout.rewards
        most = self.config.max_row_tokens
        spans = [span for item in trajectories for span in item.spans]
        is_overlong = (
            run.stop_reason in _LIMITS
            or (bool(spans) and spans[-1].finish_reason is FinishReason.LENGTH)
            or (most is not None and any([len(item.token_ids_T) > most for item in trajectories]))
        )
        score = mean_reward(known, self.rewards)
        rollout = replace(
            rollout,
            reward=total_reward(known, self.rewards),
            rewards={spec.name: known[spec.name] for spec in self.rewards if spec.name in known},
            is_solved=score is not None and reaches(score, self.config.solved_at),
            is_trained=not (is_overlong and self.config.overlong == "mask"),
        )
        usage, cost = self._own(run)
        nodes = [node for nodes in graph.nodes.values() for node in nodes]
        return Rolled(run, rollout, usage, cost, read_sampled(nodes), is_overlong, read_answers(nodes))

    def _own(self, run: Run[Any]) -> tuple[Usage, float | None]:
        """Return what a run has used itself, and what that has cost."""
        parent = None if run.state.started is None else run.state.started.parent
        if parent is None:
            return run.usage, run.cost_usd
        shared = Run.load(run.run_id, self.journal, parent.seq)
        costs = run.cost_usd, shared.cost_usd
        cost = None if costs[0] is None or costs[1] is None else costs[0] - costs[1]
        return run.usage - shared.usage, cost

    def make_group(self, spec: GroupSpec, rolled: Sequence[Rolled], weight_version: str | None) -> Group:
        config = self.config
        has_advantages = config.advantages != "none" and config.deliver == "group"
        return make_group(
            [one.rollout for one in rolled],
            partial(compute_advantages, config.advantages) if has_advantages else None,
            group_id=spec.unit_id(config.name),
            number=spec.group,
            task=spec.task,
            weight_version=weight_version,
        )

    def load(self, spec: GroupSpec, details: Mapping[str, Any]) -> Group:
        """Return a delivered group, given what the ledger has about it. Raises: `RunNotFoundError`."""
        first = [spec.run_id(self.config.name, index) for index in spec.rollouts]
        rolled = [self.read(Run.load(run_id, self.journal)) for run_id in details.get("run_ids", first)]
        return self.make_group(spec, rolled, details["weight_version"])


def rewards_of(rolled: Iterable[Rolled]) -> list[float | None]:
    return [one.rollout.reward for one in rolled]


def sum_use(rolled: Iterable[Rolled]) -> dict[str, Any]:
    """Return what rollouts used, as the fields of an `ItemOutcome`."""
    tally = Tally()
    for one in rolled:
        tally.add(Charge(one.usage, one.cost_usd))
    usage = tally.usage
    return {
        "input_tokens": usage.input_tokens,
        "output_tokens": usage.output_tokens,
        "cost_usd": tally.cost_usd,
    }


def find_fork(root: Run[Any], run_id: str, *, seed: int) -> Parent:
    """Return where the run `run_id` is forked from `root`: before an inference that the seed chooses.

    The inferences before it are neither sampled nor paid for again. A root that has only one step is forked at its
    beginning.
    """
    starts = [
        (before.seq, event.body.step)
        for before, event in itertools.pairwise(root.events)
        if isinstance(event.body, e.InferenceStarted)
    ]
    points = [seq for seq, step in starts if step > 1] or [starts[0][0]]
    return Parent(root.run_id, points[int(fraction(seed, run_id, "fork") * len(points))])
