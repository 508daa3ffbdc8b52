"""The folder of rollouts: its files, the configuration that it belongs to, and the groups that were delivered."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.core.masking import hide_password
from treadle.export.groups import Group
from treadle.jobs.job import LOSSES
from treadle.jobs.ledger import ItemStatus, JobCounts, Ledger, LedgerEntry, check_unchanged
from treadle.jobs.sections import hide_secrets
from treadle.journal.identity import is_sealed, make_seal
from treadle.journal.protocol import Journal
from treadle.journal.registry import open_journal
from treadle.journal.run_info import RunFilter
from treadle.rollout.collect import GroupReader
from treadle.rollout.held_out_scores import HeldOutScore, read_scores
from treadle.rollout.rollout_config import GroupSpec, RolloutConfig

_SEAL = "rollouts"
"""The fact of the ledger that proves who wrote its settings."""
_FIXED = ("name", "seed", "tasks", "order", "group_size", "deliver", "tree", "journal")
"""The keys that cannot change when rollouts are continued: the ids of runs, and what they are about, follow from
them."""


class RolloutFolder(Struct, frozen=True):
    """The files of the rollouts of one configuration."""

    path: Path

    @property
    def ledger(self) -> Path:
        """The plan, and the outcome of each group."""
        return self.path / "ledger.db"

    @property
    def groups(self) -> Path:
        """The delivered groups, one line of JSON for each: the ids, rewards and advantages of their rollouts."""
        return self.path / "groups.jsonl"

    @property
    def journal(self) -> Path:
        """The journal of the runs, unless the configuration names another one."""
        return self.path / "runs.db"


class Stored(Struct, frozen=True):
    """The stored content of a folder of rollouts."""

    config: RolloutConfig
    """The configuration, without values that may be secret."""
    is_trusted: bool
    """True if this user made the folder. If not, the files and modules that it names are not opened or loaded."""
    counts: JobCounts
    entries: tuple[LedgerEntry, ...]
    """The delivered groups in the order in which they were counted."""
    held_out: tuple[HeldOutScore, ...] = ()
    """The scores of the held-out tasks."""


def read_stored(path: Path) -> Stored:
    """Return what is stored in the folder `path`. Raises: `ConfigError` if `path` is not a folder of rollouts."""
    folder = RolloutFolder(path)
    if not folder.ledger.exists():
        raise ConfigError(
            f"{str(path)!r} has no rollouts; give the folder that `treadle rollout --out` wrote to"
        )
    with Ledger(folder.ledger, is_readonly=True) as ledger:
        settings = ledger.get("settings")
        if settings is None:
            raise ConfigError(f"the ledger in {str(path)!r} is not a ledger of rollouts; give another folder")
        entries = sorted(ledger.entries(ItemStatus.KEPT), key=lambda entry: entry.at)
        config = RolloutConfig.model_validate_json(settings)
        is_trusted = is_sealed(ledger.get(_SEAL) or "", _SEAL, settings)
        if not is_trusted:
            config = config.model_copy(update={"model": None})
        scores = read_scores(ledger.entries(is_beside=True), config.solved_at)
        return Stored(config, is_trusted, ledger.counts(), tuple(entries), tuple(scores))


def read_groups(path: Path, stored: Stored, journal: str | None = None) -> Iterator[Group]:
    """Yield the delivered groups of a folder, in the order in which they were counted, from its journal.

    `journal` may be the address of that journal with its password, which the folder does not have. Raises:
    `ConfigError` if the folder comes from elsewhere and names another journal; `JournalError`.
    """
    config = stored.config
    address = config.journal or RolloutFolder(path).journal
    if journal is not None and hide_password(journal) == config.journal:
        address = journal
    elif config.journal is not None and not stored.is_trusted:
        raise ConfigError(
            f"the rollouts in {str(path)!r} come from elsewhere, and their runs are in the journal "
            f"{config.journal!r}: name it with --journal if you trust it"
        )
    with closing(open_journal(address, must_exist=True)) as opened:
        for entry in stored.entries:
            yield rebuild(config, opened, entry)


def rebuild(config: RolloutConfig, journal: Journal, entry: LedgerEntry) -> Group:
    """Return a delivered group again, from the journal. Blocks. Raises: `RunNotFoundError`."""
    collector = GroupReader(config, journal)
    spec = msgspec.convert(entry.spec, GroupSpec)
    return collector.load(spec, entry.details["weight_version"])


def _without_secrets(config: RolloutConfig) -> RolloutConfig:
    """Return the configuration without what may be secret: it is kept to read the groups again, which needs none of
    it."""
    changes: dict[str, object] = {"sinks": [hide_password(sink) for sink in config.sinks]}
    if config.journal is not None:
        changes["journal"] = hide_password(config.journal)
    changes["model"] = hide_secrets(config.model)
    return config.model_copy(update=changes)


def check_continued(
    config: RolloutConfig, ledger: Ledger, journal: Journal, *, retry_failed: bool = False
) -> None:
    """Check that the folder and the journal belong to the rollouts of `config`, and record the configuration.

    With `retry_failed`, the groups that were dropped are made again, with other seeds.
    Raises: `ConfigError` that names the keys that have changed.
    """
    config = _without_secrets(config)
    if (known := ledger.get("config")) is not None:
        # Folders of earlier versions have the journal's address with its password.
        before = msgspec.json.decode(known)
        before["journal"] = before["journal"] and hide_password(before["journal"])
        ledger.set("config", msgspec.json.encode(before).decode())
    elif journal.runs(RunFilter(id_prefix=f"{config.name}-"), limit=1):
        raise ConfigError(
            f"the journal has runs of other rollouts with the name {config.name!r}; give another --name, or "
            "continue those in their folder"
        )
    described = msgspec.json.decode(config.model_dump_json(include=set(_FIXED)))
    check_unchanged(ledger, described, config.path)
    settings = config.model_dump_json()
    ledger.set("settings", settings)
    ledger.set(_SEAL, make_seal(_SEAL, settings))
    # Groups that failed because of the infrastructure are always tried again.
    ledger.reopen(ItemStatus.FAILED)
    if retry_failed:
        ledger.set(LOSSES, "{}")
        ledger.renew(ItemStatus.REJECTED, lambda spec: {**spec, "attempt": spec.get("attempt", 1) + 1})
