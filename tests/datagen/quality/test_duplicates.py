"""The search for duplicates: paraphrases are found, and different requests that share most words are kept."""

import os
import sqlite3
from pathlib import Path

import pytest
from benchmarks.requests import make_requests

from treadle.core.types import Effect, Message, Role, ToolCall, ToolSpec
from treadle.datagen.quality.duplicates import DuplicateIndex, DuplicateSettings
from treadle.datagen.quality.signatures import content_words
from treadle.export.rows import Lineage, Row

COUNT = 100_000 if os.environ.get("TREADLE_FULL") == "1" else 4000
TOOLS = (ToolSpec("read_file", "", {}, Effect.PURE), ToolSpec("list_files", "", {}, Effect.PURE))
SUM = "Please add up the column amount in data/june-3.csv, only the orders of Anna Bauer that are paid."


def row(text: str, *calls: str) -> Row:
    made = [ToolCall(f"c{number}", name, '{"file_path":"x"}') for number, name in enumerate(calls)]
    messages = [Message(Role.USER, text)]
    if made:
        results = [Message(Role.TOOL, "r", call_id=item.call_id) for item in made]
        messages += [Message(Role.ASSISTANT, tool_calls=tuple(made)), *results]
    messages.append(Message(Role.ASSISTANT, "Done."))
    return Row(tuple(messages), TOOLS, Lineage("r", "m", "completed", "h"))


def index(path: Path | str = ":memory:", **settings: float) -> DuplicateIndex:
    connection = sqlite3.connect(path, isolation_level=None)
    return DuplicateIndex(connection, DuplicateSettings.model_validate(settings))


@pytest.mark.sets(0)
@pytest.mark.parametrize("variant", ["usual", "shuffled"])
def test_planted_paraphrases_are_found_and_little_else(variant: str, tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    connection.execute("BEGIN")
    found = DuplicateIndex(connection)
    requests = make_requests(COUNT, 0.05, variant)
    asks: dict[str, int] = {}
    right = wrong = 0
    for number, request in enumerate(requests):
        made = row(request.text)
        verdict = found.find(made)
        if not verdict.is_passed:
            is_right = request.is_paraphrase and asks[verdict.details["of"]] == request.asks
            right, wrong = right + is_right, wrong + (not is_right)
        asks[f"s{number}"] = request.asks
        found.add(f"s{number}", made)
    planted = sum(request.is_paraphrase for request in requests)
    assert planted == COUNT * 0.05
    assert right >= 0.95 * planted
    assert right >= 0.95 * (right + wrong)


@pytest.mark.parametrize(
    ("text", "is_duplicate"),
    [
        (SUM, True),
        (SUM.upper(), True),
        (
            "Only the orders of Omar Weber that are paid: please add up the column amount in old/may.csv.",
            True,
        ),
        (
            "Hi, could you please add up the column amount in x.csv? Only orders of Eva that are paid, thanks!",
            True,
        ),
        (SUM.replace("amount", "discount"), False),
        (SUM.replace("add up", "count"), False),
        (SUM.replace("paid", "cancelled"), False),
        (f"{SUM} Then write a report with a chart and send it to the customers.", False),
    ],
)
def test_another_column_or_operation_is_another_request(text: str, is_duplicate: bool) -> None:
    found = index()
    found.add("s1", row(SUM))
    verdict = found.find(row(text))
    assert verdict.is_passed is not is_duplicate
    assert is_duplicate is (verdict.details.get("of") == "s1")


def test_the_shape_of_the_tool_use_counts_only_together_with_the_words() -> None:
    found = index()
    found.add("s1", row(SUM, "list_files", "read_file"))
    again = "Add up the column amount in data/may.csv. Only paid orders of Eva Weber."
    assert not found.find(row(again, "list_files", "read_file", "read_file")).is_passed
    assert found.find(row(again, "write_file", "shell")).is_passed
    assert not found.find(row(SUM, "write_file", "shell")).is_passed, "the same words"
    other = "Which of the notes in docs/ mention a deadline that is over?"
    assert found.find(row(other, "list_files", "read_file")).is_passed
    assert not index_with(SUM, shape=0.0).find(row(again, "shell")).is_passed


def index_with(text: str, **settings: float) -> DuplicateIndex:
    found = index(**settings)
    found.add("s1", row(text))
    return found


def test_short_requests_are_only_compared_exactly() -> None:
    assert index_with("Who is Ada Lovelace?").find(row("Who is Alan Turing?")).is_passed
    assert not index_with("Who is Ada Lovelace?").find(row("who is ada  lovelace")).is_passed


def test_the_transaction_is_the_callers_and_a_row_can_be_replaced(tmp_path: Path) -> None:
    """Rules out that a row is forgotten, or known, other than with the outcome of its sample."""
    connection = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    found = DuplicateIndex(connection)
    connection.execute("BEGIN")
    found.add("s1", row(SUM))
    connection.execute("ROLLBACK")
    assert (found.count(), found.find(row(SUM)).is_passed) == (0, True)
    found.add("s1", row("Something else, about invoices, taxes and their totals."))
    found.add("s1", row(SUM))
    connection.close()
    again = DuplicateIndex(sqlite3.connect(tmp_path / "ledger.db"))
    assert (again.count(), again.find(row(SUM)).is_passed) == (1, False)
    assert again.find(row("Something else, about invoices, taxes and their totals.")).is_passed


def test_names_and_numbers_are_told_from_words() -> None:
    assert content_words("Anna Bauer owes 12.50 for reports/x.csv.") == {"owe"}
    assert content_words('Sum the column "net price" of INV-2024-7') == {"sum", "column"}
    assert content_words("Count the ERROR lines") == {"count", "error", "line"}
    assert content_words("Tom's file. Move Tom's file to Berlin") == {"file", "move"}
    assert content_words("Summiere die Spalte Betrag der Datei") >= {"spalte", "betrag", "datei"}
    assert content_words("合計を計算") == {"合計", "計を", "を計", "計算"}
