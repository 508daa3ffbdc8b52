"""Splits by topic: no topic is in two of them, the shares are met, and topics keep their split."""

from collections import Counter
from pathlib import Path
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.datagen.dataset import made

from treadle import ConfigError
from treadle.datagen.dataset.dataset_folder import DatasetFolder
from treadle.datagen.dataset.split_shares import Unions, apportion, assign
from treadle.datagen.dataset.splits import (
    SplitPlan,
    Splits,
    read_written,
    split_rows,
    write_splits,
)
from treadle.datagen.topics.topic_files import save_topics
from treadle.datagen.topics.topic_graph import Topic, TopicGraph, topic_id
from treadle.export import FORMATS, Row, read_rows
from treadle.export.exporter import ColumnType
from treadle.export.row_files import read_objects

SHARES = {"train": 0.8, "test": 0.2}
PLAN = SplitPlan(shares=SHARES)


def topics_in(out: Path, name: str) -> Counter[str]:
    with DatasetFolder(out).split(name, "trl").open("rb") as file:
        samples = [row.lineage.sample for row in read_rows(file, "trl")]
    return Counter(sample.topic_id for sample in samples if sample is not None)


def sizes_of(splits: Splits) -> dict[str, int]:
    return {split.name: split.rows for split in splits.splits}


def test_no_topic_is_in_two_splits_and_no_row_is_lost(tmp_path: Path) -> None:
    source = made.plain_folder(tmp_path / "d", 300, leaves=30)
    splits = split_rows(source, tmp_path / "out", PLAN)
    train, test = (topics_in(tmp_path / "out", name) for name in SHARES)
    assert not train.keys() & test.keys()
    assert train.total() + test.total() == 300
    assert sizes_of(splits) == {"train": 240, "test": 60}
    assert splits.is_exact


@given(
    st.dictionaries(st.text("abc", min_size=1, max_size=6), st.integers(1, 9), min_size=1, max_size=40),
    st.integers(0, 5),
)
def test_shares_are_as_exact_as_single_exchanges_can_make_them(sizes: dict[str, int], seed: int) -> None:
    shares = {"train": 0.7, "valid": 0.1, "test": 0.2}
    found = assign(sizes, shares, seed)
    assert found.keys() == sizes.keys()
    counts = Counter(dict.fromkeys(shares, 0))
    for key, name in found.items():
        counts[name] += sizes[key]
    wanted = apportion(sum(sizes.values()), shares)
    for name, count in counts.items():
        assert abs(count - wanted[name]) <= 3 * max(sizes.values())
    if set(sizes.values()) == {1}:
        assert dict(counts) == wanted


def test_the_largest_remainder_gets_the_rows_that_are_left() -> None:
    assert apportion(10, {"a": 0.56, "b": 0.44}) == {"a": 6, "b": 4}
    assert apportion(10, {"train": 8, "valid": 1, "test": 1}) == {"train": 8, "valid": 1, "test": 1}
    assert sum(apportion(101, {"a": 1, "b": 1, "c": 1}).values()) == 101
    with pytest.raises(ConfigError, match="more than 0"):
        apportion(1, {"a": 0.0})


def test_the_seed_decides_and_the_order_of_the_rows_does_not(tmp_path: Path) -> None:
    rows = [made.plain_row(number, leaves=40) for number in range(1, 201)]
    one = made.write_rows(tmp_path / "one.jsonl", rows)
    two = made.write_rows(tmp_path / "two.jsonl", rows[::-1])
    split_rows(one, tmp_path / "a", PLAN)
    split_rows(two, tmp_path / "b", PLAN)
    split_rows(one, tmp_path / "c", SplitPlan(shares=SHARES, seed=1))
    assert topics_in(tmp_path / "a", "test") == topics_in(tmp_path / "b", "test")
    assert topics_in(tmp_path / "a", "test") != topics_in(tmp_path / "c", "test")


def test_topics_keep_their_split_when_rows_are_added(tmp_path: Path) -> None:
    split_rows(made.plain_folder(tmp_path / "d", 100, leaves=20), tmp_path / "out", PLAN)
    before = topics_in(tmp_path / "out", "test").keys()
    more = made.plain_folder(tmp_path / "d", 400, leaves=50)
    splits = split_rows(more, tmp_path / "out", PLAN)
    after = topics_in(tmp_path / "out", "test").keys()
    assert before <= after
    assert splits.kept == 20
    assert splits.is_exact


def test_the_hash_alone_keeps_most_topics_in_their_split(tmp_path: Path) -> None:
    few, many = ({str(number): 1 for number in range(count)} for count in (1000, 1100))
    one, two = assign(few, SHARES, 3), assign(many, SHARES, 3)
    assert sum(one[key] == two[key] for key in few) > 950


def test_a_subtopic_of_a_topic_with_rows_stays_with_it(tmp_path: Path) -> None:
    path = ("Shop", "Returns")
    below = ((*path, "Refunds"), (*path, "Refunds", "Late"))
    topics = [path, *below, ("Shop", "Mail", "Returns")] * 3
    rows = [
        made.plain_row(number, topic=topic, topic_id=topic_id(topic))
        for number, topic in enumerate(topics, 1)
    ]
    rows += [made.plain_row(number, leaves=6) for number in range(20, 30)]
    source = made.write_rows(tmp_path / "rows.jsonl", rows)
    together = {topic_id(topic) for topic in (path, *below)}
    for seed in range(8):
        splits = split_rows(
            source, tmp_path / "out", SplitPlan(shares={"train": 0.5, "test": 0.5}, seed=seed)
        )
        for name in ("train", "test"):
            assert len(together & topics_in(tmp_path / "out", name).keys()) in (0, 3)
        assert splits.largest_group == 9


def test_cross_links_of_the_topics_count_too(tmp_path: Path) -> None:
    source = made.plain_folder(tmp_path / "d", 40, leaves=4)
    leaves = [made.path_of(number) for number in range(4)]
    paths = dict.fromkeys(path[:length] for path in leaves for length in (1, 2, 3))
    ids = {path: topic_id(path) for path in paths}
    topics = {
        key: Topic(topic_id=key, text=path[-1], path=path, parents=[ids[path[:-1]]] if path[1:] else [])
        for path, key in ids.items()
    }
    for path, key in ids.items():
        topics[key].children = [ids[other] for other in paths if other[:-1] == path]
    topics[ids[leaves[0]]].parents.append(ids[leaves[3]])
    graph = TopicGraph(root_id=ids["Shop",], topics=topics)
    save_topics(graph, DatasetFolder(source).topics)
    assert split_rows(source, tmp_path / "out", PLAN).largest_group == 20


def test_what_a_format_cannot_hold_is_left_out_and_said(tmp_path: Path) -> None:
    rows = [made.plain_row(number) for number in range(1, 9)]
    call = replace(rows[0].messages[1].tool_calls[0], arguments="[1]")
    broken = (rows[0].messages[0], replace(rows[0].messages[1], tool_calls=(call,)), *rows[0].messages[2:])
    rows[0] = replace(rows[0], messages=broken)
    source = made.write_rows(tmp_path / "rows.jsonl", rows)
    splits = split_rows(
        source, tmp_path / "out", SplitPlan(shares={"train": 1.0}, formats=("trl", "treadle"))
    )
    assert "1 row: the arguments of a call are […]" in splits.left_out["train.trl.jsonl"]
    assert len((tmp_path / "out" / "train.trl.jsonl").read_bytes().splitlines()) == 7
    assert len((tmp_path / "out" / "train.treadle.jsonl").read_bytes().splitlines()) == 8
    assert read_written(tmp_path / "out").left_out == splits.left_out


def test_a_format_that_holds_no_row_has_no_file(tmp_path: Path) -> None:
    """Loaders of datasets refuse all files if one of them has no rows."""
    pytest.importorskip("pyarrow")
    folder = made.plain_folder(tmp_path / "d", 8)
    for name in ("custom", "hf_trace"):
        split_rows(folder, folder, SplitPlan(shares={"all": 1}, formats=("trl", name), parquet=True))
    found = split_rows(folder, folder, SplitPlan(shares={"all": 1}, formats=("trl", "custom"), parquet=True))
    assert found.files == ("all.trl.jsonl", "all.trl.parquet")
    assert found.left_out["all.custom.jsonl"].startswith("8 rows: ")
    assert sorted(path.name for path in folder.glob("all.*")) == ["all.trl.jsonl", "all.trl.parquet"]
    assert list(read_written(folder).by_format()) == ["trl"]


def test_parquet_has_the_same_rows(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    source = made.plain_folder(tmp_path / "d", 6)
    config = type(made.CONFIG).model_validate({**made.CONFIG.model_dump(), "output": {"parquet": True}})
    splits = write_splits(source, config)
    assert splits.files == ("train.trl.jsonl", "train.trl.parquet")
    assert len(list(read_objects(source / "train.trl.parquet", "trl"))) == 6


def test_a_row_that_arrow_cannot_hold_ends_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows are written as JSON lines first, so an error of Arrow after all the work loses no row."""
    pytest.importorskip("pyarrow")
    source = made.plain_folder(tmp_path / "d", 6)
    monkeypatch.setitem(FORMATS.table, "bad", "tests.datagen.dataset.test_splits:BAD")
    plan = SplitPlan(shares={"train": 1.0}, formats=("bad", "trl"), parquet=True)
    splits = split_rows(source, source, plan)
    assert splits.files == ("train.bad.jsonl", "train.trl.jsonl", "train.trl.parquet")
    assert splits.left_out["train.bad.parquet"].startswith("all rows: ")
    assert len((source / "train.bad.jsonl").read_bytes().splitlines()) == 6


class Bad:
    """A format whose rows do not have the columns that it names."""

    has_reasoning = False
    has_own_files = False
    losses = ()
    columns: ClassVar = {"messages": ColumnType.INTEGER}
    aliases = frozenset[str]()

    def write(self, row: Row, *, with_reasoning: bool) -> dict[str, str]:
        return {"messages": "not a number", "other": "x"}


BAD = Bad()


def test_a_format_with_a_file_for_each_row_gets_a_folder(tmp_path: Path) -> None:
    source = made.plain_folder(tmp_path / "d", 6)
    splits = split_rows(source, source, SplitPlan(shares={"train": 1.0}, formats=("hf_trace",)))
    assert splits.files == ("train.hf_trace",)
    assert len(list((source / "train.hf_trace").iterdir())) == 6
    split_rows(source, source, SplitPlan(shares={"train": 1.0}))
    assert not (source / "train.hf_trace").exists()


def test_files_of_splits_that_are_gone_are_removed_and_no_others(tmp_path: Path) -> None:
    source = made.plain_folder(tmp_path / "d", 40, leaves=10)
    (source / "mine.trl.jsonl").write_text("kept")
    split_rows(source, source, PLAN)
    split_rows(source, source, SplitPlan(shares={"all": 1.0}))
    names = {path.name for path in source.glob("*.trl.jsonl")}
    assert names == {"mine.trl.jsonl", "all.trl.jsonl"}


def test_an_impossible_split_is_refused(tmp_path: Path) -> None:
    source = made.plain_folder(tmp_path / "d", 4)
    with pytest.raises(ConfigError, match=r"cannot be called '\.\./x'"):
        split_rows(source, tmp_path, SplitPlan(shares={"../x": 1.0}))
    with pytest.raises(ConfigError, match="did you mean 'trl'"):
        split_rows(source, tmp_path, SplitPlan(shares=SHARES, formats=("trk",)))


def test_joined_keys_are_one_group_in_any_order() -> None:
    unions = Unions()
    for pair in (("c", "d"), ("b", "c"), ("x", "y"), ("a", "d")):
        unions.join(*pair)
    assert {unions.find(key) for key in "abcd"} == {"a"}
    assert unions.find("y") == "x"
