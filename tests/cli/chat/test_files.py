"""The files that a message names."""

from pathlib import Path

import pytest

from treadle.cli.chat.mentioned_files import find_files


def test_names_may_be_quoted_and_end_a_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "my notes.txt", "b"):
        Path(name).write_text("x")
    text = "see @a.txt, @'my notes.txt' or @\"my notes.txt\" or @my\\ notes.txt. and (@b) @b!"
    found, missing = find_files(text)
    assert [path.name for path in found] == ["a.txt", "my notes.txt", "my notes.txt", "my notes.txt", "b"]
    assert missing == []


def test_a_name_that_looks_like_a_file_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert find_files("ask @kim about @report.pdf and @x/y, mail a@b.no") == ([], ["report.pdf", "x/y"])
