"""The datasets, rollouts, evaluations and topics that `treadle view` was started with, for the pages that ask
for them.

Files that have changed are read again. The paths come from the command line only, and never from a request.
"""

from collections import OrderedDict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from treadle.core.errors import ConfigError, JournalError
from treadle.core.texts.masking import hide_password
from treadle.datagen.dataset.dataset_folder import DatasetFolder
from treadle.datagen.dataset.dataset_view import ComparedRows, DatasetView, FoundRows, RowIndex, compare_rows
from treadle.datagen.topics.topic_files import load_topics
from treadle.datagen.topics.topics_view import TopicsView, make_topics_view
from treadle.evals.evaluation_folder import EvaluationFolder
from treadle.evals.evaluation_folder import read_stored as read_evaluation
from treadle.evals.evaluation_reports import EvaluationView, make_evaluation_view
from treadle.evals.evaluation_results import read_results
from treadle.export.groups import Group
from treadle.http.locks import new_lock
from treadle.journal.named_files import suggest_path
from treadle.journal.protocol import Journal
from treadle.journal.registry import DEFAULT_PATH, open_journal
from treadle.rollout.rollout_folder import RolloutFolder, read_stored, rebuild
from treadle.rollout.rollouts_view import GroupFacts, RolloutBody, RolloutsView, find_facts, write_rollout
from treadle.trajectory.tokens.trajectories import Decoders, load_decoders
from treadle.viewer.data_pages import DataKind, find_decode, find_kind
from treadle.viewer.token_views import load_group

_KEPT_GROUPS = 4
_START = {
    DataKind.DATASET: "#/dataset/0",
    DataKind.EVALUATION: "#/evaluation",
    DataKind.ROLLOUTS: "#/rollouts",
    DataKind.TOPICS: "#/topics",
}
_PAIRED = ({DataKind.DATASET}, {DataKind.EVALUATION})
"""The kinds that can be compared."""


_ADVICE = "give one or two journals, datasets or evaluations, the folder of rollouts, or a file of topics"


class ViewedData:
    """What the pages show beside runs. Its methods block, and several threads may call them."""

    def __init__(self, paths: Sequence[Path] = ()) -> None:
        """Look at what the paths hold. Raises: `ConfigError` if they cannot be shown together."""
        for path in paths:
            if not path.exists():
                raise ConfigError(f"there is no {str(path)!r}{suggest_path(path) or ';'} {_ADVICE}")
        kinds = [find_kind(path) for path in paths]
        if None in kinds or (len(paths) > 1 and set(kinds) not in _PAIRED) or len(paths) > 2:
            raise ConfigError(f"{_ADVICE}; not " + " and ".join([repr(str(path)) for path in paths]))
        self._kind = kinds[0] if kinds else None
        self._paths = tuple(paths)
        self._journals: tuple[str, ...] = ()
        """The journals that are open, as people know them: two if the page shows the runs of both."""
        self._lock = new_lock()
        self._datasets: dict[int, RowIndex] = {}
        self._compared: ComparedRows | None = None
        self._facts: dict[int, GroupFacts] = {}
        """The facts of the groups that were read, by their numbers in the plan."""
        self._groups: OrderedDict[str, Group] = OrderedDict()

    @contextmanager
    def open_journals(self, given: Sequence[str]) -> Iterator[list[Journal]]:
        """Open the given journals, or the default one; or those of the paths, where `given` is that of the first.

        The journal of the second path is left out if it cannot be opened. Raises: `JournalError`; `ConfigError` if
        an evaluation or rollouts come from elsewhere and name another journal.
        """
        names: list[str | None] = [*given] or [None]
        if self._paths and not given:
            # A file of rows or of topics has no runs.
            names = [self._find_journal(self._paths[0]) or "memory:"]
        with ExitStack() as stack:
            opened = [stack.enter_context(open_journal(name, must_exist=True)) for name in names]
            for path in self._paths[1:]:
                with suppress(ConfigError, JournalError):
                    name = self._find_journal(path)
                    if name is not None and name not in names:
                        opened.append(stack.enter_context(open_journal(name, must_exist=True)))
                        names.append(name)
            self._journals = tuple([hide_password(name or DEFAULT_PATH) for name in names])
            yield opened

    def _find_journal(self, path: Path) -> str | None:
        """Return the address of the journal of the runs of a path; `None` if there is no such file.

        Raises: `ConfigError` if they come from elsewhere and name another journal.
        """
        if self._kind is DataKind.DATASET:
            found = DatasetFolder(path).journal
            return str(found) if path.is_dir() and found.exists() else None
        if self._kind is DataKind.EVALUATION:
            return str(EvaluationFolder(path).find_journal(read_evaluation(path)))
        if self._kind is not DataKind.ROLLOUTS:
            return None
        return str(RolloutFolder(path).find_journal(read_stored(path)))

    def describe(self) -> dict[str, Any]:
        """Return the pages that have data, the first one, and the journals if they are two."""
        pages = ["runs"] if self._kind is not DataKind.TOPICS else []
        told = {"journals": self._journals} if len(self._journals) == 2 else {}
        if self._kind is None:
            return {"pages": pages, "start": "#/runs", **told}
        both = len(self._paths) == 2 and self._kind is DataKind.DATASET
        pages += [self._kind.value, *(["datasets"] if both else [])]
        return {"pages": pages, "start": "#/datasets" if both else _START[self._kind], **told}

    def dataset(self, number: int) -> DatasetView:
        """Return a dataset without its rows."""
        return self._index(number).view

    def _index(self, number: int) -> RowIndex:
        if self._kind is not DataKind.DATASET or not 0 <= number < len(self._paths):
            raise ConfigError(f"there is no dataset {number}; `treadle view FOLDER` shows one")
        with self._lock:
            found = self._datasets.get(number)
            if found is None or not found.is_current:
                self._datasets[number] = found = RowIndex(self._paths[number])
                self._compared = None
            return found

    def find_rows(
        self, number: int, words: str, chosen: Mapping[str, str], offset: int, limit: int
    ) -> FoundRows:
        """Return rows of a dataset; see `RowIndex.find`."""
        return self._index(number).find(words, chosen, offset, limit)

    def read_row(self, number: int, row: int, *, is_rejected: bool) -> dict[str, Any] | None:
        """Return what a row shows when it is opened; `None` if there is no such row."""
        return self._index(number).read(row, is_rejected=is_rejected)

    def comparison(self) -> ComparedRows:
        """Return the comparison of two datasets, row by row."""
        if len(self._paths) < 2:
            raise ConfigError("there are no two datasets; `treadle view ONE OTHER` shows two")
        views = self.dataset(0), self.dataset(1)
        if self._compared is None:
            self._compared = compare_rows(self._paths[0], self._paths[1], views)
        return self._compared

    def evaluation(self) -> EvaluationView:
        """Return the evaluation, or the two that are compared."""
        if self._kind is not DataKind.EVALUATION:
            raise ConfigError("there is no evaluation; `treadle view FOLDER` shows one")
        view = make_evaluation_view(*map(read_results, self._paths))
        if len(self._paths) < 2 or len(self._journals) == 2:
            return replace(view, has_runs=(True,) * len(self._paths))
        # The second one may share the journal of the first.
        with suppress(ConfigError):
            first, second = map(self._find_journal, self._paths)
            return replace(view, has_runs=(True, first == second))
        return replace(view, has_runs=(True, False))

    def topics(self) -> TopicsView:
        if self._kind is not DataKind.TOPICS:
            raise ConfigError("there are no topics; `treadle view topics.json` shows some")
        return make_topics_view(load_topics(self._paths[0]))

    def rollouts(self, journal: Journal, after: int, limit: int) -> RolloutsView:
        """Return at most `limit` of the groups that are delivered so far, without the first `after` of them and
        without tokens."""
        if self._kind is not DataKind.ROLLOUTS:
            raise ConfigError("there are no rollouts; `treadle view FOLDER` shows those in a folder")
        path = self._paths[0]
        stored = read_stored(path)
        entries = stored.entries[after : after + limit]
        with self._lock:
            for entry in entries:
                if entry.number not in self._facts:
                    self._facts[entry.number] = find_facts(rebuild(stored.config, journal, entry))
            groups = [self._facts[entry.number] for entry in entries]
        return RolloutsView(
            name=stored.config.name,
            folder=str(path),
            groups=groups,
            delivered=len(stored.entries),
            dropped=dict(stored.counts.reasons),
            held_out=list(stored.held_out),
        )

    def rollout(self, journal: Journal, group_id: str, run_id: str) -> RolloutBody | None:
        """Return the messages and the tokens of a rollout; `None` if there is no such rollout."""
        with self._lock:
            group = self._groups.pop(group_id, None) or self._load_group(journal, group_id)
            if self._kind is DataKind.ROLLOUTS:
                # The groups of a folder do not change.
                self._groups[group_id] = group
            if len(self._groups) > _KEPT_GROUPS:
                self._groups.popitem(last=False)
        found = next((item for item in group.rollouts if item.run_id == run_id), None)
        return None if found is None else write_rollout(found, self._find_decoders(journal, run_id), journal)

    def _load_group(self, journal: Journal, group_id: str) -> Group:
        stored = read_stored(self._paths[0]) if self._kind is DataKind.ROLLOUTS else None
        for entry in () if stored is None else stored.entries:
            known = self._facts.get(entry.number)
            if stored is not None and known is not None and known.group_id == group_id:
                return rebuild(stored.config, journal, entry)
        return load_group(journal, group_id, {})

    def _find_decoders(self, journal: Journal, run_id: str) -> Decoders:
        if self._kind is DataKind.ROLLOUTS:
            return find_decode(read_stored(self._paths[0]))
        trusted = journal.is_trusted(run_id)
        return load_decoders(event.body for event in journal.read(run_id)) if trusted else None

    def group(self, journal: Journal, group_id: str) -> RolloutsView:
        """Return the runs of the journal with this label `group` as one group, with advantages within it."""
        group = load_group(journal, group_id, {})
        groups = [find_facts(group)] if group.rollouts else []
        return RolloutsView(name=group_id, folder="", groups=groups, delivered=len(groups), dropped={})
