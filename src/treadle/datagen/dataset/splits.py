"""The splits of a dataset: no topic is in two of them, and a topic stays in its split when rows are added."""

from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import ExitStack
from hashlib import blake2b
from pathlib import Path
from shutil import rmtree

import msgspec
from msgspec import Struct

from treadle.core.errors import ConfigError, ExportError
from treadle.core.types import Role
from treadle.datagen.config.generation_config import GenerationConfig
from treadle.datagen.config.loading import read_config
from treadle.datagen.dataset.dataset_folder import SPLIT_NAME, DatasetFolder
from treadle.datagen.dataset.dataset_stats import read_topics
from treadle.datagen.dataset.entries import read_entries
from treadle.datagen.dataset.split_shares import Unions, apportion, assign
from treadle.datagen.topics.topic_graph import topic_id
from treadle.export.exporter import FORMATS
from treadle.export.parquet import require_arrow, write_parquet
from treadle.export.row_changes import describe_reason
from treadle.export.row_files import open_writer
from treadle.export.rows import Row
from treadle.export.whole import write_whole


class Split(Struct, frozen=True):
    """One split as it was written."""

    name: str
    share: float
    """The share that was asked for, from 0 to 1."""
    wanted: int
    """The number of rows that comes closest to this share."""
    rows: int
    topics: int


class Splits(Struct, frozen=True, kw_only=True):
    splits: tuple[Split, ...]
    files: tuple[str, ...]
    """The names of the files that were written."""
    largest_group: int = 0
    """The number of rows of the largest group of topics that has to stay together."""
    kept: int = 0
    """How many topics kept the split that they had before."""
    left_out: dict[str, str] = {}
    """For each file that lacks rows or turns of rows: how many, and the reasons."""

    @property
    def is_exact(self) -> bool:
        """True if each split has the number of rows that was asked for."""
        return all(split.rows == split.wanted for split in self.splits)


class SplitPlan(Struct, frozen=True, kw_only=True):
    """The settings by which a dataset is split and written."""

    shares: dict[str, float]
    formats: tuple[str, ...] = ("trl",)
    seed: int = 0
    parquet: bool = False

    @classmethod
    def of(cls, config: GenerationConfig) -> "SplitPlan":
        """Return the plan that a configuration describes."""
        output = config.output
        return cls(
            shares=dict(output.splits),
            formats=tuple(output.formats),
            seed=config.seed,
            parquet=output.parquet,
        )

    @classmethod
    def find(cls, path: Path) -> "SplitPlan":
        """Return the plan of a dataset's folder: the plan of its configuration, or else that of the last splits.

        A dataset with neither has one split. Raises: `ConfigError` if the configuration cannot be read.
        """
        if (config := read_config(path)) is not None:
            return cls.of(config)
        record = read_written(path)
        if not record.shares:
            return cls(shares={"train": 1.0})
        formats = tuple(dict.fromkeys(file.format for file in record.files))
        has_parquet = any(file.name.endswith(".parquet") for file in record.files)
        return cls(shares=record.shares, formats=formats, seed=record.seed, parquet=has_parquet)


class SplitFile(Struct, frozen=True):
    name: str
    split: str
    format: str


class WrittenSplits(Struct):
    """The splits as they were written last, which are the file `splits.json`."""

    seed: int = 0
    shares: dict[str, float] = {}
    topics: dict[str, str] = {}
    """The split of each topic, by id; of rows without a topic, by a hash of what the user asked."""
    rows: dict[str, int] = {}
    """The number of rows of each split."""
    files: list[SplitFile] = []
    left_out: dict[str, str] = {}
    """For each file that lacks rows or turns of rows: how many, and the reasons."""

    def count_topics(self) -> dict[str, int]:
        counts = Counter(self.topics.values())
        return {name: counts[name] for name in self.shares}

    def by_format(self) -> dict[str, dict[str, str]]:
        """Return the pattern of the file of each split, by format. Parquet is preferred to JSON lines."""
        found: dict[str, dict[str, str]] = {}
        for file in self.files:
            is_folder = "." not in file.name.removeprefix(f"{file.split}.{file.format}")
            pattern = f"{file.name}/*.jsonl" if is_folder else file.name
            found.setdefault(file.format, {})[file.split] = pattern
        return found


def read_written(folder: Path) -> WrittenSplits:
    """Return the splits of a dataset's folder; empty if they have not been written yet, or cannot be read."""
    try:
        return msgspec.json.decode(DatasetFolder(folder).splits.read_bytes(), type=WrittenSplits)
    except (OSError, msgspec.DecodeError):
        return WrittenSplits()


def write_splits(folder: Path, config: GenerationConfig) -> Splits:
    """Write the rows of a dataset by split and format, as its configuration says; see `split_rows`."""
    return split_rows(folder, folder, SplitPlan.of(config))


def split_rows(path: Path, out: Path, plan: SplitPlan, *, is_fresh: bool = False) -> Splits:
    """Write the rows of a dataset or a file to the folder `out`, one file for each split and format.

    Topics keep the splits that `out` has them in, if shares and seed are the same, unless `is_fresh`. A row that a
    format cannot hold is left out of that format's file. A split without rows gets no file.

    Raises: `ConfigError` if a format is unknown or the shares are wrong; as `read_entries` does.
    """
    _check(plan)
    record = read_written(out)
    is_continued = not is_fresh and (record.seed, record.shares) == (plan.seed, plan.shares)
    before = record.topics if is_continued else {}
    sizes, unions = _group(path)
    found = _assign(sizes, unions, plan, before)
    out.mkdir(parents=True, exist_ok=True)
    files, left_out = _write_files(path, out, plan, found)
    rows: Counter[str] = Counter()
    groups: Counter[str] = Counter()
    for key, size in sizes.items():
        rows[found[key]] += size
        groups[unions.find(key)] += size
    made = WrittenSplits(plan.seed, plan.shares, found, dict(rows), files, left_out)
    write_whole([msgspec.json.encode(made)], DatasetFolder(out).splits)
    for name in {file.name for file in record.files} - {file.name for file in files}:
        _remove(out / Path(name).name)
    wanted, topics = apportion(sizes.total(), plan.shares), Counter(found.values())
    whole = sum(plan.shares.values())
    return Splits(
        splits=tuple(
            [
                Split(name, share / whole, wanted[name], rows[name], topics[name])
                for name, share in plan.shares.items()
            ]
        ),
        files=tuple([file.name for file in files]),
        largest_group=max(groups.values(), default=0),
        kept=sum(before.get(key) == name for key, name in found.items()),
        left_out=left_out,
    )


def _check(plan: SplitPlan) -> None:
    """Check that all splits and formats can be written. Raises: `ConfigError`."""
    apportion(0, plan.shares)
    for name in plan.shares:
        if not SPLIT_NAME.fullmatch(name):
            raise ConfigError(f"a split cannot be called {name!r}; use letters, digits and underscores")
    for name in plan.formats:
        FORMATS.load(name)
    if plan.parquet:
        require_arrow()


def key_of(row: Row) -> str:
    """Return the id of a row's topic. For a row without a topic, return a hash of the user's request."""
    sample = row.lineage.sample
    if sample is not None and sample.topic_id:
        return sample.topic_id
    asked = next((message.content for message in row.messages if message.role is Role.USER), "")
    return "asked-" + blake2b(asked.encode(), digest_size=8).hexdigest()


def _group(path: Path) -> tuple[Counter[str], Unions]:
    """Return the number of rows of each topic, and the topics that have to stay together. Topics stay together if
    one is the other's subtopic, in the paths of the rows or by a cross-link of the graph."""
    sizes: Counter[str] = Counter()
    paths: dict[str, tuple[str, ...]] = {}
    for entry in read_entries(path):
        key, sample = key_of(entry.row), entry.row.lineage.sample
        sizes[key] += 1
        if sample is not None and sample.topic:
            paths.setdefault(key, sample.topic)
    unions = Unions()
    for key, names in paths.items():
        for length in range(1, len(names)):
            if (above := topic_id(names[:length])) in sizes:
                unions.join(key, above)
    if (graph := read_topics(path)) is not None:
        for key in sizes.keys() & graph.topics.keys():
            for parent in graph.ancestors(key) & sizes.keys():
                unions.join(key, parent)
    return sizes, unions


def _assign(sizes: Counter[str], unions: Unions, plan: SplitPlan, old: Mapping[str, str]) -> dict[str, str]:
    """Return the split of each topic; a group stays in the split that most of its topics had before."""
    groups: Counter[str] = Counter()
    before: dict[str, list[str]] = defaultdict(list)
    for key, size in sizes.items():
        group = unions.find(key)
        groups[group] += size
        if key in old:
            before[group].append(old[key])
    fixed = {group: Counter(names).most_common(1)[0][0] for group, names in before.items()}
    found = assign(groups, plan.shares, plan.seed, fixed)
    return {key: found[unions.find(key)] for key in sizes}


def _write_files(
    path: Path, out: Path, plan: SplitPlan, found: Mapping[str, str]
) -> tuple[list[SplitFile], dict[str, str]]:
    """Write the rows, and return the files and the rows that each file lacks."""
    places = {(split, name): find_place(out, split, name) for split in plan.shares for name in plan.formats}
    places = {key: place for key, place in places.items() if key[0] in set(found.values())}
    refused: dict[str, Counter[str]] = defaultdict(Counter)
    with ExitStack() as stack:
        for place in places.values():
            if place.is_dir():
                rmtree(place)
        writers = {key: stack.enter_context(open_writer(key[1], place)) for key, place in places.items()}
        for entry in read_entries(path):
            split = found[key_of(entry.row)]
            for name in plan.formats:
                try:
                    writers[split, name].write(entry.row)
                except ExportError as error:
                    refused[places[split, name].name][describe_reason(error)] += 1
    for key, writer in writers.items():
        if not writer.count:
            # Loaders refuse a dataset that has a file without rows.
            _remove(places.pop(key))
    files = [SplitFile(place.name, *key) for key, place in places.items()]
    told = {name: [_tell_reasons(reasons)] for name, reasons in refused.items()}
    for key, writer in writers.items():
        for count, text in (
            (writer.shortened, "some turns of {}: those that are not to be trained on"),
            (writer.unweighted, "the weight of {}, for which the format has no place"),
        ):
            if count:
                told.setdefault(places[key].name, []).append(text.format(_count_rows(count)))
    lacks = {name: "; ".join(texts) for name, texts in told.items()}
    if plan.parquet:
        for (split, name), place in places.items():
            if place.is_file():
                target = DatasetFolder(out).split(split, name, "parquet")
                try:
                    write_parquet(place, target, name)
                except ExportError as error:
                    # The rows are in the JSON lines, so this must not be the end of a long generation.
                    lacks[target.name] = f"all rows: {error}"
                else:
                    files.append(SplitFile(target.name, split, name))
    return files, lacks


def _remove(place: Path) -> None:
    """Remove a file, or a folder with a file for each row, if it is there."""
    if place.is_dir():
        rmtree(place)
    place.unlink(missing_ok=True)


def _count_rows(count: int) -> str:
    return "1 row" if count == 1 else f"{count:,} rows"


def _tell_reasons(reasons: Counter[str]) -> str:
    """Return how many rows are left out, and why; if there are several reasons, how many for each."""
    told = [
        f"{count:,} × {reason}" if len(reasons) > 1 else reason for reason, count in reasons.most_common()
    ]
    return f"{_count_rows(reasons.total())}: {'; '.join(told)}"


def find_place(out: Path, split: str, format: str) -> Path:
    """Return the file of a split in a format; a folder if each row of the format is a file of its own."""
    place = DatasetFolder(out).split(split, format)
    return place.with_suffix("") if FORMATS.load(format).has_own_files else place
