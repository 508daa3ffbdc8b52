"""The versions of the weights that rollouts have seen, and how old the tokens of a group are."""

import re
import time
from collections.abc import Iterable, Mapping

import msgspec
from msgspec import Struct

from treadle.jobs.ledger import Ledger
from treadle.trajectory.tokens.nodes import Node

_NUMBER = re.compile(r"(\d+)$")
_FACT = "versions"
"""The fact of the ledger with the known versions."""
_STEP_SECONDS = 1e-6
"""The time between two versions that sampled the same answer."""


class KnownVersion(Struct):
    """A known version."""

    version: str
    since: float
    """When the version was announced, or when an answer with it first arrived, in seconds since the epoch."""
    is_announced: bool = False
    """True if the version was announced before any answer had it. Answers before that were then sampled by
    other weights."""


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

    def _find(self, at: float) -> int:
        """Return the position of the newest version at a time; -1 for the weights before the first known ones."""
        before = [place for place, item in enumerate(self.known) if item.since <= at]
        return before[-1] if before else -1 if self.known[0].is_announced else 0


def read_sampled(nodes: Iterable[Node]) -> SampledVersions:
    """Return the versions of the weights that sampled the answers of a rollout."""
    versions: dict[str, float] = {}
    unsigned: list[float] = []
    for node in nodes:
        if node.is_cached:
            continue
        for index, (_, version) in enumerate(node.versions):
            at = node.at + index * _STEP_SECONDS
            versions[version] = min(at, versions.get(version, at))
        if not node.versions:
            unsigned.append(node.asked_at)
    return SampledVersions(versions, min(unsigned, default=None))


def merge_sampled(sampled: Iterable[SampledVersions]) -> SampledVersions:
    """Return the versions of several rollouts as one value."""
    versions: dict[str, float] = {}
    times: list[float] = []
    for one in sampled:
        for version, at in one.versions.items():
            versions[version] = min(at, versions.get(version, at))
        times += [] if one.unsigned_at is None else [one.unsigned_at]
    return SampledVersions(versions, min(times, default=None))
