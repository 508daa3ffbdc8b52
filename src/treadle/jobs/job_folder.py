"""The folder of a job that attempts tasks: its files, its configuration, and the check that it is continued as it
was begun.

The ledger has the configuration without secrets, with a seal that proves who wrote it. What a folder from elsewhere
names is not opened or loaded.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import msgspec
from msgspec import Struct

from treadle.core.errors import ConfigError
from treadle.core.texts.masking import MASK, hide_password
from treadle.jobs.config_changes import Change, find_changes, hide_toolset
from treadle.jobs.job import JobOptions
from treadle.jobs.ledger import Ledger
from treadle.jobs.progress import JobListener
from treadle.jobs.sections import AttemptSection
from treadle.journal.identity import is_sealed, make_seal
from treadle.journal.named_files import suggest_path
from treadle.journal.protocol import Journal
from treadle.journal.run_info import RunFilter
from treadle.models.config.model_parts import is_secret_url
from treadle.models.config.tables import ModelTable
from treadle.runs.retries import NO_RETRIES
from treadle.tasks.conversation_set import find_row_files, hash_rows
from treadle.workers.protocol import Workers

C = TypeVar("C", bound=AttemptSection)
_TASKS = "tasks"
"""The fact of the ledger that has the hashes of the list of tasks and of the files of rows."""


class StoredJob(Struct, Generic[C], frozen=True):
    """What is stored of a job in its folder."""

    config: C
    """The configuration, without values that may be secret."""
    is_trusted: bool
    """True if this user made the folder. If not, the files and modules that it names are not opened or loaded."""


class JobFolder(Struct, Generic[C], frozen=True):
    """The files of one job. A subclass names the jobs of its kind."""

    path: Path

    LEDGER: ClassVar[str] = "ledger.db"
    """The name of the ledger's file."""
    NOUN: ClassVar[str]
    """The name of such jobs in messages, such as `rollouts`."""
    COMMAND: ClassVar[str]
    """The command that makes such folders."""
    SEAL: ClassVar[str]
    """The fact of the ledger that proves who wrote its settings."""
    CONFIG: ClassVar[type[Any]]
    """The type of the configuration."""
    FIXED: ClassVar[Collection[str]]
    """The keys that cannot change when a job is continued: its runs, and what they are about, follow from them."""
    FOLLOWED: ClassVar[Collection[str]] = ()
    """The keys that new items follow if they change. People are told of such a change."""

    @property
    def ledger(self) -> Path:
        """The plan, and the outcome of each item."""
        return self.path / self.LEDGER

    @property
    def journal(self) -> Path:
        """The journal of the runs, unless the configuration names another one."""
        return self.path / "runs.db"

    def options(
        self,
        config: C,
        files: Mapping[str, Path] = {},
        *,
        workers: Workers | None = None,
        stop: asyncio.Event | None = None,
        listener: JobListener = lambda notice, progress: None,
    ) -> JobOptions:
        """Return the options of the job, whose attempts are made again by the job itself. `files` are those of the
        ledger; `workers` take the place of the configured ones."""
        return JobOptions(
            ledger=self.ledger,
            files=files,
            journal=config.journal or self.journal,
            limits=config.limits,
            window=config.window,
            workers=workers or config.workers,
            worker_retries=NO_RETRIES,
            stop=stop,
            listener=listener,
        )

    @contextmanager
    def read(self) -> Iterator[tuple[Ledger, StoredJob[C]]]:
        """Open the ledger for reading, and yield it with the configuration. Raises: `ConfigError` if this is no
        folder of such a job."""
        if not self.ledger.exists():
            below = [repr(str(item.parent)) for item in sorted(self.path.glob(f"*/{self.ledger.name}"))[:3]]
            advice = f"choose one below it, such as {', '.join(below)}" if below else ""
            hint = suggest_path(self.path, advice or f"give the folder that `{self.COMMAND} --out` wrote to")
            raise ConfigError(f"{str(self.path)!r} has no {self.NOUN}{hint}")
        with Ledger(self.ledger, is_readonly=True) as ledger:
            settings = ledger.get("settings")
            if settings is None:
                raise ConfigError(f"the ledger in {str(self.path)!r} has no {self.NOUN}; give another folder")
            is_trusted = is_sealed(ledger.get(self.SEAL) or "", self.SEAL, settings)
            yield ledger, StoredJob(self.CONFIG.model_validate_json(settings), is_trusted)

    def find_journal(self, stored: StoredJob[C], journal: str | None = None) -> str | Path:
        """Return the address of the journal of the runs; `journal` may be that address with its password.

        Raises: `ConfigError` if the folder comes from elsewhere and names another journal.
        """
        named = stored.config.journal
        if journal is not None and (named is None or hide_password(journal) == hide_password(named)):
            return journal
        if named is not None and not stored.is_trusted:
            raise ConfigError(
                f"the {self.NOUN} in {str(self.path)!r} come from elsewhere, and their runs are in the journal "
                f"{hide_password(named)!r}: name it with --journal if you trust it"
            )
        return named or self.journal

    def is_new(self, config: C, ledger: Ledger, journal: Journal) -> bool:
        """Return whether no run of the job was begun. What was planned before a mistake in the configuration ended
        it is forgotten then, so that another configuration may take its place."""
        if ledger.get("config") is not None and journal.runs(RunFilter(id_prefix=f"{config.name}-"), limit=1):
            return False
        return ledger.drop_plan()

    def check_continued(self, config: C, ledger: Ledger, journal: Journal) -> list[Change]:
        """Check that the folder and the journal belong to `config`, record it, and return what it changes for new
        items.

        Raises: `ConfigError` that names the keys that have changed.
        """
        is_new = self.is_new(config, ledger, journal)
        public, known = hide_secrets(config), ledger.get("config")
        if is_new and journal.runs(RunFilter(id_prefix=f"{config.name}-"), limit=1):
            raise ConfigError(
                f"the journal has runs of other {self.NOUN} with the name {config.name!r}; give another --name, or "
                "continue those in their folder"
            )
        described = msgspec.json.decode(public.model_dump_json(include=set(self.FIXED)))
        before = described if known is None else msgspec.json.decode(known)
        if before["journal"] is not None:  # folders of earlier versions have its password
            before["journal"] = hide_password(before["journal"])
        if "agent" in before:
            before["agent"]["tools"] = list(map(hide_toolset, before["agent"]["tools"]))
        if changes := list(find_changes({key: before.get(key) for key in described}, described)):
            changed = "; ".join(map(str, changes))
            raise ConfigError(
                f"the work in {str(config.path)!r} was begun with another configuration: {changed}. "
                "Give the same values, or another folder (--out)"
            )
        settings, last = public.model_dump_json(), None if is_new else ledger.get("settings")
        facts = {"config": msgspec.json.encode(described).decode(), "settings": settings}
        ledger.keep({**facts, self.SEAL: make_seal(self.SEAL, settings)})
        old, new = [msgspec.json.decode(text) for text in (last or settings, settings)]
        return [change for key in self.FOLLOWED for change in find_changes(old.get(key), new[key], key)]

    def check_tasks(
        self, ledger: Ledger, tasks: Sequence[str], others: Iterable[str] = (), rows: Iterable[str] = ()
    ) -> None:
        """Check that a job is continued with the tasks and files of rows that it was begun with, and record them if
        it is new. `others` are tasks that may change, but not the files of their rows; `rows` are further files.

        Raises: `ConfigError` that names what has changed.
        """
        paths = [*map(Path, rows), *find_row_files([*tasks, *others])]
        facts = {f"the file {str(path)!r}": hash_rows(path) for path in paths}
        facts["the list of tasks"] = sha256("\n".join(tasks).encode()).hexdigest()
        before = msgspec.json.decode(ledger.get(_TASKS) or "{}", type=dict[str, str])
        if changed := [name for name, value in facts.items() if before.get(name, value) != value]:
            raise ConfigError(
                f"{' and '.join(changed)} changed since the {self.NOUN} in {str(self.path)!r} were begun; put back "
                "what was there, or give another folder (--out)"
            )
        ledger.set(_TASKS, msgspec.json.encode(before | facts).decode())


def hide_secrets(config: C) -> C:
    """Return a configuration without what may be secret, for a file that others may read."""
    changes: dict[str, Any] = {}
    for name, hide in _HIDDEN.items():
        if (given := getattr(config, name, None)) is not None:
            if isinstance(given, dict):
                changes[name] = {key: hide(value) for key, value in given.items()}
            else:
                changes[name] = list(map(hide, given)) if isinstance(given, list) else hide(given)
    return config.model_copy(update=changes)


def _hide_model(model: str | ModelTable) -> str | ModelTable:
    if not isinstance(model, ModelTable):
        return model
    hidden = {"base_url": MASK} if model.base_url is not None and is_secret_url(model.base_url) else {}
    return model.model_copy(update={"headers": None, "extra": None, **hidden})


_HIDDEN: dict[str, Callable[[Any], Any]] = {
    "model": _hide_model,
    "models": _hide_model,
    "agent": lambda agent: agent.model_copy(update={"tools": list(map(hide_toolset, agent.tools))}),
    "sinks": hide_password,
    "journal": hide_password,
}
"""The keys that may have secrets, with the function that hides them."""
