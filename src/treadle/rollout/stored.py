"""Groups that were delivered, read again from the folder of their rollouts."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import msgspec
from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.core.masking import hide_password
from treadle.engines.ledger import Counts, Entry, Ledger, Status
from treadle.export.groups import Group
from treadle.journal.identity import is_sealed, make_seal
from treadle.journal.protocol import Journal
from treadle.journal.registry import open_journal
from treadle.models.config.tables import ModelTable
from treadle.rollout.collect import Collector
from treadle.rollout.config import Config
from treadle.rollout.plan import GroupSpec

_SEAL = "rollouts"
"""The fact of the ledger that proves who wrote its settings."""


class Folder(Struct, frozen=True):
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
    """What the folder of rollouts has."""

    config: Config
    """The configuration, without what may be secret: the sinks, the settings of the model, and the password of the
    journal."""
    is_trusted: bool
    """Whether the user made the folder. What another one names is not opened or loaded."""
    counts: Counts
    entries: tuple[Entry, ...]
    """The delivered groups in the order in which they were counted."""


def read_stored(path: Path) -> Stored:
    """Return what is stored in the folder `path`. Raises: `ConfigError` if it is no folder of rollouts."""
    folder = Folder(path)
    if not folder.ledger.exists():
        raise ConfigError(
            f"{str(path)!r} has no rollouts; give the folder that `treadle rollout --out` wrote to"
        )
    with Ledger(folder.ledger, is_readonly=True) as ledger:
        settings = ledger.get("settings")
        if settings is None:
            raise ConfigError(f"the ledger in {str(path)!r} is not that of rollouts; give another folder")
        entries = sorted(ledger.entries(Status.KEPT), key=lambda entry: entry.at)
        config = Config.model_validate_json(settings)
        is_trusted = is_sealed(ledger.get(_SEAL) or "", _SEAL, settings)
        if not is_trusted:
            config = config.model_copy(update={"model": None})
        return Stored(config, is_trusted, ledger.counts(), tuple(entries))


def write_settings(ledger: Ledger, config: Config) -> None:
    """Store a configuration for `read_stored`."""
    model = config.model
    if isinstance(model, ModelTable):
        model = ModelTable(model=model.model, renderer=model.renderer)
    journal = None if config.journal is None else hide_password(config.journal)
    kept = config.model_copy(update={"model": model, "journal": journal, "sinks": []})
    settings = kept.model_dump_json()
    ledger.set("settings", settings)
    ledger.set(_SEAL, make_seal(_SEAL, settings))


def read_groups(path: Path, stored: Stored, journal: str | None = None) -> Iterator[Group]:
    """Yield the delivered groups of a folder, in the order in which they were counted, from its journal.

    `journal` is its address; by default the one that the folder names. Raises: `ConfigError` if the folder comes
    from elsewhere and names a journal; `JournalError`.
    """
    config = stored.config
    if journal is None and config.journal is not None and not stored.is_trusted:
        raise ConfigError(
            f"the rollouts in {str(path)!r} come from elsewhere, and their runs are in the journal "
            f"{config.journal!r}: name it with --journal if you trust it"
        )
    with closing(open_journal(journal or config.journal or Folder(path).journal, must_exist=True)) as opened:
        for entry in stored.entries:
            yield rebuild(config, opened, entry)


def rebuild(config: Config, journal: Journal, entry: Entry) -> Group:
    """Return a delivered group again, from the journal. Blocks. Raises: `RunNotFoundError`."""
    collector = Collector(config, journal)
    spec = msgspec.convert(entry.spec, GroupSpec)
    return collector.load(spec, entry.details["weight_version"])
