"""What of a folder on disk comes into a sandbox, and what is left out."""

import os
import random
import shutil
import socket
import sqlite3
import subprocess
import sys
import tempfile
from contextlib import closing
from pathlib import Path

import pytest
from tests.conftest import IS_FULL

from treadle import open_journal
from treadle.core.errors import ConfigError
from treadle.sandbox.in_memory import MemorySandbox
from treadle.sandbox.mount import MAX_FILE_BYTES, Mount


def fill(root: Path, *names: str) -> Path:
    """Make files, each with its name as its content."""
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    return root


def test_a_folder_is_read_and_never_written(tmp_path: Path) -> None:
    fill(tmp_path, ".hidden", "sub/deep/é.txt")
    (tmp_path / "empty").mkdir()
    sandbox = MemorySandbox(Mount(tmp_path))
    assert sandbox.paths() == [".hidden", "sub/deep/é.txt"]
    sandbox.write(".hidden", b"changed")
    sandbox.delete("sub/deep/é.txt")
    assert (tmp_path / ".hidden").read_text() == ".hidden"
    assert (tmp_path / "sub" / "deep" / "é.txt").exists()


def test_links_are_followed_only_within_the_folder(tmp_path: Path) -> None:
    root = fill(tmp_path, "outside/secret", "root/sub/file", "root/.env", "root/.venv/lib/file") / "root"
    for name, target in {
        "to_file": "sub/file",
        "to_folder": "sub",
        "to_outside": "../outside",
        "to_secret": "../outside/secret",
        "to_nothing": "nothing",
        "to_itself": "to_itself",
        "to_key": ".env",
        "to_environment": ".venv/lib",
        "sub/up": "..",
    }.items():
        (root / name).symlink_to(target)
    (tmp_path / "root_link").symlink_to(root)
    for path in (root, tmp_path / "root_link"):
        mount = Mount(path)
        assert sorted(mount) == ["sub/file", "to_file", "to_folder/file"]
        assert mount.left_out == [".env", ".venv/", "to_environment/", "to_key"]
        assert mount.refused["to_outside/"] == "its target is outside the folder"
        assert "to_secret" in mount.refused
        assert mount.refused["sub/up/"] == "its target is a folder above it"
        assert {"to_nothing", "to_itself"} <= mount.refused.keys()


def test_what_is_no_regular_file_is_told(tmp_path: Path) -> None:
    fill(tmp_path, "file", "back\\slash")
    os.mkfifo(tmp_path / "pipe")
    with open(os.fsencode(tmp_path) + b"/bad\xff", "w"), socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "socket"))
        mount = Mount(tmp_path)
    assert list(mount) == ["file"]
    assert mount.refused == {
        "pipe": "it is not a regular file",
        "socket": "it is not a regular file",
        "bad\udcff": "a sandbox cannot hold such a name",
        "back\\slash": "a sandbox cannot hold such a name",
    }


def test_what_cannot_be_read_is_told() -> None:
    """The rights of a file do not bind root, so the folder is read by another user."""
    with tempfile.TemporaryDirectory() as folder:
        read_as_another_user(Path(folder))


def read_as_another_user(tmp_path: Path) -> None:
    fill(tmp_path, "open", "shut", "closed/file")
    (tmp_path / "shut").chmod(0)
    (tmp_path / "closed").chmod(0)
    program = (
        "import os; from treadle.sandbox.mount import Mount\n"
        "if os.geteuid() == 0: os.setegid(65534); os.seteuid(65534)\n"
        "m = Mount('.'); print(list(m), m.refused)"
    )
    tmp_path.chmod(0o755)
    env = {"PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, env=env
    )
    denied = "Permission denied"
    assert done.stdout == f"['open'] {{'closed/': '{denied}', 'shut': '{denied}'}}\n", done.stderr


def test_a_folder_over_the_limit_is_refused_with_its_size(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"1" * 600)
    (tmp_path / "b").write_bytes(b"1" * 600)
    with pytest.raises(ConfigError, match=r"1,200 bytes in 2 files, over the limit of 1,199"):
        Mount(tmp_path, max_bytes=1199)
    assert len(Mount(tmp_path, max_bytes=1200)) == 2
    with (tmp_path / "large").open("wb") as file:
        file.truncate(MAX_FILE_BYTES + 1)
    mount = Mount(tmp_path)
    assert (sorted(mount), mount.left_out) == (["a", "b"], ["large"])
    assert "large" in Mount(tmp_path, is_whole=True)


def test_a_single_file(tmp_path: Path) -> None:
    fill(tmp_path, "notes.md", ".env")
    assert dict(Mount(tmp_path / "notes.md")) == {"notes.md": b"notes.md"}
    assert list(Mount(tmp_path / ".env")) == [".env"], "it was asked for by name"
    with pytest.raises(ConfigError, match="nowhere': there is no such file or folder"):
        Mount(tmp_path / "nowhere")


KEYS = [".env", ".env.local", "prod.env", "tls/server.pem", "deploy.key", "id_rsa", ".ssh/config", ".netrc"]
KEYS += [".aws/credentials", "credentials.json", "gcp-credentials.json", ".npmrc", "secrets.yml"]
CACHES = [
    "node_modules/x/y.js",
    ".venv/x",
    "env/pyvenv.cfg",
    "env/lib/x",
    "a/__pycache__/b.pyc",
    ".mypy_cache/x",
]
CACHES += [".git/config", ".hg/x", ".treadle/notes"]
KEPT = ["readme", ".env.example", "credentials.py", "keys/list.txt", "environment/x", ".github/x.yml"]


def test_keys_environments_and_caches_are_left_out_by_default(tmp_path: Path) -> None:
    fill(tmp_path, *KEYS, *CACHES, *KEPT)
    mount = Mount(tmp_path)
    assert sorted(mount) == sorted(KEPT)
    assert {".git/", "env/", "node_modules/", ".env", "tls/server.pem"} <= set(mount.left_out)
    whole = Mount(tmp_path, is_whole=True)
    assert sorted(whole) == sorted([*KEYS, *CACHES, *KEPT])
    assert whole.left_out == []


def test_the_rules_of_git_hold_below_and_above_the_folder(tmp_path: Path) -> None:
    fill(tmp_path, ".git/HEAD", "a.log", "sub/a.log", "sub/keep.log", "sub/local", "build/out/x")
    (tmp_path / ".gitignore").write_text("*.log\nbuild/\n[\n")
    (tmp_path / "sub" / ".gitignore").write_text("!keep.log\n")
    fill(tmp_path / ".git", "info/exclude").joinpath("info/exclude").write_text("local\n")
    assert sorted(Mount(tmp_path)) == [".gitignore", "sub/.gitignore", "sub/keep.log"]
    assert sorted(Mount(tmp_path / "sub")) == [".gitignore", "keep.log"]
    assert sorted(Mount(tmp_path / "build" / "out")) == ["x"], "it was asked for by name"


def list_by_git(root: Path) -> list[str]:
    """The files that git does not ignore."""
    git = [
        "git",
        "-C",
        str(root),
        "-c",
        "core.excludesFile=",
        "ls-files",
        "-z",
        "--others",
        "--exclude-standard",
    ]
    return sorted(subprocess.run(git, capture_output=True, text=True, check=True).stdout.split("\0")[:-1])


PATTERNS = """
a b/ /a *.x !*.x a/b **/b a/** !a/b/ /*/b c.? #a \\#a !a [ab] * !*/ a/* !/a/b d.y/ *.[xy] a/**/b a* ?
[!a] [a-c].? a\\* [ x**y ** /**/ a?b/ !**/a.x [^b]/ *.[!x] !b/d.y a[!b] /*[!b] *[!x] ! \\ b\\ [z-a] */
"""


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_random_rules_mean_what_they_mean_to_git(tmp_path: Path) -> None:
    chosen = random.Random(7)
    folders = ["", "a", "b", "a/b", "a/a", "b/d.y", "a/b/c.x", "a/b/a"]
    for number in range(60 if IS_FULL else 15):
        root = fill(
            tmp_path / str(number),
            *[f"{folder}/{name}" for folder in folders for name in ("f", "c.y", "a.x")],
        )
        for folder in chosen.sample(folders, 3):
            lines = chosen.choices(PATTERNS.split(), k=3)
            (root / folder / ".gitignore").write_text("\n".join(lines) + "\n")
        subprocess.run(["git", "init", "-q", str(root)], check=True)
        rules = [(str(path), path.read_text()) for path in root.rglob(".gitignore")]
        assert sorted(Mount(root)) == list_by_git(root), rules


def test_a_journal_is_never_mounted(tmp_path: Path) -> None:
    fill(tmp_path, "notes")
    for name in ("mine.db", "x/data"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        open_journal(tmp_path / name).close()
    with closing(sqlite3.connect(tmp_path / "other.db")) as other:
        other.execute("CREATE TABLE t (a)")
    with open_journal(tmp_path / "open.db"):
        for is_whole in (False, True):
            mount = Mount(tmp_path, is_whole=is_whole)
            assert sorted(mount) == ["notes", "other.db"]
            assert mount.refused["mine.db"] == "it is a journal"
            assert "open.db" in mount.refused
        with pytest.raises(ConfigError, match="database that is in use"):
            Mount(tmp_path / "open.db")
    with pytest.raises(ConfigError, match="it is a journal"):
        Mount(tmp_path / "x" / "data")
