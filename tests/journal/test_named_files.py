"""Errors about paths that do not exist name what does."""

from pathlib import Path

import pytest

from treadle.core.errors import ConfigError
from treadle.journal.named_files import read_named, suggest_path


@pytest.mark.parametrize(
    ("name", "end"),
    [
        ("rnus.db", "; did you mean 'runs.db'?"),
        ("foldr", "; did you mean 'folder'?"),
        ("foldr/x", "; there is no folder '{}/foldr'; did you mean 'folder'?"),
        ("folder/x", "; give another"),
        ("zzz", "; give another"),
        ("mine.db", "; give another"),  # only the endings are alike
        ("rnus.sqlite", "; give another"),
        (".hiden", "; give another"),
        ("runs.db", "; give another"),
        ("runs.db/x", "; '{}/runs.db' is not a folder"),
    ],
)
def test_the_nearest_path_is_named(tmp_path: Path, name: str, end: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "runs.db").write_bytes(b"x")
    (tmp_path / ".hidden").write_bytes(b"x")
    assert suggest_path(tmp_path / name, "give another") == end.format(tmp_path)


def test_a_home_that_does_not_exist_is_only_a_missing_folder() -> None:
    with pytest.raises(
        ConfigError, match=r"cannot read the topics of '~nobody-here/x': No such file or dir.*"
    ):
        read_named("the topics of ", "~nobody-here/x")
