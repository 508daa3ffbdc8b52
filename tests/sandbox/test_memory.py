import hashlib
import random
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from treadle.core.errors import JournalError, SandboxError
from treadle.core.types import FileDelta
from treadle.sandbox.in_memory import MemorySandbox
from treadle.sandbox.protocol import Sandbox

PATHS = st.sampled_from(["a", "b", "a/b", "a/b/c", "d/e", "d/f", "d", "/d/e", "./b", "d/../b"])
CONTENTS = st.sampled_from([b"", b"1", b"2", b"\xff\x00"])


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def contents_of(sandbox: Sandbox) -> dict[str, bytes]:
    return {path: sandbox.read(path) for path in sandbox.paths()}


class Snapshots:
    """What a journal keeps of a sandbox: the combined deltas, and the contents."""

    def __init__(self) -> None:
        self.files: dict[str, str] = {}
        self.blobs: dict[str, bytes] = {}

    def add(self, taken: tuple[FileDelta, Mapping[str, bytes]] | None) -> None:
        if taken is None:
            return
        delta, blobs = taken
        assert {digest(content): content for content in blobs.values()} == blobs
        assert set(delta.changed.values()) == set(blobs)
        assert delta.changed or delta.deleted
        assert set(delta.deleted) <= set(self.files)
        assert all(self.files.get(path) != new for path, new in delta.changed.items())
        self.blobs.update(blobs)
        self.files = {path: hash_ for path, hash_ in self.files.items() if path not in delta.deleted}
        self.files.update(delta.changed)

    def restore(self) -> MemorySandbox:
        return MemorySandbox.restore(self.files, self.blobs.__getitem__)


class AgainstADict(RuleBasedStateMachine):
    """A sandbox behaves like a dict of paths, and its deltas always restore it."""

    @initialize(files=st.dictionaries(st.sampled_from(["a", "d/e", "x/y/z"]), CONTENTS))
    def begin(self, files: dict[str, bytes]) -> None:
        self.sandbox = MemorySandbox(files)
        self.model = dict(files)
        self.kept = Snapshots()
        self.reported: dict[str, bytes] | None = None
        """The files at the last delta; `None` if none was taken."""
        self.others: list[tuple[MemorySandbox, dict[str, bytes]]] = []

    def normal(self, path: str) -> str:
        return "b" if path == "d/../b" else path.removeprefix("./").removeprefix("/")

    @rule(path=PATHS, content=CONTENTS)
    def write(self, path: str, content: bytes) -> None:
        name = self.normal(path)
        clashes = [
            other for other in self.model if other.startswith(f"{name}/") or name.startswith(f"{other}/")
        ]
        if clashes:
            with pytest.raises(SandboxError):
                self.sandbox.write(path, content)
        else:
            self.sandbox.write(path, content)
            self.model[name] = content
            assert self.sandbox.read(path) == content

    @rule(path=PATHS)
    def delete(self, path: str) -> None:
        name = self.normal(path)
        if name in self.model:
            self.sandbox.delete(path)
            del self.model[name]
        with pytest.raises(SandboxError):
            self.sandbox.read(path)
        with pytest.raises(SandboxError):
            self.sandbox.delete(path)

    @rule()
    def take_and_restore(self) -> None:
        self.kept.add(self.sandbox.take_delta())
        assert self.sandbox.take_delta() is None
        self.reported = dict(self.model)
        restored = self.kept.restore()
        assert contents_of(restored) == self.model
        assert restored.snapshot_id == self.sandbox.snapshot_id
        assert restored.take_delta() is None

    @rule()
    def go_on_from_restored(self) -> None:
        self.kept.add(self.sandbox.take_delta())
        self.sandbox, self.reported = self.kept.restore(), dict(self.model)

    @rule()
    def undo(self) -> None:
        self.sandbox.undo_changes()
        self.model = dict(self.model if self.reported is None else self.reported)

    @rule()
    def go_on_with_a_copy(self) -> None:
        self.others.append((self.sandbox, dict(self.model)))
        self.sandbox, self.kept, self.reported = self.sandbox.copy(), Snapshots(), None

    @invariant()
    def same_files(self) -> None:
        assert contents_of(self.sandbox) == self.model
        assert self.sandbox.paths() == sorted(self.model)
        assert self.sandbox.snapshot_id == MemorySandbox(self.model).snapshot_id
        for other, model in self.others:
            assert contents_of(other) == model


TestAgainstADict = AgainstADict.TestCase


def test_texts_are_kept_as_utf_8() -> None:
    assert MemorySandbox({"a": "é"}).read("a") == "é".encode()
    with pytest.raises(SandboxError, match="'a' is not valid Unicode"):
        MemorySandbox({"a": "\ud800"})


def test_a_path_given_twice_is_refused() -> None:
    with pytest.raises(SandboxError, match="given twice"):
        MemorySandbox({"a": b"1", "./a": b"2"})


def test_clashes_between_files_and_folders_say_which() -> None:
    sandbox = MemorySandbox({"a/b": b""})
    with pytest.raises(SandboxError, match="'a' is a folder"):
        sandbox.write("a", b"")
    with pytest.raises(SandboxError, match="'a/b' is a file, so 'a/b/c/d' cannot lie in it"):
        sandbox.write("a/b/c/d", b"")
    with pytest.raises(SandboxError, match="'a' is a folder"):
        sandbox.read("a")
    with pytest.raises(SandboxError, match="is a file"):
        MemorySandbox({"a": b"", "a/b": b""})
    sandbox.delete("a/b")
    sandbox.write("a", b"now a file")


def test_a_refused_write_leaves_no_trace() -> None:
    sandbox = MemorySandbox({"a": b""})
    sandbox.take_delta()
    with pytest.raises(SandboxError):
        sandbox.write("a/b", b"")
    assert sandbox.take_delta() is None


def test_the_snapshot_id_depends_on_the_files_alone() -> None:
    sandbox = MemorySandbox({"b": b"2", "a": b"1"})
    first = sandbox.snapshot_id
    assert MemorySandbox({"a": b"1", "b": b"2"}).snapshot_id == first
    assert MemorySandbox({"b": b"1", "a": b"2"}).snapshot_id != first
    sandbox.write("c", b"3")
    other = sandbox.copy()
    assert other.snapshot_id == sandbox.snapshot_id != first
    other.delete("c")
    assert other.snapshot_id == first != sandbox.snapshot_id
    assert MemorySandbox().snapshot_id == "0" * 64


def test_the_first_delta_reports_every_file_and_later_ones_what_changed() -> None:
    sandbox = MemorySandbox({"a": b"1", "b": b"2", "c": b"2"})
    one, two, three = digest(b"1"), digest(b"2"), digest(b"3")
    assert sandbox.take_delta() == (
        FileDelta({"a": one, "b": two, "c": two}),
        {one: b"1", two: b"2"},
    )
    sandbox.write("a", b"3")
    sandbox.delete("b")
    sandbox.write("c", b"9")
    sandbox.write("c", b"2")
    sandbox.write("d", b"")
    sandbox.delete("d")
    assert sandbox.take_delta() == (FileDelta({"a": three}, ("b",)), {three: b"3"})


def test_an_empty_sandbox_has_nothing_to_report() -> None:
    assert MemorySandbox().take_delta() is None


def test_damaged_contents_are_not_restored() -> None:
    with pytest.raises(JournalError, match="is damaged: its hash is different"):
        MemorySandbox.restore({"a": digest(b"1")}, lambda _: b"2")


def test_the_next_delta_can_be_prepared_and_is_the_same() -> None:
    first = random.Random(1).randbytes(100_000)
    changes: list[Any] = []
    for is_prepared in (False, True):
        sandbox = MemorySandbox({"a": first, "b": first})
        if is_prepared:
            sandbox.prepare_delta()
        taken = [sandbox.take_delta()]
        sandbox.write("a", first + b"x")
        sandbox.write("c", first)
        assert sandbox.unprepared_bytes == 200_001
        if is_prepared:
            sandbox.prepare_delta()
            assert sandbox.unprepared_bytes == 0
        sandbox.delete("c")
        sandbox.write("b", first + b"y")
        taken.append(sandbox.take_delta())
        sandbox.write("a", first + b"xz")
        if is_prepared:
            sandbox.prepare_delta()
        sandbox.write("a", first + b"xyz")
        changes.append([*taken, sandbox.take_delta(), sandbox.snapshot_id])
    assert changes[0] == changes[1]


def test_restoring_reads_each_content_once() -> None:
    asked: list[str] = []

    def read_blob(name: str) -> bytes:
        asked.append(name)
        return b"1"

    MemorySandbox.restore({"a": digest(b"1"), "b": digest(b"1")}, read_blob)
    assert asked == [digest(b"1")]


def test_copies_share_contents() -> None:
    first = MemorySandbox({"a": b"1" * 1000})
    assert first.copy().read("a") is first.read("a")


def test_threads_lose_no_change() -> None:
    sandbox = MemorySandbox()
    kept = Snapshots()

    def work(number: int) -> None:
        for index in range(50):
            sandbox.write(f"{number}/{index}", b"1")
            if index % 2:
                sandbox.delete(f"{number}/{index}")

    with ThreadPoolExecutor(8) as pool:
        jobs = [pool.submit(work, number) for number in range(8)]
        while not all(job.done() for job in jobs):
            kept.add(sandbox.take_delta())
        for job in jobs:
            job.result()
    kept.add(sandbox.take_delta())
    assert len(sandbox.paths()) == 8 * 25
    assert kept.restore().snapshot_id == sandbox.snapshot_id


@given(st.dictionaries(st.text(st.sampled_from("ab/."), min_size=1), st.binary(max_size=3), max_size=5))
def test_what_goes_in_comes_out(files: dict[str, bytes]) -> None:
    try:
        sandbox = MemorySandbox(files)
    except SandboxError:
        return
    assert {path: sandbox.read(path) for path in files} == files
    assert len(sandbox.paths()) == len(files)


def test_changes_are_undone_to_the_last_delta() -> None:
    before = {"a": b"1", "c/d": b"2", "k": b"3"}
    sandbox = MemorySandbox(before)
    sandbox.write_state("x", b"0")
    sandbox.take_delta()
    for path in ("a", "c/d"):
        sandbox.delete(path)
    for path in ("a/b", "c", "k", "new"):
        sandbox.write(path, b"other")
    sandbox.write("a/b", b"again")
    sandbox.write_state("x", b"1")
    sandbox.write_state("y", b"2")
    sandbox.undo_changes()
    assert contents_of(sandbox) == before
    assert (sandbox.read_state("x"), sandbox.read_state("y")) == (b"0", None)
    assert sandbox.snapshot_id == MemorySandbox(before).snapshot_id
    assert not sandbox.has_changes
    assert sandbox.take_delta() is None


def test_what_has_changed_is_known_without_taking_a_delta() -> None:
    sandbox = MemorySandbox({"a": "1"})
    assert sandbox.has_changes
    sandbox.take_delta()
    assert not sandbox.has_changes
    assert sandbox.copy().has_changes
    sandbox.write("a", b"1")
    sandbox.read("a")
    assert not sandbox.has_changes
    for change in (
        lambda: sandbox.write("b", b"2"),
        lambda: sandbox.delete("b"),
        lambda: sandbox.write_state("tool", b"3"),
    ):
        change()
        assert sandbox.has_changes
        sandbox.take_delta()
        assert not sandbox.has_changes
    assert not MemorySandbox.restore({}, lambda digest: b"").has_changes
