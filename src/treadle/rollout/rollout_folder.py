"""The folder of rollouts: its files, the configuration that it belongs to, and the groups that were delivered."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec

from treadle.export.groups import Group
from treadle.jobs.config_changes import Change
from treadle.jobs.job import LOSSES
from treadle.jobs.job_folder import JobFolder, StoredJob
from treadle.jobs.ledger import ItemStatus, JobCounts, Ledger, LedgerEntry
from treadle.journal.protocol import Journal
from treadle.journal.registry import open_journal
from treadle.rollout.collect import GroupReader
from treadle.rollout.held_out_scores import HeldOutScore, read_scores
from treadle.rollout.rollout_config import GroupSpec, RolloutConfig


class RolloutFolder(JobFolder[RolloutConfig], frozen=True):
    """The files of the rollouts of one configuration."""

    NOUN = SEAL = "rollouts"
    COMMAND = "treadle rollout"
    CONFIG = RolloutConfig
    FIXED = ("name", "seed", "tasks", "order", "group_size", "deliver", "tree", "journal")
    FOLLOWED = ("model", "command", "agent", "rewards")

    @property
    def groups(self) -> Path:
        """The delivered groups, one line of JSON for each: the ids, rewards and advantages of their rollouts."""
        return self.path / "groups.jsonl"


class Stored(StoredJob[RolloutConfig], frozen=True):
    """The stored content of a folder of rollouts."""

    counts: JobCounts
    entries: tuple[LedgerEntry, ...]
    """The delivered groups in the order in which they were counted."""
    held_out: tuple[HeldOutScore, ...] = ()
    """The scores of the held-out tasks."""


def read_stored(path: Path) -> Stored:
    """Return what is stored in the folder `path`. Raises: `ConfigError` if `path` is not a folder of rollouts."""
    with RolloutFolder(path).read() as (ledger, found):
        entries = sorted(ledger.entries(ItemStatus.KEPT), key=lambda entry: entry.at)
        config = found.config
        if not found.is_trusted:
            config = config.model_copy(update={"model": None})
        scores = read_scores(ledger.entries(is_beside=True), config.solved_at)
        return Stored(config, found.is_trusted, ledger.counts(), tuple(entries), tuple(scores))


def read_groups(path: Path, stored: Stored, journal: str | None = None) -> Iterator[Group]:
    """Yield the delivered groups of a folder, in the order in which they were counted, from its journal.

    `journal` may be the address of that journal with its password, which the folder does not have. Raises:
    `ConfigError` if the folder comes from elsewhere and names another journal; `JournalError`.
    """
    address = RolloutFolder(path).find_journal(stored, journal)
    with closing(open_journal(address, must_exist=True)) as opened:
        for entry in stored.entries:
            yield rebuild(stored.config, opened, entry)


def rebuild(config: RolloutConfig, journal: Journal, entry: LedgerEntry) -> Group:
    """Return a delivered group again, from the journal. Blocks. Raises: `RunNotFoundError`."""
    spec = msgspec.convert(entry.spec, GroupSpec)
    return GroupReader(config, journal).load(spec, entry.details)


def check_continued(
    config: RolloutConfig, ledger: Ledger, journal: Journal, *, retry_failed: bool = False
) -> list[Change]:
    """Check that the folder and the journal belong to the rollouts of `config`, record the configuration, and
    return what it changes for new rollouts.

    With `retry_failed`, the groups that were dropped are made again, with other seeds.
    Raises: `ConfigError` that names the keys that have changed.
    """
    changes = RolloutFolder(config.path).check_continued(config, ledger, journal)
    # Groups that failed because of the infrastructure are always tried again.
    ledger.reopen(ItemStatus.FAILED)
    if retry_failed:
        ledger.set(LOSSES, "{}")
        ledger.renew(ItemStatus.REJECTED, lambda spec: {**spec, "attempt": spec.get("attempt", 1) + 1})
    return changes
