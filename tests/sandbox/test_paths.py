from pathlib import PurePosixPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.core.errors import SandboxError
from treadle.sandbox.paths import folders_of, normalize_file, normalize_folder

hostile = st.lists(
    st.sampled_from(["..", ".", "", "a", "b.txt", "..a", "a..", "~", "C:", "\\", "\0", "é", "\ud800"])
).map("/".join)


@pytest.mark.parametrize(
    ("path", "normal"),
    [
        ("a/b", "a/b"),
        ("/a/b", "a/b"),
        ("./a", "a"),
        ("a//b", "a/b"),
        ("a/./b", "a/b"),
        ("a/../b", "b"),
        ("a/b/../../c", "c"),
        ("...", "..."),
        (" a ", " a "),
    ],
)
def test_spellings_of_one_file_are_one_path(path: str, normal: str) -> None:
    assert normalize_file(path) == normal


@pytest.mark.parametrize("path", ["..", "../a", "/../a", "a/../../b", "./../a", "a/b/../../../c"])
def test_leaving_the_root_is_refused_by_name(path: str) -> None:
    with pytest.raises(SandboxError, match="leaves the sandbox's root") as caught:
        normalize_file(path)
    assert repr(path) in str(caught.value)


@pytest.mark.parametrize("path", ["", "/", ".", "a/", "a/.", "a/b/.."])
def test_folders_are_not_files(path: str) -> None:
    with pytest.raises(SandboxError, match="names a folder"):
        normalize_file(path)
    assert normalize_folder(path) in ("", "a")


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("a\0b", "NUL"),
        ("..\\a", "backslash"),
        ("a\ud800", "Unicode"),
        ("é" * 128, "255 bytes"),
        ("a/" * 3000 + "b", "4096 bytes"),
    ],
)
def test_paths_that_no_disk_could_hold_are_refused(path: str, why: str) -> None:
    with pytest.raises(SandboxError, match=why) as caught:
        normalize_file(path)
    assert len(str(caught.value)) < 200


@given(hostile | st.text())
def test_nothing_leaves_the_root(path: str) -> None:
    try:
        normal = normalize_file(path)
    except SandboxError:
        return
    parts = normal.split("/")
    assert not PurePosixPath(normal).is_absolute()
    assert not {"", ".", ".."} & set(parts)
    assert not {"\0", "\\"} & set(normal)
    assert normalize_file(normal) == normal


def test_folders_of_a_path_are_outermost_first() -> None:
    assert folders_of("a/b/c.txt") == ["a", "a/b"]
    assert folders_of("c.txt") == []
