"""The compression of frames with a dictionary that is made from the first frames of a job.

A frame of JSON lines begins with a brace. A packed one begins with another byte and the number of its dictionary,
which is a row of the table `dictionaries`. Checksums are those of the JSON lines. The runs whose frames a
dictionary was made from are stored with it: if one of them is deleted, the dictionary goes too.
"""

import sys
from typing import TYPE_CHECKING, Any

import msgspec

from treadle.core.errors import JournalError
from treadle.journal.tables.table_rows import Query

if TYPE_CHECKING:
    from backports.zstd import ZstdCompressor, ZstdDict

_MARK = b"\x01"
_ID_BYTES = 4
_HEAD_BYTES = len(_MARK) + _ID_BYTES
_LEVEL = 3
_DICTIONARY_BYTES = 96 * 1024
_TABLE_BYTES = 8 * 1024
"""How much longer a dictionary is than the frames in it, at most."""
_KNOWN_RATIO = 6
"""A frame that shrinks by this factor, given the frames that are in a dictionary already, is left out of it."""
_LEAST_FRAMES = 32
"""A dictionary is made from so many frames at least."""
_ENOUGH_FRAMES, _ENOUGH_BYTES = 224, 512 * 1024
"""When so many frames, or so many bytes of them, have been collected, a dictionary is made from them."""

_PAGE_FRAMES = 1000
"""How many frames are packed in one transaction."""
_MOST_BYTES = 2**30
"""The longest frame that SQLite could hold if it were not packed. A file from elsewhere may claim more."""

_encode = msgspec.json.Encoder().encode


class Packer:
    """The compressor of the frames that are written. One thread uses it at a time."""

    def __init__(self, number: int, content: bytes) -> None:
        self.number = number
        """The row of the dictionary."""
        zstd = _zstd()
        options = zstd.CompressionParameter
        self._mode = zstd.ZstdCompressor.FLUSH_FRAME
        self._compressor: ZstdCompressor = zstd.ZstdCompressor(
            options={options.compression_level: _LEVEL, options.dict_id_flag: 0, options.checksum_flag: 0},
            zstd_dict=zstd.ZstdDict(content),
        )
        self._head = _head(number)

    def pack(self, frame: bytes) -> bytes:
        """Return a frame in its shortest form."""
        packed = self._head + self._compressor.compress(frame, self._mode)
        return packed if len(packed) < len(frame) else frame


class Unpacker:
    """The dictionaries that were read, by number. Any thread may use it."""

    def __init__(self) -> None:
        self._known: dict[int, ZstdDict] = {}

    def unpack(self, query: Query, body: object) -> object:
        """Return the JSON lines of a frame. Raises: `JournalError` if its dictionary is missing or the frame cannot
        be read."""
        if not isinstance(body, bytes) or body[:1] != _MARK:
            return body
        zstd, number = _zstd(), int.from_bytes(body[1:_HEAD_BYTES], "big")
        try:
            if (found := self._known.get(number)) is None:
                rows = query("SELECT content FROM dictionaries WHERE id=?", (number,))
                if not rows:
                    raise JournalError(f"a frame needs the dictionary {number}, which is missing")
                found = self._known[number] = zstd.ZstdDict(rows[0][0])
            reader = zstd.ZstdDecompressor(found)
            frame: bytes = reader.decompress(memoryview(body)[_HEAD_BYTES:], _MOST_BYTES)
        except (zstd.ZstdError, ValueError, TypeError) as error:
            raise JournalError(f"a packed frame cannot be read ({error})") from error
        if not reader.eof:
            raise JournalError(f"a packed frame is cut off, or has more than {_MOST_BYTES} bytes")
        return frame


class Samples:
    """The first frames of a job, until a dictionary is made from them."""

    def __init__(self) -> None:
        self._frames: dict[int, bytes] = {}
        self._runs: set[int] = set()
        self._bytes = 0

    def add(self, run: int, number: int, frame: bytes) -> bool:
        """Take a frame, and return whether there are enough of them now."""
        self._frames[number] = frame
        self._runs.add(run)
        self._bytes += len(frame)
        return len(self._frames) >= _ENOUGH_FRAMES or self._bytes >= _ENOUGH_BYTES

    def learn(self, query: Query) -> None:
        """Make a dictionary from the frames, within a transaction, and pack them with it."""
        zstd = _zstd()
        if len(self._frames) < _LEAST_FRAMES:
            return
        try:
            content = _make_dictionary([*self._frames.values()])
        except zstd.ZstdError:  # they have too little in common
            return
        query("INSERT INTO dictionaries(content, runs) VALUES(?,?)", (content, _encode(sorted(self._runs))))
        packer = find_packer(query)
        assert packer is not None
        for number, frame in self._frames.items():
            query("UPDATE frames SET body=? WHERE id=? AND body=?", (packer.pack(frame), number, frame))


def _make_dictionary(frames: list[bytes]) -> bytes:
    """Return a dictionary of the frames that differ most. Raises: `ZstdError`.

    Whole frames are better here than the pieces that zstd's own training chooses: a prompt that all runs begin with
    has thousands of token ids.
    """
    zstd, content = _zstd(), b""
    for frame in frames:
        if content:
            shrunk = zstd.compress(frame, _LEVEL, zstd_dict=zstd.ZstdDict(content, is_raw=True))
            if len(frame) > _KNOWN_RATIO * len(shrunk):
                continue
        content = (content + frame)[:_DICTIONARY_BYTES]
        if len(content) == _DICTIONARY_BYTES:
            break
    chosen = zstd.ZstdDict(content, is_raw=True)
    made: bytes = zstd.finalize_dict(chosen, frames, len(content) + _TABLE_BYTES, _LEVEL).dict_content
    return made


def take_samples(query: Query) -> Samples:
    """Return frames from all parts of a file, for a dictionary."""
    samples = Samples()
    last = query("SELECT coalesce(max(id), 0) FROM frames", ())[0][0]
    for at in range(0, last, max(1, last // _ENOUGH_FRAMES)):
        rows = query("SELECT run, id, body FROM frames WHERE id > ? ORDER BY id LIMIT 1", (at,))
        if rows and samples.add(*rows[0]):
            break
    return samples


def pack_frames(query: Query, packer: Packer, last: int) -> int:
    """Pack the next frames after frame `last`, within a transaction. Return the newest of them; 0 if there is
    none."""
    rows = query("SELECT id, body FROM frames WHERE id > ? ORDER BY id LIMIT ?", (last, _PAGE_FRAMES))
    for number, body in rows:
        if isinstance(body, bytes) and body[:1] != _MARK and (packed := packer.pack(body)) != body:
            query("UPDATE frames SET body=? WHERE id=?", (packed, number))
    return rows[-1][0] if rows else 0


def find_packer(query: Query, last: Packer | None = None) -> Packer | None:
    """Return the packer with the newest dictionary, which is `last` if it has not changed."""
    rows = query("SELECT max(id) FROM dictionaries", ())
    number = rows[0][0]
    if number is None or (last is not None and last.number == number):
        return last if number is not None else None
    try:
        return Packer(number, query("SELECT content FROM dictionaries WHERE id=?", (number,))[0][0])
    except Exception:  # a damaged one keeps nobody from writing
        return None


def forget_run(query: Query, key: int) -> None:
    """Remove the dictionaries that were made from frames of a run, and unpack what needs them, within a
    transaction."""
    for number, runs in query("SELECT id, runs FROM dictionaries", ()):
        if key not in msgspec.json.decode(runs, type=list[int]):
            continue
        unpacker = Unpacker()
        packed = query("SELECT id FROM frames WHERE substr(body, 1, ?) = ?", (_HEAD_BYTES, _head(number)))
        for (frame,) in packed:
            body = query("SELECT body FROM frames WHERE id=?", (frame,))[0][0]
            query("UPDATE frames SET body=? WHERE id=?", (unpacker.unpack(query, body), frame))
        query("DELETE FROM dictionaries WHERE id=?", (number,))


def _head(number: int) -> bytes:
    return _MARK + number.to_bytes(_ID_BYTES, "big")


if sys.version_info >= (3, 14):

    def _zstd() -> Any:
        from compression import zstd

        return zstd
else:

    def _zstd() -> Any:
        from backports import zstd

        return zstd
