"""Merging datasets: rows that are there twice are left out and counted, and ids are made unique."""

from pathlib import Path

import pytest
from tests.datagen.dataset import made

from treadle import ConfigError
from treadle.datagen.dataset.dataset_stats import collect
from treadle.datagen.dataset.entries import merge, read_entries
from treadle.datagen.dataset.splits import SplitPlan, split_rows


def test_duplicates_are_counted_and_ids_are_unique(tmp_path: Path) -> None:
    one = made.write_rows(tmp_path / "one.jsonl", [made.plain_row(number) for number in range(1, 11)])
    # The same sample with another text, the same text as another sample, and a new one with a known id.
    again = made.plain_row(1, text="What is in the first file?")
    same = made.plain_row(50, text="What is in file 2?", seed=7)
    other = made.plain_row(3, text="How much is the tea?", name="other")
    two = made.write_rows(tmp_path / "two.jsonl", [again, same, other])
    merged = merge([one, two], tmp_path / "out")
    first, second = merged.sources
    assert (first.rows, first.kept) == (10, 10)
    assert (second.same_sample, second.same_content, second.renamed, second.kept) == (1, 1, 1, 1)
    entries = list(read_entries(tmp_path / "out"))
    assert merged.rows == len(entries) == 11
    assert len({entry.row_id for entry in entries}) == 11
    last = entries[-1].row.lineage
    assert last.sample is not None
    assert (last.sample.sample_id, last.sample.dataset, last.run_id) == (
        "other-s000003",
        "other",
        "s000003-1",
    )


def test_datasets_with_the_same_name_and_other_topics_are_not_mixed_up(tmp_path: Path) -> None:
    one = made.plain_folder(tmp_path / "one", 5)
    rows = [
        made.plain_row(number, text=f"Other {number}", topic_id=f"{number:016x}") for number in range(1, 6)
    ]
    two = made.write_rows(tmp_path / "two.jsonl", rows)
    merged = merge([one, two, one], tmp_path / "out")
    assert [source.kept for source in merged.sources] == [5, 5, 0]
    stats = collect(tmp_path / "out")
    assert (stats.rows, stats.duplicates, stats.repeated_ids) == (10, 0, 0)


def test_all_rows_of_a_merge_can_be_files_of_their_own(tmp_path: Path) -> None:
    """Runs of different datasets have the same ids, so half of the rows were left out of such a format."""
    one = made.write_rows(tmp_path / "one.jsonl", [made.plain_row(number) for number in (1, 2)])
    other = made.plain_row(2, text="How much is the tea?", name="other")
    merge([one, made.write_rows(tmp_path / "two.jsonl", [other])], tmp_path / "all")
    found = split_rows(
        tmp_path / "all", tmp_path / "all", SplitPlan(shares={"train": 1.0}, formats=("hf_trace",))
    )
    assert found.left_out == {}
    files = sorted(file.name for file in (tmp_path / "all" / "train.hf_trace").iterdir())
    assert files == ["other-s000002.jsonl", "s000001-1.jsonl", "s000002-1.jsonl"]


def test_a_folder_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    one = made.plain_folder(tmp_path / "one", 1)
    with pytest.raises(ConfigError, match="not empty"):
        merge([one], one)
    with pytest.raises(ConfigError, match="not empty"):
        merge([one], one, is_forced=True)
    merge([one], tmp_path / "all")
    with pytest.raises(ConfigError, match="--force replaces it"):
        merge([one], tmp_path / "all")
    assert merge([one], tmp_path / "all", is_forced=True).rows == 1
    with pytest.raises(ConfigError, match="one of the datasets to merge"):
        merge([tmp_path / "all"], tmp_path / "all", is_forced=True)
    with pytest.raises(ConfigError, match="there is no file"):
        merge([tmp_path / "absent"], tmp_path / "out")
    assert not (tmp_path / "out").exists()
