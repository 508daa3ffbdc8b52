"""`open_journal` finds a store by the beginning of an address."""

from pathlib import Path

import pytest

from treadle.core.errors import ConfigError, JournalError
from treadle.journal.memory import MemoryJournal
from treadle.journal.protocol import StoreOptions
from treadle.journal.registry import open_journal
from treadle.journal.sqlite.sqlite_journal import SqliteJournal


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """Install a package with a store called `elsewhere`."""
    package = tmp_path / "store_of_a_test-1.dist-info"
    package.mkdir()
    (package / "METADATA").write_text("Metadata-Version: 2.1\nName: store-of-a-test\nVersion: 1\n")
    (package / "entry_points.txt").write_text("[treadle.journal]\nelsewhere = store_of_a_test:open_store\n")
    (tmp_path / "store_of_a_test.py").write_text(
        "from treadle.journal.memory import MemoryJournal\n"
        "def open_store(address, options):\n"
        "    journal = MemoryJournal()\n"
        "    journal.told = address, options\n"
        "    return journal\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))


def test_a_store_of_another_package_is_opened_by_its_scheme(elsewhere):
    journal = open_journal("elsewhere://host/name", level="power", must_exist=True, lease_seconds=3)
    address, options = journal.told
    assert address == "//host/name"
    assert isinstance(options, StoreOptions)
    assert (options.level, options.must_exist, options.lease_seconds) == ("power", True, 3)


@pytest.mark.parametrize("name", ["runs.db", "a:b.db", "memory:x", "c:\\runs.db"])
def test_everything_else_is_the_path_of_a_file(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for path in (name, Path(name), Path("memory:")):
        with open_journal(path) as journal:
            assert isinstance(journal, SqliteJournal)
            assert journal.path == Path(path)


def test_the_default_file_is_made_with_its_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(JournalError, match="there is no journal at"):
        open_journal(must_exist=True)
    assert list(tmp_path.iterdir()) == []
    open_journal().close()
    assert (tmp_path / ".treadle" / "runs.db").exists()


def test_a_named_file_is_made_with_its_folders_unless_it_must_exist(tmp_path):
    path = tmp_path / "a" / "b" / "runs.db"
    with pytest.raises(JournalError, match="there is no journal at"):
        open_journal(path, must_exist=True)
    assert not (tmp_path / "a").exists()
    open_journal(str(path)).close()
    assert path.exists()


def test_memory_is_one_journal_for_each_call():
    assert isinstance(open_journal("memory:"), MemoryJournal)
    with pytest.raises(ConfigError, match="keeps nothing at level 'power'"):
        open_journal("memory:", level="power")
    with pytest.raises(ConfigError, match="has no address"):
        open_journal("memory://x")


def test_an_unknown_store_is_told_with_near_names():
    with pytest.raises(ConfigError, match=r"unknown store 'memry'; did you mean 'memory'\?"):
        open_journal("memry:")
