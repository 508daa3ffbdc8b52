"""Datasets, rollouts and topics as pages in one file: what a path holds, and the answers that its page needs."""

from collections.abc import Callable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any, TypeAlias

from msgspec import UNSET, Struct
from msgspec.structs import replace

from treadle.core.errors import ConfigError, JournalError
from treadle.datagen.dataset.dataset_folder import DatasetFolder
from treadle.datagen.dataset.dataset_view import (
    ComparedDatasets,
    DatasetView,
    compare_datasets,
    make_dataset_view,
)
from treadle.datagen.topics.topic_files import load_topics
from treadle.datagen.topics.topics_view import TopicsView, make_topics_view
from treadle.evals.evaluation_folder import EvaluationFolder
from treadle.evals.evaluation_folder import read_stored as read_evaluation
from treadle.evals.evaluation_reports import EvaluationView, choose_runs, make_evaluation_view
from treadle.evals.evaluation_results import make_results
from treadle.export.groups import Group
from treadle.journal.registry import open_journal
from treadle.journal.run_info import RunFilter
from treadle.rollout.rollout_folder import RolloutFolder, Stored, read_stored, rebuild
from treadle.rollout.rollouts_view import RolloutsView, make_rollouts_view
from treadle.trajectory.tokens.trajectories import Decode
from treadle.viewer.bundle import encode_bundle, escape_part, write_bundle
from treadle.viewer.run_view import embed_runs

DataView: TypeAlias = "DatasetView | ComparedDatasets | RolloutsView | TopicsView | EvaluationPage"


_RUNS = 100
"""How many runs of an evaluation a page in one file has."""


class DataKind(StrEnum):
    """What a path holds."""

    DATASET = "dataset"
    EVALUATION = "evaluation"
    ROLLOUTS = "rollouts"
    TOPICS = "topics"


def find_kind(path: Path) -> DataKind | None:
    """Return what a path holds; `None` if it may be a journal or nothing."""
    if path.is_dir():
        if EvaluationFolder(path).ledger.exists():
            return DataKind.EVALUATION
        # A sink of rollouts may write a file with the name of that of a dataset's rows.
        if not RolloutFolder(path).groups.exists() and DatasetFolder(path).rows.exists():
            return DataKind.DATASET
        return DataKind.ROLLOUTS if RolloutFolder(path).ledger.exists() else None
    kinds = {".jsonl": DataKind.DATASET, ".parquet": DataKind.DATASET, ".json": DataKind.TOPICS}
    return kinds.get(path.suffix) if path.is_file() else None


def check_folder(path: Path) -> None:
    """Raise `ConfigError` if a path is a folder in which there is nothing that a page shows."""
    if not path.is_dir() or find_kind(path) is not None:
        return
    below = [str(item) for item in sorted(path.iterdir()) if item.is_dir() and find_kind(item) is not None]
    hint = f"; did you mean {' or '.join(map(repr, below[:3]))}?" if below else ""
    raise ConfigError(f"there is no dataset, no evaluation and no rollouts in {str(path)!r}{hint}")


def make_view(path: Path, other: Path | None = None, *, journal: str | None = None) -> DataView:
    """Return what a page in one file shows of a path, or of two datasets or evaluations.

    `journal` may be the address of the journal of rollouts or of an evaluation, with its password. Raises:
    `ConfigError`; `ExportError`; `JournalError`.
    """
    paths = [path] if other is None else [path, other]
    if DataKind.EVALUATION in map(find_kind, paths):
        return make_evaluation_page(paths, journal=journal)
    if other is not None:
        return compare_datasets(path, other)
    kind = find_kind(path)
    if kind is DataKind.DATASET:
        return make_dataset_view(path)
    if kind is DataKind.TOPICS:
        return make_topics_view(load_topics(path))
    return make_rollouts_page(path, journal=journal)


class EvaluationPage(Struct, frozen=True):
    """A page in one file about evaluations, with the runs that are a click away."""

    view: EvaluationView
    runs: dict[str, object]
    """The answers that the pages of these runs need, by their addresses."""

    @property
    def title(self) -> str:
        return self.view.title


def make_evaluation_page(paths: Sequence[Path], *, journal: str | None = None) -> EvaluationPage:
    """Return what a page in one file shows of one evaluation or two. It has their runs: failures of each kind
    first, as many as fit. `journal` is that of the first one. The second has no runs if its journal is not there,
    or if its runs have the ids of those of the first.

    Raises: `ConfigError`; `JournalError`.
    """
    stored = [read_evaluation(path) for path in paths]
    view = make_evaluation_view(*map(make_results, paths, stored))
    answers: dict[str, object] = {}
    listed: list[Any] = []
    has_runs: list[bool] = []
    known: set[str] = set()
    for number, (path, kept, results) in enumerate(zip(paths, stored, view.evaluations, strict=True)):
        found: Any = None
        own = {sample.run_id for sample in results.samples}
        if known & own:  # an address of the page leads to one run
            has_runs.append(False)
            continue
        known |= own
        try:
            address = EvaluationFolder(path).find_journal(kept, None if number else journal)
            with open_journal(address, must_exist=True) as opened:
                ids = choose_runs(results, _RUNS // len(paths))
                infos = opened.runs(RunFilter(run_ids=ids)) if ids else []
                found = embed_runs(opened, sorted(infos, key=lambda info: ids.index(info.run_id)))
        except (ConfigError, JournalError):
            if not number:
                raise
        has_runs.append(found is not None)
        if found is not None:
            listed += found["/v1/runs"]["data"]
            answers |= found
    answers["/v1/runs"] = {"object": "list", "data": listed, "has_more": False}
    return EvaluationPage(replace(view, has_runs=tuple(has_runs)), answers)


def make_rollouts_page(
    path: Path,
    *,
    decode: Decode | None = None,
    journal: str | None = None,
    on_group: Callable[[str], None] = lambda _: None,
) -> RolloutsView:
    """Return what a page in one file shows of a folder of rollouts.

    `decode` converts token ids to text; without it, the tokenizer of the rollouts' model is used if it is here.
    `on_group` is called with each group that was read. Raises: `ConfigError`; `ExportError`; `JournalError`.
    """
    stored = read_stored(path)
    address = RolloutFolder(path).find_journal(stored, journal)
    with open_journal(address, must_exist=True) as opened:

        def read() -> Iterator[Group]:
            for entry in stored.entries:
                group = rebuild(stored.config, opened, entry)
                yield group
                on_group(group.group_id)

        return make_rollouts_view(
            read(),
            name=stored.config.name,
            folder=str(path),
            dropped=stored.counts.reasons,
            held_out=stored.held_out,
            decode=decode or find_decode(stored),
            journal=opened,
        )


def find_decode(stored: Stored) -> Decode | None:
    """Return the function that decodes the token ids of rollouts; `None` if its files are not here."""
    try:
        return stored.config.find_decode()
    except ConfigError:
        return None


def embed(view: DataView) -> tuple[str, dict[str, object]]:
    """Return the address of the first page, and the answers that the pages need, by their addresses."""
    answers: dict[str, object]
    if isinstance(view, ComparedDatasets):
        answers = {f"/v1/view/datasets/{number}": dataset for number, dataset in enumerate(view.datasets)}
        return "#/datasets", {"/v1/view/comparison": view.rows, **answers}
    if isinstance(view, DatasetView):
        return "#/dataset/0", {"/v1/view/datasets/0": view}
    if isinstance(view, RolloutsView):
        bodies = {} if view.bodies is UNSET else view.bodies
        answers = {
            f"/v1/view/rollouts/{escape_part(group)}/{escape_part(run)}": body
            for (group, run), body in bodies.items()
        }
        return "#/rollouts", {"/v1/view/rollouts": replace(view, bodies=UNSET), **answers}
    if isinstance(view, EvaluationPage):
        return "#/evaluation", {"/v1/view/evaluation": view.view, **view.runs}
    return "#/topics", {"/v1/view/topics": view}


def make_page(path: Path, other: Path | None = None, *, journal: str | None = None) -> bytes:
    """Return the page of a path, or of two datasets or evaluations, as one HTML file.

    Raises: as `make_view` does; `NotBuiltError`.
    """
    return encode_page(make_view(path, other, journal=journal))


def encode_page(view: DataView) -> bytes:
    """Return the page of a view as one HTML file. Raises: `NotBuiltError`."""
    return encode_bundle(view.title, *embed(view))


def write_page(view: DataView, out: Path) -> Path:
    """Write the page of a view as one HTML file, and return its path.

    Raises: `NotBuiltError`; `ConfigError` if no file can be made.
    """
    return write_bundle(view.title, *embed(view), out)
