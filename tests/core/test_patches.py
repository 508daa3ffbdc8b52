"""Contents that are stored as patches come back as they were, and take little room."""

import hashlib
import random
import re
from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.core.errors import JournalError
from treadle.core.texts.patches import Patch, Version, load, read_patch, store_next


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


class Kept:
    """The versions of one file, as a store keeps them."""

    def __init__(self, content: bytes) -> None:
        self.contents = [content]
        self.version = Version(digest_of(content))
        self.stored = {self.version.digest: content}

    def add(self, content: bytes) -> None:
        digest = digest_of(content)
        self.version, stored = store_next(self.version, self.contents[-1], digest, content)
        self.stored.setdefault(digest, stored)
        self.contents.append(content)

    def check(self) -> None:
        for content in self.contents:
            version, found = load(self.stored.__getitem__, digest_of(content))
            assert found == content
            assert len(version.patches) <= len(self.contents).bit_length()

    @property
    def size(self) -> int:
        return sum(map(len, self.stored.values()))


Edit = tuple[float, int, bytes]
CONTENTS = st.binary(max_size=40) | st.sampled_from(
    [b"a line of text\n" * 50, bytes(range(256)) * 3, b"x" * 700]
)
EDITS = st.tuples(st.floats(0, 1), st.integers(0, 300), CONTENTS)


def edited(content: bytes, edit: Edit) -> bytes:
    where, removed, added = edit
    at = int(where * len(content))
    return content[:at] + added + content[at + removed :]


@given(CONTENTS, st.lists(st.lists(EDITS, min_size=1, max_size=3), max_size=12), st.booleans())
def test_every_version_comes_back(start: bytes, versions: list[list[Edit]], is_reopened: bool) -> None:
    kept = Kept(start * 3)
    for edits in versions:
        content = kept.contents[-1]
        for edit in edits:
            content = edited(content, edit)
        kept.add(content)
        if is_reopened:
            kept.version, _ = load(kept.stored.__getitem__, digest_of(content))
    kept.check()


def at_the_end(content: bytes, chance: random.Random) -> bytes:
    return content + chance.randbytes(100)


def in_the_middle(content: bytes, chance: random.Random) -> bytes:
    at = chance.randrange(len(content) + 1)
    return content[:at] + chance.randbytes(100) + content[at:]


def in_three_places(content: bytes, chance: random.Random) -> bytes:
    for _ in range(3):
        at = chance.randrange(len(content) - 40)
        content = content[:at] + chance.randbytes(40) + content[at + 35 :]
    return content


@pytest.mark.parametrize(
    ("start", "edit", "most"),
    [
        (b"", at_the_end, 250_000),
        (b"", in_the_middle, 250_000),
        (random.Random(2).randbytes(100_000), in_three_places, 500_000),
    ],
)
def test_small_edits_take_little_room(
    start: bytes, edit: Callable[[bytes, random.Random], bytes], most: int
) -> None:
    kept, chance = Kept(start), random.Random(1)
    for _ in range(400):
        kept.add(edit(kept.contents[-1], chance))
    kept.check()
    assert sum(map(len, kept.contents)) > 35 * kept.size
    assert kept.size < most


def test_what_is_new_throughout_is_stored_whole() -> None:
    chance = random.Random(1)
    kept = Kept(chance.randbytes(5000))
    for _ in range(3):
        kept.add(chance.randbytes(5000))
    assert kept.version.patches == ()
    assert kept.size == 20_000


def test_a_content_that_looks_like_a_patch_is_a_content() -> None:
    kept = Kept(b"a" * 2000)
    kept.add(b"a" * 1999 + b"b")
    (patch,) = [stored for stored in kept.stored.values() if stored[0] == 0]
    assert load(lambda _: patch, digest_of(patch))[1] == patch


def test_a_version_that_comes_back_needs_no_patch_of_itself() -> None:
    first, second = b"a" * 2000, b"a" * 1000 + b"b" + b"a" * 1000
    kept = Kept(first)
    for content in (second, first, second, first, second):
        kept.add(content)
    kept.check()
    assert len(kept.stored) == 2


def test_every_flip_in_a_patch_is_found() -> None:
    kept = Kept(b"some text that is long enough\n" * 40)
    kept.add(kept.contents[0] + b"more")
    kept.add(kept.contents[1].replace(b"long", b"LONG", 1))
    patched = [name for name, stored in kept.stored.items() if read_patch(name, stored)]
    assert len(patched) == 2
    for name in patched:
        stored = kept.stored[name]
        for bit in range(8 * len(stored)):
            flipped = bytearray(stored)
            flipped[bit // 8] ^= 1 << bit % 8
            damaged = {**kept.stored, name: bytes(flipped)}

            def read(digest: str, damaged: dict[str, bytes] = damaged) -> bytes:
                if digest not in damaged:
                    raise JournalError("missing")
                return damaged[digest]

            try:
                _, found = load(read, name)
            except JournalError:
                continue
            assert found in kept.contents  # the number of a version is not part of its content


def test_patches_in_a_circle_end_with_an_error() -> None:
    magic = b"\x00treadle patch 1\n"
    one, two = digest_of(b"1"), digest_of(b"2")
    stored = {
        one: magic + msgspec.msgpack.encode(Patch(1, bytes.fromhex(two), ((0, 1),))),
        two: magic + msgspec.msgpack.encode(Patch(1, bytes.fromhex(one), ((0, 1),))),
    }
    with pytest.raises(JournalError, match="its patch refers to itself"):
        load(stored.__getitem__, one)


def test_a_patch_that_makes_too_much_is_refused() -> None:
    base = b"0" * 1_000_000
    patch = Patch(1, bytes.fromhex(digest_of(base)), ((0, 1_000_000),) * 2000)
    stored = {"d": b"\x00treadle patch 1\n" + msgspec.msgpack.encode(patch), digest_of(base): base}
    with pytest.raises(JournalError, match=re.escape("1,073,741,824 bytes")):
        load(stored.__getitem__, "d")
