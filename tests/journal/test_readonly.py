"""A journal in a place where nothing can be written is read as elsewhere."""

import asyncio
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from tests.forks.process import FORKS

from treadle import Agent, ScriptedModel, open_journal

# The files of Python may be closed to the other user, so the process has imported everything before.
READ = """
import asyncio, os, sys
from treadle import Agent, JournalError, ScriptedModel, open_journal
if os.geteuid() == 0:
    os.setgid(65534); os.setuid(65534)
try:
    with open_journal(sys.argv[1]) as journal:
        for info in journal.runs():
            print(info.run_id, info.stop_reason, len(journal.read(info.run_id)))
        asyncio.run(Agent(ScriptedModel(["x"]), journal=journal).run("go"))
except JournalError as error:
    print(error)
"""
BACK_UP = """
import os, sys
from treadle import open_journal
open_journal("memory:").close()
from treadle.journal.sqlite import sqlite_journal
if os.geteuid() == 0:
    os.setgid(65534); os.setuid(65534)
with open_journal(sys.argv[1]) as journal:
    print(journal.backup(sys.argv[2]))
"""
SERVE = """
import os, sys
from treadle import JournalError
from treadle.cli.commands.daemons import serve
from treadle.journal.sqlite import sqlite_journal
from treadle.server import api, api_server, catalog
if os.geteuid() == 0:
    os.setgid(65534); os.setuid(65534)
try:
    serve(model="mock:echo", journal=sys.argv[1], port=0)
except JournalError as error:
    print(error)
"""


@pytest.fixture
def path() -> Iterator[Path]:
    """The place of a journal in a folder that other users can enter."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder / "my runs.db"
        folder.chmod(0o755)


def make_run(path: Path, run_id: str) -> None:
    with open_journal(path) as journal:
        asyncio.run(Agent(ScriptedModel(["done"]), journal=journal).run("go", run_id=run_id))


def read_as_another_user(path: Path, *args: str, script: str = READ, is_still: bool = True) -> list[str]:
    """Read the journal as a user that cannot write it, because root may write everywhere."""
    path.chmod(0o444)
    path.parent.chmod(0o555)
    before = sorted((item.name, item.stat().st_size) for item in path.parent.iterdir())
    process = FORKS.start("-c", script, str(path), *args, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 0, err
    after = sorted((item.name, item.stat().st_size) for item in path.parent.iterdir())
    assert after == before or not is_still
    return out.splitlines()


REFUSED = "is read-only (attempt to write a readonly database); check the file's and folder's rights"


def test_it_is_read_and_writing_is_refused_clearly(path: Path) -> None:
    make_run(path, "r")
    first, refused = read_as_another_user(path)
    assert first == "r completed 6"
    assert refused.endswith(REFUSED)


def test_no_server_begins_on_it(path: Path) -> None:
    make_run(path, "r")
    (refused,) = read_as_another_user(path, script=SERVE)
    assert refused.endswith(REFUSED)


def test_what_a_killed_process_left_is_read_too(path: Path) -> None:
    make_run(path, "r")
    pid = os.fork()
    if pid == 0:
        make_run_and_die(path)
    os.waitpid(pid, 0)
    assert path.with_name(f"{path.name}-wal").stat().st_size
    path.with_name(f"{path.name}-shm").unlink()
    for file in path.parent.iterdir():
        file.chmod(0o444)
    assert read_as_another_user(path)[:2] == ["r completed 6", "killed completed 6"]


@pytest.mark.parametrize("is_left", [False, True])
def test_a_backup_of_it_can_be_written(path: Path, is_left: bool) -> None:
    make_run(path, "r")
    if is_left:
        pid = os.fork()
        if pid == 0:
            make_run_and_die(path)
        os.waitpid(pid, 0)
        path.with_name(f"{path.name}-shm").unlink()
        for file in path.parent.iterdir():
            file.chmod(0o444)
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o777)
        copy = Path(name, "copy.db")
        assert read_as_another_user(path, str(copy), script=BACK_UP) == ["2" if is_left else "1"]
        make_run(copy, "more")
        with open_journal(copy) as journal:
            assert len(journal.runs()) == (3 if is_left else 2)


def make_run_and_die(path: Path) -> None:
    try:
        journal = open_journal(path)
        asyncio.run(Agent(ScriptedModel(["done"]), journal=journal).run("go", run_id="killed"))
    finally:
        os._exit(0)


def test_it_is_read_while_another_process_writes(path: Path) -> None:
    with open_journal(path) as journal:
        asyncio.run(Agent(ScriptedModel(["done"]), journal=journal).run("go", run_id="r"))
        for file in path.parent.iterdir():
            file.chmod(0o644)
        assert read_as_another_user(path, is_still=False)[0] == "r completed 6"


def test_a_file_of_an_older_treadle_is_not_brought_up_to_date(path: Path) -> None:
    make_run(path, "r")
    with closing(sqlite3.connect(path)) as db:
        db.execute("PRAGMA user_version=1")
        db.execute("PRAGMA journal_mode=DELETE")
        db.execute("PRAGMA journal_mode=WAL")
    (told,) = read_as_another_user(path)
    assert "was written by an older Treadle" in told


FILL = """
mount -t tmpfs -o size=300k tmpfs "$1" && cp "$2" "$1/runs.db" && {
    cat /dev/zero >"$1/fill"
    truncate -s "-$5" "$1/fill"
    "$3" -c "$4" "$1/runs.db"
}
"""
HAS_MOUNTS = shutil.which("unshare") is not None and not os.system("unshare -rm true 2>/dev/null")


def read_on_full_disk(path: Path, room: str) -> list[str]:
    """Return the lines that `READ` prints about a copy of a file on a disk that has so much room left."""
    script = READ[: READ.index("if os")] + READ[READ.index("try:") :]
    with tempfile.TemporaryDirectory() as disk:
        words = ["unshare", "-rm", "sh", "-c", FILL, "sh", disk, str(path), sys.executable, script, room]
        done = subprocess.run(words, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout, done
    return done.stdout.splitlines()


@pytest.mark.skipif(not HAS_MOUNTS, reason="needs the right to mount a disk of its own")
def test_it_is_read_on_a_full_disk_and_writing_says_why_not(path: Path) -> None:
    make_run(path, "r")
    first, refused = read_on_full_disk(path, "0")
    assert first == "r completed 6"
    assert "is the disk full?" in refused


@pytest.mark.skipif(not HAS_MOUNTS, reason="needs the right to mount a disk of its own")
def test_a_new_file_that_the_disk_has_no_room_for_says_so(path: Path) -> None:
    """The room is enough for its first page only, and what was left was taken for the file of an older version."""
    (refused,) = read_on_full_disk(Path(os.devnull), "20K")
    assert "is the disk full?" in refused
