"""Contents that are stored as changes to other contents, so that an edit of a file does not store the whole file
again.

Under the SHA-256 of a content a store has the content, or a patch that makes it from another stored content, its
base. The hash distinguishes them, because a patch has a different hash. A content that is made from patches is
checked against its hash when it is read.

The versions of a file are numbered since the newest one that is stored whole, number 0. The base of version n is
the version whose number is n without its lowest set bit. So reading version n takes as many patches as n has set
bits, and all patches together contain each change at most log2(n) times. If a patch would take more than half of
the content's size, the content is stored whole and is number 0 again.
"""

import hashlib
import re
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

import msgspec
from msgspec import Struct

from treadle.core.errors import JournalError

ReadStored = Callable[[str], bytes]
"""A function that returns what a store has under a hash: the content or a patch."""

Piece: TypeAlias = bytes | tuple[int, int]
"""New bytes, or the offset and length of bytes of the base."""

_MAGIC = b"\x00treadle patch 1\n"
_MIN_BYTES = 512
"""The size below which a content is stored whole."""
_MAX_BYTES = 1024**3
"""The size above which a content is stored whole. No patch makes a larger content."""
_MIN_CHUNK = 64
_MAX_CHUNKS = 16_384


class Patch(Struct, frozen=True, array_like=True):
    """The instructions to make a content from its base."""

    number: int
    """The number of the version."""
    base: bytes
    """The base's SHA-256."""
    pieces: tuple[Piece, ...]
    """The parts of the content, in order."""


class Version(Struct, frozen=True):
    """One version of a file, with the data that is needed to store the next version as a patch."""

    digest: str
    number: int = 0
    patches: tuple[Patch, ...] = ()
    """The patches that lead to this version. The first one is for the whole content."""


def store_next(old: Version, before: bytes, digest: str, content: bytes) -> tuple[Version, bytes]:
    """Return the version that follows `old`, whose content is `before`, and what to store under `digest`."""
    if not _MIN_BYTES <= len(content) <= _MAX_BYTES:
        return Version(digest), content
    pieces, base, patches = _diff(before, content), bytes.fromhex(old.digest), list(old.patches)
    ones = old.number
    while ones & 1:
        patch = patches.pop()
        pieces, base = _compose(pieces, patch.pieces), patch.base
        ones >>= 1
    patch = Patch(old.number + 1, base, tuple(pieces))
    stored = _MAGIC + msgspec.msgpack.encode(patch)
    if len(stored) > len(content) // 2 or base.hex() == digest:
        return Version(digest), content
    return Version(digest, patch.number, (*patches, patch)), stored


def load(read: ReadStored, digest: str) -> tuple[Version, bytes]:
    """Return a stored content, and its version. Raises: `JournalError` if it is damaged or missing."""
    patches: list[Patch] = []
    names = [digest]
    while (patch := read_patch(names[-1], content := read(names[-1]))) is not None:
        patches.append(patch)
        names.append(patch.base.hex())
        if names[-1] in names[:-1]:
            raise JournalError(f"the content {digest!r} is damaged: its patch refers to itself")
    patches.reverse()
    for patch in patches:
        content = _apply(patch.pieces, content)
    if hashlib.sha256(content).hexdigest() != digest:
        raise JournalError(f"the content {digest!r} is damaged: its hash is different")
    return Version(digest, _number_of(patches), tuple(patches)), content


def read_patch(digest: str, stored: bytes) -> Patch | None:
    """Return the patch that is stored under `digest`, or `None` if the content itself is."""
    if not stored.startswith(_MAGIC) or hashlib.sha256(stored).hexdigest() == digest:
        return None
    try:
        return msgspec.msgpack.decode(stored[len(_MAGIC) :], type=Patch)
    except msgspec.DecodeError as error:
        raise JournalError(
            f"the content {digest!r} is damaged: its patch cannot be read ({error})"
        ) from error


def _number_of(patches: Sequence[Patch]) -> int:
    number = rest = patches[-1].number if patches else 0
    for patch in reversed(patches):
        if patch.number != rest:
            break
        rest &= rest - 1
    # If another run stored one of the bases, with patches of its own, the next version becomes a patch of the whole
    # content.
    return (1 << len(patches)) - 1 if rest else number


def _apply(pieces: Iterable[Piece], base: bytes) -> bytes:
    size = 0
    parts: list[bytes] = []
    for piece in pieces:
        part = piece if isinstance(piece, bytes) else base[piece[0] : piece[0] + piece[1]]
        size += len(part)
        if size > _MAX_BYTES:
            raise JournalError(f"a patch makes more than {_MAX_BYTES:,} bytes; the content is damaged")
        parts.append(part)
    return b"".join(parts)


def _compose(pieces: Iterable[Piece], under: Sequence[Piece]) -> list[Piece]:
    """Return the pieces of a content over the base of its base, which `under` makes from it."""
    starts: list[int] = []
    end = 0
    for piece in under:
        starts.append(end)
        end += _size_of(piece)
    found: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, bytes):
            _add(found, piece)
            continue
        offset, length = piece
        index = bisect_right(starts, offset) - 1
        while length:
            inner, skipped = under[index], offset - starts[index]
            size = min(length, _size_of(inner) - skipped)
            if isinstance(inner, bytes):
                _add(found, inner[skipped : skipped + size])
            else:
                _add(found, (inner[0] + skipped, size))
            offset, length, index = offset + size, length - size, index + 1
    return found


def _size_of(piece: Piece) -> int:
    return len(piece) if isinstance(piece, bytes) else piece[1]


def _add(pieces: list[Piece], piece: Piece) -> None:
    """Append a piece, and join it with the last one if they belong together."""
    last = pieces[-1] if pieces else None
    if isinstance(piece, bytes):
        if isinstance(last, bytes):
            pieces[-1] = last + piece
        elif piece:
            pieces.append(piece)
    elif isinstance(last, tuple) and sum(last) == piece[0]:
        pieces[-1] = (last[0], last[1] + piece[1])
    elif piece[1]:
        pieces.append(piece)


def _diff(old: bytes, new: bytes) -> list[Piece]:
    start = _count_equal(old, new)
    rest = min(len(old), len(new)) - start
    end = _count_equal(old[len(old) - rest :], new[len(new) - rest :], from_end=True)
    pieces: list[Piece] = []
    _add(pieces, (0, start))
    for piece in _match(old[start : len(old) - end], new[start : len(new) - end]):
        _add(pieces, piece if isinstance(piece, bytes) else (piece[0] + start, piece[1]))
    _add(pieces, (len(old) - end, end))
    return pieces


def _count_equal(left: bytes, right: bytes, *, from_end: bool = False) -> int:
    low, high = 0, min(len(left), len(right))
    while low < high:
        middle = (low + high + 1) // 2
        if from_end:
            is_equal = (
                left[len(left) - middle : len(left) - low] == right[len(right) - middle : len(right) - low]
            )
        else:
            is_equal = left[low:middle] == right[low:middle]
        low, high = (middle, high) if is_equal else (low, middle - 1)
    return low


def _match(old: bytes, new: bytes) -> list[Piece]:
    """Return pieces that make `new` from `old`, which differ at both ends, by comparing chunks."""
    pieces: list[Piece] = []
    position = after = 0
    for start, place, size in _find_chunks(old, new):
        gap = new[position:start]
        same = _count_equal(gap, old[after : after + len(gap)])
        _add(pieces, (after, same))
        gap = gap[same:]
        same = _count_equal(gap, old[max(0, place - len(gap)) : place], from_end=True)
        _add(pieces, gap[: len(gap) - same])
        _add(pieces, (place - same, same + size))
        position, after = start + size, place + size
    return pieces


def _find_chunks(old: bytes, new: bytes) -> Iterator[tuple[int, int, int]]:
    """Yield the chunks of `new` that `old` also has: where each is in `new` and in `old`, and its size. The last
    one is empty and at both ends."""
    if old and len(new) > 2 * _MIN_CHUNK:
        cut = _cutter(max(len(old), len(new)))
        places: dict[bytes, int] = {}
        for found in cut.finditer(old):
            places.setdefault(found.group(), found.start())
        after = 0
        for found in cut.finditer(new):
            chunk = found.group()
            place = after if old.startswith(chunk, after) else places.get(chunk)
            if place is not None:
                yield found.start(), place, len(chunk)
                after = place + len(chunk)
    yield len(new), len(old), 0


def _cutter(size: int) -> re.Pattern[bytes]:
    """Return a pattern that cuts bytes into chunks, depending only on the bytes around a cut."""
    low = _MIN_CHUNK
    while size > low * _MAX_CHUNKS:
        low *= 2
    return re.compile(rb"[\s\S]{%d}[^\n,;}>\x00]{0,%d}+[\s\S]?|[\s\S]+" % (low, 16 * low))
