"""Writing a sandbox's files to disk and reading them back, with changes on either side."""

import os
import stat
import tempfile
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.sandbox.commands.run_folder import STATE, RunFolder
from treadle.sandbox.commands.untrusted import (
    MAX_DEPTH,
    TooMuchError,
    clear_folder,
    measure,
    remove_tree,
    walk,
)
from treadle.sandbox.in_memory import MemorySandbox

NAMES = st.sampled_from(["a", "b", "c"])
PATHS = st.lists(NAMES, min_size=1, max_size=3).map("/".join)
CONTENTS = st.sampled_from([b"", b"one", b"two", b"three"])
BY_OTHERS = ("write", "delete")
BY_COMMANDS = ("folder", "link", "run", "shut", "disk write", "disk delete", "disk move")
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(
            ["write", "delete", "folder", "link", "run", "shut", "disk write", "disk delete", "disk move"]
        ),
        PATHS,
        PATHS,
        CONTENTS,
    ),
    max_size=8,
)


def files_on(root: Path) -> dict[str, bytes]:
    """Return the regular files below a folder."""
    return {
        str(path.relative_to(root)): path.read_bytes()
        for path in root.rglob("*")
        if path.is_file() and not any(part.is_symlink() for part in (path, *path.parents))
    }


def everything_on(root: Path) -> dict[str, object]:
    """Return everything in a folder that a command could see."""
    seen: dict[str, object] = {}
    for found in walk(root):
        mode = found.status.st_mode
        if stat.S_ISLNK(mode):
            seen[found.path] = os.readlink(root / found.path)
        elif stat.S_ISREG(mode):
            seen[found.path] = ((root / found.path).read_bytes(), bool(mode & 0o100))
        else:
            seen[found.path] = "folder"
    return seen


def change(root: Path, sandbox: MemorySandbox, kind: str, path: str, other: str, content: bytes) -> None:
    """Make one change, to the sandbox or to the disk, if it is possible."""
    place = root / path
    try:
        if kind == "write":
            sandbox.write(path, content)
        elif kind == "delete":
            sandbox.delete(path)
        elif kind == "folder":
            place.mkdir(parents=True)
        elif kind == "link":
            place.symlink_to(other)
        elif kind == "run":
            place.chmod(0o755)
        elif kind == "shut":
            place.chmod(0)
        elif kind == "disk write":
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        elif kind == "disk delete":
            place.unlink()
        else:
            place.rename(root / other)
    except OSError:
        pass


@given(st.dictionaries(PATHS, CONTENTS, max_size=5), st.lists(CHANGES, min_size=1, max_size=4))
def test_after_each_command_all_three_are_the_same(
    files: dict[str, bytes], commands: list[list[tuple[str, str, str, bytes]]]
) -> None:
    sandbox = MemorySandbox()
    for path, content in files.items():
        change(Path("/nowhere"), sandbox, "write", path, path, content)
    with tempfile.TemporaryDirectory() as name, tempfile.TemporaryDirectory() as other_name:
        root = Path(name)
        folder = RunFolder(root)
        for changes in commands:
            for kind, *rest in changes:
                if kind in BY_OTHERS:
                    change(root, sandbox, kind, *rest)
            folder.push(sandbox)
            assert files_on(root) == {path: sandbox.read(path) for path in sandbox.paths()}
            for kind, *rest in changes:
                if kind in BY_COMMANDS:
                    change(root, sandbox, kind, *rest)
            assert folder.pull(sandbox, 1000, 10**6) == []
            assert files_on(root) == {path: sandbox.read(path) for path in sandbox.paths()}
            # A resumed run must see the same files as one that was not interrupted.
            clear_folder(Path(other_name))
            RunFolder(Path(other_name)).push(sandbox)
            assert everything_on(Path(other_name)) == everything_on(root)
        clear_folder(root)


def test_what_is_deleted_by_others_takes_its_empty_folders_with_it(tmp_path: Path) -> None:
    sandbox = MemorySandbox({"a/b/c/d": "x", "a/e": "y"})
    folder = RunFolder(tmp_path)
    folder.push(sandbox)
    sandbox.delete("a/b/c/d")
    folder.push(sandbox)
    assert everything_on(tmp_path) == {"a": "folder", "a/e": (b"y", False)}


def test_too_much_leaves_the_sandbox_as_it_was(tmp_path: Path) -> None:
    sandbox = MemorySandbox({"a": "x"})
    folder = RunFolder(tmp_path)
    folder.push(sandbox)
    (tmp_path / "a").write_bytes(b"y")
    (tmp_path / "b").mkdir()
    (tmp_path / "b/c").write_bytes(b"12345")
    for files, size_bytes in ((2, 100), (100, 5)):
        with pytest.raises(TooMuchError, match="more than"):
            folder.pull(sandbox, files, size_bytes)
        assert (sandbox.paths(), sandbox.read("a")) == (["a"], b"x")
    folder.clear()
    folder.push(sandbox)
    assert everything_on(tmp_path) == {"a": (b"x", False)}


def test_a_state_that_was_never_needed_is_not_written(tmp_path: Path) -> None:
    sandbox = MemorySandbox({"a": "x"})
    folder = RunFolder(tmp_path)
    folder.push(sandbox)
    folder.pull(sandbox, 10, 10**6)
    assert sandbox.read_state(STATE) is None


def test_holes_count_as_if_they_were_filled(tmp_path: Path) -> None:
    os.truncate(os.open(tmp_path / "hole", os.O_CREAT | os.O_WRONLY), 10**9)
    with pytest.raises(TooMuchError, match="1,000,000 bytes"):
        measure([tmp_path], 10, 10**6)


def deep(root: Path, depth: int) -> None:
    """Make folders nested in folders."""
    fd = os.open(root, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir("d", dir_fd=fd)
        inner = os.open("d", os.O_RDONLY, dir_fd=fd)
        os.close(fd)
        fd = inner
    os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)


def test_any_depth_is_removed(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    for name in (".removed-1", ".removed-2"):
        (root / name).write_text("in the way")
    (root / ".removed-3/x").mkdir(parents=True)
    deep(root, 3000)
    for path in (root / "d/d", root / "d"):
        path.chmod(0)
    with pytest.raises(TooMuchError, match=f"more than {MAX_DEPTH} deep"):
        list(walk(root))
    open_files = set(os.listdir("/dev/fd"))
    remove_tree(root)
    assert list(tmp_path.iterdir()) == []
    # What other tests left open may be closed meanwhile.
    assert set(os.listdir("/dev/fd")) <= open_files


def test_links_are_removed_and_not_followed(tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "kept").write_text("x")
    root = tmp_path / "root"
    root.mkdir()
    (root / "link").symlink_to(outside)
    (root / "up").symlink_to("..")
    assert [found.path for found in walk(root)] in (["link", "up"], ["up", "link"])
    remove_tree(root)
    assert [path.name for path in outside.iterdir()] == ["kept"]
