"""Generations with servers, folders and files that behave badly."""

import json
from pathlib import Path

import pytest
from tests.datagen.hostile import Server, make_config, read_lines, run

from treadle.core.errors import ConfigError, JournalError


@pytest.fixture(autouse=True)
def _key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "none")


def test_a_dataset_within_the_folder_of_its_files_can_be_continued(tmp_path: Path) -> None:
    """The dataset became a part of the files, so the same command was refused as another configuration."""
    (tmp_path / "notes.txt").write_text("milk: 3\nflour: 4\n")
    with Server() as server:
        tools = {"use": ["files"], "files": str(tmp_path)}
        run(make_config(server, tmp_path, tools=tools, generation={"num_samples": 1}))
        result = run(make_config(server, tmp_path, tools=tools, generation={"num_samples": 2}))
    assert result.progress.kept == 2
    for row in read_lines(tmp_path / "dataset" / "rows.jsonl"):
        assert "ledger" not in json.dumps(row["messages"])


def test_a_lost_journal_is_missed(tmp_path: Path) -> None:
    """Rows would name runs that no longer exist, and what was paid for would be asked again."""
    with Server() as server:
        result = run(make_config(server, tmp_path))
        for file in result.folder.path.glob("journal.db*"):
            file.unlink()
        with pytest.raises(ConfigError, match=r"journal\.db' is missing"):
            run(make_config(server, tmp_path, generation={"num_samples": 3}))
        assert not result.folder.journal.exists()


def test_rows_that_the_ledger_does_not_know_are_not_deleted(tmp_path: Path) -> None:
    """A lost ledger was made anew, and all rows were cut off as if they had not been counted."""
    with Server() as server:
        result = run(make_config(server, tmp_path))
        rows = result.folder.rows.read_bytes()
        result.folder.ledger.unlink()
        for file in result.folder.path.glob("ledger.db-*"):
            file.unlink()
        with pytest.raises(JournalError, match="lines that were not counted"):
            run(make_config(server, tmp_path))
    assert result.folder.rows.read_bytes() == rows


def test_rows_that_were_edited_are_not_cut(tmp_path: Path) -> None:
    """The file was cut in the middle of the last row, or a row was appended to a broken line."""
    with Server() as server:
        result = run(make_config(server, tmp_path))
        rows = result.folder.rows
        lines = rows.read_bytes().splitlines(keepends=True)
        edited = b"".join([lines[0].replace(b'"role"', b'"role" ', 1), *lines[1:]])
        rows.write_bytes(edited)
        with pytest.raises(JournalError, match="was changed"):
            run(make_config(server, tmp_path, generation={"num_samples": 3}))
        assert rows.read_bytes() == edited
