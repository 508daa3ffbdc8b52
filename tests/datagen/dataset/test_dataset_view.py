"""What pages show of a dataset: all rows and rejected samples, and the rows that a search finds."""

import json
import os
from pathlib import Path

import msgspec
import pytest
from msgspec.structs import replace
from tests.datagen.dataset import made

from treadle.core.types import Message, Role, ToolCall
from treadle.datagen.dataset.dataset_folder import DatasetFolder
from treadle.datagen.dataset.dataset_view import RowIndex, compare_datasets, make_dataset_view, write_body
from treadle.datagen.dataset.entries import RowEntry, read_entries
from treadle.jobs.ledger import ItemOutcome, ItemStatus, Ledger, PlannedItem


def test_a_view_has_the_statistics_the_rows_and_the_reasons(tmp_path: Path) -> None:
    path = made.plain_folder(tmp_path / "d", 30, leaves=10)
    with Ledger(DatasetFolder(path).ledger) as ledger:
        for number in range(1, 31):
            ledger.plan(PlannedItem(number, "single", "t", {}))
            ledger.count(
                number, 1, lambda _: ItemOutcome(status=ItemStatus.KEPT, input_tokens=9, cost_usd=0.1)
            )
    view = msgspec.json.decode(msgspec.json.encode(make_dataset_view(path)))
    assert (view["name"], view["about"]) == ("shop", "Shop")
    assert view["notes"] == [
        "All rows were written by Treadle's built-in teacher, and not by a language model."
    ]
    stats = view["stats"]
    assert (stats["rows"], stats["rejected"], stats["topics_with_rows"]) == (30, 2, 10)
    assert stats["counts"]["calls"] == [[1, 30]]
    assert stats["rejections"] == {"grounding": 2}
    assert sorted(count for _, count in view["leaves"]) == [3] * 10
    assert (view["times"]["kept"][-1], view["times"]["tokens"][-1]) == (30, 270)
    heads, bodies = view["rows"]["heads"], view["rows"]["bodies"]
    assert [head["number"] for head in heads] == [*range(1, 31), 1, 2]
    assert sum(head.get("is_rejected", False) for head in heads) == 2
    assert len(bodies) == 32
    rejected = bodies["31"]
    assert [item["is_passed"] for item in rejected["verdicts"]] == [True, False]
    assert rejected["verdicts"][1]["reason"] == "the answer names 4 EUR, which no result has"
    assert bodies["0"]["messages"][1]["calls"][0]["result"] == "tea, 3 EUR"


def test_results_stand_at_their_calls_whatever_their_order(tmp_path: Path) -> None:
    """A result is shown at the call with its id, and never at another one because of its position."""
    calls = tuple([ToolCall(f"c{number}", "read_file", f'{{"path": "{number}"}}') for number in range(3)])
    results = [
        Message(Role.TOOL, f"text {number}", call_id=f"c{number}", name="read_file") for number in (2, 0, 1)
    ]
    row = made.plain_row(1)
    row = replace(
        row, messages=(row.messages[0], Message(Role.ASSISTANT, "", calls), *results), untrained=(0,)
    )
    view = make_dataset_view(made.write_rows(tmp_path / "rows.jsonl", [row]))
    assert view.rows is not None
    answer = msgspec.json.decode(view.rows.bodies[0])["messages"][1]
    shown = answer["calls"]
    assert answer["is_untrained"]
    assert [(call["arguments"][-3], call["result"]) for call in shown] == [
        (str(number), f"text {number}") for number in range(3)
    ]


def test_all_rows_of_a_large_dataset_are_listed_and_a_sample_has_its_messages(tmp_path: Path) -> None:
    count = 100_000 if os.environ.get("TREADLE_FULL") else 3_000
    view = make_dataset_view(made.plain_folder(tmp_path / "d", count, leaves=count // 10, rejected=500))
    assert view.rows is not None
    assert len(view.rows.heads) == count + 500
    assert len(view.rows.bodies) == 1_500
    assert sorted([*view.rows.bodies, *view.rows.words]) == list(range(count + 500))
    asked = next(place for place, head in enumerate(view.rows.heads) if "file 7?" in head.text)
    assert asked in view.rows.bodies or "read_file" in view.rows.words[asked]


def test_an_empty_dataset_has_a_view(tmp_path: Path) -> None:
    view = make_dataset_view(made.plain_folder(tmp_path / "d", 0, rejected=0))
    assert (view.stats["rows"], view.times) == (0, None)
    assert RowIndex(tmp_path / "d").find("", {}, 0, 10).found == 0


WORDS = (
    "What",
    "TEA file",
    '"a.txt"',
    "c:\\temp",
    "wörld",
    "rejected_by_nobody",
    "names 4 EUR",
    "topic 3",
    "messages",
    "s000007",
    "😀",
)


@pytest.mark.parametrize("words", WORDS)
def test_a_search_finds_the_rows_that_say_all_words(tmp_path: Path, words: str) -> None:
    """Every kind of text is searched, and the names of JSON's keys are not."""
    path = made.plain_folder(tmp_path / "d", 20)
    odd = [
        made.plain_row(21, text='He said "a.txt" at c:\\temp\nWÖRLD 😀'),
        made.plain_row(22, text="wörld without a line break"),
    ]
    with DatasetFolder(path).rows.open("ab") as file:
        file.write(made.encode(odd[0]))
        # As a program writes it that escapes what is not ASCII.
        file.write(json.dumps(json.loads(made.encode(odd[1]))).encode() + b"\n")
    wanted = words.lower().split()
    expected = []
    for is_rejected in (False, True):
        for entry in read_entries(path, is_rejected=is_rejected):
            row = entry.row
            texts = [message.content for message in row.messages]
            texts += [f"{call.name} {call.arguments}" for item in row.messages for call in item.tool_calls]
            texts += [f"{item.filter} {item.reason}" for item in entry.verdicts]
            assert row.lineage.sample is not None
            texts += [*row.lineage.sample.topic, row.lineage.sample.sample_id, row.lineage.run_id]
            if all(word in "\n".join(texts).lower() for word in wanted):
                expected.append((is_rejected, entry.number))
    found = RowIndex(path).find(words, {}, 0, 100)
    assert [(head.is_rejected, head.number) for head in found.heads] == expected
    assert found.total == 24
    assert bool(expected) is (words not in ("rejected_by_nobody", "messages"))


def test_rows_are_chosen_in_parts_and_read_one_by_one(tmp_path: Path) -> None:
    path = made.plain_folder(tmp_path / "d", 40)
    index = RowIndex(path)
    chosen = {"topic": "Shop › area 1", "status": "kept"}
    parts = [index.find("", chosen, offset, 6) for offset in range(0, 24, 6)]
    heads = [head for part in parts for head in part.heads]
    assert len(heads) == parts[0].found == 20
    assert all(head.topic.startswith("Shop › area 1 › ") for head in heads)
    assert index.find("", {"filter": "grounding"}, 0, 9).found == 2
    assert index.find("", {"tool": "write_file"}, 0, 9).found == 0
    body = index.read(7, is_rejected=False)
    assert body is not None
    assert body["messages"][0]["text"] == "What is in file 7?"
    rejected = index.read(2, is_rejected=True)
    assert rejected is not None
    assert not rejected["verdicts"][1]["is_passed"]
    assert index.read(99, is_rejected=False) is index.read(0, is_rejected=False) is None
    assert index.is_current
    with DatasetFolder(path).rows.open("ab") as file:
        file.write(made.encode(made.plain_row(99)))
    assert not index.is_current


def test_two_datasets_differ_in_the_rows_that_say_something_else(tmp_path: Path) -> None:
    one = made.plain_folder(tmp_path / "one", 6)
    rows = [made.plain_row(number, text="Other words" if number == 2 else None) for number in (1, 2, 3)]
    moved = made.plain_row(4)
    assert moved.lineage.sample is not None
    lineage = replace(moved.lineage, sample=replace(moved.lineage.sample, sample_id="s000077"))
    other = made.write_rows(tmp_path / "rows.jsonl", [*rows, replace(moved, lineage=lineage)])
    found = compare_datasets(one, other).rows
    assert (found.equal, found.changed, found.moved) == (2, ["s000002"], 1)
    assert found.only == (["s000004", "s000005", "s000006"], ["s000077"])


def test_a_small_cost_of_a_row_is_not_written_as_none() -> None:
    row = made.plain_row(1)
    for cost_usd, told in ((2.5e-05, "<$0.0001"), (0.0, "$0"), (0.25, "$0.2500")):
        sample = replace(made.info(1), cost_usd=cost_usd)
        entry = RowEntry(1, replace(row, lineage=replace(row.lineage, sample=sample)), ())
        assert write_body(entry)["facts"]["cost"] == told
